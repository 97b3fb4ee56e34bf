"""A fault in one stage of the cycle, or about one node, holds up nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from collectors.slurm.reader import Job
from daemon.beside import Beside, BesideTools
from daemon.drains.jobcare import JobCare, JobStep
from daemon.drains.softener import SoftState
from daemon.drains.tend import Tender
from daemon.policy.cases import State
from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.limits import Limits
from daemon.proofs.idle import Pending
from daemon.proofs.proof import Probe
from daemon.slurm.adapter import Check, Outcome
from daemon.slurm.proving import ProofJob
from daemon.slurm.simulated import SimulatedSlurm
from daemon.stages import Stages
from tests.daemon.drains.houses import house, node, slurm
from tests.daemon.softworld import SoftMemory
from tests.daemon.worlds import GENEROUS, Clock, House, by_node, idle, lost, risk


def boom(*_: object) -> int:
    raise ValueError("no node name: 'ä'")


def test_a_stage_that_fails_is_told_until_it_goes_well_and_then_taken_back() -> None:
    stages = Stages()
    assert stages.run("soft steps", boom) is None
    assert stages.run("reboots", lambda: 7) == 7
    assert stages.faults == {}, "not before the cycle is over"
    assert stages.end() == {"soft steps": "ValueError: no node name: 'ä'"}
    stages.run("soft steps", lambda: 1)
    assert stages.end() == {"soft steps": ""}
    assert stages.end() == {}


def test_what_is_no_fault_of_a_stage_ends_the_cycle() -> None:
    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stages().run("reboots", end)


class Broken(SoftMemory):
    """Soft steps fail on some nodes in a way that nobody thought of."""

    def __init__(self, *nodes: str, broken: Sequence[str] = ()) -> None:
        super().__init__(*nodes)
        self.broken = set(broken)

    def set_weight(self, node: str, weight: int) -> None:
        if node in self.broken:
            boom()
        super().set_weight(node, weight)


class Asked:
    """Keeps what is asked of Slurm: reboots and probes of idle nodes."""

    def __init__(self) -> None:
        self.rebooted: list[str] = []
        self.probed: list[str] = []

    def reboot(self, node: str, resume: bool) -> None:
        self.rebooted.append(node)

    def cancel(self, node: str) -> None: ...

    def pending(self) -> tuple[Pending, ...]:
        return ()

    def submit(self, job_name: str, node: str, partition: str, probes: Mapping[str, Probe]) -> None:
        self.probed.append(node)

    def find_job(self, job_name: str) -> ProofJob | None:
        return None


def test_a_soft_step_that_fails_stops_neither_others_nor_reboots_nor_probes() -> None:
    limits = Limits.model_validate({
        **GENEROUS.model_dump(), "holdout": {"share": 0},
        "soft": {"step": "weight", "share_max": 1.0},
        "reboot": {"when": "advised"}, "idle": {"every_hours": 1, "idle_seconds": 0},
        "proof": {"probes": {"cpu": {"command": ["builtin:gemm"]}}},
    })  # fmt: skip
    nodes = [idle(f"n{i}") for i in range(1, 7)]
    clock = Clock()
    made = House(SimulatedSlurm(nodes, clock.now_ns), limits=limits)
    made.clock, made.now_ns = clock, clock.now_ns
    soft, asked, stages = Broken(*(one.name for one in nodes), broken=["n1"]), Asked(), Stages()
    beside = Beside(
        BesideTools(soft, asked, asked), made.adapter, made.ledger, limits, Mode.ACT, stages
    )
    made.facts = [replace(lost("n3"), onset_ns=made.clock.pass_seconds(1))]
    made.risks = [risk("n1", 0.7), risk("n2", 0.6)]
    for _ in range(3):
        made.cycle()
        beside.step(made.situation(made.adapter.nodes()), made.clock.pass_seconds(60))
    assert soft.nodes["n2"].weight == 1001
    assert soft.nodes["n1"].weight == 1
    assert asked.rebooted == ["n3"]
    assert asked.probed
    assert "ValueError" in stages.end()["soft step on n1"]
    # Nothing is lost: once it can be written it is.
    soft.broken.clear()
    beside.step(made.situation(made.adapter.nodes()), made.clock.pass_seconds(60))
    assert {one.node: one.state for one in beside.softener.open()}["n1"] is SoftState.STANDING
    assert stages.end() == {"soft step on n1": ""}


def test_many_steps_that_cannot_be_taken_back_hold_up_no_other() -> None:
    names = [f"n{i}" for i in range(1, 15)]
    limits = Limits.model_validate(
        {
            **GENEROUS.model_dump(),
            "holdout": {"share": 0},
            "soft": {"step": "weight", "share_max": 1.0},
        }
    )
    clock = Clock()
    made = House(SimulatedSlurm([idle(one) for one in names], clock.now_ns), limits=limits)
    soft, asked = Broken(*names), Asked()
    beside = Beside(BesideTools(soft, asked, None), made.adapter, made.ledger, limits, Mode.ACT)

    def cycles(*likely: str) -> None:
        made.risks = [risk(one, 0.7 if one in likely else 0.01) for one in names]
        for _ in range(3):
            shown = {
                one: idle(one, weight=soft.nodes[one].weight, features=soft.nodes[one].active)
                for one in names
            }
            beside.step(made.situation(shown), clock.pass_seconds(60))

    cycles(*names[:10])
    assert [one for one in names if soft.nodes[one].weight == 1001] == names[:10]
    soft.broken = set(names[:9])
    cycles(names[10])
    assert soft.nodes[names[9]].weight == 1, "taken back behind nine that cannot be"
    assert soft.nodes[names[10]].weight == 1001, "and a new one is begun"


class Odd(SimulatedSlurm):
    """A Slurm about one of whose nodes something fails that nobody thought of."""

    odd = ""

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        return super().drain(reasons, check)

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        if self.odd in comments:
            boom()
        return super().comment(comments, check)


def test_one_case_that_cannot_be_settled_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = house()
    made.facts = [lost("n1"), lost("n2")]
    made.cycle()
    made.facts = []
    for name in ("n1", "n2"):
        slurm(made).set(name, user="ann", state="drain", reason="ann: mine")
    move = made.ledger.move

    def fails(case, *more, **rest):  # type: ignore[no-untyped-def]
        return boom() if case.node == "n1" else move(case, *more, **rest)

    monkeypatch.setattr(made.ledger, "move", fails)
    made.strict = False
    made.clock.pass_seconds(15)
    made.cycle()
    assert made.ledger.case_of("n2") is None, "settled: it is theirs"
    assert made.ledger.case_of("n1") is not None
    monkeypatch.setattr(made.ledger, "move", move)
    made.cycle()
    assert made.ledger.held() == []
    assert node(made, "n1").reason == "ann: mine"


def test_a_reading_that_was_not_looked_through_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who gave back what in it nobody knows: judged by it, their nodes would be drained anew."""
    made = house()
    made.strict = False
    made.cycle()
    assert made.drains.reconciled
    for name in ("others", "held"):
        with monkeypatch.context() as patch:
            patch.setattr(made.ledger, name, boom)
            made.cycle()
            assert not made.drains.reconciled, name
        made.cycle()
        assert made.drains.reconciled


def test_a_note_that_cannot_be_written_stops_no_drain() -> None:
    clock = Clock()
    odd = Odd([idle(f"n{i}") for i in range(1, 5)], clock.now_ns)
    odd.odd = "n1"
    made = House(odd)
    made.strict = False
    odd.set("n1", state="drain", reason="ops: PSU")
    made.facts = [lost("n1"), lost("n3")]
    found = by_node(made.cycle())
    assert found["n1"].guard is Guard.FOREIGN
    assert found["n3"].action is Action.DRAIN
    assert made.adapter.nodes()["n3"].drain


class Refuses:
    """Steps for jobs: one of them fails in an odd way."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def do(self, step: JobStep) -> str:
        if step.job.id == "7":
            boom()
        self.done.append(step.job.id)
        return ""


def test_a_step_for_one_job_that_fails_stops_none_for_the_next() -> None:
    made = house()
    for name, job in (("n1", "7"), ("n2", "8")):
        slurm(made).put(idle(name, base="mixed", jobs=(job,)))
    made.facts = [lost("n1"), lost("n2")]
    made.cycle()
    assert {one.state for one in made.ledger.held()} == {State.DRAINING}
    tools = Refuses()
    tender = Tender(tools, made.database, made.ledger, JobCare(notify=True, note=False))
    jobs = {
        job: Job(job, job, "RUNNING", "zoe", (name,)) for name, job in (("n1", "7"), ("n2", "8"))
    }
    tender.tend(jobs, made.now_ns())
    assert tools.done == ["8"]
