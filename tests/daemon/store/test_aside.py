"""What is set aside is told, counted, and goes with age and size; never in silence."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.store.aside import files_aside
from daemon.store.check import stats, verify
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.options import StoreOptions
from daemon.store.parts import DAY_NS
from daemon.store.segments import list_segments, segment_path
from tests.daemon.store.keeping import START_NS, gpu, keep, rows


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def one(**options: float) -> Store:
        chosen = StoreOptions(directory=tmp_path, reserve_bytes=0, **options)  # type: ignore[arg-type]
        opened.append(Store(tmp_path, chosen))
        return opened[-1]

    yield one
    for store in opened:
        store.close()


def damage_last_frame(store: Store) -> Path:
    path = segment_path(store.spool_directory, list_segments(store.spool_directory)[-1])
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(bytes(data))
    return path


def test_a_damaged_frame_at_the_very_end_is_no_write_cut_off(make: Callable[..., Store]) -> None:
    """It was acknowledged: what it held is lost, and that is said wherever people look."""
    store = make()
    for second in range(3):
        keep(store, gpu("n1", 0, second, power_watts=1.0))
    path = damage_last_frame(store)
    before = path.read_bytes()
    (finding,) = verify(store.directory)
    assert finding.loses_rows
    assert "damaged" in finding.text
    store.roll(START_NS, everything=True)
    assert [row["time"] for row in rows(store)] == [0, 1]
    assert store.counts.damaged_bytes > 0
    (kept,) = files_aside(store.directory)
    assert kept.path.read_bytes() == before
    store.make_room()
    assert kept.path.name in store.files_at_fault()
    assert stats(store.directory).damaged_bytes == kept.size_bytes
    store.now_ns = lambda: time.time_ns() + 2 * DAY_NS
    store.make_room()
    assert store.files_at_fault() == "", "a day later nobody is called for it any more"


def test_a_roll_that_was_cut_off_sets_a_segment_aside_once(
    make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    keep(store, gpu("n1", 0, 0, power_watts=1.0))
    damage_last_frame(store)

    def fails(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as inside:
        inside.setattr(Path, "unlink", fails)
        with pytest.raises(StoreUnavailableError, match="read-only"):
            store.roll(START_NS, everything=True)
    store.roll(START_NS, everything=True)
    assert len(files_aside(store.directory)) == 1


def test_it_goes_for_age_and_each_file_is_named(
    make: Callable[..., Store], caplog: pytest.LogCaptureFixture
) -> None:
    store = make(keep_days=5)
    (store.directory / "damaged" / "00000007.frames").write_bytes(b"x" * 100)
    now_ns = time.time_ns()
    assert store.upkeep(now_ns + 4 * DAY_NS).aside_removed == 0
    with caplog.at_level(logging.WARNING, "tocsin.store"):
        report = store.upkeep(now_ns + 6 * DAY_NS)
    assert (report.aside_removed, report.bytes_removed) == (1, 100)
    assert "00000007.frames (100 bytes), which was set aside, is removed for age" in caplog.text
    assert store.counts.aside_removed == 1
    assert files_aside(store.directory) == []


def test_a_clock_that_runs_years_ahead_costs_a_part_of_it(
    make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(keep_days=5)
    now_ns = time.time_ns()
    for day in range(9):
        (store.directory / "damaged" / f"{day}.frames").write_bytes(b"x")
    real = files_aside

    def spread(directory: Path) -> list[object]:
        found = real(directory)
        return [type(one)(now_ns + int(one.path.stem) * DAY_NS, one.path, 1) for one in found]

    monkeypatch.setattr("daemon.store.upkeep.files_aside", spread)
    assert store.upkeep(now_ns + 3000 * DAY_NS).aside_removed == 3
    assert {one.path.stem for one in files_aside(store.directory)} == set("345678")


def test_it_counts_as_the_stores_and_goes_for_size_before_a_newer_day(
    make: Callable[..., Store], caplog: pytest.LogCaptureFixture
) -> None:
    store = make(limit_bytes=1024 * 1024)
    tomorrow = (time.time_ns() // DAY_NS + 1) * DAY_NS - START_NS
    for day in (0, 3):  # a day after that on which it is set aside, and a later one
        keep(store, gpu("n1", 0, (tomorrow + day * DAY_NS) // 10**9, power_watts=1.0))
    store.roll(2**62, everything=True)
    (store.directory / "damaged" / "7.frames").write_bytes(bytes(900 * 1024))
    (store.directory / "damaged" / "8.frames").write_bytes(bytes(900 * 1024))
    with caplog.at_level(logging.WARNING, "tocsin.store"):
        report = store._upkeep().make_room()
    assert report.aside_removed == 2
    assert report.days_removed_for_size == 0, "what can be read stays where this was enough"
    assert caplog.text.count("is removed for size") == 2


def test_the_newest_day_is_never_given_for_what_was_set_aside(make: Callable[..., Store]) -> None:
    store = make(limit_bytes=1024 * 1024)
    keep(store, gpu("n1", 0, 0, power_watts=1.0))
    store.roll(2**62, everything=True)
    for number in range(3):
        (store.directory / "damaged" / f"{number}").write_bytes(bytes(600 * 1024))
    report = store._upkeep().make_room()
    assert report.aside_removed == 2, "no more than is needed"
    assert report.days_removed_for_size == 0
    assert len(rows(store)) == 1
