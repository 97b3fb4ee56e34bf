"""Foreign rows of any number and order, in little memory."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import models.telemetry.foreign as foreign
import models.telemetry.inorder as module
from daemon.store.tables import to_rows
from models.telemetry.foreign import ForeignMap, import_foreign
from models.telemetry.inorder import in_order

TIME = pa.timestamp("ns", tz="UTC")
MAP = ForeignMap.model_validate(
    {
        "shape": "tidy",
        "tables": [
            {
                "measurement": "gpu",
                "tags": {"node": {"column": "node"}, "gpu": {"column": "gpu"}},
                "fields": {"power_watts": {"of": "P"}, "utilization_ratio": {"of": "U"}},
            }
        ],
        "latches": [{"of": "X", "gpu": "gpu"}],
    }
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_ROWS", 7)
    monkeypatch.setattr(module, "_PIECE_ROWS", 31)


def tables(rng: random.Random, how: str) -> list[pa.Table]:
    found = []
    for block in range(rng.randrange(1, 25)):
        times = [rng.randrange(40) if how != "one time" else 5 for _ in range(rng.randrange(1, 30))]
        if how == "as written":
            times = sorted(40 * block + time for time in times)
        number = [1000 * block + place for place in range(len(times))]
        found.append(pa.table({"time": pa.array(times, TIME), "number": number}))
    return found


@pytest.mark.parametrize("run_bytes", [1, 400, 10**9])
@pytest.mark.parametrize("how", ["shuffled", "as written", "one time"])
def test_all_rows_come_once_in_order_and_those_of_one_time_as_they_came(
    tmp_path: Path, how: str, run_bytes: int
) -> None:
    rng = random.Random(f"{how} {run_bytes}")
    for _ in range(12):
        given = tables(rng, how)
        whole = pa.concat_tables(given).sort_by("time")
        pieces = list(in_order(given, "time", tmp_path, run_bytes))
        assert pa.concat_tables(pieces).equals(whole)
        ends = [(p.column("time")[0].value, p.column("time")[-1].value) for p in pieces]
        for (_, last), (first, _) in itertools.pairwise(ends):
            assert last < first, "rows of one time stand in two pieces"
        assert list(tmp_path.iterdir()) == [], "nothing is left on the disk"


def test_who_stops_half_way_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    pieces = in_order(tables(random.Random(4), "shuffled"), "time", tmp_path, 1)
    next(pieces)
    assert list(tmp_path.iterdir())
    pieces.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_more_rows_of_one_time_than_a_fleet_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ONE_TIME_ROWS", 20)
    given = [pa.table({"time": pa.array([5] * 9, TIME)}) for _ in range(9)]
    with pytest.raises(ValueError, match="over 20 rows of one time"):
        list(in_order(given, "time", tmp_path, 1))


def written(path: Path, rng: random.Random) -> None:
    lines = []
    for minute in range(120):
        for node in ("n1", "n2"):
            for gpu in "01":
                where = f"2026-03-01 {minute // 60:02d}:{minute % 60:02d}:00,{node},{gpu}"
                lines.append(f"{where},P,{rng.randrange(99)}")
                lines.append(f"{where},U,{rng.random()}")
                lines.append(f"{where},X,{rng.choice((0, 0, 31, 79))}")
                lines.append(f"{where},other,no number")
    rng.shuffle(lines)
    path.write_text("\n".join(["time,node,gpu,metric,value", *lines]) + "\n")


def imported(path: Path, out: Path) -> dict[str, list[dict[str, Any]]]:
    import_foreign([(MAP, path)], out)
    return {
        file.stem: sorted(to_rows(pq.read_table(file)), key=str)
        for file in sorted(out.glob("*.parquet"))
    }


def test_a_file_that_does_not_fit_into_memory_gives_what_it_gives_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both metrics of a moment stand in one row, and a change of a gauge is seen across pieces."""
    written(tmp_path / "in.csv", random.Random(8))
    with monkeypatch.context() as inside:
        inside.setattr(module, "_PIECE_ROWS", 10**9)
        whole = imported(tmp_path / "in.csv", tmp_path / "whole")
    real = foreign.in_order

    def little(given: Any, time: str, scratch: Path) -> Any:
        blocks = (block.slice(at, 50) for block in given for at in range(0, len(block), 50))
        return real(blocks, time, scratch, 1)

    monkeypatch.setattr(foreign, "in_order", little)
    assert imported(tmp_path / "in.csv", tmp_path / "pieces") == whole
    assert len(whole["gpu"]) == 480
    assert all("utilization_ratio" in row for row in whole["gpu"])
    assert len(whole["event"]) > 50


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time,node,gpu,metric,value\n2026-03-01,n1,0,P,much\n", "'value' holds something"),
        ("time,node,gpu,metric,value\n,n1,0,P,1\n", "have no time"),
        ("time,node,gpu,metric,value\nyesterday,n1,0,P,1\n", "yesterday"),
        ("time,node,metric,value\n2026-03-01,n1,P,1\n", "no column 'gpu'"),
        ("node,metric,value\nn1,P,1\n", "no column time"),
        ("time,time,node,gpu,metric,value\n", "twice"),
    ],
)
def test_what_does_not_fit_is_told_with_the_files_name(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as told:
        import_foreign([(MAP, path)], tmp_path / "out")
    assert str(path) in str(told.value)


def test_fractions_of_a_second_and_spaces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("time,node,gpu,metric,value\n 2026-03-01 00:00:00.25,n1,0,P, 7.5 \n")
    (row,) = imported(path, tmp_path / "out")["gpu"]
    assert (row["power_watts"], row["time_ns"] % 10**9) == (7.5, 250_000_000)
