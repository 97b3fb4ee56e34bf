"""Waiting for the kernel log's news: at once when it comes, and cheap while it does not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.bell import Bell
from collectors.kernel.log import KernelLog, Options
from collectors.sample import Context

NOW_NS = 1_796_007_000_000_000_000
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, words\n"
LONG_SECONDS = 60.0


@pytest.fixture
def source(log: Path, tmp_path: Path) -> KernelLog:
    (tmp_path / "state").mkdir()
    context = Context("n1", tmp_path / "state", tmp_path / "root", lambda: NOW_NS)
    made = KernelLog(Options(path=str(log), period_seconds=0.05), context)
    made.collect(NOW_NS)
    return made


def ends(source: KernelLog, what: Callable[[], object]) -> None:
    """A long wait ends by ``what``, far before its time."""
    begin = time.monotonic()
    waiting = threading.Thread(target=source.wait, args=(LONG_SECONDS,), daemon=True)
    waiting.start()
    what()
    waiting.join(LONG_SECONDS / 2)
    assert not waiting.is_alive()
    assert time.monotonic() - begin < LONG_SECONDS / 2


def test_a_new_line_ends_the_wait(source: KernelLog, log: Path) -> None:
    ends(source, lambda: log.write_text(XID))
    assert [one.tag("code") for one in source.collect(NOW_NS).samples] == ["79"]


def test_a_rotation_ends_the_wait(source: KernelLog, log: Path) -> None:
    def rotate() -> None:
        log.rename(log.with_suffix(".1"))
        log.write_text(XID)

    ends(source, rotate)
    assert [one.tag("code") for one in source.collect(NOW_NS).samples] == ["79"]


def test_the_bell_ends_this_wait_and_all_later_ones(source: KernelLog) -> None:
    ends(source, source.wake)
    ends(source, lambda: None)
    source.close()
    source.close()
    source.wake()
    source.wait(LONG_SECONDS)


def test_after_news_the_next_wait_is_short_so_that_what_is_held_is_told(
    source: KernelLog, log: Path
) -> None:
    log.write_text(XID)
    source.collect(NOW_NS)
    ends(source, lambda: None)


def test_nothing_new_takes_the_whole_time(source: KernelLog) -> None:
    begin = time.monotonic()
    source.wait(0.2)
    assert time.monotonic() - begin >= 0.19


def test_a_descriptor_with_something_to_read_ends_the_wait() -> None:
    bell = Bell()
    reading, writing = os.pipe()
    os.write(writing, b"x")
    bell.wait(LONG_SECONDS, reading)
    os.close(reading)
    os.close(writing)
    bell.close()
