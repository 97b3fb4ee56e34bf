"""What a real job is told when its node is drained, and what it may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.command import Runner
from collectors.slurm.reader import Job, SlurmReader, Tools
from daemon.drains.jobcare import JobCare, JobStep, Step, asks, plan
from daemon.slurm.jobs import JobTools
from tests.testbed.slurm.cluster import Cluster, wait_for

REASON = "tocsin:x79 gpu3 9f2c; fell off the bus; tocsin explain 9f2c"
ALL = JobCare(notify=True, signal="asked", requeue="asked", checkpoint_seconds=0)


def job(comment: str = "", state: str = "RUNNING", nodes: tuple[str, ...] = ("n1",)) -> Job:
    return Job("7", "7", state, "ann", nodes, comment=comment)


@pytest.mark.parametrize(
    ("comment", "asked"),
    [
        ("", (False, "")),
        ("tocsin=requeue", (True, "")),
        ("x,tocsin=signal", (False, "default")),
        ("tocsin=signal:USR2;tocsin=requeue", (True, "USR2")),
        ("tocsin=requeueing nottocsin=requeue2", (False, "")),
        ("tocsin=signal:KILL -9", (False, "KILL")),
    ],
)
def test_what_a_job_asks_for_in_its_comment(comment: str, asked: tuple[bool, str]) -> None:
    assert asks(comment) == asked


def test_nothing_is_done_to_a_job_by_default() -> None:
    assert plan([job("tocsin=requeue tocsin=signal")], "n1", REASON, 3, JobCare()) == []


def test_only_jobs_that_run_on_the_node_are_told() -> None:
    others = [job(nodes=("n2",)), job(state="COMPLETING"), job(state="PENDING", nodes=())]
    assert plan(others, "n1", REASON, 3, ALL) == []


def test_a_job_is_requeued_only_when_it_asked_and_the_fault_is_grave() -> None:
    def steps(comment: str, severity: int) -> list[Step]:
        return [one.step for one in plan([job(comment)], "n1", REASON, severity, ALL)]

    assert steps("", 3) == [Step.NOTIFY, Step.NOTE]
    assert steps("tocsin=requeue", 2) == [Step.NOTIFY, Step.NOTE]
    assert steps("tocsin=requeue", 3) == [Step.NOTIFY, Step.REQUEUE, Step.NOTE]
    assert steps("tocsin=signal tocsin=requeue", 3) == [
        Step.NOTIFY, Step.SIGNAL, Step.REQUEUE, Step.NOTE,
    ]  # fmt: skip


def test_a_requeue_waits_for_the_checkpoint() -> None:
    care = JobCare(signal="asked", requeue="asked", checkpoint_seconds=90)
    steps = plan([job("tocsin=signal tocsin=requeue")], "n1", REASON, 3, care)
    assert [one.after_seconds for one in steps] == [0.0, 90.0, 0.0]


def test_a_job_is_named_by_its_own_number_only() -> None:
    with pytest.raises(ValueError, match="no job number"):
        JobTools().do(JobStep(Job("7 --nodelist=n1", "7", "RUNNING", "x", ("n1",)), Step.NOTE, "x"))


@pytest.mark.slurm
def test_real_jobs_are_told_signalled_and_requeued(slurm: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\ntrap 'echo CHECKPOINT' USR1\n"
        "echo STARTED\nfor i in $(seq 300); do sleep 0.2; done\n"
    )
    asking = slurm.run(
        "sbatch", "--parsable", "-w", "n1", "-o", f"{tmp_path}/a.out", "--requeue",
        "--comment=tocsin=signal tocsin=requeue", str(script),
    ).strip()  # fmt: skip
    silent = slurm.run(
        "sbatch", "--parsable", "-w", "n1", "-o", f"{tmp_path}/s.out", str(script)
    ).strip()
    array = slurm.run(
        "sbatch", "--parsable", "-w", "n2", "-a", "1-2", "-o", f"{tmp_path}/r%a.out", str(script)
    ).strip()
    outputs = [tmp_path / name for name in ("a.out", "s.out", "r1.out", "r2.out")]
    wait_for(lambda: all(p.exists() and "STARTED" in p.read_text() for p in outputs), "the jobs")
    jobs = SlurmReader(Tools(), Runner()).jobs()
    assert jobs[asking].comment == "tocsin=signal tocsin=requeue"
    tools = JobTools()
    steps = plan(jobs.values(), "n1", REASON, 3, ALL)
    assert {one.job.id for one in steps} == {asking, silent}
    for one in [s for s in steps if s.step is not Step.REQUEUE]:
        assert tools.do(one) == "", one
    told = tmp_path / "a.out"
    wait_for(lambda: "CHECKPOINT" in told.read_text(), "the checkpoint")
    wait_for(lambda: "fell off the bus" in (tmp_path / "s.out").read_text(), "the notice")
    assert "CHECKPOINT" not in (tmp_path / "s.out").read_text()
    shown = slurm.run("scontrol", "show", "job", silent)
    assert "AdminComment=tocsin: node n1 is being drained" in shown
    for one in [s for s in steps if s.step is Step.REQUEUE]:
        assert tools.do(one) == ""
    wait_for(lambda: slurm.jobs()[asking][0] == "PENDING", "the requeue")
    assert slurm.jobs()[silent] == ("RUNNING", "n1")
    # The tasks of an array on another node go on, each under its own number.
    assert sum(where == "n2" for state, where in slurm.jobs().values() if state == "RUNNING") == 2
    assert array


@pytest.mark.slurm
def test_of_an_array_only_the_task_on_the_node_is_meant_also_the_one_with_the_arrays_number(
    slurm: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "task.sh"
    script.write_text(
        "#!/bin/bash\ntrap 'echo CHECKPOINT' USR1\n"
        "echo STARTED\nfor i in $(seq 300); do sleep 0.2; done\n"
    )
    array = slurm.run(
        "sbatch", "--parsable", "--exclusive", "-N1", "-a", "1-3", "-o", f"{tmp_path}/%a.out",
        "--requeue", "--comment=tocsin=signal tocsin=requeue", str(script),
    ).strip()  # fmt: skip
    outputs = {str(task): tmp_path / f"{task}.out" for task in (1, 2, 3)}
    wait_for(
        lambda: all(p.exists() and "STARTED" in p.read_text() for p in outputs.values()), "3 tasks"
    )
    jobs = SlurmReader(Tools(), Runner()).jobs()
    # The task that Slurm started last keeps the number of the whole array.
    (node,) = jobs[array].nodes
    task = jobs[array].key.partition("_")[2]
    tools = JobTools()
    for one in plan(jobs.values(), node, REASON, 3, ALL):
        assert one.job.id == array
        assert tools.do(one) == "", one
    wait_for(lambda: slurm.jobs()[array][0] == "PENDING", "the requeue")
    others = [one for name, one in outputs.items() if name != task]
    assert not [one for one in others if "CHECKPOINT" in one.read_text()]
    assert not [one for one in others if "fell off the bus" in one.read_text()]
    states = slurm.run("squeue", "-h", "-r", "-o", "%K|%T").split()
    assert sorted(states) == sorted(
        f"{name}|{'PENDING' if name == task else 'RUNNING'}" for name in outputs
    )
    told = slurm.run("scontrol", "-o", "show", "job", array).splitlines()
    assert sum("AdminComment=tocsin" in one for one in told) == 1
