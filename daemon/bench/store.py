"""``tocsin bench store``: the embedded store on a fleet's readings, SQLite beside it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from daemon.bench.figures import Figure, peak_mebibytes, percentile, spent
from daemon.bench.load import NAMES, Fleet
from daemon.store.check import stats
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions

HOUR_STEPS = 120


def bench_store(directory: Path, nodes: int = 1000, steps: int = 30) -> Iterator[Figure]:
    """Writes ``steps`` readings of the fleet, rolls, merges and reads them back."""
    fleet = Fleet(nodes)
    store = Store(
        directory, StoreOptions(directory=directory, reserve_bytes=0), lambda: fleet.start_ns
    )
    commits: list[float] = []
    values = 0
    append_cpu = roll_cpu = wall = 0.0
    syncs = _bare_syncs(directory.parent / "bare", 200)
    for samples in fleet.samples(steps):
        values += len(samples) * len(NAMES)
        with spent() as append:
            # A commit for each 400 samples: what a group of 50 ms holds at 10,000 nodes.
            for start in range(0, len(samples), 400):
                store.append(samples[start : start + 400])
                begin = time.perf_counter()
                store.commit()
                commits.append(time.perf_counter() - begin)
        with spent() as roll:
            store.roll(fleet.start_ns)
        append_cpu += append.cpu_seconds
        roll_cpu += roll.cpu_seconds
        wall += append.wall_seconds + roll.wall_seconds
    with spent() as last:
        store.roll(fleet.start_ns, everything=True)
    with spent() as merge:
        store.upkeep(fleet.start_ns + 2 * 3600 * 10**9)
    wall += last.wall_seconds + merge.wall_seconds
    roll_cpu += last.cpu_seconds
    million = values / 1e6
    yield Figure("store: values written", values, "values")
    yield Figure("store: sustained, with rolling and merging", values / wall, "values/s", "500,000")
    yield Figure("store: commit, p99", percentile(commits, 0.99) * 1000, "ms", "50")
    yield Figure("disk: write and sync of 12 kB alone, p99", percentile(syncs, 0.99) * 1000, "ms")
    yield Figure("store: append and commit", append_cpu / million, "CPU s/million values")
    yield Figure("store: roll into Parquet", roll_cpu / million, "CPU s/million values")
    yield Figure("store: merge hours", merge.cpu_seconds / million, "CPU s/million values")
    gpu = next(one for one in stats(directory).measurements if one.measurement == "gpu")
    yield Figure("store: bytes on disk", gpu.bytes_per_value, "bytes/value", "2.5")
    node = dict(fleet.tags[len(fleet.tags) // 2])["node"]
    with spent() as one:
        found = store.read("gpu", 0, 2**62, {"node": node})
    if found.num_rows != steps * 8:
        raise RuntimeError(f"read {found.num_rows} rows of one node, not {steps * 8}")
    yield Figure("store: one node's history", one.wall_seconds * 1000, "ms")
    yield Figure("store: largest memory of the process", peak_mebibytes(), "MiB")
    store.close()


def _bare_syncs(path: Path, count: int) -> list[float]:
    """Seconds that the disk itself takes for what a commit writes: the floor of a commit."""
    took: list[float] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            begin = time.perf_counter()
            file.write(bytes(12_000))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begin)
    path.unlink()
    return took


def bench_sqlite(path: Path, nodes: int = 1000, steps: int = 3) -> Iterator[Figure]:
    """The same readings as rows of one SQLite table, synced as often."""
    fleet = Fleet(nodes)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        f"CREATE TABLE gpu (time INTEGER, node TEXT, gpu TEXT, uuid TEXT, {', '.join(NAMES)},"
        " PRIMARY KEY (node, gpu, time)) WITHOUT ROWID"
    )
    values = 0
    insert = f"INSERT OR REPLACE INTO gpu VALUES ({', '.join('?' * (len(NAMES) + 4))})"  # noqa: S608
    total = cpu = 0.0
    commits: list[float] = []
    for samples in fleet.samples(steps):
        rows = [
            (s.time_ns, s.tags[1][1], s.tags[0][1], s.tags[2][1], *s.fields.values())
            for s in samples
        ]
        values += len(samples) * len(NAMES)
        with spent() as took:
            for start in range(0, len(rows), 400):
                connection.execute("BEGIN")
                connection.executemany(insert, rows[start : start + 400])
                begin = time.perf_counter()
                connection.execute("COMMIT")
                commits.append(time.perf_counter() - begin)
        total += took.wall_seconds
        cpu += took.cpu_seconds
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    yield Figure("SQLite: sustained", values / total, "values/s")
    yield Figure("SQLite: commit, p99", percentile(commits, 0.99) * 1000, "ms")
    yield Figure("SQLite: processor", cpu / values * 1e6, "CPU s/million values")
    yield Figure("SQLite: bytes on disk", path.stat().st_size / values, "bytes/value")
