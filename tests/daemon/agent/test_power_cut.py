"""Power cuts at any sync, with all that a file system may make of what was not synced."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.agent.spool import Spool
from daemon.store.check import verify
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions
from daemon.store.packing import Frame
from daemon.store.tables import to_rows
from daemon.store.tail import Tail
from tests.daemon.power import Disk, PowerCutError

ROUNDS = int(os.environ.get("TOCSIN_POWER_ROUNDS", "25"))
HOUR_NS = 3600 * 10**9
DAY0_NS = 20_000 * 24 * HOUR_NS


def test_a_power_cut_costs_the_agents_spool_no_batch_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(101)
    folder = tmp_path / "0"
    folder.mkdir()
    kept: set[str] = set()
    done: set[str] = set()
    for turn in range(1, ROUNDS + 1):
        disk = Disk(folder, rng, syncs_left=rng.randrange(0, 40), image=tmp_path / f"{turn}")
        with disk.watching(monkeypatch):
            spool = Spool(folder / "state" / "spool", limit_bytes=10**7)
            spool.segment_bytes = 4096
            with contextlib.suppress(PowerCutError):
                while disk.syncs_left >= 0:
                    body = rng.randbytes(rng.randrange(1, 900))
                    _, key = spool.keep(body, 1, 0)
                    kept.add(key)
                    while rng.random() < 0.55 and (entry := spool.oldest(0)) is not None:
                        done.add(entry.key)
                        spool.done(entry)
            assert disk.image is not None
            if not disk.image.exists():
                disk.write(disk.image)
        folder = tmp_path / f"{turn}"
        # Sent from a copy: the next turn goes on from what was found.
        shutil.copytree(folder, tmp_path / f"{turn}.sent")
        found = Spool(tmp_path / f"{turn}.sent" / "state" / "spool", limit_bytes=10**7)
        waiting = set()
        while (entry := found.oldest(0)) is not None:
            waiting.add(entry.key)
            found.done(entry)
        assert kept - done <= waiting, f"turn {turn}: a batch is lost"
    assert len(done) > ROUNDS
    assert len(kept) > 5 * ROUNDS


def test_a_power_cut_costs_the_store_no_acknowledged_row_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(202)
    folder = tmp_path / "0"
    folder.mkdir()
    options = StoreOptions(reserve_bytes=0, segment_bytes=65536)
    number, now = 0, [DAY0_NS]
    acknowledged: dict[int, float] = {}
    marks: dict[str, int] = {}
    for turn in range(1, ROUNDS + 1):
        disk = Disk(folder, rng, syncs_left=rng.randrange(0, 60), image=tmp_path / f"{turn}")
        with disk.watching(monkeypatch):
            with contextlib.suppress(PowerCutError):
                store = Store(folder / "lib" / "store", options, lambda: now[0])
                while disk.syncs_left >= 0:
                    rows = {now[0] + n: float(number + n) for n in range(rng.randrange(1, 9))}
                    number += len(rows)
                    store.append(
                        (
                            sample("gpu", time_ns, {"value": value}, node=f"n{time_ns % 3}")
                            for time_ns, value in rows.items()
                        ),
                        ("n", f"turn{turn}", number),
                    )
                    store.commit()
                    acknowledged |= rows
                    marks[f"turn{turn}"] = number
                    now[0] += rng.choice((10**9, 600 * 10**9, HOUR_NS))
                    if rng.random() < 0.3:
                        store.roll(now[0], everything=rng.random() < 0.5)
                    if rng.random() < 0.1:
                        store.upkeep(now[0])
            assert disk.image is not None
            if not disk.image.exists():
                disk.write(disk.image)
            with contextlib.suppress(Exception):
                store.database.close()
        folder = tmp_path / f"{turn}"
        if not (folder / "lib" / "store").exists():
            assert not acknowledged
            continue
        again = Store(folder / "lib" / "store", options, lambda: now[0])
        times = [row["time_ns"] for row in to_rows(again.read("gpu", 0, 2**62))]
        assert len(times) == len(set(times)), f"turn {turn}: a row is doubled"
        assert acknowledged.keys() <= set(times), f"turn {turn}: a row is lost"
        for instance, sequence in list(marks.items())[-10:]:
            assert again.marks.seen("n", instance, sequence), f"turn {turn}: a mark is lost"
        assert not [one for one in verify(again.directory) if one.loses_rows]
        again.database.close()
        os.close(again._lock_file)
    assert len(acknowledged) > 15 * ROUNDS


def numbers_of(frames: list[Frame]) -> list[float]:
    return [
        float(n) for frame in frames for columns in frame.columns() for n in columns.numbers[:, 0]
    ]


def test_a_power_cut_costs_the_influxdb_sink_no_acknowledged_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(303)
    folder = tmp_path / "0"
    folder.mkdir()
    options = StoreOptions(reserve_bytes=0, segment_bytes=65536)
    sent: set[float] = set()
    acknowledged: set[float] = set()
    number = 0
    for turn in range(1, ROUNDS + 1):
        disk = Disk(folder, rng, syncs_left=rng.randrange(0, 60), image=tmp_path / f"{turn}")
        with disk.watching(monkeypatch):
            with contextlib.suppress(PowerCutError):
                store = Store(folder / "store", options, lambda: DAY0_NS)
                tail = Tail(store.directory, "sink")
                store.tails.append(tail)
                while disk.syncs_left >= 0:
                    number += 1
                    store.append([sample("gpu", DAY0_NS + number, {"v": float(number)}, node="n")])
                    store.commit()
                    acknowledged.add(float(number))
                    if rng.random() < 0.3:
                        store.roll(DAY0_NS, everything=True)
                    if rng.random() < 0.3 and (piece := tail.read(2)) is not None:
                        sent |= set(numbers_of(piece[0]))
                        tail.done(piece[1])
            assert disk.image is not None
            if not disk.image.exists():
                disk.write(disk.image)
            with contextlib.suppress(Exception):
                store.database.close()
        folder = tmp_path / f"{turn}"
    store = Store(folder / "store", options, lambda: DAY0_NS)
    tail = Tail(store.directory, "sink")
    while (piece := tail.read(1000)) is not None:
        sent |= set(numbers_of(piece[0]))
        tail.done(piece[1])
    # A new sink begins with what comes after it, so a cut in its very first moment may cost that.
    assert acknowledged <= sent
    assert len(acknowledged) > 5 * ROUNDS
    store.close()
