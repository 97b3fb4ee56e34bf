import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from collectors.sample import sample
from daemon.store import merge
from daemon.store.embedded import Store
from daemon.store.options import StoreOptions
from daemon.store.parts import DAY_NS, HOUR_NS, all_parts, list_parts
from daemon.store.tables import to_rows
from daemon.store.upkeep import Upkeep, UpkeepReport

DAY0_NS = 1_780_012_800_000_000_000 // DAY_NS * DAY_NS
MINUTE_NS = 60 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(
        tmp_path, StoreOptions(directory=tmp_path, reserve_bytes=0), now_ns=lambda: DAY0_NS
    )
    yield opened
    opened.close()


def put(store: Store, time_ns: int, node: str = "n1", gpu: str = "0", **fields: float) -> None:
    store.append([sample("gpu", time_ns, fields, node=node, gpu=gpu)])
    store.commit()


def roll(store: Store) -> None:
    store.roll(DAY0_NS, everything=True)


def rows(store: Store) -> list[dict[str, Any]]:
    return to_rows(store.read("gpu", 0, 2**62))


def names(store: Store) -> list[str]:
    return [p.path.name.split(".")[0] for p in all_parts(store.parquet_directory)]


def test_hours_then_days_are_merged_and_no_row_changes(store: Store) -> None:
    for minute in range(0, 180, 7):
        put(store, DAY0_NS + minute * MINUTE_NS, node=f"n{minute % 3}", power_watts=float(minute))
        roll(store)
    put(store, DAY0_NS, node="n0", temperature_celsius=1.0)  # late, and a new field
    roll(store)
    before = rows(store)
    assert len(before) == 26
    assert before[0] == {
        "time_ns": DAY0_NS,
        "node": "n0",
        "gpu": "0",
        "power_watts": 0.0,
        "temperature_celsius": 1.0,
    }
    report = store.upkeep(DAY0_NS + 2 * HOUR_NS + 20 * MINUTE_NS)
    assert report.hours_merged == 2, "the third hour is not over"
    assert rows(store) == before
    report = store.upkeep(DAY0_NS + DAY_NS + 20 * MINUTE_NS)
    assert report.days_merged == 1
    assert names(store) == ["day"]
    assert rows(store) == before
    assert store.upkeep(DAY0_NS + DAY_NS + 30 * MINUTE_NS).days_merged == 0
    # Rows that come a day late join the day.
    put(store, DAY0_NS + MINUTE_NS, power_watts=-1.0)
    roll(store)
    assert store.upkeep(DAY0_NS + DAY_NS + 40 * MINUTE_NS).days_merged == 1
    assert names(store) == ["day"]
    assert len(rows(store)) == 27


def test_rows_that_come_after_their_day_has_gone_for_age_leave_its_rollup(tmp_path: Path) -> None:
    """One node that empties an old spool must not cost the five-minute values of all others."""
    options = StoreOptions(directory=tmp_path, reserve_bytes=0, keep_days=5)
    store = Store(tmp_path, options, now_ns=lambda: DAY0_NS)
    for node in ("n1", "n2", "n3"):
        put(store, DAY0_NS + MINUTE_NS, node=node, power_watts=5.0)
    roll(store)
    store.upkeep(DAY0_NS + DAY_NS + 20 * MINUTE_NS)
    store.upkeep(DAY0_NS + 10 * DAY_NS)
    assert rows(store) == []

    def rolled() -> list[tuple[str, float]]:
        found = to_rows(store.read_rollup("gpu", DAY0_NS, DAY0_NS + DAY_NS))
        return [(row["node"], row["power_watts"]) for row in found]

    assert rolled() == [("n1", 5.0), ("n2", 5.0), ("n3", 5.0)]
    put(store, DAY0_NS + HOUR_NS, node="n4", power_watts=7.0)
    roll(store)
    for hour in range(3):
        store.upkeep(DAY0_NS + 10 * DAY_NS + hour * HOUR_NS)
    assert rolled() == [("n1", 5.0), ("n2", 5.0), ("n3", 5.0), ("n4", 7.0)]
    store.close()


def test_rows_that_were_removed_by_half_leave_the_rollup_of_the_whole(store: Store) -> None:
    for hour in range(3):
        put(store, DAY0_NS + hour * HOUR_NS, power_watts=float(hour))
        roll(store)
    upkeep = store._upkeep()
    upkeep._roll_up("gpu", DAY0_NS + 2 * DAY_NS, UpkeepReport())
    before = to_rows(store.read_rollup("gpu", DAY0_NS, DAY0_NS + DAY_NS))
    assert len(before) == 3
    list_parts(store.parquet_directory, "gpu")[0].path.unlink()  # a crash came after the first
    upkeep._roll_up("gpu", DAY0_NS + 2 * DAY_NS, UpkeepReport())
    assert to_rows(store.read_rollup("gpu", DAY0_NS, DAY0_NS + DAY_NS)) == before


def test_merging_takes_nodes_piece_by_piece(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_BUCKET_ROWS", 7)
    rng = random.Random(5)
    for _ in range(12):
        batch = [
            sample(
                "gpu", DAY0_NS + rng.randrange(3600) * 10**9, {"f": rng.random()}, node=f"n{n:02d}"
            )
            for n in rng.sample(range(30), 9)
        ]
        store.append([*batch, sample("gpu", DAY0_NS + rng.randrange(99), {"f": 1.0}, rack="r")])
        store.commit()
        roll(store)
    before = rows(store)
    assert store.upkeep(DAY0_NS + 5 * HOUR_NS).hours_merged == 1
    assert len(list_parts(store.parquet_directory, "gpu")) == 1
    assert rows(store) == before
    (part,) = list_parts(store.parquet_directory, "gpu")
    assert pa.parquet.ParquetFile(part.path).num_row_groups > 3


def test_a_crash_while_merging_neither_loses_nor_doubles(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def crash(paths: Iterable[Path]) -> None:
        if list(paths):
            raise Crash

    for minute in range(10):
        put(store, DAY0_NS + minute * MINUTE_NS, power_watts=1.0)
        roll(store)
    before = rows(store)
    from daemon.store import upkeep

    monkeypatch.setattr(upkeep, "remove", crash)
    with pytest.raises(Crash):
        store.upkeep(DAY0_NS + 3 * HOUR_NS)
    monkeypatch.undo()
    assert len(names(store)) == 11
    assert rows(store) == before
    store.upkeep(DAY0_NS + 3 * HOUR_NS)
    assert len(names(store)) == 1
    assert rows(store) == before


def test_rollups_have_mean_least_and_greatest_of_five_minutes(store: Store) -> None:
    for second in range(0, 600, 30):
        put(store, DAY0_NS + second * 10**9, power_watts=float(second), idle=1.0)
        put(store, DAY0_NS + second * 10**9, gpu="1", power_watts=5.0)
    roll(store)
    assert store.upkeep(DAY0_NS + DAY_NS + HOUR_NS).rollups_written == 1
    found = to_rows(store.read_rollup("gpu", 0, 2**62, {"gpu": "0"}, ["power_watts"]))
    assert found == [
        {
            "time_ns": DAY0_NS + start * 10**9,
            "node": "n1",
            "gpu": "0",
            "readings": 10.0,
            "power_watts": start + 135.0,
            "power_watts_min": float(start),
            "power_watts_max": start + 270.0,
        }
        for start in (0, 300)
    ]
    assert store.upkeep(DAY0_NS + DAY_NS + HOUR_NS).rollups_written == 0
    put(store, DAY0_NS, power_watts=900.0)
    roll(store)
    assert store.upkeep(DAY0_NS + DAY_NS + HOUR_NS).rollups_written == 1
    found = to_rows(store.read_rollup("gpu", 0, 2**62, {"gpu": "0"}))
    assert [row["power_watts_max"] for row in found] == [900.0, 570.0]


def test_one_senders_text_does_not_take_a_field_from_everybodys_rollups(store: Store) -> None:
    for minute in range(5):
        at_ns = DAY0_NS + minute * MINUTE_NS
        for node, usage in (("n1", minute + 0.5), ("n2", 1e-9), ("n3", 1e300)):
            store.append([sample("cpu", at_ns, {"usage": usage}, node=node)])
        store.append([sample("cpu", at_ns, {"usage": "17" if minute else "so much"}, node="bad")])
    store.commit()
    roll(store)
    store.upkeep(DAY0_NS + DAY_NS + HOUR_NS)
    found = {row["node"]: row for row in to_rows(store.read_rollup("cpu", 0, 2**62))}
    assert [found[node]["usage"] for node in ("n1", "n2", "n3")] == [2.5, 1e-9, 1e300]
    assert (found["n1"]["usage_min"], found["n1"]["usage_max"]) == (0.5, 4.5)
    assert "usage" not in found["bad"]
    assert found["bad"]["readings"] == 5.0


def test_a_long_span_is_told_by_rollups_where_there_are_some_and_by_rows_elsewhere(
    store: Store,
) -> None:
    for day in range(4):
        for minute in range(10):
            at_ns = DAY0_NS + day * DAY_NS + minute * MINUTE_NS
            put(store, at_ns, power_watts=float(minute), energy_total=100.0 * day + minute)
    roll(store)
    store.upkeep(DAY0_NS + 2 * DAY_NS + HOUR_NS)
    fields = ["power_watts", "energy_total"]
    found = to_rows(store.read_coarse("gpu", DAY0_NS, DAY0_NS + 4 * DAY_NS, {"gpu": "0"}, fields))
    assert len(found) == 2 + 2 + 10 + 10
    assert [(row["power_watts"], row["energy_total"]) for row in found[2:4]] == [
        (2.0, 104.0),
        (7.0, 109.0),
    ]
    assert [row["power_watts"] for row in found[4:14]] == [float(minute) for minute in range(10)]
    # Days whose rows are gone are still told.
    store.upkeep(DAY0_NS + 92 * DAY_NS)
    found = to_rows(store.read_coarse("gpu", DAY0_NS, DAY0_NS + DAY_NS, {"gpu": "0"}, fields))
    assert [row["power_watts"] for row in found] == [2.0, 7.0]
    assert to_rows(store.read_coarse("gpu", 0, DAY_NS, {}, fields)) == []


def test_a_clock_that_is_years_ahead_for_a_while_costs_days_and_not_the_history(
    store: Store,
) -> None:
    for day in range(20):
        put(store, DAY0_NS + day * DAY_NS, power_watts=float(day))
        happened: dict[str, float | str] = {"text": f"event {day}", "severity": 1.0}
        store.append(
            [sample("event", DAY0_NS + day * DAY_NS, happened, node="n1", kind="xid", code="79")]
        )
        store.commit()
    roll(store)
    report = store.upkeep(DAY0_NS + 4000 * DAY_NS)
    assert report.days_removed_for_age == 3
    assert [row["power_watts"] for row in rows(store)] == [float(day) for day in range(3, 20)]
    assert len(store.events("n1")) == 17


def test_old_days_go_and_their_rollups_stay(store: Store) -> None:
    put(store, DAY0_NS, power_watts=1.0)
    put(store, DAY0_NS + 50 * DAY_NS, power_watts=2.0)
    roll(store)
    store.upkeep(DAY0_NS + 52 * DAY_NS)
    report = store.upkeep(DAY0_NS + 92 * DAY_NS)
    assert report.days_removed_for_age == 1
    assert [row["power_watts"] for row in rows(store)] == [2.0]
    assert len(to_rows(store.read_rollup("gpu", 0, 2**62))) == 2
    store.upkeep(DAY0_NS + 735 * DAY_NS)
    assert len(to_rows(store.read_rollup("gpu", 0, 2**62))) == 1


@pytest.mark.parametrize("short", ["limit", "disk"])
def test_the_oldest_days_go_when_there_is_too_little_room(store: Store, short: str) -> None:
    for day in range(6):
        put(store, DAY0_NS + day * DAY_NS, power_watts=float(day))
    roll(store)
    sizes = [part.path.stat().st_size for part in all_parts(store.parquet_directory)]
    free = [10**12]
    if short == "limit":
        options = store.options.model_copy(update={"limit_bytes": sum(sizes) - 1})
    else:
        options = store.options.model_copy(update={"reserve_bytes": 10**12 + sizes[0] + 1})
    unrolled = store._writer.next_number
    upkeep = Upkeep(store.directory, options, lambda: unrolled, free_bytes=lambda _: free[0])
    report = upkeep.run(DAY0_NS + 5 * DAY_NS)
    assert report.days_removed_for_size >= 1
    kept = [row["power_watts"] for row in rows(store)]
    assert kept == [float(day) for day in range(6 - len(kept), 6)]
    assert 1 <= len(kept) < 6


def test_a_store_that_is_far_too_small_keeps_its_newest_day(store: Store) -> None:
    for day in range(3):
        put(store, DAY0_NS + day * DAY_NS, power_watts=float(day))
    roll(store)
    options = store.options.model_copy(update={"limit_bytes": 1})
    unrolled = store._writer.next_number
    upkeep = Upkeep(store.directory, options, lambda: unrolled, free_bytes=lambda _: 0)
    upkeep.run(DAY0_NS + 2 * DAY_NS)
    assert [row["power_watts"] for row in rows(store)] == [2.0]


def test_old_events_go(store: Store) -> None:
    for day in (0, 700):
        event = sample("event", DAY0_NS + day * DAY_NS, {"severity": 1.0}, node="n1", kind="xid")
        store.append([event])
    store.commit()
    assert store.upkeep(DAY0_NS + 740 * DAY_NS).events_removed == 1
    assert len(store.events()) == 1


def test_a_damaged_file_keeps_no_other_from_being_merged_nor_old_days_from_going(
    store: Store,
) -> None:
    for day in (0, 95):
        for measurement in ("bad", "good"):
            for turn in range(2):
                time_ns = DAY0_NS + day * DAY_NS + turn * MINUTE_NS
                store.append([sample(measurement, time_ns, {"value": 1.0}, node="n1")])
                store.commit()
                store.roll(2**62, everything=True)
    (victim, _) = [
        part.path
        for part in all_parts(store.parquet_directory)
        if part.measurement == "bad" and part.start_ns >= DAY0_NS + 95 * DAY_NS
    ]
    victim.write_bytes(victim.read_bytes()[:100])
    report = store.upkeep(DAY0_NS + 96 * DAY_NS + HOUR_NS)
    assert report.days_removed_for_age == 1
    assert len(list(store.parquet_directory.glob("good/*/day.*"))) == 1
    assert "bad is not merged" in store.counts.unreadable
    assert victim.name in store.counts.unreadable or "cannot be read" in store.counts.unreadable
    assert len(to_rows(store.read("good", DAY0_NS + 95 * DAY_NS, 2**62))) == 2
    victim.unlink()
    store.upkeep(DAY0_NS + 96 * DAY_NS + HOUR_NS)
    assert store.counts.unreadable == ""


def late_store(store: Store, monkeypatch: pytest.MonkeyPatch, count: int, step_ns: int) -> int:
    """A merged file of ``count`` rows that is an hour old; the time now."""
    monkeypatch.setattr("daemon.store.upkeep._LARGE_ROWS", count)
    store.append(
        sample("gpu", DAY0_NS + n * step_ns, {"power_watts": float(n)}, node=f"n{n % 7}", gpu="0")
        for n in range(count)
    )
    store.commit()
    roll(store)
    now_ns = DAY0_NS + 2 * DAY_NS
    store.upkeep(now_ns)
    for part in all_parts(store.parquet_directory):
        os.utime(part.path, ns=(now_ns - HOUR_NS, now_ns - HOUR_NS))
    return now_ns


def a_late_row(store: Store, number: int) -> None:
    put(store, DAY0_NS + 30 * 10**9 + number, node="late", power_watts=float(number))
    roll(store)


@pytest.mark.parametrize("limit", [10, 20_000_000])  # a day in hourly files, and in one
def test_a_few_late_rows_do_not_have_all_rows_of_all_nodes_written_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("daemon.store.upkeep.DAY_ROWS_LIMIT", limit)
    now_ns = late_store(store, monkeypatch, 200, 10**9)
    (large,) = all_parts(store.parquet_directory)
    assert (large.hour < 0) == (limit > 200)
    (rolled,) = all_parts(store.rollup_directory)
    for number in range(10):
        a_late_row(store, number)
        before = rows(store)
        report = store.upkeep(now_ns)
        assert large.path.exists()
        assert rolled.path.exists(), "the roll-up waits with them"
        assert report.rollups_written == report.days_merged == 0
        assert rows(store) == before
        assert len(before) == 201 + number
        assert len(list(all_parts(store.parquet_directory))) <= 10
    # When they have waited long enough everything is one again.
    later_ns = now_ns + DAY_NS
    store.upkeep(later_ns)
    assert len(list(all_parts(store.parquet_directory))) == 1
    assert rows(store) == before
    table = store.read_rollup("gpu", 0, 2**62, {"node": "late"}, ["power_watts"])
    assert table.column("readings").to_pylist() == [10.0]


def test_many_late_rows_are_merged_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = late_store(store, monkeypatch, 200, 10**9)
    for number in range(11):
        a_late_row(store, number)
    store.upkeep(now_ns)
    assert len(list(all_parts(store.parquet_directory))) == 1
    assert len(rows(store)) == 211


def test_what_is_older_than_the_large_file_is_never_merged_without_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for segments 1 to 3 would pass for one that has all of segment 2."""
    monkeypatch.setattr("daemon.store.upkeep._LARGE_ROWS", 200)
    monkeypatch.setattr("daemon.store.upkeep._LATE_PARTS", 0)
    a_late_row(store, 0)
    store.append(
        sample("gpu", DAY0_NS + n * 10**9, {"power_watts": 1.0}, node=f"n{n % 7}", gpu="0")
        for n in range(200)
    )
    store.commit()
    roll(store)
    a_late_row(store, 1)
    now_ns = DAY0_NS + DAY_NS // 2
    for part in all_parts(store.parquet_directory):
        os.utime(part.path, ns=(now_ns, now_ns))
    before = rows(store)
    assert len(before) == 202
    store.upkeep(now_ns)
    assert rows(store) == before


def test_hours_of_a_new_day_are_not_late_to_each_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.store.upkeep._LARGE_ROWS", 50)
    now_ns = DAY0_NS + 2 * DAY_NS
    for count, hour in ((200, 0), (1, 1), (1, 2)):
        for n in range(count):
            put(store, DAY0_NS + hour * HOUR_NS + n * 10**9, power_watts=1.0)
        roll(store)
    for part in all_parts(store.parquet_directory):
        os.utime(part.path, ns=(now_ns, now_ns))
    store.upkeep(now_ns)
    assert names(store) == ["day"]
    table = store.read_rollup("gpu", 0, 2**62, None, ["power_watts"])
    assert sum(table.column("readings").to_pylist()) == 202


@pytest.mark.parametrize("seed", range(4))
def test_late_rows_in_any_order_with_restarts_are_all_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("daemon.store.upkeep._LARGE_ROWS", 30)
    monkeypatch.setattr("daemon.store.upkeep._LATE_PARTS", 2)
    rng = random.Random(seed)
    options = StoreOptions(directory=tmp_path, reserve_bytes=0)
    expected: set[tuple[int, str]] = set()
    opened = Store(tmp_path, options, now_ns=lambda: DAY0_NS)
    for turn in range(15):
        for _ in range(rng.randrange(1, 3)):
            count = rng.choice((1, 1, 2, 40))
            start_ns = DAY0_NS + rng.randrange(3) * HOUR_NS + rng.randrange(10**12)
            for n in range(count):
                put(opened, start_ns + n, node=f"n{turn}", power_watts=1.0)
                expected.add((start_ns + n, f"n{turn}"))
            if rng.random() < 0.8:
                roll(opened)
        now_ns = DAY0_NS + rng.choice((HOUR_NS * 4, 2 * DAY_NS))
        for part in all_parts(opened.parquet_directory):
            if rng.random() < 0.5:
                os.utime(part.path, ns=(now_ns, now_ns))
        opened.upkeep(now_ns)
        if rng.random() < 0.2:
            opened.close()
            opened = Store(tmp_path, options, now_ns=lambda: DAY0_NS)
        assert {(row["time_ns"], row["node"]) for row in rows(opened)} == expected
    opened.upkeep(DAY0_NS + 30 * DAY_NS)
    found = rows(opened)
    assert len(found) == len(expected)
    opened.close()
