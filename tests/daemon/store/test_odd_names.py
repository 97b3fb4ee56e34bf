"""Names that a sender, or an import, may bring: none stops the rows of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from collectors.sample import Sample, sample
from daemon.store import merge
from daemon.store.check import repair
from daemon.store.embedded import Store
from daemon.store.parts import DAY_NS, all_parts
from daemon.store.tables import to_rows

T_NS = 20_000 * DAY_NS + 3600 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store")) as opened:
        yield opened


def _bring(store: Store, odd: Sample) -> None:
    """Three segments; the one in the middle has ``odd`` beside a plain row."""
    for number in range(3):
        plain = sample("gpu", T_NS + number, {"power_watts": 300.0 + number}, node="n1")
        store.append([plain, odd] if number == 1 else [plain])
        store.commit()
        store.roll(T_NS, everything=True)


def test_a_name_too_long_for_a_folder_stops_no_other_segment(store: Store) -> None:
    _bring(store, sample("\u00e9" * 60, T_NS, {"a": 1.0}, node="n2"))
    assert store.read("gpu", T_NS, T_NS + 10).num_rows == 3
    assert not list((store.directory / "spool").iterdir())
    # What has no place is kept for people to look at.
    assert len(list((store.directory / "damaged").iterdir())) == 1


def test_a_tag_called_like_a_field_of_other_files_stops_neither_reading_nor_merging(
    store: Store,
) -> None:
    _bring(store, sample("gpu", T_NS + 5, {"a": 1.0}, node="n2", power_watts="x"))
    for _ in range(2):
        table = store.read("gpu", T_NS, T_NS + 10)
        assert sorted(filter(None, table.column("power_watts").to_pylist())) == ["x"]
        assert sorted(filter(None, table.column("power_watts_1").to_pylist())) == [300, 301, 302]
        report = store.upkeep(T_NS + 2 * DAY_NS)
        assert report.faults == []


@pytest.mark.parametrize("tag", ["v0", "readings", "power_watts_min"])
def test_no_tag_stops_the_roll_up_of_all_nodes(store: Store, tag: str) -> None:
    _bring(store, sample("gpu", T_NS + 5, {"a": 1.0}, node="n2", **{tag: "x"}))
    assert store.upkeep(T_NS + 2 * DAY_NS).faults == []
    table = store.read_rollup("gpu", T_NS - 1, T_NS + 10**12)
    assert max(filter(None, table.column("power_watts_max").to_pylist())) == 302.0
    assert "x" in table.column(tag).to_pylist()


def test_a_repair_never_writes_over_what_an_earlier_one_set_aside(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store")) as store:
        _bring(store, sample("gpu", T_NS + 5, {"a": 1.0}, node="n2"))
    folder = tmp_path / "store" / "parquet" / "gpu"
    path = min(folder.rglob("*.parquet"))
    database = tmp_path / "store" / "tocsin.sqlite"
    for junk in (b"one", b"two"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(junk)
        database.write_bytes(junk * 1000)
        assert len(repair(tmp_path / "store", T_NS)) == 2
    kept = [one.read_bytes()[:3] for one in (tmp_path / "store" / "damaged").iterdir()]
    assert sorted(kept) == [b"one", b"one", b"two", b"two"]


def test_a_folder_that_is_no_day_is_passed_over(store: Store) -> None:
    _bring(store, sample("gpu", T_NS + 5, {"a": 1.0}, node="n2"))
    (store.directory / "parquet" / "gpu" / "2026-13-45").mkdir()
    assert store.read("gpu", T_NS, T_NS + 10).num_rows == 4
    assert store.upkeep(T_NS + 2 * DAY_NS).faults == []


def test_hundreds_of_fields_of_one_sender_cost_the_merge_of_all_rows_little(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "_BUCKET_VALUES", 9000)
    monkeypatch.setattr(merge, "_BUCKET_ROWS_LEAST", 30)
    store.options = store.options.model_copy(update={"reserve_bytes": 0})
    for first in (0, 30):
        store.append(
            sample("gpu", T_NS + n, {"a": float(n), "b": 1.0}, node=f"n{n % 20:02d}")
            for n in range(first, first + 30)
        )
        store.append(
            sample("gpu", T_NS + first + n, {f"x{n}": 1.0}, node="evil") for n in range(250)
        )
        store.commit()
        store.roll(T_NS, everything=True)
    before = to_rows(store.read("gpu", 0, 2**62))
    widths: list[tuple[int, int]] = []
    real = merge.sort_once

    def seen(table: pa.Table) -> pa.Table:
        widths.append((table.num_rows, len(table.column_names)))
        return real(table)

    with monkeypatch.context() as inside:
        inside.setattr(merge, "sort_once", seen)
        store.upkeep(T_NS + 2 * DAY_NS)
    assert to_rows(store.read("gpu", 0, 2**62)) == before
    (part,) = all_parts(store.parquet_directory)
    assert part.first < part.last
    # Others' rows are sorted without the fields that only one sender has, few at a time.
    good = [width for width in widths if width[1] < 10]
    assert sum(rows for rows, _ in good) >= 40
    assert all(rows <= 60 for rows, _ in good)
