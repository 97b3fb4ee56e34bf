"""The kernel log by way of /dev/kmsg and of journald."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.kernel.kmsg import KmsgReader
from collectors.kernel.log import KernelLog, Options
from collectors.sample import Batch, Context, Sample, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.kernel.log_help import SECOND, append, codes, line


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
    assert time.perf_counter() - begin < 30
