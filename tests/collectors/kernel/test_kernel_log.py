"""Following the kernel log: every line once, whatever happens to file, journal, ring or agent."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.kernel import log as kernel_log
from collectors.kernel.cursor import CursorFile
from collectors.kernel.event import KernelEvent
from collectors.kernel.file import FileTail
from collectors.kernel.log import KernelLog, Options
from collectors.kernel.storm import Storm
from collectors.sample import Context, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract
from tests.collectors.kernel.log_help import SECOND, append, codes, line, proc


class TestContract(SourceContract):
    module = kernel_log

    @pytest.fixture
    def healthy(self, context: Context) -> Source:
        proc(context)
        path = context.root / "kern.log"
        path.write_text(line(79) + line(13))
        return kernel_log.make(Options(path=str(path)), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return kernel_log.make(Options(), context)


# ---- a file ---------------------------------------------------------------------------------


def test_new_lines_are_told_once(start: Callable[[], KernelLog], log: Path) -> None:
    source = start()
    append(log, line(79))
    assert codes(source.collect(NOW_NS)) == ["79"]
    assert codes(source.collect(NOW_NS)) == []
    append(log, line(48) + "something else\n" + line(95))
    assert codes(source.collect(NOW_NS)) == ["48", "95"]


def test_a_line_without_its_end_waits_for_it(start: Callable[[], KernelLog], log: Path) -> None:
    source = start()
    text = line(79)
    for cut in range(0, len(text) - 1, 7):
        log.write_text(text[: cut + 1])
        assert codes(source.collect(NOW_NS)) == []
    log.write_text(text)
    assert codes(source.collect(NOW_NS)) == ["79"]


def test_after_a_restart_acknowledged_lines_are_not_told_again(
    start: Callable[[], KernelLog], log: Path
) -> None:
    first = start()
    append(log, line(79))
    assert codes(first.collect(NOW_NS)) == ["79"]
    first.acknowledge()
    append(log, line(48))
    assert codes(first.collect(NOW_NS)) == ["48"]
    # Killed before the second batch was safe: no close, no acknowledge.
    second = start()
    append(log, line(95))
    assert codes(second.collect(NOW_NS)) == ["48", "95"]
    second.acknowledge()
    assert codes(start().collect(NOW_NS)) == []


def test_closing_saves_how_far_it_was_read_only_past_what_is_safe(
    start: Callable[[], KernelLog], log: Path
) -> None:
    first = start()
    append(log, "nothing of interest\n" * 10)
    first.collect(NOW_NS)
    append(log, line(79))
    first.collect(NOW_NS)
    first.close()  # the Xid was handed over, but never acknowledged
    second = start()
    assert codes(second.collect(NOW_NS)) == ["79"]
    second.acknowledge()
    second.close()
    assert codes(start().collect(NOW_NS)) == []


def test_each_batch_is_acknowledged_by_itself(start: Callable[[], KernelLog], log: Path) -> None:
    first = start()
    for code in (79, 48, 95):
        append(log, line(code))
        first.collect(NOW_NS)
    first.acknowledge()
    first.acknowledge()
    assert codes(start().collect(NOW_NS)) == ["95"]


def test_a_cursor_that_cannot_be_written_is_told_and_costs_nothing_else(
    start: Callable[[], KernelLog], log: Path, context: Context
) -> None:
    source = start()
    append(log, line(79))
    source.collect(NOW_NS)
    (context.state_dir / "kernel_log.new").mkdir()
    source.acknowledge()
    append(log, line(48))
    batch = source.collect(NOW_NS)
    assert codes(batch) == ["48"]
    assert "cursor" in batch.problems[0].problem


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": 3, "offset": "x"}', "\x00" * 50])
def test_a_broken_cursor_means_a_first_start(
    start: Callable[[], KernelLog], log: Path, context: Context, content: str
) -> None:
    (context.state_dir / "kernel_log.json").write_text(content)
    append(log, line(79))
    assert codes(start().collect(NOW_NS)) == ["79"]


def test_rotation_loses_no_line(start: Callable[[], KernelLog], log: Path) -> None:
    source = start()
    append(log, line(79))
    source.collect(NOW_NS)
    append(log, line(48))
    log.rename(log.with_name("kern.log.1"))
    append(log.with_name("kern.log.1"), line(62))  # the old writer had it open still
    log.write_text(line(95))
    assert codes(source.collect(NOW_NS)) == ["48", "62", "95"]
    log.unlink()
    assert codes(source.collect(NOW_NS)) == []
    log.write_text(line(13))
    assert codes(source.collect(NOW_NS)) == ["13"]


def test_rotation_while_nobody_looked_loses_no_line(
    start: Callable[[], KernelLog], log: Path
) -> None:
    first = start()
    append(log, line(79))
    first.collect(NOW_NS)
    first.acknowledge()
    append(log, line(48))
    log.rename(log.with_name("kern.log.1"))
    log.write_text(line(95))
    batch = start().collect(NOW_NS)
    assert codes(batch) == ["48", "95"]
    assert batch.problems == ()


def test_a_rotated_file_that_is_gone_is_told(start: Callable[[], KernelLog], log: Path) -> None:
    first = start()
    append(log, line(79))
    first.collect(NOW_NS)
    first.acknowledge()
    keep = log.with_name("other")
    log.rename(keep)
    log.write_text(line(95))
    batch = start().collect(NOW_NS)
    assert codes(batch) == ["95"]
    assert "replaced" in batch.problems[0].problem


def test_truncation_in_place_starts_at_the_front(start: Callable[[], KernelLog], log: Path) -> None:
    source = start()
    append(log, "words\n" * 50 + line(79))
    assert codes(source.collect(NOW_NS)) == ["79"]
    with open(log, "r+") as file:
        file.truncate(0)
        file.write(line(48))
    assert codes(source.collect(NOW_NS)) == ["48"]
    # Truncated and grown past the old place between two looks.
    with open(log, "r+") as file:
        file.truncate(0)
        file.write(line(95) + "words\n" * 500)
    assert codes(source.collect(NOW_NS)) == ["95"]


def test_a_file_that_is_not_there_yet_is_unavailable_until_it_comes(
    start: Callable[[], KernelLog], log: Path
) -> None:
    log.unlink()
    source = start()
    with pytest.raises(SourceUnavailable, match="No such file"):
        source.collect(NOW_NS)
    log.write_text(line(79))
    assert codes(source.collect(NOW_NS)) == ["79"]


def test_a_line_without_end_is_skipped_and_memory_stays_bounded(log: Path) -> None:
    tail = FileTail(log)
    append(log, "x" * 300_000)
    assert tail.read(100) == []
    append(log, "y" * 300_000 + "\n" + line(79))
    assert [one.raw.decode() + "\n" for one in tail.read(100)] == [line(79)]
    assert len(tail.problems) == 1
    tail.close()


def test_a_large_backlog_is_taken_in_pieces(start: Callable[[], KernelLog], log: Path) -> None:
    append(log, "".join(line(13, bus) for bus in range(16)) + "words and words\n" * 100_000)
    source = start(records_per_cycle=1_000)  # type: ignore[call-arg]
    begin = time.perf_counter()
    assert len(source.collect(NOW_NS).samples) == 16
    assert time.perf_counter() - begin < 30


# ---- times ----------------------------------------------------------------------------------


# ---- storms ---------------------------------------------------------------------------------


def test_a_storm_becomes_few_events_and_keeps_its_count(
    start: Callable[[], KernelLog], log: Path
) -> None:
    source = start(records_per_cycle=5_000)  # type: ignore[call-arg]
    append(log, line(13) * 12_000 + line(79, 0x9B))
    samples = [one for _ in range(4) for one in source.collect(NOW_NS).samples]
    assert [one.tag("code") for one in samples] == ["13"] * 10 + ["79"]
    samples += source.collect(NOW_NS + 11 * SECOND).samples
    assert len(samples) == 12
    assert sum(one.number("count") or 1.0 for one in samples) == 12_001
    assert len({(one.tags, one.time_ns) for one in samples}) == 12


def test_storms_of_many_kinds_stay_bounded_and_lose_no_count() -> None:
    storm = Storm(burst_count=2, kinds_limit=50)
    out = []
    for number in range(5_000):
        event = KernelEvent("xid", str(number % 100), 1.0, "x", f"gpu{number % 7}")
        out += [one for one, _ in storm.feed(event, number, number)]
    out += [one for one, _ in storm.due(10**12)]
    assert sum(one.count for one in out) == 5_000


# ---- /dev/kmsg ------------------------------------------------------------------------------


# ---- what it costs --------------------------------------------------------------------------


def test_an_idle_look_is_cheap(start: Callable[[], KernelLog], log: Path) -> None:
    append(log, "words\n" * 1_000)
    source = start()
    source.collect(NOW_NS)
    begin = time.thread_time()
    for turn in range(1_000):
        source.collect(NOW_NS + turn)
    assert time.thread_time() - begin < 3.0  # three milliseconds a look, at most


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_in_the_file_give_a_traceback(
    pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("noise")
    path = folder / "log"
    source = KernelLog(Options(path=str(path)), Context(NODE, folder, folder, lambda: NOW_NS))
    try:
        for piece in pieces:
            with open(path, "ab") as file:
                file.write(piece)
            source.collect(NOW_NS)
            source.acknowledge()
    finally:
        source.close()


def test_the_cursor_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    cursor = CursorFile(tmp_path / "cursor.json")
    cursor.save({"offset": 1}, durable=True)
    (tmp_path / "cursor.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        cursor.save({"offset": 2}, durable=True)
    assert cursor.load() == {"offset": 1}
