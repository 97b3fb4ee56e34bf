import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.agent.spool import Entry, Spool

NOW_NS = 1_780_000_000_000_000_000


def drain(spool: Spool, now_ns: int = NOW_NS) -> list[Entry]:
    taken = []
    while (entry := spool.oldest(now_ns)) is not None:
        taken.append(entry)
        spool.done(entry)
    return taken


def fill(spool: Spool, count: int, size: int = 10, now_ns: int = NOW_NS) -> None:
    for number in range(count):
        assert spool.append(f"{number:06d}".encode().ljust(size, b"."), 3, now_ns)


def test_batches_come_out_in_order_and_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    fill(spool, 5)
    assert spool.waiting()[0] == 5
    first = spool.oldest(NOW_NS)
    assert first is not None
    assert first == spool.oldest(NOW_NS)
    assert [e.sequence for e in drain(spool)] == [1, 2, 3, 4, 5]
    assert spool.waiting()[0] == 0
    assert spool.counts.sent_samples == 15


def test_what_waits_survives_a_restart_and_keeps_its_key(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    fill(spool, 4)
    first = spool.oldest(NOW_NS)
    assert first is not None
    spool.done(first)
    again = Spool(tmp_path)
    assert again.instance != spool.instance
    assert again.waiting()[0] == 3
    again.append(b"new", 1, NOW_NS)
    keys = [entry.key for entry in drain(again)]
    assert keys == [f"{spool.instance}:{n}" for n in (2, 3, 4)] + [f"{again.instance}:1"]
    assert not list(tmp_path.glob("*.spool"))[1:], "sent segments are removed"


def test_a_torn_tail_costs_the_torn_batch_only(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    fill(spool, 3)
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    segment.write_bytes(segment.read_bytes()[:-4])
    again = Spool(tmp_path)
    assert [e.sequence for e in drain(again)] == [1, 2]
    assert again.counts.damaged_bytes > 0
    assert again.counts.lost_bytes == 0, "nobody was told that it is kept"


def test_a_kept_batch_at_the_end_that_is_damaged_counts_as_lost(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    fill(spool, 3)
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    data = bytearray(segment.read_bytes())
    data[-2] ^= 1
    segment.write_bytes(bytes(data))
    again = Spool(tmp_path)
    assert [e.sequence for e in drain(again)] == [1, 2]
    assert again.counts.lost_bytes > 0


def test_a_segment_that_cannot_be_opened_now_stays_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of a file handle no batch is thrown away."""
    spool = Spool(tmp_path)
    fill(spool, 3)
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    with monkeypatch.context() as inside:

        def refuses(path: Path) -> bytes:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        inside.setattr("daemon.agent.spool.read_file", refuses)
        again = Spool(tmp_path)
        assert drain(again) == []
        assert "Too many open files" in again.counts.fault
        assert again.append(b"new", 1, NOW_NS), "what comes meanwhile is kept beside it"
    assert segment.exists()
    assert [entry.sequence for entry in drain(again)] == [1, 2, 3, 1]
    assert again.counts.dropped_batches == 0


def test_a_damaged_stretch_costs_what_it_covers_only(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    fill(spool, 5, size=50)
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))
    again = Spool(tmp_path)
    assert [e.sequence for e in drain(again)] == [1, 2, 4, 5]
    assert again.counts.damaged_bytes > 0


def test_the_byte_bound_drops_the_oldest_and_counts_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=40_000)
    fill(spool, 200, size=1000)
    kept = drain(spool)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.spool"))
    assert size <= 40_000 + spool.segment_bytes
    assert [e.sequence for e in kept] == list(range(201 - len(kept), 201))
    assert spool.counts.dropped_batches == 200 - len(kept) > 100
    assert spool.counts.dropped_samples == 3 * spool.counts.dropped_batches


def test_the_age_bound_drops_the_old_and_counts_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_age_seconds=60)
    fill(spool, 3)
    fill(spool, 2, now_ns=NOW_NS + 50 * 10**9)
    assert len(drain(spool, NOW_NS + 100 * 10**9)) == 2
    assert spool.counts.dropped_batches == 3


def test_a_batch_dropped_while_it_was_sent_does_not_skip_another(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=8 * 4096)
    fill(spool, 1, size=1000)
    sending = spool.oldest(NOW_NS)
    assert sending is not None
    fill(spool, 60, size=1000)
    spool.done(sending)
    sequences = [e.sequence for e in drain(spool)]
    assert sequences == list(range(sequences[0], 62))


def test_a_disk_that_fails_leaves_memory_and_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    spool = Spool(blocked / "spool", memory_limit_bytes=1000)
    for _ in range(30):
        assert not spool.append(b"x" * 100, 2, NOW_NS)
    assert "Not a directory" in spool.counts.fault
    assert spool.counts.dropped_samples == 40
    assert len(drain(spool)) == 10


def test_a_disk_that_is_mended_is_used_again(tmp_path: Path) -> None:
    blocked = tmp_path / "spool"
    blocked.write_text("in the way")
    spool = Spool(blocked)
    assert not spool.append(b"one", 1, NOW_NS)
    blocked.unlink()
    assert spool.append(b"two", 1, NOW_NS)
    assert spool.counts.fault == ""
    assert sorted(e.body for e in drain(spool)) == [b"one", b"two"]


def test_what_memory_held_is_not_taken_for_a_batch_that_the_head_has(tmp_path: Path) -> None:
    """The head takes each number up to the highest of an instance for one that it has."""
    blocked = tmp_path / "spool"
    blocked.write_text("in the way")
    spool = Spool(blocked)
    kept, key = spool.keep(b"one", 1, NOW_NS)
    blocked.unlink()
    assert spool.append(b"two", 1, NOW_NS)
    highest: dict[str, int] = {}
    stored = []
    for entry in drain(spool):
        if highest.get(entry.instance, 0) < entry.sequence:
            highest[entry.instance] = entry.sequence
            stored.append((entry.key, entry.body))
    assert sorted(body for _, body in stored) == [b"one", b"two"]
    assert not kept
    assert (key, b"one") in stored


def test_a_batch_whose_sync_failed_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    fill(spool, 1)

    def fails(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        assert not spool.append(b"half", 1, NOW_NS)
    assert spool.append(b"after", 1, NOW_NS)
    bodies = [entry.body for entry in drain(spool)]
    assert sorted(bodies) == [b"000000....", b"after", b"half"]


def test_a_lost_cursor_sends_again_rather_than_losing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    fill(spool, 3)
    first = spool.oldest(NOW_NS)
    assert first is not None
    spool.done(first)
    (tmp_path / "cursor.json").write_text("not json")
    assert [e.sequence for e in drain(Spool(tmp_path))] == [1, 2, 3]


WRITER = """
import sys
from pathlib import Path
from daemon.agent.spool import Spool
spool = Spool(Path(sys.argv[1]), limit_bytes=10**9)
while True:
    spool.append(b"x" * 500, 1, 1)
    print(spool.instance, spool.counts.kept, flush=True)
"""


@pytest.mark.parametrize("pause_lines", [1, 5, 40])
def test_kill_9_loses_nothing_that_was_said_to_be_kept(tmp_path: Path, pause_lines: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        instance, kept = "", 0
        for _ in range(pause_lines):
            instance, count = child.stdout.readline().split()
            kept = int(count)
        os.kill(child.pid, signal.SIGKILL)
    found = [e.sequence for e in drain(Spool(tmp_path), 1) if e.instance == instance]
    assert found[:kept] == list(range(1, kept + 1))
    assert found == list(range(1, len(found) + 1))
