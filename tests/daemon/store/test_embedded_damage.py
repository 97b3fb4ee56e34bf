"""The embedded store loses nothing by damage, full disks, crashes and kills."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectors.sample import sample
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.options import StoreOptions
from daemon.store.parts import HOUR_NS, all_parts
from daemon.store.reader import Reader
from daemon.store.segments import list_segments, segment_path
from tests.daemon.store.keeping import START_NS, gpu, keep, rows


def test_a_torn_frame_costs_itself_and_is_forgotten_by_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for second in range(3):
        keep(store, gpu("n1", 0, second, power_watts=1.0))
    path = segment_path(store.spool_directory, list_segments(store.spool_directory)[0])
    store.close()
    path.write_bytes(path.read_bytes()[:-3])
    store = Store(tmp_path)
    assert len(rows(store)) == 2
    keep(store, gpu("n1", 0, 9, power_watts=1.0))
    store.roll(START_NS, everything=True)
    assert [row["time"] for row in rows(store)] == [0, 1, 9]
    assert not list((tmp_path / "damaged").iterdir())
    store.close()


def test_a_damaged_frame_costs_itself_and_the_segment_is_set_aside(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for second in range(5):
        keep(store, gpu("n1", 0, second, power_watts=1.0))
    path = segment_path(store.spool_directory, list_segments(store.spool_directory)[0])
    store.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    store = Store(tmp_path)
    assert len(rows(store)) == 4
    store.roll(START_NS, everything=True)
    assert [row["time"] for row in rows(store)] == [0, 1, 3, 4]
    assert [p.name for p in (tmp_path / "damaged").iterdir()] == [path.name]
    assert store.counts.damaged_bytes > 0
    store.close()


@pytest.mark.parametrize("crash", ["before the parts", "between the parts", "before the removal"])
def test_a_crash_while_rolling_neither_loses_nor_doubles(
    tmp_path: Path, crash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    store = Store(tmp_path)
    for hour in range(3):
        keep(store, gpu("n1", 0, hour * 3600, power_watts=1.0))
        keep(store, sample("host", START_NS + hour * HOUR_NS, {"load_1m": 1.0}, node="n1"))
    from daemon.store import embedded

    real = embedded.write_part
    calls = []

    def failing(path: Path, table: Any, level: int) -> int:
        calls.append(path)
        if crash == "before the parts" or (crash == "between the parts" and len(calls) == 4):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".tmp").write_bytes(b"PAR1 half a file")
            raise Crash
        return real(path, table, level)

    monkeypatch.setattr(embedded, "write_part", failing)
    if crash == "before the removal":
        monkeypatch.setattr(Path, "unlink", lambda *_: (_ for _ in ()).throw(Crash()))
    with pytest.raises(Crash):
        store.roll(START_NS, everything=True)
    monkeypatch.undo()
    assert len(rows(store)) == len(rows(store, "host")) == 3
    store.close()
    store = Store(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))
    for _ in range(2):
        assert len(rows(store)) == len(rows(store, "host")) == 3
        store.roll(START_NS, everything=True)
    assert len(list(all_parts(store.parquet_directory))) == 6
    store.close()


def fill(store: Store) -> None:
    noise = random.Random(1)
    for second in range(1, 2000):
        keep(store, *(gpu("n1", i, second, power_watts=noise.random()) for i in range(500)))


@pytest.mark.parametrize("floor_bytes", [0, 2**28])
def test_a_disk_that_is_full_is_said_and_costs_no_earlier_row(
    tmp_path: Path, floor_bytes: int
) -> None:
    # A file system of its own, too small for what is written.
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        store = Store(disk / "store", StoreOptions(floor_bytes=floor_bytes))
        keep(store, gpu("n1", 0, 0, power_watts=1.0))
        with pytest.raises(StoreUnavailableError, match="free space there") as told:
            fill(store)
        assert str(disk) in str(told.value)
        # With a floor the last of the disk is still there for a decision.
        assert ("No space left" in str(told.value)) == (floor_bytes == 0)
        if floor_bytes:
            store.database.define("CREATE TABLE words (word TEXT)")
            store.database.execute("INSERT INTO words VALUES ('drain')")
        kept = len(rows(store))
        assert (kept - 1) % 500 == 0, "no half commit is readable"
        (disk / "store" / "spool").rename(disk / "spool.away")
        for path in (disk / "spool.away").iterdir():
            path.unlink()
        keep(store, gpu("n1", 0, 5000, power_watts=2.0))
        assert [row["time"] for row in rows(store)] == [5000]
        store.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_read_only_disk_is_said_in_words(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a read-only file system")
    try:
        with pytest.raises(StoreUnavailableError, match="read-only; look for disk errors"):
            Store(disk / "store")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EIO, "the disk fails; look for disk errors"),
        (errno.EROFS, "read-only; look for disk errors"),
        (errno.EDQUOT, "quota of the store's user"),
    ],
)
def test_a_disk_that_fails_while_the_head_runs_is_said_and_costs_no_earlier_row(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    keep(store, gpu("n1", 0, 0, power_watts=1.0))

    def failing(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as inside:
        inside.setattr(os, "fdatasync", failing)
        for second in (1, 2):
            with pytest.raises(StoreUnavailableError, match=words):
                keep(store, gpu("n1", 0, second, power_watts=1.0))
            assert words in store.counts.fault
            # What was not acknowledged is not there, what was is.
            assert [row["time"] for row in rows(store)] == [0]
    keep(store, gpu("n1", 0, 3, power_watts=1.0))
    assert store.counts.fault == ""
    store.roll(2**62, everything=True)
    assert [row["time"] for row in rows(store)] == [0, 3]
    assert not list((store.directory / "damaged").iterdir())


CHILD = """
import sys, random
from pathlib import Path
from collectors.sample import sample
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions
directory, first = Path(sys.argv[1]), int(sys.argv[2])
store = Store(directory, StoreOptions(directory=directory, segment_bytes=65536))
number, start = first, int(sys.argv[3])
while True:
    batch = []
    for _ in range(random.randrange(1, 30)):
        batch.append(sample("gpu", start + number * 10**9, {"number": float(number)}, node="n1"))
        if number % 7 == 0:
            fields = {"text": f"event {number}", "severity": 1.0}
            batch.append(sample("event", start + number * 10**9, fields, node="n1", kind="k"))
        number += 1
    store.append(batch, ("n1", "kill", number - 1))
    store.commit()
    sys.stdout.write(f"{number}\\n"); sys.stdout.flush()
    if random.random() < 0.05:
        store.roll(0)
        if random.random() < 0.3:
            store.roll(0, everything=True)
"""


KILL_ROUNDS = int(os.environ.get("TOCSIN_KILL_ROUNDS", "15"))


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILL_ROUNDS)
def test_kill_9_at_random_moments_loses_and_doubles_nothing_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(7)
    directory = tmp_path / "store"
    acknowledged = 0
    for _ in range(KILL_ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(directory), str(acknowledged), str(START_NS)],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            for _ in range(rng.randrange(1, 120)):
                line = child.stdout.readline()
                assert line, "the child ended by itself"
                acknowledged = int(line)
            child.kill()
            # What came out of the pipe before the kill was acknowledged too.
            for line in child.stdout:
                if line.endswith("\n"):
                    acknowledged = int(line)
        table = Reader(directory).read("gpu", 0, 2**62)
        numbers = [int(n) for n in table.column("number").to_pylist()]
        assert len(numbers) == len(set(numbers)), "a row is doubled"
        assert sorted(numbers)[:acknowledged] == list(range(acknowledged)), "a row is lost"
    with_store = Store(directory)
    assert with_store.marks.seen("n1", "kill", acknowledged - 1)
    texts = [e.text for e in with_store.events("n1", limit=10**6, newest_first=False)]
    expected = [f"event {n}" for n in range(0, acknowledged, 7)]
    assert [t for t in texts if int(t.split()[1]) < acknowledged] == expected
    with_store.close()


def test_readers_of_another_process_see_every_row_while_segments_are_rolled(tmp_path: Path) -> None:
    store = Store(tmp_path, StoreOptions(directory=tmp_path, segment_bytes=65536))
    reader = Reader(tmp_path)
    code = """
import sys
from pathlib import Path
from daemon.store.reader import Reader
reader = Reader(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    table = reader.read("gpu", 0, 2**62)
    print(table.num_rows, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        written = 0
        for step in range(60):
            child.stdin.write("go\n")
            child.stdin.flush()
            before = written
            keep(store, *(gpu("n1", i, step, power_watts=1.0) for i in range(20)))
            written += 20
            store.roll(START_NS, everything=True)
            assert before <= int(child.stdout.readline()) <= written
        child.stdin.close()
    assert reader.read("gpu", 0, 2**62).num_rows == written
    store.close()
