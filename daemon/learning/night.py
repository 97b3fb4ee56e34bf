"""The night's training as the head sees it: when it is due, the child, and what it answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daemon.learning.options import LearningOptions

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
ANSWER_LIMIT_BYTES = 4 * 2**20
TERM_SECONDS = 5.0


class NightError(Exception):
    """The training did not end well. The text says how."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a training said: ``waiting`` or ``judged``, and whether its model is better."""

    state: str
    why: str
    promote: bool
    gate: bool
    failures: int
    evidence: dict[str, Any]


def due(now_ns: int, last_ns: int, hour: int) -> bool:
    """Whether the hour ``hour`` (UTC) of a day has begun since the last time; pure.

    A head that was down at that hour catches up within the day.
    """
    day_ns = 24 * HOUR_NS
    begins_ns = (now_ns - hour * HOUR_NS) // day_ns * day_ns + hour * HOUR_NS
    return last_ns < begins_ns <= now_ns


def name_of(now_ns: int, taken: Sequence[str]) -> str:
    """``learned-20261130``, with a letter where that is taken."""
    stem = f"learned-{datetime.fromtimestamp(now_ns / 1e9, UTC):%Y%m%d}"
    tails = ["", *(f"-{number}" for number in range(2, 1000))]
    return next(stem + tail for tail in tails if stem + tail not in taken)


def command(options: LearningOptions, store: Path, out: Path, champion: Path | None) -> list[str]:
    """The child's command line: ``tocsin train`` by this very interpreter."""
    argv = [sys.executable, "-P", "-m", "daemon.cli", "train", "--json", "--with-parent"]
    argv += ["--store", str(store), "--out", str(out), "--days", f"{options.days:g}"]
    argv += ["--nodes-max", str(options.nodes_max), "--nice", str(options.nice)]
    argv += ["--failures-min", str(options.failures_min)]
    argv += ["--budget", f"{options.budget_per_1000_node_days:g}"]
    argv += ["--memory-bytes", str(options.memory_bytes)]
    return [*argv, "--champion", str(champion)] if champion is not None else argv


async def train(argv: Sequence[str], deadline_seconds: float) -> Answer:
    """Runs the child and reads its answer. Ends it when cancelled. Raises NightError."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=ANSWER_LIMIT_BYTES,
    )
    try:
        async with asyncio.timeout(deadline_seconds):
            said, complaint = await process.communicate()
    except TimeoutError as error:
        raise NightError(
            f"the training did not end within {deadline_seconds:g} s (learning.deadline_seconds)"
        ) from error
    finally:
        await _end(process)
    if process.returncode != 0:
        lines = complaint[-4000:].decode("utf-8", "replace").strip().splitlines()
        code = process.returncode or 0
        how = f"was ended by signal {-code}" if code < 0 else "failed"
        raise NightError(f"the training {how}: {lines[-1] if lines else 'no word'}")
    return answer_of(said)


def answer_of(said: bytes) -> Answer:
    """The child's last line. Raises NightError."""
    try:
        found = json.loads(said[-ANSWER_LIMIT_BYTES:].strip().splitlines()[-1])
        return Answer(
            str(found["state"]),
            str(found["why"])[:1000],
            found["promote"] is True,
            found["gate"] is True,
            int(found["failures"]),
            dict(found["evidence"]),
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise NightError("the training answered something that is no answer") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the child and all it started, if they are still there."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERM_SECONDS):
                await process.wait()
