"""A source that waits for news by itself: told at once, ended cleanly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from collectors.kernel.log import KernelLog, Options
from collectors.sample import Context, Sample
from daemon.source_loop import SourceLoop

NOW_NS = 1_796_007_000_000_000_000
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=a, words\n"


class Kept:
    """Keeps what it is given, in memory."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.came = asyncio.Event()

    async def add(self, samples: Sequence[Sample]) -> None:
        return

    async def now(
        self, samples: Sequence[Sample], urgent: bool, saved: Callable[[], None] | None
    ) -> None:
        self.codes += [one.tag("code") for one in samples]
        if saved is not None:
            saved()
        self.came.set()


async def test_lines_are_handed_on_as_they_come_and_the_end_is_clean(tmp_path: Path) -> None:
    log, state = tmp_path / "kern.log", tmp_path / "state"
    log.write_text("")
    state.mkdir()
    context = Context("n1", state, tmp_path / "root", lambda: NOW_NS)
    kept = Kept()
    loop = SourceLoop(KernelLog(Options(path=str(log)), context), "n1", kept, lambda: NOW_NS)
    assert loop.waits
    following = asyncio.ensure_future(loop.follow())
    for code in (79, 119):
        with open(log, "a") as file:
            file.write(XID.format(code))
        await asyncio.wait_for(kept.came.wait(), 60)
        kept.came.clear()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert kept.codes == ["79", "119"]
    assert not loop.thread.busy  # so that the source may be closed
    loop.close()
    assert json.loads((state / "kernel_log.json").read_text())["offset"] == log.stat().st_size
