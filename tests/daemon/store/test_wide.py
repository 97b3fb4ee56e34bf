"""Tables that would be far larger in memory than on disk: few values of many columns, dense series.

One sender may say 256 names of fields, each in a row of its own. A table has a place for each
field in each row, so a segment of 64 MiB would be a table of gigabytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from collectors.sample import Sample, sample
from daemon.store import embedded, merge, parts, reader
from daemon.store.embedded import Store
from daemon.store.merge import Piece, _Source, pieces_of
from daemon.store.options import StoreOptions
from daemon.store.parts import DAY_NS, HOUR_NS
from daemon.store.tables import to_rows

DAY0_NS = 1_780_012_800_000_000_000 // DAY_NS * DAY_NS
COLUMNS = 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store", StoreOptions(reserve_bytes=0))
    yield opened
    opened.close()


def sparse(count: int, seed: int = 1) -> list[Sample]:
    """Rows of one field each; some points come in many rows, some without a tag."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        tags = {"node": rng.choice(["bad", "bad", "bad", "n1"]), "part": str(rng.randrange(3))}
        if rng.random() < 0.2:
            del tags["part"]
        at_ns = DAY0_NS + rng.randrange(300) * 30 * 10**9
        found.append(sample("x", at_ns, {f"c{rng.randrange(COLUMNS)}": rng.random()}, **tags))
    return found


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so small that a few hundred rows are over them."""
    monkeypatch.setattr(embedded, "_TABLE_VALUES", 6_000)
    monkeypatch.setattr(reader, "_TABLE_VALUES", 6_000)
    monkeypatch.setattr(merge, "_BUCKET_ROWS", 150)
    monkeypatch.setattr(merge, "_BUCKET_ROWS_LEAST", 50)
    monkeypatch.setattr(parts, "_GROUP_VALUES", 2_000)
    monkeypatch.setattr(parts, "_GROUP_ROWS_LEAST", 40)


def put(store: Store, samples: list[Sample]) -> None:
    for start in range(0, len(samples), 50):
        store.append(samples[start : start + 50])
        store.commit()


def everything(store: Store) -> list[dict[str, Any]]:
    return to_rows(store.read("x", 0, 2**62))


def lives(store: Store) -> list[Any]:
    """What a store says of the same rows at each turn of its life."""
    found: list[Any] = []
    for turn in range(2):
        put(store, sparse(300, seed=turn))
        found.append(everything(store))
        store.roll(2**62, everything=True)
        found.append(everything(store))
    store.upkeep(DAY0_NS + 12 * HOUR_NS)
    found.append(everything(store))
    store.upkeep(DAY0_NS + 2 * DAY_NS)
    found.append(everything(store))
    found.append(to_rows(store.read_rollup("x", 0, 2**62)))
    return found


def test_a_store_says_the_same_whatever_it_may_take_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Store(tmp_path / "whole", StoreOptions(reserve_bytes=0))
    expected = lives(whole)
    whole.close()
    small(monkeypatch)
    pieces = Store(tmp_path / "pieces", StoreOptions(reserve_bytes=0))
    found = lives(pieces)
    pieces.close()
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert len(one) > 100
        assert [_plain(row) for row in one] == [_plain(row) for row in other], number
    assert not (tmp_path / "pieces" / "rolling").exists()
    day = next((tmp_path / "pieces" / "parquet" / "x").glob("*/day.*.parquet"))
    assert pq.read_metadata(day).num_row_groups > 3


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 9) if isinstance(value, float) else value for name, value in row.items()
    }


def test_no_table_of_a_segment_has_more_places_than_are_allowed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    seen: list[int] = []
    real = embedded.from_columns

    def watched(groups: Any) -> Any:
        table = real(groups)
        seen.append(table.num_rows * len(table.column_names))
        return table

    monkeypatch.setattr(embedded, "from_columns", watched)
    put(store, sparse(600))
    store.roll(2**62, everything=True)
    assert len(seen) >= 3
    # A commit's own groups are not cut, and time and tags are columns too.
    assert max(seen) < 2 * 6_000
    assert len(everything(store)) == len({(s.tags, s.time_ns) for s in sparse(600)})


def test_a_crash_while_pieces_are_merged_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    store = Store(tmp_path / "store", StoreOptions(reserve_bytes=0))
    put(store, sparse(600))
    before = everything(store)
    real = embedded.merge_parts
    calls: list[int] = []

    def crash(*arguments: Any) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(embedded, "merge_parts", crash)
    with pytest.raises(KeyboardInterrupt):
        store.roll(2**62, everything=True)
    assert everything(store) == before
    store.close()
    monkeypatch.setattr(embedded, "merge_parts", real)
    again = Store(tmp_path / "store", StoreOptions(reserve_bytes=0))
    assert not (tmp_path / "store" / "rolling").exists()
    assert everything(again) == before
    again.roll(2**62, everything=True)
    assert everything(again) == before
    again.close()


@pytest.mark.parametrize("step_ns", [1, 300 * 10**9])
@pytest.mark.parametrize("limit_rows", [9, 10_000])
def test_pieces_hold_every_row_once_and_in_order(
    store: Store, monkeypatch: pytest.MonkeyPatch, limit_rows: int, step_ns: int
) -> None:
    small(monkeypatch)
    for seed in (1, 2):
        put(store, sparse(120, seed))
        store.roll(2**62, everything=True)
    sources = [_Source(path) for path in sorted((store.directory / "parquet").rglob("*.parquet"))]
    expected = sum(source.file.metadata.num_rows for source in sources)
    found: list[tuple[Any, ...]] = []
    last: tuple[Any, ...] = ()
    for piece in pieces_of(sources, ["node", "part"], limit_rows, step_ns):
        assert isinstance(piece, Piece)
        rows = [
            (row.get("node", ""), row.get("part", ""), row["time_ns"])
            for source in sources
            for table in source.tables(piece)
            for row in to_rows(table)
        ]
        assert rows
        assert min(rows) > last
        last = max(rows)
        if step_ns == 1:
            assert len(rows) <= limit_rows + len(sources)
        found += rows
    assert len(found) == expected


def test_a_wide_table_is_written_in_smaller_groups_of_rows() -> None:
    import pyarrow as pa

    def rows(columns: int) -> int:
        return parts.group_rows(pa.table({f"c{n}": [1.0] for n in range(columns)}))

    assert [rows(50), rows(256), rows(4096)] == [65_536, 16_384, 4_096]
