"""``tocsin jobs`` over a whole head: the list, one job in full, what it says of what it can't."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectors.sample import Sample, sample
from collectors.slurm.reader import Job
from daemon.assemble import open_ears
from daemon.cli.main import main as tocsin
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.gate.tokens import parse_tokens
from daemon.head import Head
from daemon.listen import Listeners
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import idle

SECOND_NS = 10**9
NODES = [
    replace(idle(name), base="allocated", gpus_allocated=held, jobs=jobs)
    for name, held, jobs in (
        ("n1", 8, ("7",)), ("n2", 8, ("7",)), ("n3", 4, ("8",)), ("n4", 6, ("9", "10")),
    )
]  # fmt: skip
JOBS = {
    "7": Job(
        "7", "7", "RUNNING", "ann", ("n1", "n2"), 0, 3600.0, 8, "batch", "tocsin=checkpoint:30m"
    ),
    "8": Job("8", "8", "RUNNING", "bob", ("n3",), 0, 7200.0, 4, "batch"),
    "9": Job("9", "9", "RUNNING", "cy", ("n4",), 0, 60.0, 2, "batch"),
    "10": Job("10", "10", "RUNNING", "dee", ("n4",), 0, 60.0, 0, "batch"),
}  # fmt: skip


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    config = Config.model_validate(
        {
            "head": {
                "state_dir": tmp_path, "listen": "127.0.0.1:0", "socket": tmp_path / "s",
                "operators_group": "", "judge_seconds": 300,
            },
            "page": {"enabled": False},
            "store": {"reserve_bytes": 0},
        }
    )  # fmt: skip
    clock = SystemClock()
    slurm = SimulatedSlurm(NODES, clock.now_ns)
    source = simulated_source(slurm, 3600.0, tmp_path / "slurm", lambda: dict(JOBS))
    made, listeners = Head(config, clock=clock, adapter=slurm, slurm=source), Listeners()
    await made.start()
    await open_ears(made, config, parse_tokens(""), listeners)
    await tell(made)
    yield made
    await listeners.close()
    await made.stop()


async def tell(head: Head) -> None:
    """Ten minutes of readings: n2's gpu3 is slowed by heat, n3 uses four of its eight GPUs."""
    now_ns = head.clock.now_ns()
    for minute in range(10, -1, -1):
        at_ns = now_ns - minute * 60 * SECOND_NS
        for node in ("n1", "n2", "n3", "n4"):
            rows = [gpu(node, number, at_ns, minute) for number in range(8)]
            rows.append(sample("host", at_ns, {"pressure_io_ratio": 0.01}, node=node))
            await head.intake.accept(rows, node, at_ns)
    line = sample(
        "event", now_ns, {"text": "NVRM: Xid 63", "severity": 2.0}, node="n2", kind="xid", code="63"
    )
    await head.intake.accept([line], "n2", now_ns)
    await head.judge()


def gpu(node: str, number: int, at_ns: int, minute: int) -> Sample:
    hot = (node, number) == ("n2", 3)
    used = node != "n3" or number < 4
    fields: dict[str, float | str] = {
        "utilization_ratio": 0.95 if used else 0.0,
        "power_watts": 600.0 if used else 80.0,
        "power_limit_watts": 700.0,
        "sm_clock_hertz": 1.1e9 if hot else 1.9e9,
        "throttle_sw_thermal": 1.0 if hot else 0.0,
        "energy_joules_total": 1e6 + (10 - minute) * 36_000.0,
    }
    return sample("gpu", at_ns, fields, node=node, gpu=str(number), uuid=f"GPU-{node}-{number}")


async def say(head: Head, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of the command and what it printed."""
    capsys.readouterr()
    code = await asyncio.to_thread(tocsin, [*words, "--socket", str(head.config.head.socket)])
    said = capsys.readouterr()
    return code, said.out + said.err


async def test_the_list_tells_use_and_power_of_each_job(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    _, said = await say(head, capsys, "jobs", "--json")
    rows: dict[str, Any] = {row["job"]: row for row in json.loads(said)}
    assert (rows["7"]["gpus"], rows["7"]["power_watts"]) == (16, 9600.0)
    # Of n3 the job holds four: the busiest are its own.
    assert rows["8"]["utilization_low_ratio"] == 0.95
    # Of a node that jobs share nobody knows whose GPUs are whose.
    assert rows["9"]["utilization_ratio"] is None
    assert rows["10"]["gpus"] is None
    _, text = await say(head, capsys, "jobs")
    assert text.splitlines()[0].split() == [
        "JOB", "USER", "PARTITION", "NODES", "GPUS", "RUNS", "USE", "LOWEST", "POWER", "IDLE",
    ]  # fmt: skip
    assert text.splitlines()[-1] == "4 jobs, 22 GPUs, 12.0 kW"
    assert await say(head, capsys, "jobs", "--idle") == (
        0, "no job holds GPUs and does nothing with them\n",
    )  # fmt: skip


async def test_one_job_in_full_says_why_it_is_slow_what_it_took_and_what_it_met(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = await say(head, capsys, "jobs", "7")
    assert code == 0
    assert "job 7 of ann: 16 GPUs on 2 nodes, runs for 60 min" in text
    assert "n2 gpu3: runs at 1100 MHz, the others at 1900: heat in 100% of the readings" in text
    # 16 GPUs, ten minutes of 600 W by their counters.
    assert "energy   1.6 kWh, by the GPUs' counters" in text
    # 16 GPUs held for an hour; a checkpoint each half hour, and half an hour to start anew.
    assert "held     16.0 GPU-hours; if it died now, about 12.0 would be lost" in text
    assert "n2  xid 63: NVRM: Xid 63" in text
    _, other = await say(head, capsys, "jobs", "8")
    assert "nothing stands out" in other
    assert "xid" not in other
    _, shared = await say(head, capsys, "jobs", "9")
    assert "shared   n4: other jobs run there too" in shared


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("jobs", "77"), "no job 77 runs that holds GPUs"),
        (("jobs", "x7"), "a job is a number, as squeue shows it"),
        (("jobs", "7", "--minutes", "0"), "minutes must be a number from 1 to 1440"),
    ],
)
async def test_what_makes_no_sense_is_answered_in_words(
    head: Head, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, said = await say(head, capsys, *words)
    assert code == 1
    assert told in said
