"""Named arrays of numbers in a skops file, and nothing else.

skops writes it, and ``skops.io.load`` reads it as well. Here it is read without skops: whatever a
file names, not one type is looked up or made of it, and a head needs neither skops nor
scikit-learn in memory (72 MiB). The file comes from outside: everything in it is bounded, also
what it unpacks to.
"""

from __future__ import annotations

import io
import json
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA = "schema.json"
SCHEMA_LIMIT_BYTES = 8 * 2**20
DEPTH_LIMIT = 8
# A nested dict: by name, an array or further names.
Arrays = dict[str, Any]

_DICT = ("builtins", "dict", "DictNode")
_ARRAY = ("numpy", "ndarray", "NdArrayNode")
_NUMBERS = "biuf"  # kinds of dtype: bool, integers, floats
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ArraysRefused(ValueError):
    """The file is no file of plain arrays. The text says why."""


def write(arrays: Arrays, path: Path) -> None:
    """Writes nested dicts of arrays, packed."""
    import skops.io  # brings all of scikit-learn: who only reads does without

    skops.io.dump(arrays, path, compression=zipfile.ZIP_DEFLATED, compresslevel=9)


def read(path: Path, limit_bytes: int) -> Arrays:
    """The nested dicts of a file that unpacks to at most ``limit_bytes``.

    Raises ArraysRefused, and OSError where the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as opened:
            if sum(one.file_size for one in opened.infolist()) > limit_bytes:
                raise ArraysRefused(f"it unpacks to more than {limit_bytes} bytes")
            if any(one.compress_type not in _PACKED for one in opened.infolist()):
                raise ArraysRefused("it is packed otherwise than skops packs")
            schema = json.loads(_member(opened, SCHEMA, SCHEMA_LIMIT_BYTES))
            found = _node(opened, schema, DEPTH_LIMIT, set())
    except ArraysRefused:
        raise
    except (
        # All that zipfile, json and numpy raise at bytes that are not what they should be.
        *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
        *(ValueError, KeyError, TypeError, AttributeError, SyntaxError, MemoryError, struct.error),
        *(tokenize.TokenError, OverflowError),
    ) as error:
        raise ArraysRefused(f"it is damaged ({type(error).__name__})") from error
    if not isinstance(found, dict):
        raise ArraysRefused("it holds no names")
    return found


def _member(opened: zipfile.ZipFile, name: str, limit_bytes: int) -> bytes:
    """One file of the archive, unpacked no further than the archive says that it is long."""
    length = opened.getinfo(name).file_size
    if length > limit_bytes:
        raise ArraysRefused(f"{name} in it is larger than {limit_bytes} bytes")
    with opened.open(name) as stream:
        found = stream.read(length)
    if len(found) != length:
        raise ArraysRefused(f"{name} in it is cut short")
    return found


def _node(opened: zipfile.ZipFile, node: dict[str, Any], depth: int, told: set[str]) -> Any:
    """What ``node`` of the schema stands for; ``told`` are the files that stood for an array.

    None stands for two: a short schema could else ask for one long file many thousand times.
    """
    is_a = (node["__module__"], node["__class__"], node["__loader__"])
    if is_a == _DICT and depth:
        content = node["content"].items()
        return {name: _node(opened, one, depth - 1, told) for name, one in content}
    if is_a == _ARRAY and node["type"] == "numpy":
        name = node["file"]
        if name in told:
            raise ArraysRefused("two arrays in it are one file")
        told.add(name)
        return _array(_member(opened, name, opened.getinfo(name).file_size))
    raise ArraysRefused(f"it holds objects of foreign types: {is_a[0]}.{is_a[1]}"[:200])


def _array(written: bytes) -> NDArray[Any]:
    """A row of numbers in numpy's own format."""
    stream = io.BytesIO(written)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ArraysRefused("an array in it is of a version that numpy.save never writes here")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in _NUMBERS or len(shape) != 1:
        raise ArraysRefused(f"an array in it is no row of numbers: {dtype.kind}, {len(shape)}-d")
    if shape[0] * dtype.itemsize != len(written) - stream.tell():
        raise ArraysRefused("an array in it is not as long as it says")
    return np.frombuffer(written, dtype, offset=stream.tell())
