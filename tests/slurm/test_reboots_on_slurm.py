"""Reboots through a real Slurm: what ``scontrol reboot`` does to a drain of ours."""

from __future__ import annotations

import time

import pytest

from collectors.slurm.source import Options
from daemon.drains.reboots import Rebooter
from daemon.policy.cases import State
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.slurm.cli import CliAdapter
from daemon.slurm.reboot import RebootSlurm
from tests.daemon.worlds import GENEROUS, House, lost
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


class World:
    """A house over the real Slurm whose drained nodes may be rebooted."""

    def __init__(self, mode: Mode = Mode.ACT, **reboot: object) -> None:
        options = {"when": "advised", **reboot}
        limits = Limits.model_validate({**GENEROUS.model_dump(), "reboot": options})
        adapter = CliAdapter(Options())
        self.house = House(adapter, limits=limits, mode=mode, now_ns=time.time_ns)
        self.rebooter = Rebooter(
            RebootSlurm(Options()), adapter, self.house.ledger, limits.reboot, mode,
            lambda node: False,
        )  # fmt: skip

    def cycle(self) -> None:
        self.house.cycle()
        self.rebooter.step(time.time_ns())

    def until(self, verb: str, node: str) -> None:
        def said() -> bool:
            self.cycle()
            return any(one.verb == verb for one in self.house.ledger.audit(node=node))

        wait_for(said, f"{verb} of {node}")


def reboots(slurm: Cluster) -> int:
    log = slurm.directory / "log/reboot.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_our_drain_outlives_the_reboot_and_is_ours_to_lift(slurm_start) -> None:  # type: ignore[no-untyped-def]
    slurm = slurm_start(nodes=2)
    job = slurm.start_job("n1", "--gres=gpu:1")
    world = World()
    world.house.facts = [lost("n1", onset_ns=time.time_ns())]
    for _ in range(3):
        world.cycle()
    assert reboots(slurm) == 0, "a job runs there"
    slurm.run("scancel", job)
    world.until("reboot_done", "n1")
    for _ in range(3):
        world.cycle()
    assert reboots(slurm) == 1
    assert slurm.words("n1") == {"IDLE", "DRAIN"}
    case = world.house.ledger.case_of("n1")
    assert case is not None
    assert case.state is State.DRAINED
    assert slurm.reason("n1") == f"{case.reason} : reboot issued"
    came = world.house.drains.resume("n1", "ann", time.time_ns())
    assert came.node == "n1", "a refusal would have been raised, with its reason"
    told = [(one.verb, one.text) for one in world.house.ledger.audit(node="n1")]
    # The node answers its controller some moments after it was taken back.
    wait_for(
        lambda: slurm.words("n1") == {"IDLE"}, f"n1 to be in service: {told}",
        seen=lambda: slurm.show()["n1"],
    )  # fmt: skip


def test_shadow_reboots_nothing_by_slurmctlds_own_log(slurm_start) -> None:  # type: ignore[no-untyped-def]
    slurm = slurm_start(nodes=1)
    world = World(Mode.SHADOW)
    world.house.facts = [lost("n1", onset_ns=time.time_ns())]
    begin = slurm.log_size()
    for _ in range(3):
        world.cycle()
    assert slurm.updates_since(begin) == []
    assert slurm.words("n1") == {"IDLE"}
    assert reboots(slurm) == 0


def test_with_resume_slurm_gives_the_node_back_and_the_ledger_knows(slurm_start) -> None:  # type: ignore[no-untyped-def]
    slurm = slurm_start(nodes=1)
    world = World(after="resume")
    world.house.facts = [lost("n1", onset_ns=time.time_ns())]
    world.until("reboot_done", "n1")
    wait_for(lambda: slurm.words("n1") == {"IDLE"}, "n1 to be in service")
    world.cycle()
    told = world.house.ledger.audit(node="n1")
    assert any("and the node was rebooted" in one.text for one in told)
    assert world.house.ledger.case_of("n1") is None


def test_a_node_that_a_person_took_meanwhile_is_not_rebooted_when_its_job_ends(slurm_start) -> None:  # type: ignore[no-untyped-def]
    slurm = slurm_start(nodes=1)
    world = World()

    class Late(RebootSlurm):
        """A person resumes the node, and a job starts, between our look and our word."""

        def reboot(self, node: str, resume: bool) -> None:
            slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
            jobs.append(slurm.start_job(node, "--gres=gpu:1"))
            super().reboot(node, resume)

    jobs: list[str] = []
    world.rebooter._tools = Late(Options())
    world.house.facts = [lost("n1", onset_ns=time.time_ns())]
    world.until("reboot_refused", "n1")
    assert "taken back" in world.house.ledger.audit(node="n1")[0].text
    assert not slurm.words("n1") & {"REBOOT", "REBOOT_REQUESTED", "DRAIN"}
    slurm.run("scancel", jobs[0])
    wait_for(lambda: slurm.words("n1") == {"IDLE"}, "n1 to be idle")
    for _ in range(3):
        world.cycle()
        time.sleep(1)
    assert reboots(slurm) == 0
