"""Jobs on held nodes: each step once, none for a job that has moved on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from collectors.command import Result, Runner
from collectors.slurm.reader import Job
from daemon.drains.jobcare import JobCare, JobStep, Step
from daemon.drains.tend import Tender
from daemon.policy.cases import State
from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.jobs import JobTools
from tests.daemon.worlds import House, lost, simulated

CARE = JobCare(notify=True, signal="asked", requeue="asked", checkpoint_seconds=60, note=False)
ASKING = Job("7", "7", "RUNNING", "ann", ("n3",), comment="tocsin=signal tocsin=requeue")


class Tools:
    def __init__(self) -> None:
        self.done: list[tuple[str, Step]] = []
        self.error: Exception | None = None

    def do(self, step: JobStep) -> str:
        if self.error is not None:
            raise self.error
        self.done.append((step.job.id, step.step))
        return ""


def drained() -> tuple[House, Tools, Tender]:
    made = House(simulated())
    tools = Tools()
    tender = Tender(tools, made.database, made.ledger, CARE)
    made.facts = [lost("n3")]
    made.cycle()
    return made, tools, tender


def test_each_step_is_done_once_and_the_requeue_waits_for_the_checkpoint() -> None:
    made, tools, tender = drained()
    for _ in range(3):
        tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    assert tools.done == [("7", Step.NOTIFY), ("7", Step.SIGNAL)]
    tender.tend({"7": ASKING}, made.clock.pass_seconds(60))
    tender.tend({"7": ASKING}, made.clock.pass_seconds(60))
    assert tools.done[2:] == [("7", Step.REQUEUE)]
    told = [entry.verb for entry in made.ledger.audit(node="n3")]
    assert told.count("job_requeue") == 1


def test_a_job_that_ended_is_not_requeued() -> None:
    made, tools, tender = drained()
    tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    tender.tend({}, made.clock.pass_seconds(100))
    assert ("7", Step.REQUEUE) not in tools.done
    moved = replace(ASKING, nodes=("n1",))
    tender.tend({"7": moved}, made.clock.pass_seconds(100))
    assert ("7", Step.REQUEUE) not in tools.done


def test_jobs_of_a_node_that_came_back_are_left_alone() -> None:
    made, tools, tender = drained()
    tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    made.drains.resume("n3", "ann", made.clock.pass_seconds(5))
    tender.tend({"7": ASKING}, made.clock.pass_seconds(100))
    assert ("7", Step.REQUEUE) not in tools.done


def test_with_slurm_away_steps_wait_and_an_unknown_outcome_is_not_repeated() -> None:
    made, tools, tender = drained()
    tools.error = SlurmUnavailable("away", "stopped", not_sent=True)
    tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    tools.error = None
    tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    assert tools.done == [("7", Step.NOTIFY), ("7", Step.SIGNAL)]
    tools.error = SlurmUnavailable("no answer", "hung")
    tender.tend({"7": ASKING}, made.clock.pass_seconds(100))
    tools.error = None
    tender.tend({"7": ASKING}, made.clock.pass_seconds(100))
    assert ("7", Step.REQUEUE) not in tools.done


@pytest.mark.parametrize("kind", ["hung", "broken", "authentication", "version"])
def test_a_step_whose_connection_broke_may_be_done_and_is_not_repeated(kind: str) -> None:
    made, tools, tender = drained()
    tools.error = SlurmUnavailable("Broken pipe", kind)
    tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    tools.error = None
    tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    assert ("7", Step.NOTIFY) not in tools.done
    told = [entry.text for entry in made.ledger.audit(node="n3") if entry.verb == "job_notify"]
    assert len(told) == 1
    assert "not known whether it was done" in told[0]


def test_a_new_tender_over_the_same_ledger_repeats_nothing() -> None:
    made, tools, tender = drained()
    tender.tend({"7": ASKING}, made.clock.pass_seconds(5))
    again = Tools()
    Tender(again, made.database, made.ledger, CARE).tend({"7": ASKING}, made.clock.pass_seconds(5))
    assert again.done == []
    assert len(tools.done) == 2


def test_the_job_of_our_own_proof_is_not_signalled() -> None:
    made, tools, _ = drained()
    care = JobCare(notify=True, signal="always", note=True)
    tender = Tender(tools, made.database, made.ledger, care)
    case = made.ledger.case_of("n3")
    assert case is not None
    now_ns = made.clock.pass_seconds(5)
    testing = made.ledger.move(case, State.TESTING, now_ns, user="tocsin", verb="proof_begins")
    own = Job("9", "9", "RUNNING", "tocsin", ("n3",))
    tender.tend({"9": own}, made.clock.pass_seconds(5))
    assert tools.done == []
    # Drained again, with a job that is not ours: that one is told.
    made.ledger.move(testing, State.DRAINED, now_ns, user="tocsin", verb="proof_ends")
    tender.tend({"7": replace(ASKING, nodes=("n3",))}, made.clock.pass_seconds(5))
    assert [job for job, _ in tools.done] == ["7", "7", "7"]


class Answers(Runner):
    """A squeue that shows one state, and every other command that succeeds."""

    def __init__(self, state: str, returncode: int = 0) -> None:
        super().__init__()
        self.state, self.returncode = state, returncode
        self.commands: list[str] = []

    def run(self, argv: Sequence[str], **more: object) -> Result:
        self.commands.append(" ".join(argv[:2]))
        if argv[0] != "squeue":
            return Result(tuple(argv), "ended", 0)
        said = b"" if self.returncode == 0 else b"slurm_load_jobs error: Invalid job id specified"
        return Result(
            tuple(argv), "ended", self.returncode, f"{self.state}\n".encode(), said, fault="ended 1"
        )


@pytest.mark.parametrize(
    ("state", "returncode"), [("COMPLETED", 0), ("COMPLETING", 0), ("", 0), ("", 1)]
)
def test_a_job_that_ended_since_the_reading_is_not_run_a_second_time(
    state: str, returncode: int
) -> None:
    step = JobStep(ASKING, Step.REQUEUE, "node n3 is being drained")
    runner = Answers(state, returncode)
    assert JobTools(runner=runner).do(step) != ""
    assert runner.commands == ["squeue --noheader"]
    runner = Answers("RUNNING")
    assert JobTools(runner=runner).do(step) == ""
    assert runner.commands == ["squeue --noheader", "scontrol requeue"]
