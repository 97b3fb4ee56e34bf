"""Steps softer than a drain on a real Slurm: written, seen by the scheduler, undone exactly."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from collectors.slurm.source import Options
from daemon.drains.ledger import Ledger
from daemon.drains.softener import Softener, SoftState
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.policy.soft_wishes import chances, wishes
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable
from daemon.slurm.cli import CliAdapter
from daemon.slurm.soft import FLAGS, Shown, SoftSlurm, SoftTools
from daemon.store.database import Database
from tests.daemon.drains.test_soft import situation
from tests.daemon.softworld import SoftMemory
from tests.daemon.worlds import GENEROUS, risk
from tests.testbed.slurm.cluster import Cluster, wait_for

PLAIN = Shown(1, ("h200", "ib"), ("h200", "ib"))
NAME = "tocsin_soft_0123abcd"


@pytest.fixture(params=["memory", pytest.param("slurm", marks=pytest.mark.slurm)])
def tools(request: pytest.FixtureRequest) -> Iterator[SoftTools]:
    """One contract: the memory of other tests, and the real thing."""
    if request.param == "memory":
        yield SoftMemory("n1", "n2")
        return
    cluster = request.getfixturevalue("slurm")
    yield SoftSlurm(Options())
    cluster.run("scontrol", "delete", f"ReservationName={NAME}", check=False)
    cluster.run("scontrol", "reconfigure")
    wait_for(lambda: "UNKNOWN" not in cluster.words("n1"), "n1 to register")


def test_weight_and_features_are_set_as_asked_and_set_back(tools: SoftTools) -> None:
    assert tools.shown("n1") == PLAIN
    assert tools.shown("n99") is None
    tools.set_weight("n1", 1001)
    assert tools.shown("n1") == Shown(1001, PLAIN.available, PLAIN.active)
    changed = Shown(1001, ("h200", "ib", "tocsin_risk"), ("h200", "tocsin_risk"))
    tools.set_features("n1", changed)
    assert tools.shown("n1") == changed
    assert tools.shown("n2") == PLAIN
    tools.set_features("n1", PLAIN)
    tools.set_weight("n1", 1)
    assert tools.shown("n1") == PLAIN


def test_a_reservation_is_made_seen_and_deleted(tools: SoftTools) -> None:
    assert tools.reservation(NAME) is None
    tools.release(NAME)
    tools.reserve(NAME, "n1", 90)
    found = tools.reservation(NAME)
    assert found is not None
    assert (found.nodes, found.users) == (("n1",), (tools.user,))
    assert found.flags >= FLAGS
    assert "MAINT" not in found.flags
    tools.release(NAME)
    assert tools.reservation(NAME) is None


class House:
    """A Softener over the real Slurm; ``cycle`` as the head does."""

    def __init__(self, step: str, mode: Mode = Mode.ACT, **soft: object) -> None:
        self.adapter = CliAdapter(Options())
        options = {"step": step, "share_max": 1.0, **soft}
        self.limits = Limits.model_validate({**GENEROUS.model_dump(), "soft": options})
        self.mode = mode
        self.ledger = Ledger(Database(":memory:"))
        self.softener = Softener(
            SoftSlurm(Options()), self.ledger, self.limits.soft, mode,
            self.adapter.controller_start_ns,
        )  # fmt: skip

    def cycle(self, chance: float, node: str = "n1") -> list[SoftState]:
        nodes = self.adapter.nodes()
        found = situation(nodes, risk(node, chance))
        now_ns = time.time_ns()
        asked = wishes(found, self.limits, self.ledger.view(now_ns), self.mode, now_ns)
        self.softener.step(asked, chances(found), nodes, now_ns)
        return [one.state for one in self.softener.open()]


@pytest.mark.slurm
def test_a_likely_node_is_the_last_that_slurm_takes(slurm: Cluster) -> None:
    made = House("weight")
    assert made.cycle(0.6) == [SoftState.STANDING]
    assert slurm.words("n1") == {"IDLE"}, "it is no drain"
    jobs = [slurm.submit("-N1", "--exclusive") for _ in range(3)]
    wait_for(lambda: all(slurm.jobs()[one][0] == "RUNNING" for one in jobs), "three jobs")
    assert sorted(slurm.jobs()[one][1] for one in jobs) == ["n2", "n3", "n4"]
    last = slurm.submit("-N1", "--exclusive")
    wait_for(lambda: slurm.jobs()[last][0] == "RUNNING", "the last job")
    assert slurm.jobs()[last][1] == "n1"
    assert made.cycle(0.1) == []
    assert made.softener._tools.shown("n1") == PLAIN  # type: ignore[union-attr]
    assert slurm.jobs()[last][0] == "RUNNING"


@pytest.mark.slurm
def test_a_feature_steers_those_who_ask_for_it(slurm: Cluster) -> None:
    made = House("feature")
    assert made.cycle(0.6) == [SoftState.STANDING]
    job = slurm.submit("-N1", "--constraint=tocsin_risk")
    wait_for(lambda: slurm.jobs()[job][0] == "RUNNING", "the job")
    assert slurm.jobs()[job][1] == "n1"
    slurm.run("scancel", job)
    slurm.run("scontrol", "update", "nodename=n1", "availablefeatures=h200,ib,tocsin_risk,nvme")
    assert made.cycle(0.1) == []
    words = ("h200", "ib", "nvme")
    assert SoftSlurm(Options()).shown("n1") == Shown(1, words, words), "what ann added stays"
    SoftSlurm(Options()).set_features("n1", PLAIN)


@pytest.mark.slurm
def test_a_reservation_keeps_new_jobs_away_and_running_ones_go_on(slurm: Cluster) -> None:
    old = slurm.start_job("n1", "--gres=gpu:1")
    made = House("reservation")
    assert made.cycle(0.6) == [SoftState.STANDING]
    new = slurm.submit("-N1", "-w", "n1", "--gres=gpu:1")
    elsewhere = slurm.submit("-N1", "--gres=gpu:1")
    wait_for(lambda: slurm.jobs()[elsewhere][0] == "RUNNING", "a job elsewhere")
    assert slurm.jobs()[old] == ("RUNNING", "n1")
    assert slurm.jobs()[new][0] == "PENDING"
    assert made.cycle(0.1) == []
    assert "tocsin_soft" not in slurm.run("scontrol", "show", "reservation")
    wait_for(lambda: slurm.jobs()[new][0] == "RUNNING", "the job that waited")


def as_set(slurm: Cluster, node: str) -> list[str]:
    """What scontrol shows of a node, less what the machine under it does by itself."""
    shown = slurm.run("scontrol", "-o", "show", "node", node).split("LastBusyTime")[0]
    return [one for one in shown.split() if not one.startswith(("FreeMem=", "CPULoad="))]


@pytest.mark.slurm
@pytest.mark.parametrize("step", ["weight", "feature", "reservation"])
def test_shadow_writes_nothing_by_slurmctlds_own_log(slurm: Cluster, step: str) -> None:
    made = House(step, Mode.SHADOW)
    before = as_set(slurm, "n1")
    begin = slurm.log_size()
    for _ in range(2):
        assert made.cycle(0.6) == [SoftState.SHADOW]
    assert made.cycle(0.1) == []
    assert slurm.updates_since(begin) == []
    assert "tocsin" not in slurm.run("scontrol", "show", "reservation")
    assert as_set(slurm, "n1") == before


@pytest.mark.slurm
def test_a_restart_forgets_the_weight_and_gets_it_again_and_a_reconfigure_is_a_persons_word(
    slurm_start,  # type: ignore[no-untyped-def]
) -> None:
    slurm = slurm_start(nodes=2)
    made = House("weight")
    tools = SoftSlurm(Options())
    assert made.cycle(0.6) == [SoftState.STANDING]
    slurm.stop_controller()
    with pytest.raises(SlurmUnavailable):
        made.cycle(0.6)
    slurm.start_controller()
    wait_for(lambda: slurm.words("n1") == {"IDLE"}, "n1 to be back")
    assert tools.shown("n1") == PLAIN
    assert made.cycle(0.6) == [SoftState.STANDING]
    assert tools.shown("n1").weight == 1001  # type: ignore[union-attr]
    slurm.run("scontrol", "reconfigure")
    wait_for(lambda: tools.shown("n1") == PLAIN, "slurm.conf to be read again")
    wait_for(lambda: "UNKNOWN" not in slurm.words("n1"), "n1 to register")
    if slurm.version >= (23, 11):  # a reconfigure starts slurmctld anew: no way to tell them apart
        assert made.cycle(0.6) == [SoftState.STANDING]
        assert tools.shown("n1").weight == 1001  # type: ignore[union-attr]
        return
    assert made.cycle(0.6) == [SoftState.LEFT]
    assert tools.shown("n1") == PLAIN


@pytest.mark.slurm
def test_names_of_others_and_nonsense_are_never_touched(slurm: Cluster) -> None:
    tools = SoftSlurm(Options())
    for name in ("maint_1", "tocsin_0123abcd", "tocsin_soft_x; rm"):
        with pytest.raises(ValueError, match="no soft reservation of ours"):
            tools.release(name)
    with pytest.raises(ValueError, match="no node name"):
        tools.set_weight("n1 State=DOWN", 5)
    with pytest.raises(SlurmRefused, match="cannot be written back"):
        tools.set_features("n1", Shown(1, ("a,b Weight=5",), ()))
    with pytest.raises(SlurmRefused):
        tools.set_weight("n99", 5)
    assert slurm.words("n1") == {"IDLE"}


@pytest.mark.slurm
def test_behind_a_fence_nothing_is_written(slurm: Cluster) -> None:
    tools = SoftSlurm(Options(), fence=lambda: "another head holds the lease")
    begin = slurm.log_size()
    assert tools.shown("n1") == PLAIN
    for act in (
        lambda: tools.set_weight("n1", 5),
        lambda: tools.set_features("n1", PLAIN),
        lambda: tools.reserve(NAME, "n1", 5),
        lambda: tools.release(NAME),
    ):
        with pytest.raises(SlurmUnavailable, match="another head"):
            act()
    assert slurm.updates_since(begin) == []
