"""A telemetry directory from anybody: no file of it fills the memory, whatever it says."""

from __future__ import annotations

import gzip
import lzma
import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.cli.main import main
from daemon.store.pieces import parquet_pieces
from models.telemetry import Telemetry, csvfile, opened, pages, read_truth, truth
from models.telemetry.pages import look_at
from models.telemetry.unpack import TooLargeError

SECOND = 1_000_000_000
START_NS = 1_780_012_800 * SECOND
HEADER = b"time,node,gpu,uuid,power_watts\n"
ROW = b"2026-06-01T12:00:00Z,n1,0,u,70.5\n"


def times(count: int) -> pa.Array:
    moments = pa.array(np.arange(count) * SECOND + START_NS, pa.int64())
    return moments.cast(pa.timestamp("ns", tz="UTC"))


def readings(count: int, **more: pa.Array) -> pa.Table:
    nodes = pa.array([f"n{row % 3}" for row in range(count)]).dictionary_encode()
    power = pa.array(np.arange(count) * 0.5)
    return pa.table({"time": times(count), "node": nodes, "power_watts": power, **more})


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"data_page_version": "2.0", "compression": "zstd"},
        {"use_dictionary": False, "compression": "none"},
        {"write_page_index": True, "write_page_checksum": True, "row_group_size": 700},
        {"write_statistics": False, "data_page_size": 256, "compression": "gzip"},
    ],
)
def test_what_a_file_unpacks_to_is_what_its_pages_say(tmp_path: Path, kind: dict[str, str]) -> None:
    path = tmp_path / "gpu.parquet"
    flags = pa.array(np.arange(5000) % 2 == 0)
    pq.write_table(readings(5000, flag=flags), path, **kind)
    found = look_at(path)
    assert (found.rows, found.columns) == (5000, 4)
    assert found.group_rows == kind.get("row_group_size", 5000)
    groups = [
        pq.read_metadata(path).row_group(n) for n in range(pq.read_metadata(path).num_row_groups)
    ]
    claimed = sum(g.column(c).total_uncompressed_size for g in groups for c in range(4))
    # The claim has the pages' headers in it.
    assert 0.5 * claimed < found.pages_bytes <= claimed


def lying(path: Path) -> None:
    """Makes the footer of a file say that all its columns and groups unpack to one byte."""
    data = bytearray(path.read_bytes())
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    group = pq.read_metadata(path).row_group(0)
    sizes = {group.column(c).total_uncompressed_size for c in range(group.num_columns)}
    for size in sizes | {group.total_byte_size}:
        said = varint(2 * size)
        small = bytes([0x82, *[0x80] * (len(said) - 2), 0])  # 1, as long as what it replaces
        assert data.count(said, start) >= 1
        data[start:] = data[start:].replace(said, small)
    path.write_bytes(bytes(data))


def varint(value: int) -> bytes:
    found = []
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def test_a_footer_that_lies_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.parquet"
    still = pa.table({"time": times(200_000), "power_watts": pa.array(np.zeros(200_000))})
    pq.write_table(still, path, compression="zstd", use_dictionary=False, data_page_size=2**30)
    before = look_at(path)
    lying(path)
    assert pq.read_metadata(path).row_group(0).total_byte_size == 1
    assert look_at(path) == before
    assert before.pages_bytes > 3_000_000
    with pytest.raises(TooLargeError, match=f"{path}: is 3200[0-9]* bytes unpacked, over 3000000"):
        list(parquet_pieces(path, ["node"], 3_000_000))
    monkeypatch.setattr(pages, "_PAGE_LIMIT_BYTES", 100_000)
    for read in (lambda: list(parquet_pieces(path, [], 2**40)), lambda: Telemetry(tmp_path)):
        with pytest.raises(TooLargeError, match=f"{path}: a page of column 'time' is"):
            read()
    monkeypatch.setattr(pages, "_PAGE_LIMIT_BYTES", 2**30)
    monkeypatch.setattr(pages, "_ROW_OF_PAGES_LIMIT_BYTES", 200_000)
    with pytest.raises(TooLargeError, match=f"{path}: a page of each column is"):
        Telemetry(tmp_path)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([[1.0]] * 3), "holds lists or records"),
        (pa.array([{"a": 1.0}] * 3), "holds lists or records"),
        (pa.array([{"a": 1.0, "b": 2.0}] * 3), "holds lists or records"),
        (pa.array([b"x"] * 3), "holds bytes"),
        (pa.array([b"x" * 100] * 3, pa.binary(100)), "holds bytes"),
    ],
)
def test_what_is_no_reading_is_refused_before_it_is_read(
    tmp_path: Path, column: pa.Array, said: str
) -> None:
    path = tmp_path / "gpu.parquet"
    pq.write_table(readings(3, odd=column), path)
    with pytest.raises(ValueError, match=f"{path}: column 'odd.*{said}"):
        Telemetry(tmp_path)


def test_texts_by_common_beginnings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "event.parquet"
    table = pa.table({"time": times(3), "text": pa.array(["aaa", "aab", "aac"])})
    pq.write_table(table, path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    with pytest.raises(ValueError, match="write it with dictionaries"):
        Telemetry(tmp_path)


def test_a_damaged_file_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "gpu.parquet"
    pq.write_table(readings(300), path, data_page_size=512)
    whole = path.read_bytes()
    rng = random.Random(3)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        said = refusal(path)
        refused += bool(said)
        assert not said or str(path) in said
    assert refused > 100


def refusal(path: Path) -> str:
    try:
        look_at(path)
    except ValueError as error:
        return str(error)
    return ""


def test_a_group_of_rows_and_a_day_must_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.parquet"
    pq.write_table(readings(2000), path, row_group_size=1000)
    telemetry = Telemetry(tmp_path)
    telemetry.memory_bytes = 3 * 8 * 1500
    assert len(telemetry.chunk("gpu", 0, START_NS + 1200 * SECOND)) == 1200
    with pytest.raises(ValueError, match=f"{path}: a day of it is 2000 rows, 48000 bytes"):
        telemetry.chunk("gpu", 0, 2**62)
    assert len(telemetry.of_nodes(["n1"]).chunk("gpu", 0, 2**62)) == 667
    monkeypatch.setattr(opened, "GROUP_LIMIT_BYTES", 20_000)
    with pytest.raises(TooLargeError, match="write it in smaller groups"):
        Telemetry(tmp_path)


def test_a_column_that_only_some_files_of_a_table_have_is_read(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    pq.write_table(readings(3), tmp_path / "gpu" / "a.parquet")
    late = readings(3, late=pa.array([1.0, 2.0, 3.0]))
    pq.write_table(
        late.set_column(0, "time", pa.array(np.arange(3) + 5)), tmp_path / "gpu" / "b.parquet"
    )
    chunk = Telemetry(tmp_path).chunk("gpu", 0, 2**62)
    assert np.nansum(chunk.fields["late"]) == 6.0
    assert len(chunk) == 6
    pq.write_table(readings(3, late=pa.array(["x"] * 3)), tmp_path / "gpu" / "c.parquet")
    with pytest.raises(ValueError, match="its files do not go together"):
        Telemetry(tmp_path)


def test_a_csv_that_unpacks_without_end_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu.csv.gz"
    path.write_bytes(gzip.compress(HEADER) + gzip.compress(bytes(32 * 1024**2)))
    with pytest.raises(TooLargeError, match=f"{path}: a line is over 8388608 bytes"):
        Telemetry(tmp_path)
    for verb in (
        ["replay", "--telemetry", str(tmp_path), "--out", str(tmp_path / "out.jsonl")],
        ["train", "--telemetry", str(tmp_path), "--out", str(tmp_path / "model")],
    ):
        assert main(verb) != 0
        assert f"{path}: a line is over 8388608 bytes" in capsys.readouterr().err
    path.write_bytes(gzip.compress(b"x" * (32 * 1024**2)))
    with pytest.raises(ValueError, match=f"{path}"):
        Telemetry(tmp_path)


def test_a_csv_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv.xz"
    path.write_bytes(lzma.compress(HEADER + ROW * 5000))
    size = len(HEADER) + 5000 * len(ROW)
    assert len(Telemetry(tmp_path, csv_limit_bytes=size).chunk("gpu", 0, 2**62)) == 5000
    with pytest.raises(TooLargeError, match=f"{path}: is over {size - 1} bytes unpacked"):
        Telemetry(tmp_path, csv_limit_bytes=size - 1)


def test_a_column_is_the_same_in_all_blocks_of_a_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csvfile, "BLOCK_BYTES", 200)
    lines = [f"{START_NS + n * SECOND},n1,0,{n},{'true' if n % 2 else 1.5},,{n}" for n in range(90)]
    lines += [f"{START_NS + 90 * SECOND},n1,0,90,false,,ninety"]
    path = tmp_path / "gpu.csv"
    path.write_text(
        "time,node,gpu,power_watts,flag,never,note\n" + "\n".join(reversed(lines)) + "\n"
    )
    telemetry = pickle.loads(pickle.dumps(Telemetry(tmp_path)))
    chunk = telemetry.chunk("gpu", 0, 2**62)
    assert sorted(chunk.fields) == ["flag", "power_watts"]
    assert chunk.fields["power_watts"].tolist() == list(range(91))
    assert set(chunk.fields["flag"].tolist()) == {0.0, 1.0, 1.5}
    assert list(chunk.texts["note"]) == [str(n) for n in range(90)] + ["ninety"]
    assert telemetry.span_ns() == (START_NS, START_NS + 90 * SECOND)
    assert telemetry.node_names() == ["n1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node,gpu\nn1,0\n", "has no column time"),
        ("time,node,gpu\n,n1,0\n", "1 of its rows have no time"),
        ("time,node,gpu\nyesterday,n1,0\n", "a time cannot be read"),
        ("time,node,gpu\n2026-06-01,n1\n", "cannot be read"),
        ("time,node,node\n2026-06-01,n1,n2\n", "has the column 'node' twice"),
    ],
)
def test_a_csv_that_cannot_be_read_is_said_with_its_name(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path}.*{said}"):
        Telemetry(tmp_path)


def test_no_temporary_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "t").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "t" / "gpu.csv").write_bytes(HEADER + ROW)
    telemetry = Telemetry(tmp_path / "t")
    part = telemetry.of_nodes(["n1"])
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    del telemetry
    assert len(part.chunk("gpu", 0, 2**62)) == 1
    del part
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_truth_file_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "truth.csv"
    path.write_text("node,onset\n" + "n1,2026-06-01T12:00:00Z\n" * 100)
    assert len(read_truth(path)) == 100
    monkeypatch.setattr(truth, "_LIMIT_BYTES", 1000)
    with pytest.raises(TooLargeError, match=f"{path}: is over 1000 bytes"):
        read_truth(path)
