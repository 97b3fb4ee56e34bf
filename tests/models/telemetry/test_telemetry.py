"""A telemetry directory gives back what was written, in order of time, whatever the format."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collectors.sample import Sample
from models.simulate import Fleet, Truth
from models.simulate.write import START_NS, write_simulation
from models.telemetry import Telemetry, read_truth, write_truth
from models.telemetry.times import utc
from models.telemetry.truth import from_iso, iso

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("telemetry")
    write_simulation(directory, nodes=3, days=0.1, seed=1, cadence_seconds=120)
    return directory


def ordered(samples: list[Sample]) -> list[tuple[object, ...]]:
    return sorted(
        (one.measurement, one.time_ns, one.tags, tuple(sorted(one.fields.items())))
        for one in samples
    )


def test_simulation_on_disk_is_what_the_fleet_says(written: Path) -> None:
    fleet = Fleet(3, seed=1, start_ns=START_NS, operator=True)
    live: list[Sample] = []
    for step in range(1, 73):
        tables, events = fleet.tables(START_NS + step * 2 * MINUTE, slow=step % 2 == 0)
        live += [*(one for table in tables for one in table.samples()), *events]
    read = [
        one
        for _, chunks in Telemetry(written).windows(10 * MINUTE)
        for chunk in chunks
        for one in chunk.samples()
    ]
    assert len(read) == len(live)
    assert ordered(read) == ordered(live)


@pytest.mark.parametrize("window_ns", [7 * MINUTE, 600 * MINUTE])
def test_windows_follow_each_other_and_hold_their_times(written: Path, window_ns: int) -> None:
    last_ns = 0
    for end_ns, chunks in Telemetry(written).windows(window_ns):
        assert last_ns in (0, end_ns - window_ns)
        last_ns = end_ns
        for chunk in chunks:
            assert (chunk.times_ns > end_ns - window_ns).all()
            assert (chunk.times_ns <= end_ns).all()
            assert (np.diff(chunk.times_ns) >= 0).all()


def test_left_out_measurements_and_fields_are_absent(written: Path) -> None:
    telemetry = Telemetry(written, without=["host", "gpu:power_watts"])
    assert "host" not in telemetry.measurements
    chunk = telemetry.chunk("gpu", 0, 2**62)
    assert "power_watts" not in chunk.fields
    assert "temperature_celsius" in chunk.fields


@pytest.mark.parametrize(
    ("suffix", "opener"),
    [
        (".csv", open),
        (".csv.gz", gzip.open),
        (".csv.bz2", bz2.open),
        (".csv.xz", lzma.open),
    ],
)
def test_csv_reads_as_parquet_does(
    written: Path, tmp_path: Path, suffix: str, opener: Callable[..., object]
) -> None:
    for name in ("gpu", "event"):
        table = pq.read_table(written / f"{name}.parquet")
        times = table.column("time").cast(pa.int64()).to_pylist()
        rows = table.drop_columns("time").to_pylist()
        with opener(tmp_path / f"{name}{suffix}", "wt") as file:  # type: ignore[attr-defined]
            writer = csv.DictWriter(file, ["time", *rows[0]])
            writer.writeheader()
            for time_ns, row in zip(times[::-1], rows[::-1], strict=True):
                nanos = f"{time_ns % SECOND:09d}"
                writer.writerow({"time": f"{iso(time_ns)[:-4]}{nanos}Z", **row})
    left = Telemetry(tmp_path)
    right = Telemetry(written)
    for name in ("gpu", "event"):
        mine, theirs = (list(one.chunk(name, 0, 2**62).samples()) for one in (left, right))
        assert ordered(mine) == ordered(theirs)
        assert mine


def test_folder_without_tables_is_refused_with_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no table"):
        Telemetry(tmp_path)
    with pytest.raises(FileNotFoundError, match="not a folder"):
        Telemetry(tmp_path / "nothing")


def test_truth_comes_back(tmp_path: Path) -> None:
    truths = [
        Truth("n1", "gpu3", "gpu", "heat", START_NS + 5_000_000, START_NS + MINUTE, 0, True),
        Truth("n2", "", "node", "host", START_NS + MINUTE, 0, 0, False),
    ]
    write_truth(tmp_path / "truth.csv", truths)
    assert read_truth(tmp_path / "truth.csv") == truths


def test_truth_that_cannot_be_read_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_text("node,onset\nn1,2025-01-01T00:00:00Z\nn2,yesterday\n")
    with pytest.raises(ValueError, match=r"truth.csv:3"):
        read_truth(tmp_path / "truth.csv")


def test_iso_times_are_utc() -> None:
    assert from_iso("2025-01-06 00:00:00") == START_NS
    assert from_iso("2025-01-06T01:00:00+01:00") == START_NS
    assert iso(START_NS) == "2025-01-06T00:00:00.000Z"


@pytest.mark.parametrize(
    ("texts", "hours"),
    [
        (["2025-01-06T00:00:00Z", "2025-01-06 00:00:00", "2025-01-06"], [0, 0, 0]),
        (
            ["2025-01-06 01:00:00+01:00", "2025-01-05T18:00:00-06:00", "2025-01-06T00:00:00Z"],
            [0] * 3,
        ),
        (["2025-01-06 05:30:00.5+0530", "2025-01-06 01:00:00+00:00"], [0.5 / 3600, 1]),
    ],
)
def test_times_of_a_table_are_read_with_their_offset(texts: list[str], hours: list[float]) -> None:
    read = utc(pa.chunked_array([texts])).cast(pa.int64()).to_pylist()
    assert [(time_ns - START_NS) / 3600e9 for time_ns in read] == hours


def test_a_time_without_a_zone_beside_one_with_an_offset_is_refused() -> None:
    """Which zone would it be of? A guess would move readings by hours."""
    with pytest.raises(pa.ArrowException, match="expected a zone offset"):
        utc(pa.chunked_array([["2025-01-06 01:00:00+01:00", "2025-01-06 01:00:00"]]))
