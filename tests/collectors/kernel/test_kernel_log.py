"""Following the kernel log: every line once, whatever happens to file, journal, ring or agent."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.kernel import log as kernel_log
from collectors.kernel.cursor import CursorFile
from collectors.kernel.event import KernelEvent
from collectors.kernel.file import FileTail
from collectors.kernel.kmsg import KmsgReader
from collectors.kernel.log import KernelLog, Options
from collectors.kernel.storm import Storm
from collectors.sample import Batch, Context, Sample, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract

SECOND = 10**9
XID = "NVRM: Xid (PCI:0000:{:02x}:00): {}, pid=1, name=a, GPU has fallen off the bus.\n"


def line(code: int, bus: int = 0x3B) -> str:
    return XID.format(bus, code)


def codes(batch: Batch) -> list[str]:
    return [one.tag("code") for one in batch.samples]


def proc(context: Context, boot_id: str = "b0", boot_ns: int = NOW_NS - 1_000 * SECOND) -> None:
    folder = context.root / "proc/sys/kernel/random"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "boot_id").write_text(boot_id + "\n")
    (context.root / "proc/stat").write_text(f"cpu 1 2 3\nbtime {boot_ns // SECOND}\n")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "state").mkdir()
    made = Context(NODE, tmp_path / "state", tmp_path / "root", lambda: NOW_NS)
    proc(made)
    return made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text("")
    return path


@pytest.fixture
def start(context: Context, log: Path) -> Iterator[Callable[[], KernelLog]]:
    """Starts an agent's source on the file; all are closed at the end."""
    made: list[KernelLog] = []

    def make(**options: object) -> KernelLog:
        made.append(KernelLog(Options(path=str(log), **options), context))
        return made[-1]

    yield make
    for one in made:
        one.close()


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


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
    assert time.perf_counter() - begin < 2


# ---- times ----------------------------------------------------------------------------------


def test_a_first_start_tells_this_boot_with_true_times(
    start: Callable[[], KernelLog], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    boot_ns = NOW_NS - 1_000 * SECOND

    def dated(at_ns: int) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(at_ns // SECOND))

    append(log, f"{dated(boot_ns - 900 * SECOND)} {NODE} kernel: {line(79)}")  # the boot before
    append(log, f"{dated(boot_ns + 60 * SECOND)} {NODE} kernel: {line(48)}")
    append(log, f"[  100.500000] {line(95)}")
    # A syslog daemon that started again writes the old ring with a new date.
    append(log, f"{dated(NOW_NS - SECOND)} {NODE} kernel: [  100.500000] {line(119)}")
    found = [(one.tag("code"), one.time_ns) for one in start().collect(NOW_NS).samples]
    assert found == [
        ("48", boot_ns // SECOND * SECOND + 60 * SECOND),
        ("95", boot_ns // SECOND * SECOND + 100_500_000_000),
        ("119", boot_ns // SECOND * SECOND + 100_500_000_000),
    ]


def test_a_line_without_a_stamp_is_not_newer_than_its_file(
    start: Callable[[], KernelLog], log: Path
) -> None:
    append(log, line(79))
    past = NOW_NS - 500 * SECOND
    os.utime(log, ns=(past, past))
    (sample,) = start().collect(NOW_NS).samples
    assert sample.time_ns == past


def test_an_indented_line_shares_the_stamp_of_the_line_above(
    start: Callable[[], KernelLog], log: Path
) -> None:
    append(log, "[  100.500000] NVRM: The NVIDIA GPU 0000:b3:00.0\n")
    append(log, "               NVRM: (PCI ID: 10de:2330) installed in this system has\n")
    append(log, "               NVRM: fallen off the bus and is not responding to commands.\n")
    (one,) = start().collect(NOW_NS).samples
    boot_ns = (NOW_NS - 1_000 * SECOND) // SECOND * SECOND
    assert (one.tag("kind"), one.time_ns) == ("gpu_lost", boot_ns + 100_500_000_000)


def test_a_line_whose_stamp_runs_on_was_written_since_the_last_look(
    start: Callable[[], KernelLog], log: Path
) -> None:
    """The kernel's clock has drifted, or the stamp is of another machine's clock."""
    source = start()
    append(log, "[  100.500000] usb: words\n")
    source.collect(NOW_NS - 10 * SECOND)
    append(log, f"[  200.500000] {line(79)}[131453.740758] {line(48)}")
    times = [one.time_ns for one in source.collect(NOW_NS).samples]
    assert times == [NOW_NS - 10 * SECOND, NOW_NS]


def test_the_ring_written_once_more_keeps_its_true_times(
    start: Callable[[], KernelLog], log: Path
) -> None:
    boot_ns = (NOW_NS - 1_000 * SECOND) // SECOND * SECOND
    first = start()
    append(log, f"[  100.500000] {line(79)}[  900.000000] usb: words\n")
    first.collect(NOW_NS - 10 * SECOND)
    first.acknowledge()
    first.close()
    second = start()
    append(log, f"[  100.500000] {line(79)}[  900.000000] usb: words\n")
    assert [one.time_ns for one in second.collect(NOW_NS).samples] == [boot_ns + 100_500_000_000]


def test_a_dated_line_told_again_keeps_its_old_time_whatever_happens_to_the_file(
    start: Callable[[], KernelLog], log: Path
) -> None:
    text = f"2025-10-09T08:53:20.000000+00:00 {NODE} kernel: [  100.0] {line(79)}"
    boot_ns = (NOW_NS - 1_000 * SECOND) // SECOND * SECOND
    first = start()
    first.collect(NOW_NS - 2 * SECOND)
    append(log, text)
    (live,) = first.collect(NOW_NS - SECOND).samples
    assert live.time_ns >= NOW_NS - 2 * SECOND
    first.acknowledge()
    append(log, text)
    (again,) = first.collect(NOW_NS).samples
    assert again.time_ns == boot_ns + 100 * SECOND
    first.acknowledge()
    log.write_text(text)
    (third,) = start().collect(NOW_NS + SECOND).samples
    assert third.time_ns == boot_ns + 100 * SECOND


def test_no_time_lies_in_the_future(start: Callable[[], KernelLog], log: Path) -> None:
    append(log, f"2099-01-01T00:00:00Z {NODE} kernel: {line(79)}[999999999.000000] {line(48)}")
    assert all(one.time_ns <= NOW_NS for one in start().collect(NOW_NS).samples)


# ---- a restart of the node ------------------------------------------------------------------


def test_another_boot_id_gives_a_reboot_event_before_anything_else(
    start: Callable[[], KernelLog], log: Path, context: Context
) -> None:
    first = start()
    append(log, line(13))
    first.collect(NOW_NS)
    first.acknowledge()
    append(log, line(79))  # the last words before the crash
    boot_ns = NOW_NS + 100 * SECOND
    proc(context, "b1", boot_ns)
    second = start()
    samples = second.collect(NOW_NS + 200 * SECOND).samples
    assert [one.tag("kind") for one in samples] == ["reboot", "xid"]
    assert samples[0].time_ns == boot_ns // SECOND * SECOND
    assert "b1" in samples[0].text("text")
    second.acknowledge()
    third = start()
    assert third.collect(NOW_NS + 300 * SECOND).samples == ()


def test_a_first_start_is_no_reboot(start: Callable[[], KernelLog], log: Path) -> None:
    append(log, line(79))
    assert codes(start().collect(NOW_NS)) == ["79"]


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


class Ring:
    """A stand-in for the device: hands out one record a read, as the kernel does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.records: list[tuple[int, int, str, int]] = []
        self.at = 0
        self.path = path
        path.write_text("")
        real = os.read

        def read(descriptor: int, size: int) -> bytes:
            if not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                return real(descriptor, size)
            if self.at >= len(self.records):
                raise BlockingIOError
            sequence, us, text, prefix = self.records[self.at]
            self.at += 1
            return f"{prefix},{sequence},{us},-;{text}\n SUBSYSTEM=pci\n".encode()

        monkeypatch.setattr("collectors.kernel.kmsg.os.read", read)

    def add(self, sequence: int, us: int, text: str, prefix: int = 4) -> None:
        self.records.append((sequence, us, text.strip(), prefix))


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ring:
    return Ring(monkeypatch, tmp_path / "kmsg")


def kmsg(ring: Ring, mono: Callable[[], int], boot_id: str = "b0") -> KmsgReader:
    ring.at = 0
    return KmsgReader(ring.path, boot_id, mono)


def test_ring_records_get_the_time_of_boot_plus_their_stamp(ring: Ring) -> None:
    ring.add(1, 100_000_000, line(79))
    reader = kmsg(ring, lambda: 1_000 * SECOND)
    (record,) = reader.read(NOW_NS, 100)
    assert record.time_ns == NOW_NS - 900 * SECOND
    reader.close()


def test_a_record_between_two_looks_was_written_between_them(ring: Ring) -> None:
    """The kernel's clock has drifted by three minutes since boot."""
    reader = kmsg(ring, lambda: 1_000_000 * SECOND)
    assert reader.read(NOW_NS, 100) == []
    ring.add(1, (1_000_000 - 180) * 10**6, line(79))
    (record,) = reader.read(NOW_NS + SECOND // 4, 100)
    assert record.time_ns == NOW_NS
    ring.add(2, (1_000_000 + 180) * 10**6, line(48))
    (record,) = reader.read(NOW_NS + SECOND // 2, 100)
    assert record.time_ns == NOW_NS + SECOND // 2
    reader.close()


def test_the_same_record_read_again_gets_the_same_time(ring: Ring) -> None:
    ring.add(1, 100_000_000, line(79))
    first = kmsg(ring, lambda: 1_000 * SECOND)
    before = first.read(NOW_NS, 100)
    position = first.position() | {"sequence": 0, "looked_ns": None}
    first.close()
    again = kmsg(ring, lambda: 1_050 * SECOND + 1_234_567)
    again.resume(position)
    assert [one.time_ns for one in again.read(NOW_NS + 50 * SECOND, 100)] == [before[0].time_ns]
    again.close()


def test_the_ring_goes_on_after_the_last_record_of_this_boot_only(ring: Ring) -> None:
    for sequence in (7, 8):
        ring.add(sequence, sequence, line(79))
    first = kmsg(ring, lambda: SECOND)
    assert len(first.read(NOW_NS, 100)) == 2
    position = first.position()
    first.close()
    same = kmsg(ring, lambda: SECOND)
    same.resume(position)
    ring.add(9, 9, line(48))
    assert [one.sequence for one in same.read(NOW_NS, 100)] == [9]
    same.close()
    other = kmsg(ring, lambda: SECOND, boot_id="b1")
    other.resume(position)
    assert len(other.read(NOW_NS, 100)) == 3
    other.close()


def test_overwritten_records_are_told(ring: Ring) -> None:
    ring.add(1, 1, line(79))
    reader = kmsg(ring, lambda: SECOND)
    reader.read(NOW_NS, 100)
    ring.add(500, 2, line(48))
    assert len(reader.read(NOW_NS, 100)) == 1
    assert "498" in reader.problems[0].problem
    reader.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="needs /dev/kmsg (root)")
def test_the_real_ring_is_read_and_what_a_program_wrote_there_does_not_count(
    tmp_path: Path,
) -> None:
    assert stat.S_ISCHR(Path("/dev/kmsg").stat().st_mode)
    context = Context(NODE, tmp_path, Path("/"), time.time_ns)
    strict = KernelLog(Options(backend="kmsg"), context)
    drill_state = tmp_path / "drill"
    drill_state.mkdir()
    drill = KernelLog(
        Options(backend="kmsg", trust_written_records=True), replace(context, state_dir=drill_state)
    )
    try:
        strict.collect(time.time_ns())
        drill.collect(time.time_ns())
        before_ns = time.time_ns()
        bus = before_ns % 200
        Path("/dev/kmsg").write_text(line(79, bus))
        assert mine(strict.collect(time.time_ns()), bus) == []
        (sample,) = mine(drill.collect(time.time_ns()), bus)
        assert abs(sample.time_ns - before_ns) < SECOND
        drill.acknowledge()  # what was in the ring before
        drill.acknowledge()
        drill.close()
        again = KernelLog(
            Options(backend="kmsg", trust_written_records=True),
            replace(context, state_dir=drill_state),
        )
        assert mine(again.collect(time.time_ns()), bus) == []
        again.close()
    finally:
        strict.close()
        drill.close()


def mine(batch: Batch, bus: int) -> list[Sample]:
    return [one for one in batch.samples if one.text("device") == f"0000:{bus:02x}:00"]


# ---- journald -------------------------------------------------------------------------------


PROGRAM = """#!/usr/bin/env python3
import json, sys
from pathlib import Path
here = Path(__file__).parent
with open(here / "asked", "a") as asked:
    asked.write(" ".join(sys.argv[1:]) + chr(10))
known = [json.loads(line) for line in (here / "journal").read_text().splitlines()]
cursor = next((a.split("=", 1)[1] for a in sys.argv if a.startswith("--after-cursor=")), None)
if cursor is not None:
    places = [i for i, entry in enumerate(known) if entry["__CURSOR"] == cursor]
    if not places:
        sys.exit("Failed to seek to cursor: Invalid argument")
    known = known[places[0] + 1:]
since = next((a.split("@", 1)[1] for a in sys.argv if a.startswith("--since=@")), None)
if since is not None:
    known = [e for e in known if int(e["__REALTIME_TIMESTAMP"]) >= int(since) * 10**6]
for entry in known:
    print(json.dumps(entry))
"""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (program.parent / "journal").write_text("")
    return program


def record(journal: Path, number: int, text: str, transport: str = "kernel") -> None:
    entry = {
        "__CURSOR": f"s=0;i={number}",
        "__REALTIME_TIMESTAMP": str((NOW_NS - 100 * SECOND) // 1000 + number * 10**6),
        "_TRANSPORT": transport,
        "_BOOT_ID": "b0",
        "MESSAGE": text.strip(),
    }
    append(journal.parent / "journal", json.dumps(entry) + "\n")


def journald(journal: Path, context: Context) -> KernelLog:
    options = Options(
        backend="journald", journal_program=str(journal), journal_period_seconds=0.001
    )
    return KernelLog(options, context)


def test_the_journal_is_read_by_its_cursor(journal: Path, context: Context) -> None:
    record(journal, 1, line(79))
    record(journal, 2, line(48), transport="stdout")
    first = journald(journal, context)
    batch = first.collect(NOW_NS)
    assert codes(batch) == ["79"]
    assert batch.samples[0].time_ns == NOW_NS - 99 * SECOND
    first.acknowledge()
    record(journal, 3, line(95))
    second = journald(journal, context)
    assert codes(second.collect(NOW_NS + SECOND)) == ["95"]
    assert codes(second.collect(NOW_NS + 2 * SECOND)) == []
    asked = (journal.parent / "asked").read_text().splitlines()
    assert "--boot" in asked[0]
    assert "--after-cursor=s=0;i=2" in asked[1]
    assert all("_TRANSPORT=kernel" in one for one in asked)


def test_a_journal_that_forgot_the_cursor_is_read_by_time(journal: Path, context: Context) -> None:
    record(journal, 1, line(79))
    first = journald(journal, context)
    first.collect(NOW_NS)
    first.acknowledge()
    (journal.parent / "journal").write_text("")
    record(journal, 9, line(95))
    second = journald(journal, context)
    batch = second.collect(NOW_NS + SECOND)
    assert codes(batch) == ["95"]
    assert "cursor" in batch.problems[0].problem


def test_without_the_ring_the_journal_is_read_where_there_is_one(
    journal: Path, context: Context
) -> None:
    record(journal, 1, line(79))
    options = Options(journal_program=str(journal))
    with pytest.raises(SourceUnavailable, match="kmsg"):
        KernelLog(options, context).collect(NOW_NS)
    (context.root / "run/systemd/journal").mkdir(parents=True)
    assert codes(KernelLog(options, context).collect(NOW_NS)) == ["79"]


def test_a_journalctl_that_is_missing_or_hangs_is_unavailable(
    journal: Path, context: Context
) -> None:
    missing = Options(backend="journald", journal_program="/no/such/journalctl")
    with pytest.raises(SourceUnavailable, match="not found"):
        KernelLog(missing, context).collect(NOW_NS)
    journal.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging = Options(backend="journald", journal_program=str(journal), deadline_seconds=0.5)
    begin = time.perf_counter()
    with pytest.raises(SourceUnavailable, match="did not end"):
        KernelLog(hanging, context).collect(NOW_NS)
    assert time.perf_counter() - begin < 5


# ---- what it costs --------------------------------------------------------------------------


def test_an_idle_look_is_cheap(start: Callable[[], KernelLog], log: Path) -> None:
    append(log, "words\n" * 1_000)
    source = start()
    source.collect(NOW_NS)
    begin = time.thread_time()
    for turn in range(1_000):
        source.collect(NOW_NS + turn)
    assert time.thread_time() - begin < 1.0  # one millisecond a look, at most


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
