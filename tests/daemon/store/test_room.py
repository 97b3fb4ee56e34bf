"""A disk that fills up: readings stop first, decisions and the ledger go on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.events import EventTable
from daemon.store.options import StoreOptions
from daemon.store.parts import DAY_NS
from daemon.store.room import Disk, Room

MIB = 2**20
DAY0_NS = 20_000 * DAY_NS


class Pretend:
    """A disk whose free bytes a test sets."""

    def __init__(self, free_bytes: int, total_bytes: int = 100 * 1024 * MIB) -> None:
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes

    def __call__(self, path: Path) -> Disk:
        return Disk(self.total_bytes, self.free_bytes)


def put(store: Store, day: int, second: int = 0) -> None:
    time_ns = DAY0_NS + day * DAY_NS + second * 10**9
    store.append([sample("gpu", time_ns, {"power_watts": 1.0}, node="n1")])
    store.commit()


def test_readings_are_refused_before_the_disk_is_full_and_the_ledger_still_writes(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "store")
    disk = Pretend(300 * MIB)
    store.room = Room(store.directory, store.options, disk)
    put(store, 0)
    disk.free_bytes = 200 * MIB
    with pytest.raises(StoreUnavailableError, match="200 MiB are free, and the last 256 MiB"):
        put(store, 0, 1)
    assert "kept for decisions" in store.counts.fault
    store.database.define("CREATE TABLE IF NOT EXISTS words (word TEXT)")
    assert store.database.execute("INSERT INTO words VALUES ('drain')") == 1
    # What was committed can still be rolled, which makes room, and be read.
    assert store.roll(DAY0_NS, everything=True) == 1
    assert store.read("gpu", 0, 2**62).num_rows == 1
    disk.free_bytes = 300 * MIB
    put(store, 0, 2)
    assert store.counts.fault == ""
    store.close()


def test_a_small_disk_keeps_a_small_floor(tmp_path: Path) -> None:
    room = Room(tmp_path, StoreOptions(), Pretend(60 * MIB, 1000 * MIB))
    assert room.refusal() == ""
    room = Room(tmp_path, StoreOptions(), Pretend(40 * MIB, 1000 * MIB))
    assert "the last 50 MiB" in room.refusal()


def test_a_disk_that_does_not_answer_is_left_to_the_write_itself(tmp_path: Path) -> None:
    assert Room(tmp_path / "gone", StoreOptions()).refusal() == ""


def test_old_days_go_at_once_when_another_fills_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", StoreOptions(directory=tmp_path / "store", reserve_bytes=0))
    for day in range(4):
        put(store, day)
    store.roll(DAY0_NS, everything=True)
    assert store.make_room() == ""
    assert store.read("gpu", 0, 2**62).num_rows == 4
    # More than any disk has: everything but the newest day goes, and that is said.
    store.options = store.options.model_copy(update={"reserve_bytes": 10**18})
    store.room = Room(store.directory, store.options)
    assert "may remove no more of its own" in store.make_room()
    assert store.counts.short
    assert store.read("gpu", 0, 2**62).num_rows == 1
    put(store, 4)
    store.close()


def events(store: Store, node: str, numbers: range) -> None:
    store.append(
        sample("event", DAY0_NS + n, {"text": f"e{n}", "severity": 1.0}, node=node, kind="k")
        for n in numbers
    )
    store.commit()


def test_a_node_that_says_too_much_pushes_out_its_own_events_only(tmp_path: Path) -> None:
    options = StoreOptions(events_per_node_limit=100, events_limit=150, reserve_bytes=0)
    store = Store(tmp_path / "store", options)
    events(store, "quiet", range(40))
    events(store, "loud", range(1000, 1950))
    assert store.upkeep(DAY0_NS + DAY_NS).events_removed == 850
    assert len(store.events("quiet")) == 40
    left = store.events("loud", newest_first=False)
    assert [left[0].text, left[-1].text, len(left)] == ["e1850", "e1949", 100]
    # Over all nodes those go of which a node has more than the others, not the oldest of all.
    events(store, "third", range(5000, 5050))
    assert store.upkeep(DAY0_NS + DAY_NS).events_removed == 40
    assert [len(store.events(node)) for node in ("quiet", "loud", "third")] == [40, 60, 50]
    assert store.events("loud")[0].text == "e1949"
    store.close()


def test_events_of_one_instant_are_cut_to_the_limit_and_not_all_removed(tmp_path: Path) -> None:
    with_store = Store(tmp_path / "store")
    table: EventTable = with_store.event_table
    table.add(
        sample("event", DAY0_NS, {"text": f"e{n}", "severity": 1.0}, node="n", kind="k")
        for n in range(30)
    )
    assert table.bound(10, 100) == 20
    assert len(table.find("n")) == 10
    with_store.close()


def test_a_sender_with_ever_new_names_fills_no_table_of_marks(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", StoreOptions(reserve_bytes=0))
    for turn in range(5):
        for number in range(100):
            store.append([], ("n1", f"run{turn}x{number}", 1))
        store.append([], ("n2", "run", turn + 1))
        store.commit()
        store.roll(DAY0_NS + turn, everything=True)
    path = tmp_path / "store" / "tocsin.sqlite"
    with sqlite3.connect(path) as reader:
        assert reader.execute("SELECT count(*) FROM batches").fetchone()[0] <= 5 * 16 + 1
        store.upkeep(DAY0_NS)
        assert reader.execute("SELECT count(*) FROM batches").fetchone()[0] == 17
    assert store.marks.seen("n2", "run", 5)
    assert store.marks.seen("n1", "run4x99", 1)
    store.close()
    again = Store(tmp_path / "store", StoreOptions(reserve_bytes=0))
    assert again.marks.seen("n2", "run", 5)
    assert again.marks.seen("n1", "run4x99", 1)
    again.close()
