"""A Parquet file of anybody, its footer damaged: words, and never the end of the process."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.telemetry.pages import _groups, look_at


def written(path: Path, **how: Any) -> Path:
    rows = 3000
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "time": pa.array(np.arange(rows) * 10**9 + 1_780_000_000 * 10**9, pa.timestamp("ns")),
            "node": pa.array([f"n{n % 7}" for n in range(rows)]).dictionary_encode(),
            "gpu": ["0"] * rows,
            "uuid": pa.array([None, "u"] * (rows // 2)),
            "power_watts": rng.random(rows),
            "state": rng.integers(0, 3, rows),
        }
    )
    pq.write_table(table, path, **{"row_group_size": 1000, **how})
    return path


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"use_dictionary": False, "compression": "none"},
        {"compression": "zstd", "data_page_version": "2.0", "write_page_index": True},
        {"write_statistics": False, "row_group_size": 40, "store_schema": False},
        {"version": "1.0", "write_page_checksum": True},
    ],
)
def test_our_reader_of_footers_says_what_arrows_says(tmp_path: Path, how: dict[str, Any]) -> None:
    path = written(tmp_path / "gpu.parquet", **how)
    metadata = pq.read_metadata(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        groups = _groups(path, data, metadata)
    assert len(groups) == metadata.num_row_groups
    for number, group in enumerate(groups):
        theirs = metadata.row_group(number)
        assert group.rows == theirs.num_rows
        for place, chunk in enumerate(group.chunks):
            column = theirs.column(place)
            assert chunk.values == column.num_values
            assert chunk.packed == column.total_compressed_size
            assert chunk.data_at == column.data_page_offset
            assert chunk.dictionary_at == (column.dictionary_page_offset or 0)
    assert look_at(path).rows == 3000


# In a process of its own: what is tested is that it does not end.
_CHILD = """
import random, sys
from pathlib import Path
from daemon.store.pieces import parquet_pieces
path, seed = Path(sys.argv[1]), int(sys.argv[2])
whole = path.read_bytes()
footer = int.from_bytes(whole[-8:-4], "little") + 8
rng = random.Random(seed)
told = 0
for _ in range(600):
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 3))):
        data[len(data) - 1 - rng.randrange(footer)] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    try:
        sum(table.num_rows for table in parquet_pieces(path, ["node", "gpu", "uuid"], 10**9))
    except ValueError as error:
        assert str(path) in str(error), error
        told += 1
print(told)
"""


def test_flipped_bits_in_a_footer_are_told_and_end_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "gpu.parquet")
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), "7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 150
