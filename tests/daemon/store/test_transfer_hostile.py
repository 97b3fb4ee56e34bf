"""Telemetry directories from anybody: names that are no file names, bombs, links, half files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.sample import sample
from daemon.cli.main import main
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.parts import DAY_NS
from daemon.store.tables import to_rows
from daemon.store.transfer import export_directory, import_directory
from models.telemetry import Telemetry
from models.telemetry.unpack import TooLargeError, open_bytes

START_NS = 1_780_012_800_000_000_000 // DAY_NS * DAY_NS
MIB = 1024 * 1024
ODD_NAMES = ["disk/io", "../../etc/x", ".hidden", "..", "a b", "ü", "%41", "truth", "x" * 247]
ODD_NAMES += ["/" * 80, "gpu.csv", "gpu.parquet", "tables.json", "a\\b", "a'b\"c", "*"]


def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    return {name: to_rows(store.read(name, -(2**62), 2**62)) for name in store.measurements()}


@pytest.mark.parametrize("csv", [False, True])
def test_any_measurement_leaves_and_comes_back_as_it_was(tmp_path: Path, csv: bool) -> None:
    store = Store(tmp_path / "a")
    for place, name in enumerate(ODD_NAMES):
        store.append(
            [
                sample(name, START_NS + place, {"value": 0.1, "text": "1"}, node="n1", cpu=str(cpu))
                for cpu in range(3)
            ]
        )
    store.append([sample("gpu", START_NS, {"power_watts": 1e-300}, node="n1", gpu="0", rack="r7")])
    store.append([sample("gpu", START_NS, {"power_watts": 2.0}, node="n1", gpu="0", rack="r8")])
    store.commit()
    counts = export_directory(store, tmp_path / "out", csv=csv)
    assert counts == {**dict.fromkeys(ODD_NAMES, 3), "gpu": 2}
    assert not (tmp_path / "out" / "truth.csv").exists(), "a node's readings are no labels"
    other = Store(tmp_path / "b")
    for _ in range(2):
        assert import_directory(other, tmp_path / "out") == counts
        assert everything(other) == everything(store)
    assert [one.measurements for one in [Telemetry(tmp_path / "out")]] == [("gpu",)]
    store.close()
    other.close()


TEXTS = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\x00\x1e\x1f"), max_size=12
)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3 * DAY_NS),
        st.dictionaries(st.sampled_from(["node", "cpu", "a,b"]), TEXTS.filter(bool), max_size=3),
        st.dictionaries(
            st.sampled_from(["x", "y", 'q"r', "z/1"]),
            st.floats(allow_nan=False, allow_infinity=False) | TEXTS | st.sampled_from(["NA", "1"]),
            min_size=1,
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, name=TEXTS.filter(bool), csv=st.booleans())
def test_whatever_is_kept_leaves_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], name: str, csv: bool
) -> None:
    base = tmp_path_factory.mktemp("t")
    store, other = Store(base / "a"), Store(base / "b")
    store.append(sample(name, START_NS + at, fields, **tags) for at, tags, fields in rows)
    store.commit()
    export_directory(store, base / "out", csv=csv)
    import_directory(other, base / "out")
    assert everything(other) == everything(store)
    store.close()
    other.close()


HEADER = b"time,node,gpu,uuid,power_watts\n"
ROW = b"2026-06-01T12:00:00Z,n1,0,u,70.5\n"


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_no_more_is_unpacked_than_was_allowed(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"gpu.csv{suffix}"
    path.write_bytes(pack(HEADER) + pack(ROW * 1000))
    size = len(HEADER) + 1000 * len(ROW)
    with open_bytes(path, size) as file:
        assert len(file.read()) == size
    with pytest.raises(TooLargeError, match=f"{path}: is over {size - 1} bytes"):
        open_bytes(path, size - 1).read()


def test_a_small_file_that_unpacks_to_much_is_refused_with_its_name_in_little_memory(
    tmp_path: Path,
) -> None:
    (tmp_path / "t").mkdir()
    path = tmp_path / "t" / "gpu.csv.xz"
    piece = lzma.compress(ROW * (MIB // len(ROW)))
    path.write_bytes(lzma.compress(HEADER) + piece * 200)
    said = _import_in_a_process(tmp_path, "--unpacked-limit", "0.125")
    assert f"tocsin: {path}: is over 134217728 bytes unpacked" in said
    assert "--unpacked-limit GIB raises the bound" in said


def test_a_parquet_bomb_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    path = tmp_path / "t" / "gpu.parquet"
    times = pa.array([START_NS], pa.int64()).cast(pa.timestamp("ns", tz="UTC"))
    piece = pa.table({"time": pa.repeat(times[0], MIB), "power_watts": pa.repeat(1.0, MIB)})
    with pq.ParquetWriter(path, piece.schema) as writer:
        writer.write_table(piece)
    assert path.stat().st_size < MIB
    said = _import_in_a_process(tmp_path, "--unpacked-limit", "0.01")
    assert f"tocsin: {path}: is 16777216 bytes unpacked, over 10737418" in said
    # Allowed, it is a million rows of one point: read piece by piece, kept once.
    assert _import_in_a_process(tmp_path, "--unpacked-limit", "1").split()[:2] == [
        str(MIB),
        "gpu",
    ]


def _import_in_a_process(directory: Path, *options: str) -> str:
    """What ``tocsin import`` says, with at most 640 MiB of memory to write to."""
    words = ["import", "--directory", str(directory / "s"), "--telemetry", str(directory / "t")]
    done = subprocess.run(
        [sys.executable, "-m", "daemon.cli", *words, *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (640 * MIB, 640 * MIB)),
    )
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_a_text_of_a_parquet_dictionary_is_not_multiplied(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    path = tmp_path / "t" / "event.parquet"
    times = pa.array(range(START_NS, START_NS + 60_000), pa.int64()).cast(pa.timestamp("ns"))
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 60_000, pa.int32()), ["x" * MIB])
    pq.write_table(pa.table({"time": times, "text": texts}), path)
    assert path.stat().st_size < 2 * MIB
    store = Store(tmp_path / "s")
    with pytest.raises(ValueError, match=r"event\.parquet: texts of 1048576 bytes in 'text'"):
        import_directory(store, tmp_path / "t")
    store.close()


def test_an_xz_that_asks_for_gigabytes_of_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv.xz"
    packed = bytearray(lzma.compress(ROW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    # The dictionary's size is one byte of the block's header, which has a checksum.
    # Source: https://tukaani.org/xz/xz-file-format.txt (3.1, 5.3.1)
    assert packed[14:16] == b"\x21\x01"
    packed[16] = 36  # 1 GiB
    packed[20:24] = zlib.crc32(bytes(packed[12:20])).to_bytes(4, "little")
    path.write_bytes(bytes(packed))
    with pytest.raises(ValueError, match=r"gpu\.csv\.xz: cannot be unpacked: Memory usage limit"):
        open_bytes(path).read()


def test_links_out_of_the_directory_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_bytes(HEADER + ROW)
    directory = tmp_path / "t"
    (directory / "gpu").mkdir(parents=True)
    store = Store(tmp_path / "s")
    for link in (directory / "host.csv", directory / "gpu" / "a.parquet", directory / "disk"):
        link.symlink_to(tmp_path if link.name == "disk" else secret)
        with pytest.raises(ValueError, match=f"{link} is a link out of"):
            import_directory(store, directory)
        link.unlink()
    (directory / "data.bin").write_bytes(HEADER + ROW)
    (directory / "gpu.csv").symlink_to("data.bin")
    assert import_directory(store, directory) == {"gpu": 1}, "a link inside is a name more"
    (directory / "tables.json").symlink_to(secret)
    with pytest.raises(ValueError, match=r"tables\.json is a link out of"):
        import_directory(store, directory)
    store.close()


def test_what_is_no_plain_file_is_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / "t"
    directory.mkdir()
    os.mkfifo(directory / "gpu.csv")  # whoever opened it would wait for ever
    (directory / "host.csv").write_text("time,node,load_1m\n2026-06-01,n1,1\n")
    store = Store(tmp_path / "s")
    assert import_directory(store, directory) == {"host": 1}
    store.close()


def test_a_table_that_nobody_knows_is_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "t"
    directory.mkdir()
    (directory / "cpu.csv").write_bytes(b"time,host,usage\n2026-06-01,n1,1\n")
    (directory / "truth.csv").write_bytes(b"node,onset\nn1,2026-06-01\n")
    (directory / "gpu.csv").write_bytes(HEADER + ROW)
    words = ["import", "--directory", str(tmp_path / "s"), "--telemetry", str(directory)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out.split() == ["1", "gpu"]
    assert f"{directory / 'cpu.csv'} was left out" in said.err
    assert "truth" not in said.err


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("gpu.csv.gz", gzip.compress(HEADER + ROW * 1000)[:-20], "cannot be unpacked"),
        ("gpu.csv.xz", lzma.compress(HEADER + ROW * 1000)[:-20], "cannot be unpacked"),
        ("gpu.csv.xz", b"\x00no xz", "cannot be unpacked"),
        ("gpu.csv.bz2", b"BZh9garbage", "cannot be unpacked"),
        ("gpu.csv", b"", "has no column time"),
        ("gpu.csv", b"node,power_watts\nn1,1\n", "has no column time"),
        ("gpu.csv", b"time,node,node\n", "twice"),
        ("gpu.csv", HEADER + b"yesterday,n1,0,u,1\n", "cannot be read"),
        ("gpu.csv", HEADER + b",n1,0,u,1\n", "have no time"),
        ("gpu.csv", HEADER + b"2026-06-01,n1\n", "cannot be read"),
        ("gpu.csv", HEADER + b'2026-06-01,n1,0,u,"' + b"x" * 70_000 + b'"\n', "no readings"),
        ("gpu.csv", b"time," + b",".join(b"c%d" % n for n in range(5000)) + b"\n", "columns"),
        ("gpu.parquet", b"PAR1 and then nothing", "cannot be read"),
        ("tables.json", b"[1, 2]", "no list of tables"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_name_and_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, why: str
) -> None:
    directory = tmp_path / "t"
    directory.mkdir()
    (directory / name).write_bytes(content)
    words = ["import", "--directory", str(tmp_path / "s"), "--telemetry", str(directory)]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert str(directory / name) in said
    assert why in said
    assert said.count("\n") == 1


def test_an_export_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    for hour in range(2):
        store.append([sample("gpu", START_NS + hour * 3600 * 10**9, {"a": 1.0}, node="n1")])
    store.commit()
    store.roll(START_NS, everything=True)
    last = sorted((tmp_path / "s" / "parquet").rglob("*.parquet"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:40] + bytes(20) + whole[60:])  # its list of contents is whole
    with pytest.raises(StoreUnavailableError, match="tocsin store repair"):
        export_directory(store, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    last.write_bytes(whole)
    assert export_directory(store, tmp_path / "out") == {"gpu": 2}
    store.close()


def test_a_foreign_file_that_is_too_large_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "big.csv.xz"
    head = lzma.compress(b"timeUtc,node,gpu,uuid,metric,value\n")
    path.write_bytes(head + lzma.compress(b"2026-01-01,n,0,u,other,1\n" * 50_000) * 40)
    words = ["import", "--map", "gwdg-tidy.toml", "--out", str(tmp_path / "o"), str(path)]
    assert main([*words, "--unpacked-limit", "0.03"]) == 1
    said = capsys.readouterr().err
    assert f"{path}: is over 32212254 bytes unpacked; --unpacked-limit GIB raises" in said
    assert main(words) == 3, "nothing of it is asked for"
    with pytest.raises(TooLargeError):
        open_bytes(path, MIB).read()


def test_an_import_leaves_the_last_of_the_disk_alone(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "gpu.csv").write_bytes(HEADER + ROW)
    store = Store(tmp_path / "s")
    store.room.options = store.options.model_copy(update={"floor_bytes": 10**18})
    store.room._disk = lambda path: type("Disk", (), {"total_bytes": 10**15, "free_bytes": 5})()
    with pytest.raises(StoreUnavailableError, match="kept for decisions"):
        import_directory(store, tmp_path / "t")
    assert everything(store) == {}
    store.close()
