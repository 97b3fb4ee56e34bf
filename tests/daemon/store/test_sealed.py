"""A flipped bit in a Parquet file is an error: never another number, never the end of the head."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collectors.sample import sample
from daemon.store.check import verify
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.merge import merge_parts
from daemon.store.parts import HOUR_NS, all_parts, list_parts, read_part, sound
from daemon.store.tables import TIME, sort_once, with_tags

START_NS = 1_780_000_000_000_000_000 // HOUR_NS * HOUR_NS


@pytest.fixture
def part(tmp_path: Path) -> Path:
    rng = random.Random(3)
    store = Store(tmp_path / "store")
    store.append(
        sample(
            "gpu",
            START_NS + n * 10**9,
            {"power_watts": rng.random(), "word": rng.choice(("a", "bb"))},
            node=f"n{n % 5}",
            gpu=str(n % 3),
        )
        for n in range(400)
    )
    store.commit()
    store.roll(START_NS, everything=True)
    store.close()
    (one,) = all_parts(store.parquet_directory)
    return one.path


def test_anything_that_reads_parquet_reads_it(part: Path) -> None:
    assert pq.read_table(part).num_rows == 400
    assert pq.ParquetFile(part, page_checksum_verification=True).read().num_rows == 400


# In a process of its own: what is tested is that it does not end.
_CHILD = """
import random, sys
from pathlib import Path
import pyarrow as pa
from daemon.store.check import verify
from daemon.store.errors import StoreUnavailableError
from daemon.store.merge import _Source
from daemon.store.parts import Part, read_part
path, seed = Path(sys.argv[1]), int(sys.argv[2])
whole, right = path.read_bytes(), read_part(path)
rng = random.Random(seed)
told = 0
for _ in range(700):
    data = bytearray(whole)
    # The footer is small, and the most can go wrong there.
    at = rng.randrange(len(data)) if rng.random() < 0.3 else len(data) - 1 - rng.randrange(2500)
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    for read in (
        lambda: read_part(path),
        lambda: read_part(path, None, {"node": "n1", "gpu": "0"}, 0, 2**62),
        lambda: _Source(path),
    ):
        try:
            found = read()
        except (StoreUnavailableError, pa.ArrowException, OSError):
            told += 1
            continue
        if isinstance(found, pa.Table) and found.num_rows == right.num_rows:
            assert found.equals(right), f"another table, bit flipped at {at} of {len(data)}"
print(told)
"""


def test_a_flipped_bit_is_told_and_changes_nothing_that_is_read(part: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(part), "11"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 1200


def test_a_damaged_footer_is_found_and_named(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[-60] ^= 4
    part.write_bytes(bytes(data))
    (finding,) = verify(part.parents[3], deep=False)
    assert (finding.path, finding.loses_rows) == (part, True)
    assert "its footer is damaged" in finding.text
    with pytest.raises(StoreUnavailableError, match="its footer is damaged; tocsin store repair"):
        read_part(part)


def test_merged_files_are_sealed_as_well(part: Path, tmp_path: Path) -> None:
    target = part.with_name("05.00000001-00000009.parquet")
    (one,) = list_parts(part.parents[2], "gpu")
    merge_parts([one], target, 3)
    assert sort_once(read_part(target)).equals(sort_once(read_part(part)))
    data = bytearray(target.read_bytes())
    data[-60] ^= 4
    target.write_bytes(bytes(data))
    with pytest.raises(StoreUnavailableError, match="its footer is damaged"):
        read_part(target)


def test_a_file_without_a_seal_is_read_as_before(part: Path) -> None:
    table = read_part(part)
    pq.write_table(table, part)
    assert read_part(part).num_rows == 400
    assert isinstance(read_part(part), pa.Table)


def test_a_damaged_header_of_a_page_is_found_by_who_looks_at_all(part: Path) -> None:
    """No checksum of Parquet's is over it, and its field that holds the page's may be hit too."""
    whole = part.read_bytes()
    metadata = pq.read_metadata(part).row_group(0)
    places = [metadata.column(place).data_page_offset for place in range(metadata.num_columns)]
    for place in places:
        for byte in range(12):
            data = bytearray(whole)
            data[place + byte] ^= 8
            part.write_bytes(bytes(data))
            (finding,) = verify(part.parents[3])
            assert finding.loses_rows
            try:
                read_part(part)
            except StoreUnavailableError:
                continue


def test_a_tag_that_is_of_no_word_is_damage(part: Path) -> None:
    wrong = pa.DictionaryArray.from_arrays(
        pa.array([0, 7], pa.int32()), pa.array(["n1"]), safe=False
    )
    table = with_tags(pa.table({"time": pa.array([1, 2], TIME), "node": wrong}), ["node"])
    with pytest.raises(pa.ArrowException):
        sound(table)
