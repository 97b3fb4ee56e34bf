"""Steps softer than a drain: who gets one, how it is written, and how exactly it is undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.command import Result, Runner
from collectors.slurm.nodes import NodeState
from collectors.slurm.source import Options
from daemon.drains.ledger import Ledger
from daemon.drains.soft import SoftOptions, back_of, ours_of, plain_shown, shown_from
from daemon.drains.softener import Softener, SoftState
from daemon.policy.cases import LedgerView
from daemon.policy.decisions import Mode
from daemon.policy.holdout import HoldOut, held_out
from daemon.policy.limits import Limits
from daemon.policy.soft_wishes import chances, wishes
from daemon.slurm.adapter import SlurmRefused
from daemon.slurm.proving import Reservation
from daemon.slurm.soft import WEIGHT_MAX, Shown, SoftSlurm
from daemon.store.database import Database
from models.facility import GroupEvent
from models.voices import Risk
from tests.daemon.policy.judging import NOW_NS, case
from tests.daemon.softworld import SoftMemory
from tests.daemon.worlds import GENEROUS, START_NS, Clock, idle, risk, silent


class World:
    """Nodes, risks, a Slurm in memory and a Softener over a ledger; ``cycle`` as the head does."""

    def __init__(
        self, step: str = "weight", mode: Mode = Mode.ACT, database: Database | None = None,
        slurm: SoftMemory | None = None, **soft: object,
    ) -> None:  # fmt: skip
        self.names = [f"n{i}" for i in range(1, 5)]
        self.slurm = slurm or SoftMemory(*self.names)
        self.clock = Clock()
        self.start_ns = START_NS - 10**12
        options = {"step": step, "share_max": 1.0, **soft}
        self.limits = Limits.model_validate({**GENEROUS.model_dump(), "soft": options})
        self.mode = mode
        self.ledger = Ledger(database or Database(":memory:"))
        self.softener = Softener(
            self.slurm, self.ledger, self.limits.soft, mode, lambda: self.start_ns
        )
        self.risks: list[Risk] = []
        self.changes: dict[str, dict[str, object]] = {}

    def nodes(self) -> dict[str, NodeState]:
        made = {}
        for name in self.names:
            shown = self.slurm.nodes[name]
            made[name] = idle(
                name, weight=shown.weight, features=shown.active, **self.changes.get(name, {})
            )
        return made

    def cycle(self, nodes: Mapping[str, NodeState] | None = None) -> None:
        now_ns = self.clock.pass_seconds(15)
        nodes = self.nodes() if nodes is None else nodes
        found = situation(nodes, *self.risks)
        view, reserved = self.ledger.view(now_ns), self.softener.reserved()
        asked = wishes(found, self.limits, view, self.mode, now_ns, reserved)
        self.softener.step(asked, chances(found), nodes, now_ns)

    def verbs(self, node: str = "n1") -> list[str]:
        return [one.verb for one in self.ledger.audit(node=node)][::-1]

    def state(self) -> list[SoftState]:
        return [one.state for one in self.softener.open()]


def situation(nodes: Mapping[str, NodeState], *risks: Risk, **more: object):  # type: ignore[no-untyped-def]
    from daemon.policy.decide import Situation

    return Situation(
        nodes,
        1.0,
        risks=risks,
        coverage=dict.fromkeys(nodes, 1.0),
        **more,  # type: ignore[arg-type]
    )


STEPS = ("weight", "feature", "reservation")


@pytest.mark.parametrize("step", STEPS)
def test_a_likely_node_is_made_less_wanted_and_is_as_before_when_the_risk_is_over(
    step: str,
) -> None:
    world = World(step)
    before = dict(world.slurm.nodes)
    world.risks = [risk("n1", 0.6)]
    for _ in range(3):
        world.cycle()
    assert len(world.slurm.writes) == 1
    assert world.state() == [SoftState.STANDING]
    if step == "weight":
        assert world.slurm.nodes["n1"] == Shown(1001, ("h200", "ib"), ("h200", "ib"))
    elif step == "feature":
        words = ("h200", "ib", "tocsin_risk")
        assert world.slurm.nodes["n1"] == Shown(1, words, words)
    else:
        assert [one.nodes for one in world.slurm.reservations.values()] == [("n1",)]
    world.risks = [risk("n1", 0.45)]  # below the threshold, and not yet calm
    world.cycle()
    assert len(world.slurm.writes) == 1
    world.risks = [risk("n1", 0.3)]
    world.cycle()
    assert world.slurm.nodes == before
    assert world.slurm.reservations == {}
    assert world.state() == []
    assert world.verbs() == [f"soft_{step}", "soft_undone"]
    world.cycle()
    assert len(world.slurm.writes) == 2


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.APPROVE])
def test_outside_act_mode_nothing_is_written_and_it_is_recorded_once(step: str, mode: Mode) -> None:
    world = World(step, mode)
    world.risks = [risk("n1", 0.6)]
    for _ in range(3):
        world.cycle()
    assert world.slurm.writes == []
    assert world.verbs() == [f"soft_{step}"]
    assert "shadow" in world.ledger.audit(node="n1")[0].text


def test_off_by_default() -> None:
    assert Limits().soft.step == "none"
    world = World("none")
    world.risks = [risk("n1", 0.99)]
    world.cycle()
    assert world.slurm.writes == []
    assert world.verbs() == []


def test_a_step_that_stands_is_left_standing_in_shadow() -> None:
    world = World()
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    later = World(mode=Mode.SHADOW, database=world.ledger.database, slurm=world.slurm)
    later.risks = [risk("n1", 0.1)]
    later.cycle()
    assert len(world.slurm.writes) == 1


@pytest.mark.parametrize(
    ("theirs", "after"),
    [
        (Shown(7, ("h200", "ib"), ("h200", "ib")), 7),
        (Shown(1, ("h200", "ib"), ("h200", "ib")), 1),
    ],
)
def test_a_weight_that_somebody_set_since_is_theirs(theirs: Shown, after: int) -> None:
    world = World()
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    world.slurm.nodes["n1"] = theirs
    for _ in range(3):
        world.cycle()
    assert world.state() == [SoftState.LEFT]
    world.risks = [risk("n1", 0.1)]
    world.cycle()
    assert world.slurm.nodes["n1"].weight == after
    assert len(world.slurm.writes) == 1
    assert world.state() == []


def test_features_that_others_add_and_take_meanwhile_stay_as_they_set_them() -> None:
    world = World("feature")
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    world.slurm.nodes["n1"] = Shown(5, ("h200", "tocsin_risk", "nvme"), ("h200", "tocsin_risk"))
    world.cycle()
    world.risks = [risk("n1", 0.1)]
    world.cycle()
    assert world.slurm.nodes["n1"] == Shown(5, ("h200", "nvme"), ("h200",))


def test_a_feature_that_was_there_before_is_not_taken_away() -> None:
    world = World("feature", feature="ib")
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    world.risks = [risk("n1", 0.1)]
    world.cycle()
    assert world.slurm.nodes["n1"].available == ("h200", "ib")


def test_a_reservation_that_somebody_changed_is_theirs() -> None:
    world = World("reservation")
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    (name,) = world.slurm.reservations
    world.slurm.reservations[name] = Reservation(
        name, ("n1", "n2"), ("tocsin", "ann"), True, frozenset({"IGNORE_JOBS"})
    )
    world.risks = [risk("n1", 0.1)]
    world.cycle()
    assert name in world.slurm.reservations
    assert "theirs" in world.ledger.audit(node="n1")[0].text


@pytest.mark.parametrize("step", ["weight", "feature"])
def test_what_a_restart_of_slurmctld_forgot_is_written_again(step: str) -> None:
    world = World(step)
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    ours = world.slurm.nodes["n1"]
    world.slurm.restart()
    world.start_ns = world.clock.now_ns()
    world.cycle()
    assert world.slurm.nodes["n1"] == ours
    assert world.verbs()[-1] == "soft_forgotten"


def test_a_reading_older_than_our_write_changes_nothing() -> None:
    world = World()
    world.risks = [risk("n1", 0.6)]
    old = world.nodes()
    world.cycle()
    world.cycle(old)
    assert world.state() == [SoftState.STANDING]
    assert len(world.slurm.writes) == 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before_write", [True, False])
def test_a_kill_on_the_way_there_leaves_one_step_and_on_the_way_back_none(
    step: str, before_write: bool
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    world = World(step)
    before = dict(world.slurm.nodes)
    for wanted, chance in ((True, 0.6), (False, 0.1)):
        world.risks = [risk("n1", chance)]
        if before_write:
            plain = world.slurm._write
            world.slurm._write = lambda _: kill()  # type: ignore[method-assign]
        else:
            world.slurm.after_write = kill
        with pytest.raises(Killed):
            world.cycle()
        if before_write:
            world.slurm._write = plain  # type: ignore[method-assign]
        world.slurm.after_write = lambda: None
        world = World(step, database=world.ledger.database, slurm=world.slurm)
        world.risks = [risk("n1", chance)]
        for _ in range(2):
            world.cycle()
        assert world.state() == ([SoftState.STANDING] if wanted else [])
        assert (world.slurm.nodes != before or bool(world.slurm.reservations)) is wanted
    assert world.slurm.nodes == before


def test_slurm_away_concludes_nothing() -> None:
    world = World()
    world.risks = [risk("n1", 0.6)]
    world.slurm.away = "slurmctld cannot be reached"
    world.cycle()
    assert world.state() == []
    world.slurm.away = ""
    world.cycle()
    world.slurm.away = "slurmctld cannot be reached"
    world.risks = [risk("n1", 0.1)]
    world.cycle()
    world.slurm.away = ""
    assert world.slurm.nodes["n1"].weight == 1001
    world.cycle()
    assert world.slurm.nodes["n1"].weight == 1


def test_a_risk_that_is_no_longer_heard_is_not_over_until_the_longest_time() -> None:
    world = World(hours=1.0)
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    world.risks = []
    world.cycle()
    assert world.slurm.nodes["n1"].weight == 1001
    world.clock.pass_seconds(3600)
    world.cycle()
    assert world.slurm.nodes["n1"].weight == 1


def test_so_many_nodes_at_most_the_likeliest_first() -> None:
    world = World(nodes_max=2)
    world.risks = [risk("n1", 0.55), risk("n2", 0.8), risk("n3", 0.7), risk("n4", 0.6)]
    world.cycle()
    world.cycle()
    assert sorted(world.slurm.writes) == ["n2 weight=1001", "n3 weight=1001"]


def test_many_likely_nodes_are_no_common_cause_and_a_rack_in_trouble_is_left_alone() -> None:
    nodes = {f"n{i}": idle(f"n{i}") for i in range(100)}
    limits = Limits(soft=SoftOptions(step="weight"), holdout=HoldOut(share=0))
    told = situation(nodes, *(risk(name, 0.6) for name in nodes))
    assert len(wishes(told, limits, LedgerView(), Mode.ACT, NOW_NS)) == 100
    trouble = GroupEvent("rack r1", "power", NOW_NS, ("n1", "n2"), 2, "two feeds are gone", True)
    told = replace(told, groups={"n1": ("rack r1",), "n2": ("rack r2",)}, group_events=(trouble,))
    found = {one.node for one in wishes(told, limits, LedgerView(), Mode.ACT, NOW_NS)}
    assert "n1" not in found
    assert "n2" in found


def test_a_node_that_is_drained_by_anybody_gets_its_old_weight_back() -> None:
    world = World()
    world.risks = [risk("n1", 0.6)]
    world.cycle()
    world.changes["n1"] = {"flags": frozenset({"DRAIN"}), "reason": "ops: PSU"}
    world.cycle()
    assert world.slurm.nodes["n1"].weight == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": frozenset({"DRAIN"}), "reason": "ops"},
        {"base": "down"},
        {"flags": frozenset({"MAINTENANCE"})},
        {"flags": frozenset({"POWERED_DOWN"})},
        {"flags": frozenset({"REBOOT_REQUESTED"})},
    ],
)
def test_a_node_that_somebody_holds_or_that_does_not_work_is_left_alone(
    changes: dict[str, object],
) -> None:
    nodes = {"n1": idle("n1", **changes), "n2": idle("n2")}
    limits = Limits(soft=SoftOptions(step="weight"))
    found = wishes(situation(nodes, risk("n1", 0.6)), limits, LedgerView(), Mode.ACT, NOW_NS)
    assert found == []


def test_locked_silent_held_and_stale_nodes_are_left_alone() -> None:
    nodes = {f"n{i}": idle(f"n{i}") for i in range(1, 11)}
    limits = Limits(soft=SoftOptions(step="weight"))

    def asked(ledger: LedgerView | None = None, **more: object) -> int:
        told = situation(nodes, risk("n1", 0.6), **more)
        return len(wishes(told, limits, ledger or LedgerView(), Mode.ACT, NOW_NS))

    assert asked() == 1
    assert asked(LedgerView(locked={"n1": "ann"})) == 0
    assert asked(LedgerView(held={"n1": case("n1")})) == 0
    assert asked(LedgerView(breaker="20 drains")) == 0
    # A drain would wait for the hold-down; to be taken last suits a node that has just come back.
    assert asked(LedgerView(returned_ns={"n1": NOW_NS - 1})) == 1
    assert asked(silences=(silent("n1", "nvml", "source"),)) == 0
    told = replace(situation(nodes, risk("n1", 0.6)), slurm_age_seconds=1000.0)
    assert wishes(told, limits, LedgerView(), Mode.ACT, NOW_NS) == []


_WORDS = st.lists(st.sampled_from(["a", "b", "c", "tocsin_risk"]), unique=True).map(tuple)


@given(_WORDS, _WORDS, st.integers(0, 9), st.sampled_from(["weight", "feature"]))
def test_undoing_what_nobody_touched_gives_exactly_what_was_there(
    available: tuple[str, ...], active: tuple[str, ...], weight: int, step: str
) -> None:
    before = Shown(weight, available, tuple(one for one in active if one in available))
    options = SoftOptions(step="weight" if step == "weight" else "feature")
    ours = ours_of(step, before, options)
    back = back_of(step, before, ours, ours)
    assert (back or ours) == before
    assert (back is None) is (ours == before)
    assert shown_from(plain_shown(ours)) == ours


# ---- a Slurm, and sites, that are not kind -------------------------------------------------------


def test_a_weight_near_slurms_maximum_is_raised_no_further_and_put_back() -> None:
    assert ours_of("weight", Shown(WEIGHT_MAX - 5), SoftOptions()).weight == WEIGHT_MAX
    world = World()
    world.slurm.nodes["n1"] = replace(world.slurm.nodes["n1"], weight=WEIGHT_MAX - 5)
    before = dict(world.slurm.nodes)
    world.risks = [risk("n1", 0.7)]
    world.cycle()
    assert world.slurm.nodes["n1"].weight == WEIGHT_MAX
    world.risks = [risk("n1", 0.1)]
    world.cycle()
    assert world.slurm.nodes == before


@pytest.mark.parametrize("feature", ["gpu/a100@sxm*8", "cpu(avx)|ib"])
def test_odd_features_of_a_site_are_written_as_they_are(feature: str) -> None:
    runner = Runs()
    SoftSlurm(Options(), runner).set_features("n1", Shown(1, (feature,), (feature,)))
    assert f"ActiveFeatures={feature}" in runner.argv


@pytest.mark.parametrize("feature", ['a"b', "a b", "a,b", "a\\b", "grün", ""])
def test_a_feature_that_cannot_be_written_is_a_refusal_of_this_node_and_no_crash(
    feature: str,
) -> None:
    runner = Runs()
    with pytest.raises(SlurmRefused, match="cannot be written back"):
        SoftSlurm(Options(), runner).set_features("n1", Shown(1, (feature,), (feature,)))
    with pytest.raises(SlurmRefused, match="no weight"):
        SoftSlurm(Options(), runner).set_weight("n1", WEIGHT_MAX + 1)
    assert runner.argv == []


def test_a_step_that_slurm_will_not_take_back_holds_up_no_other() -> None:
    world = World("reservation")
    world.risks = [risk("n1", 0.7), risk("n2", 0.6)]
    world.cycle()
    kept = world.slurm.release

    def stuck(name: str) -> None:
        if world.slurm.reservations[name].nodes == ("n1",):
            raise SlurmRefused("a job runs in it", "refused")
        kept(name)

    world.slurm.release = stuck  # type: ignore[method-assign]
    world.risks = [risk("n1", 0.1), risk("n2", 0.1), risk("n3", 0.7)]
    for _ in range(3):
        world.cycle()
    assert sorted(one.nodes for one in world.slurm.reservations.values()) == [("n1",), ("n3",)]
    assert world.verbs("n1") == ["soft_reservation", "soft_refused"], "told once"
    world.slurm.release = kept  # type: ignore[method-assign]
    world.cycle()
    assert [one.nodes for one in world.slurm.reservations.values()] == [("n3",)]


def test_reservations_and_drains_together_leave_a_partition_its_nodes() -> None:
    nodes = {f"n{i}": idle(f"n{i}") for i in range(1, 9)}
    limits = Limits(
        soft=SoftOptions(step="reservation", share_max=1.0), partition_share_max=0.5,
        drained_share_max=1.0, holdout=HoldOut(share=0),
    )  # fmt: skip
    told = situation(nodes, *(risk(f"n{i}", 0.7 + i / 100) for i in range(1, 9)))
    view = LedgerView(held={"n8": case("n8")})

    def wished(*reserved: str) -> list[str]:
        held = frozenset(reserved)
        return [one.node for one in wishes(told, limits, view, Mode.ACT, NOW_NS, held)]

    assert wished() == ["n7", "n6", "n5"], "half of the partition, the drain counted"
    assert wished("n1", "n2") == ["n7"]
    assert wished("n1", "n2", "n3") == []
    # A weight takes no node away: it needs no cap but its own.
    weight = limits.model_copy(update={"soft": SoftOptions(step="weight")})
    assert len(wishes(told, weight, view, Mode.ACT, NOW_NS)) == 7


@pytest.mark.parametrize("step", STEPS)
def test_a_node_that_is_held_out_is_only_watched(step: str) -> None:
    nodes = {f"n{i}": idle(f"n{i}") for i in range(1, 41)}
    limits = Limits(soft=SoftOptions.model_validate({"step": step}), holdout=HoldOut(share=0.5),
                    drained_share_max=1.0, partition_share_max=1.0,
                    drained_nodes_max=1000)  # fmt: skip
    told = situation(nodes, *(risk(name, 0.6) for name in nodes))
    found = {one.node for one in wishes(told, limits, LedgerView(), Mode.ACT, NOW_NS)}
    out = {name for name in nodes if held_out(name, "risk", NOW_NS, limits.holdout)}
    assert 5 < len(out) < 35
    assert found == set(nodes) - out


class Runs(Runner):
    """Keeps the argument list; every command succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.argv: list[str] = []

    def run(self, argv: Sequence[str], **more: object) -> Result:
        self.argv = list(argv)
        return Result(tuple(argv), "ended", 0)
