"""Plain arrays in a skops file: read back as they are, and nothing else is read."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import skops.io
from hypothesis import given, settings
from hypothesis import strategies as st

from models.arrays_file import ArraysRefused, read, write

LIMIT = 2**20
KEPT = {
    "gpu": {
        "column": np.arange(5, dtype=np.int16),
        "number": np.array([0.1, np.inf, np.nan]),
        "missing_left": np.array([True, False]),
        "nothing": np.zeros(0),
    }
}


def same(found: dict[str, Any], kept: dict[str, Any]) -> bool:
    return found.keys() == kept.keys() and all(
        same(found[name], one)
        if isinstance(one, dict)
        else found[name].dtype == one.dtype
        and np.array_equal(found[name], one, equal_nan=one.dtype.kind == "f")
        for name, one in kept.items()
    )


def test_what_was_written_is_read_and_skops_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    write(KEPT, path)
    assert same(read(path, LIMIT), KEPT)
    assert skops.io.get_untrusted_types(file=path) == []
    assert same(skops.io.load(path), KEPT)


def test_a_reader_needs_neither_skops_nor_scikit_learn(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    write(KEPT, path)
    code = (
        "import sys; from pathlib import Path; from models.arrays_file import read; "
        f"read(Path({str(path)!r}), 10**6); print([one for one in ('skops', 'sklearn') "
        "if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "odd",
    [np.memmap, np.fromfile, sklearn.datasets.fetch_openml, 3.5, "words", [np.zeros(2)], b"bytes"],
)
def test_whatever_is_no_array_is_foreign(tmp_path: Path, odd: object) -> None:
    path = tmp_path / "a.skops"
    skops.io.dump({"gpu": odd}, path)
    with pytest.raises(ArraysRefused, match="foreign types"):
        read(path, LIMIT)


@pytest.mark.parametrize(
    "odd",
    [
        np.zeros((2, 2)),
        np.zeros(()),
        np.array(["a"]),
        np.zeros(2, [("a", "f8")]),
        np.zeros(2, "M8"),
    ],
)
def test_whatever_is_no_row_of_numbers_is_refused(tmp_path: Path, odd: object) -> None:
    path = tmp_path / "a.skops"
    skops.io.dump({"gpu": odd}, path)
    with pytest.raises(ArraysRefused, match=r"no row of numbers|damaged"):
        read(path, LIMIT)


def test_objects_and_numbers_in_the_place_of_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    for odd in (np.array([1, "a"], object), np.float64(1.0)):
        skops.io.dump({"gpu": odd}, path)
        with pytest.raises(ArraysRefused, match="foreign types"):
            read(path, LIMIT)
    skops.io.dump(np.zeros(2), path)
    with pytest.raises(ArraysRefused, match="no names"):
        read(path, LIMIT)


def rewritten(path: Path, change: Callable[[str, bytes], bytes], **asked: Any) -> None:
    """Writes the archive again with each member changed."""
    with zipfile.ZipFile(path) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    with zipfile.ZipFile(path, "w", **{"compression": zipfile.ZIP_DEFLATED, **asked}) as opened:
        for name, held in members.items():
            opened.writestr(name, change(name, held))


def deep(name: str, held: bytes) -> bytes:
    """A schema that never seems to end."""
    if name != "schema.json":
        return held
    return (
        b'{"__module__":"builtins","__class__":"dict","__loader__":"DictNode","content":{"a":'
        * 9000
    )


def long_header(name: str, held: bytes) -> bytes:
    """An array that says that it is of 8 TiB."""
    if not name.endswith(".npy"):
        return held
    return held.replace(b"'shape': (5,)", b"'shape': (1099511627776,)")


def unended_header(name: str, held: bytes) -> bytes:
    """An array whose header is Python that never ends."""
    return held.replace(b"}", b"(") if name.endswith(".npy") else held


def missing(name: str, held: bytes) -> bytes:
    """A schema that names a file that is not there."""
    return held.replace(b".npy", b".gone") if name == "schema.json" else held


@pytest.mark.parametrize(
    ("change", "asked", "words"),
    [
        (lambda _, held: held[:-1], {}, r"not as long|damaged"),
        (lambda name, held: b"{}" if name == "schema.json" else held, {}, "damaged"),
        (lambda name, held: b"[1" if name == "schema.json" else held, {}, "damaged"),
        (deep, {}, "damaged"),
        (long_header, {}, r"not as long|damaged"),
        (unended_header, {}, "damaged"),
        (missing, {}, "damaged"),
        (lambda _, held: held, {"compression": zipfile.ZIP_LZMA}, "packed otherwise"),
        (lambda _, held: held, {"compression": zipfile.ZIP_BZIP2}, "packed otherwise"),
    ],
)
def test_damage_is_refused(
    tmp_path: Path, change: Callable[[str, bytes], bytes], asked: dict[str, Any], words: str
) -> None:
    path = tmp_path / "a.skops"
    write(KEPT, path)
    rewritten(path, change, **asked)
    with pytest.raises(ArraysRefused, match=words):
        read(path, LIMIT)


def test_a_file_that_is_asked_for_again_and_again_is_refused(tmp_path: Path) -> None:
    """A few bytes of schema each time, and an array of the full length in memory."""
    path = tmp_path / "a.skops"
    write({"a": np.zeros(9), "b": np.ones(9)}, path)
    assert read(path, LIMIT).keys() == {"a", "b"}

    def same_file(name: str, held: bytes) -> bytes:
        if name != "schema.json":
            return held
        schema = json.loads(held)
        content = schema["content"]
        content["b"]["file"] = content["a"]["file"]
        return json.dumps(schema).encode()

    rewritten(path, same_file)
    with pytest.raises(ArraysRefused, match="one file"):
        read(path, LIMIT)


def test_dicts_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    held: dict[str, Any] = {"a": np.zeros(1)}
    for _ in range(20):
        held = {"a": held}
    skops.io.dump(held, path)
    with pytest.raises(ArraysRefused, match="foreign types"):
        read(path, LIMIT)


def test_a_file_that_unpacks_to_more_than_it_may_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.skops"
    write({"gpu": np.zeros(2 * LIMIT, np.bool_)}, path)
    assert path.stat().st_size < LIMIT / 100
    with pytest.raises(ArraysRefused, match="unpacks to more"):
        read(path, LIMIT)


def test_a_file_that_lies_about_its_length_is_unpacked_no_further(tmp_path: Path) -> None:
    """The archive says 100 bytes where 2 MiB are packed."""
    path = tmp_path / "a.skops"
    write({"gpu": np.zeros(2 * LIMIT, np.bool_)}, path)
    with zipfile.ZipFile(path) as opened:
        (array,) = [one for one in opened.infolist() if one.filename.endswith(".npy")]
    whole = path.read_bytes()
    lie = whole.replace(struct.pack("<L", array.file_size), struct.pack("<L", 100))
    assert lie != whole
    path.write_bytes(lie)
    with pytest.raises(ArraysRefused, match=r"damaged|cut short"):
        read(path, LIMIT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("arrays") / "a.skops"
    write(KEPT, path)
    return path.read_bytes()


@settings(max_examples=400, deadline=None)
@given(
    hurt=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 2**16) | st.none(),
)
def test_no_damaged_byte_does_more_than_refuse(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, hurt: list[Any], cut: int | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "hurt.skops"
    held = bytearray(whole)
    for at, byte in hurt:
        held[at % len(held)] = byte
    path.write_bytes(bytes(held if cut is None else held[: cut % len(held)]))
    try:
        found = read(path, LIMIT)
    except (ArraysRefused, OSError):  # what ``read`` says that it raises
        return
    assert all(isinstance(one, np.ndarray | dict) for one in found.values())
