"""Rolling beside commits: what one thread makes into Parquet while another one writes."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import daemon.store.embedded as embedded
import daemon.store.reader as reading
from collectors.sample import sample
from daemon.store.embedded import Store
from daemon.store.parts import DAY_NS, Part, all_parts
from daemon.store.reader import Reader
from daemon.store.segments import list_segments, segment_path
from daemon.store.tables import to_rows
from daemon.store.tail import Tail

START_NS = 1_780_012_800_000_000_000


def put(store: Store, number: int) -> None:
    store.append([sample("host", START_NS + number * 10**9, {"load": float(number)}, node="n1")])
    store.commit()


def held(reader: Reader) -> list[int]:
    table = reader.read("host", START_NS - DAY_NS, START_NS + 10 * DAY_NS)
    return [int(row["load"]) for row in to_rows(table)]


def test_a_segment_that_is_opened_while_others_are_rolled_is_not_rolled_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, now_ns=lambda: START_NS)
    put(store, 1)
    commits: list[threading.Thread] = []

    def while_somebody_commits(directory: Path) -> list[int]:
        commits.append(threading.Thread(target=put, args=(store, 2)))
        commits[0].start()
        commits[0].join(0.3)  # it ends at once where nothing holds it up
        return list_segments(directory)

    monkeypatch.setattr(embedded, "list_segments", while_somebody_commits)
    store.roll(START_NS, everything=True)
    monkeypatch.undo()
    commits[0].join()
    put(store, 3)
    assert held(store) == [1, 2, 3]
    store.close()
    assert held(Reader(tmp_path)) == [1, 2, 3]


def test_commits_beside_rolls_and_upkeep_lose_and_double_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, now_ns=lambda: START_NS)
    tail = Tail(tmp_path, "sink")
    store.tails.append(tail)
    count, errors = 300, []

    def write() -> None:
        try:
            for number in range(count):
                put(store, number)
        except Exception as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    turns = 0
    while writer.is_alive():
        store.roll(START_NS, everything=True)
        if turns % 5 == 0:
            store.upkeep(START_NS + 2 * DAY_NS)
        turns += 1
    writer.join()
    assert not errors
    store.close()
    assert held(Reader(tmp_path)) == list(range(count))
    sent = 0
    while (found := tail.read()) is not None:
        frames, position = found
        sent += sum(frame.rows for frame in frames)
        tail.done(position)
    assert sent == count


def test_what_is_rolled_while_an_export_asks_is_in_its_span_and_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files first and then the spool would miss what goes from the one to the other between."""
    store = Store(tmp_path, now_ns=lambda: START_NS)
    put(store, 1)
    store.roll(START_NS, everything=True)
    reader = Reader(tmp_path)
    listed, rolls = reading.list_parts, 0

    def while_it_is_rolled(*arguments: Any) -> list[Part]:
        nonlocal rolls
        found = listed(*arguments)
        rolls += 1
        if rolls in (1, 3):
            store.roll(START_NS, everything=True)
        return found

    put(store, 7200)
    monkeypatch.setattr(reading, "list_parts", while_it_is_rolled)
    span = reader.span_ns("host")
    assert span is not None
    assert span[1] > START_NS + 7200 * 10**9
    rolls = 2
    store.append([sample("host", START_NS + 9 * 10**9, {"uptime": 1.0}, node="n1")])
    store.commit()
    assert "uptime" in reader.schema("host", START_NS, START_NS + DAY_NS).names
    store.close()


def test_a_segment_that_a_sink_ends_with_while_it_is_kept_is_not_kept_for_ever(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, now_ns=lambda: START_NS)
    tail = Tail(tmp_path, "sink")
    put(store, 1)
    store.roll(START_NS, everything=True)  # nobody follows yet: it is gone from the spool
    put(store, 2)
    while (found := tail.read()) is not None:
        tail.done(found[1])
    store._writer.rotate()
    closed = list_segments(tmp_path / "spool")
    link = os.link

    def between(source: Path, target: Path) -> None:
        put(store, 3)
        while (found := tail.read()) is not None:  # it ends with the segment just now
            tail.done(found[1])
        link(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", between)
        tail.keep(segment_path(tmp_path / "spool", closed[0]), closed[0])
    assert list_segments(tail.directory) == []
    assert tail.dropped_rows == 0
    store.close()


def test_a_sink_takes_no_new_segment_for_one_that_it_knows(tmp_path: Path) -> None:
    """All files have gone for age while the head was off: numbers must not begin anew."""
    store = Store(tmp_path, now_ns=lambda: START_NS)
    tail = Tail(tmp_path, "sink")
    store.tails.append(tail)
    for number in range(5):
        put(store, number)
        store.roll(START_NS, everything=True)
    while (found := tail.read()) is not None:
        tail.done(found[1])
    store.close()
    for part in list(all_parts(tmp_path / "parquet")):
        part.path.unlink()
    store = Store(tmp_path, now_ns=lambda: START_NS)
    put(store, 9)
    found = Tail(tmp_path, "sink").read()
    assert found is not None
    assert sum(frame.rows for frame in found[0]) == 1
    store.close()


def test_a_day_is_not_merged_over_a_segment_that_is_still_to_be_rolled(tmp_path: Path) -> None:
    """Upkeep asks first which segments may still come; a part of such a one stays apart."""
    store = Store(tmp_path, now_ns=lambda: START_NS)
    for hour in range(3):
        put(store, hour * 3600)
        store.roll(START_NS, everything=True)
    upkeep = store._upkeep()
    upkeep.first_unrolled = lambda: 2
    upkeep.run(START_NS + 2 * DAY_NS)
    spans = sorted((part.first, part.last) for part in all_parts(tmp_path / "parquet"))
    assert spans == [(1, 1), (2, 2), (3, 3)]
    store.upkeep(START_NS + 2 * DAY_NS)
    assert [(p.first, p.last) for p in all_parts(tmp_path / "parquet")] == [(1, 3)]
    store.close()
