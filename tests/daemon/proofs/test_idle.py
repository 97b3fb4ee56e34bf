"""Probes of idle nodes: who is probed, what gives way, and what a result may say of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.drains.ledger import Ledger
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Mode
from daemon.policy.limits import Limits
from daemon.proofs.idle import (
    HOUR_NS,
    IdleOptions,
    Known,
    Pending,
    Told,
    due,
    facts,
    unfit,
    verdict,
    wanted,
)
from daemon.proofs.idle_prober import IdleProber
from daemon.proofs.proof import Probe, ProofOptions, Result
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable
from daemon.slurm.idling import parse_pending
from daemon.slurm.proving import ProofJob
from daemon.store.database import Database
from models.voices import Remedy
from tests.daemon.worlds import SECOND_NS, START_NS, cluster, idle

OPTIONS = IdleOptions(every_hours=24, idle_seconds=0, per_hour=100)
NOTHING = Known({}, {}, {}, 0, 0)
NOW = START_NS + 1000 * HOUR_NS


def known(**changes: object) -> Known:
    always = dict.fromkeys((f"n{i}" for i in range(1, 50)), 0)
    return replace(NOTHING, idle_ns=always, **changes)  # type: ignore[arg-type]


# ---- who is probed -------------------------------------------------------------------------------


def test_the_node_that_was_probed_longest_ago_is_next_and_the_budget_holds() -> None:
    nodes = cluster(4)
    told = {"n1": NOW - 30 * HOUR_NS, "n2": NOW - 40 * HOUR_NS, "n3": NOW - HOUR_NS}
    at_once = replace_options(nodes_at_once=2)
    assert due(nodes, known(told_ns=told), frozenset(), frozenset(), at_once, NOW) == ["n4", "n2"]
    one = known(told_ns=told, open=1)
    assert due(nodes, one, frozenset(), frozenset(), at_once, NOW) == ["n4"]
    spent = known(told_ns=told, begun_last_hour=100)
    assert due(nodes, spent, frozenset(), frozenset(), at_once, NOW) == []


def replace_options(**changes: object) -> IdleOptions:
    return IdleOptions(**{**OPTIONS.model_dump(), **changes})  # type: ignore[arg-type]


def test_off_by_default() -> None:
    assert due(cluster(4), known(), frozenset(), frozenset(), IdleOptions(), NOW) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "allocated"},
        {"base": "mixed"},
        {"base": "down"},
        {"jobs": ("7",)},
        {"flags": frozenset({"DRAIN"}), "reason": "swap the PSU"},
        {"reason": "left here by somebody"},
        {"flags": frozenset({"COMPLETING"})},
        {"flags": frozenset({"MAINTENANCE"})},
        {"flags": frozenset({"RESERVED"})},
        {"flags": frozenset({"PLANNED"})},
        {"flags": frozenset({"NOT_RESPONDING"})},
        {"flags": frozenset({"POWERED_DOWN"})},
        {"flags": frozenset({"REBOOT_REQUESTED"})},
        {"flags": frozenset({"FAIL"})},
        {"reservation": "class"},
    ],
)
def test_only_a_node_that_nobody_holds_or_wants_is_probed(changes: dict[str, object]) -> None:
    node = idle("n1", **changes)
    assert unfit(node)
    assert due({"n1": node}, known(), frozenset(), frozenset(), OPTIONS, NOW) == []


def test_a_waiting_job_keeps_its_partitions_free_unless_it_waits_for_something_else() -> None:
    pending = parse_pending(
        "batch,debug|Priority|train\nlong|Dependency|x\nlong|JobHeldUser|y\n"
        "idle|Resources|tocsin-idle-7\n\n"
    )
    assert wanted(pending) == {"batch", "debug"}
    node = idle("n1")
    assert due({"n1": node}, known(), frozenset(), wanted(pending), OPTIONS, NOW) == []
    assert due({"n1": node}, known(), frozenset(), frozenset({"long"}), OPTIONS, NOW) == ["n1"]


def test_a_reason_that_is_not_known_counts_as_a_job_that_wants_the_node() -> None:
    assert wanted([Pending(("batch",), "NewReasonOfALaterSlurm")]) == {"batch"}


def test_a_node_must_have_been_idle_for_a_while_and_a_probe_that_gave_way_waits_an_hour() -> None:
    options = replace_options(idle_seconds=300)
    fresh = replace(NOTHING, idle_ns={"n1": NOW - 299 * SECOND_NS})
    assert due({"n1": idle("n1")}, fresh, frozenset(), frozenset(), options, NOW) == []
    later = NOW + SECOND_NS
    assert due({"n1": idle("n1")}, fresh, frozenset(), frozenset(), options, later) == ["n1"]
    tried = known(tried_ns={"n1": NOW - HOUR_NS + 1})
    assert due({"n1": idle("n1")}, tried, frozenset(), frozenset(), OPTIONS, NOW) == []


KINDS = ["idle", "allocated", "DRAIN", "out", "pressed", "young"]


@given(
    st.lists(st.sampled_from(KINDS), max_size=12),
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 3),
)  # fmt: skip
def test_no_budget_is_ever_passed_and_nobody_is_in_the_way(
    kinds: list[str], at_once: int, per_hour: int, open_now: int
) -> None:
    nodes, out, young = {}, set(), {}
    for i, kind in enumerate(kinds):
        name = f"n{i}"
        nodes[name] = idle(name, partitions=("hot",) if kind == "pressed" else ("batch",))
        if kind == "allocated":
            nodes[name] = idle(name, base="allocated")
        if kind == "DRAIN":
            nodes[name] = idle(name, flags=frozenset({"DRAIN"}))
        if kind == "out":
            out.add(name)
        young[name] = NOW if kind == "young" else 0
    options = replace_options(nodes_at_once=at_once or 1, per_hour=per_hour or 1, idle_seconds=10)
    state = replace(NOTHING, idle_ns=young, open=open_now, begun_last_hour=per_hour)
    chosen = due(nodes, state, frozenset(out), frozenset({"hot"}), options, NOW)
    assert len(chosen) <= max(0, options.nodes_at_once - open_now)
    assert len(chosen) <= max(0, options.per_hour - per_hour)
    assert all(kinds[int(name[1:])] == "idle" for name in chosen)


# ---- what a result says --------------------------------------------------------------------------

PROBES = {"gemm": Probe(command=("builtin:gemm",), minimum={"gemm_flops": 10.0})}


@pytest.mark.parametrize(
    ("result", "peers", "own", "key"),
    [
        (Result(True, {"gemm_flops": 100.0}), [100.0] * 4, [100.0] * 6, ""),
        (Result(True, {"gemm_flops": 100.0}), [], [], ""),
        (Result(True, {"gemm_flops": 80.0}), [100.0] * 2, [], ""),  # too few peers
        (Result(True, {"gemm_flops": 80.0}), [100.0] * 3, [], "slow:gemm_flops"),
        (Result(True, {"gemm_flops": 80.0}), [81.0] * 3, [100.0] * 5, "fell:gemm_flops"),
        (Result(True, {"gemm_flops": 80.0}), [81.0] * 3, [100.0] * 4, ""),
        (Result(True, {"gemm_flops": 9.0}), [], [], "slow:gemm_flops"),
        (Result(True, {}), [], [], ""),
        (Result(False, {}, "gemm:exit1"), [100.0] * 9, [100.0] * 9, "failed:gemm"),
    ],
)
def test_a_figure_is_held_against_peers_the_past_and_the_limit(
    result: Result, peers: list[float], own: list[float], key: str
) -> None:
    figures = {"gemm_flops": peers}, {"gemm_flops": own}
    assert verdict(result, PROBES, *figures, OPTIONS).key == key


def rows(node: str, *keys: str) -> list[Told]:
    """Probes of a node, the newest first."""
    return [Told(node, NOW - i * HOUR_NS, key, f"probe {i}") for i, key in enumerate(keys)]


def test_one_slow_probe_says_nothing_and_two_of_the_same_tell_people_but_ask_for_no_drain() -> None:
    told = {
        "n1": rows("n1", "slow:a", ""),
        "n2": rows("n2", "slow:a", "slow:a", "slow:a", ""),
        "n3": rows("n3", "slow:a", "slow:b"),
        "n4": rows("n4", "", "slow:a", "slow:a"),
    }
    (only,) = facts(told, OPTIONS)
    assert (only.entity.node, only.code, only.remedy) == ("n2", "slow", Remedy.ALERT)
    assert only.onset_ns == NOW - 2 * HOUR_NS  # stays where it is, however many follow


def test_a_probe_that_fails_everywhere_is_the_fault_of_the_probe() -> None:
    ill = {f"n{i}": rows(f"n{i}", "failed:dcgm", "failed:dcgm") for i in range(1, 6)}
    assert facts(ill, OPTIONS) == ()
    well = {f"m{i}": rows(f"m{i}", "") for i in range(1, 4)}
    (only,) = facts({"n1": ill["n1"], **well}, OPTIONS)
    assert only.code == "probe"


def test_policy_alerts_for_it_and_never_drains_even_in_act_mode() -> None:
    told = facts({"n1": rows("n1", "slow:a", "slow:a")}, OPTIONS)
    situation = Situation(cluster(4), 1.0, told, (), (), dict.fromkeys(cluster(4), 1.0), {})
    ledger = Ledger(Database(":memory:"))
    decisions = decide(situation, Limits(), ledger.view(NOW), Mode.ACT, NOW)
    assert [(one.node, one.action) for one in decisions] == [("n1", Action.ALERT)]


# ---- the one place that acts ---------------------------------------------------------------------


class Tools:
    """A Slurm for idle probes, in memory. ``dies``: what the next write raises, after its work."""

    def __init__(self) -> None:
        self.jobs: dict[str, ProofJob] = {}
        self.waiting: list[Pending] = []
        self.asked = 0
        self.cancelled: list[str] = []
        self.dies: Exception | None = None
        self.refuses = False

    def pending(self) -> tuple[Pending, ...]:
        self.asked += 1
        return tuple(self.waiting)

    def submit(self, job_name: str, node: str, partition: str, probes: Mapping[str, Probe]) -> None:
        if self.refuses:
            raise SlurmRefused("Invalid account")
        self.jobs[job_name] = ProofJob(str(len(self.jobs) + 1), "RUNNING")
        if self.dies:
            raise self.dies

    def find_job(self, job_name: str) -> ProofJob | None:
        return self.jobs.get(job_name)

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)

    def finish(self, comment: str, state: str = "COMPLETED") -> None:
        for name, job in self.jobs.items():
            if job.state == "RUNNING":
                self.jobs[name] = ProofJob(job.id, state, comment)


class World:
    def __init__(self, mode: Mode = Mode.ACT, **changes: object) -> None:
        self.now_ns = NOW
        self.nodes = cluster(4)
        self.tools = Tools()
        self.database = Database(":memory:")
        self.options = replace_options(**changes)
        self.mode = mode
        self.restart()

    def restart(self) -> None:
        self.ledger = Ledger(self.database)
        self.prober = IdleProber(self.tools, self.ledger, self.options, ProofOptions(), self.mode)

    def step(self, seconds: float = 10, out: frozenset[str] = frozenset()) -> None:
        self.now_ns += int(seconds * SECOND_NS)
        self.prober.step(self.nodes, out, self.now_ns)

    def open(self) -> list[str]:
        return [one.node for one in self.prober.records.open()]


def test_a_probe_runs_is_judged_and_the_next_node_follows() -> None:
    world = World()
    world.step()
    assert world.open() == ["n1"]
    world.step()
    assert len(world.tools.jobs) == 1  # one at a time
    world.tools.finish("tocsin=ok;gemm_flops=1e7")
    world.step()
    assert world.open() == ["n2"]
    (told,) = world.prober.news
    assert {("code", "passed"), ("kind", "idle_probe")} <= set(told.tags)
    verbs = [one.verb for one in world.ledger.audit()]
    assert verbs.count("idle_probe") == 2
    assert verbs.count("idle_probe_ends") == 1


def test_in_shadow_mode_nothing_is_submitted_and_nobody_is_asked() -> None:
    world = World(Mode.SHADOW)
    world.step()
    world.step()
    assert world.tools.jobs == {}
    assert world.tools.asked == 0


def test_a_probe_gives_way_to_a_job_that_waits_and_to_anybodys_drain() -> None:
    world = World(nodes_at_once=2)
    world.step()
    assert world.open() == ["n1", "n2"]
    world.nodes["n2"] = idle("n2", flags=frozenset({"DRAIN"}), reason="ops: PSU")
    world.step()
    assert world.tools.cancelled == ["2"]
    world.tools.waiting = [Pending(("batch",), "Resources")]
    world.step()
    assert world.open() == []
    assert "1" in world.tools.cancelled
    world.step()
    assert world.open() == []  # and none begins while it waits
    assert world.prober.facts == ()


def test_a_node_that_tocsin_speaks_of_is_not_probed() -> None:
    world = World()
    world.step(out=frozenset({"n1"}))
    assert world.open() == ["n2"]
    world.step(out=frozenset({"n1", "n2"}))
    assert world.tools.cancelled == ["1"]


def test_nobody_is_asked_who_waits_while_no_node_is_due() -> None:
    world = World(idle_seconds=3600)
    for _ in range(5):
        world.step()
    assert world.tools.asked == 0


def test_a_kill_between_row_and_job_neither_runs_twice_nor_blocks() -> None:
    world = World()
    world.tools.dies = SlurmUnavailable("killed", "hung")
    world.step()
    world.tools.dies = None
    world.restart()
    world.tools.finish("tocsin=ok;gemm_flops=1e7")
    world.step()
    assert len(world.tools.jobs) == 2  # n1's was found by its name and judged; n2's begins
    world.tools.jobs.clear()  # the submission never reached slurmctld
    world.step(31)
    assert world.open() != ["n2"]
    assert "does not know" in str([one.text for one in world.ledger.audit()])


def test_a_refusal_costs_no_more_than_the_budget() -> None:
    world = World(per_hour=2)
    world.tools.refuses = True
    for _ in range(50):
        world.step()
    begun = [one for one in world.ledger.audit() if one.verb == "idle_probe"]
    assert len(begun) == 2
    assert world.prober.facts == ()


def test_a_slow_node_is_told_after_two_probes_and_until_one_passes() -> None:
    world = World(nodes_at_once=4)

    def round_of(figure: str) -> None:
        world.step(25 * 3600)
        for name, job in world.tools.jobs.items():
            if job.state == "RUNNING":
                node = next(o.node for o in world.prober.records.open() if o.job_name == name)
                slow = figure if node == "n3" else "1.00e7"
                comment = f"tocsin=ok;gemm_flops={slow}"
                world.tools.jobs[name] = ProofJob(job.id, "COMPLETED", comment)
        world.step()

    round_of("1.00e7")
    round_of("5.00e6")
    assert world.prober.facts == ()
    round_of("5.00e6")
    (only,) = world.prober.facts
    assert only.entity.node == "n3"
    assert "3 peers have 1e+07" in only.text
    onset_ns = only.onset_ns
    world.restart()
    round_of("5.10e6")
    assert [one.onset_ns for one in world.prober.facts] == [onset_ns]
    round_of("1.00e7")
    assert world.prober.facts == ()


def test_ends_that_say_nothing_of_the_node_say_nothing() -> None:
    for state in ("CANCELLED", "PREEMPTED", "DEADLINE", "NODE_FAIL"):
        world = World(slow_times=1)
        world.step()
        world.tools.finish("", state)
        world.step()
        assert world.prober.records.told() == {}, state


def test_old_probes_are_dropped_and_what_counts_is_the_same_after_a_restart() -> None:
    world = World()
    world.nodes = cluster(1)
    for i in range(15):
        world.step(25 * 3600)
        world.tools.finish(f"tocsin=ok;gemm_flops={i + 1}e7")
        world.step()
    query = world.database.query
    assert query("SELECT COUNT(*) AS n FROM idle_probes")[0]["n"] == 10
    kept = [row["value"] for row in query("SELECT value FROM proof_figures ORDER BY seq")]
    assert kept == [(i + 1) * 1e7 for i in range(5, 15)]
    before = world.prober.records.told()["n1"]
    world.restart()
    assert world.prober.records.told()["n1"] == before
    world.step(3600)
    assert world.open() == []  # it was probed an hour ago
