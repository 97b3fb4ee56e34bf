"""Exact save and restore of the engine: an npz file, numbers as arrays, names as JSON.

No pickle is written or read. The layout of all statistics is part of the file; a state
saved by a version that keeps other statistics is refused, and features are then rebuilt
from the store.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from pydantic_core import to_json

from collectors.sample import Tags
from models.features.arrays import Array
from models.features.table import EntityTable
from models.voices import Entity

FORMAT = 1

# So many rows are made JSON in one call, which lets no other thread run.
_ROWS_AT_ONCE = 4096
_PAGE_BYTES = 4096
_ALIGNED_BYTES = 64


@dataclass(frozen=True, slots=True)
class Names:
    """Of one kind: whose the rows are, and which tags lead to them, by stream."""

    entities: list[Entity]
    identity: list[str]
    rows: dict[str, tuple[list[Tags], list[int]]]


@dataclass(frozen=True, slots=True)
class Picture:
    """All of an engine at one moment. ``lists``: name to the columns of a list."""

    names: dict[str, Names]
    arrays: dict[str, Array]
    lists: dict[str, tuple[list[Any], ...]]
    counts: dict[str, int]


class Room:
    """Memory that copies are made in: touched beforehand, by a thread that has the time for it, and
    in one piece, so that the system has it back at once."""

    def __init__(self, size_bytes: int) -> None:
        self._bytes = np.empty(size_bytes, np.uint8)
        self._bytes[::_PAGE_BYTES] = 0
        self._used_bytes = 0

    def copy(self, array: Array) -> Array:
        """A copy of ``array``, elsewhere if it finds no room."""
        start = self._used_bytes
        end = start + array.nbytes
        if end > len(self._bytes):
            return array.copy()
        self._used_bytes = end + -end % _ALIGNED_BYTES
        held = self._bytes[start:end].view(array.dtype).reshape(array.shape)
        held[...] = array
        return held


def size_bytes(tables: Mapping[str, EntityTable]) -> int:
    """How much room the copies of all arrays of ``tables`` take now."""
    return sum(
        array.nbytes + _ALIGNED_BYTES
        for table in tables.values()
        for array in table.arrays.first(len(table)).values()
    )


def picture(
    tables: Mapping[str, EntityTable],
    lists: dict[str, tuple[list[Any], ...]],
    counts: dict[str, int],
    room: Room | None,
) -> Picture:
    """What ``tables`` hold. Without ``room``, its arrays change with the next reading."""
    names, arrays = {}, {}
    for kind, table in tables.items():
        rows = {
            name: (list(state.row_of), list(state.row_of.values()))
            for name, state in table.streams.items()
        }
        names[kind] = Names(list(table.entities), list(table.identity), rows)
        for name, array in table.arrays.first(len(table)).items():
            arrays[f"{kind}|{name}"] = array if room is None else room.copy(array)
    return Picture(names, arrays, lists, counts)


class Writer:
    """Writes pictures of an engine, one after the other.

    Names hardly ever change: what was told last time in the same words is not made JSON again.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[tuple[list[Any], ...], bytes]] = {}
        self.made = 0  # lists that were made JSON, for they were new

    def write(self, taken: Picture, file: BinaryIO) -> None:
        """Writes ``taken`` to ``file`` as npz, and lets go of each array once it is written.

        It is some hundred megabytes of a large fleet: nothing of it is copied on its way.
        """
        head = np.frombuffer(self._head(taken), np.uint8)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            _write_array(archive, "head", head)
            for name in list(taken.arrays):
                _write_array(archive, name, taken.arrays.pop(name))

    def _head(self, taken: Picture) -> bytes:
        extra = {name: self._list(name, columns) for name, columns in taken.lists.items()}
        extra |= {name: to_json(count) for name, count in taken.counts.items()}
        tables = {
            kind: _object(
                {
                    "entities": self._list(f"{kind}|entities", (names.entities,), _pair),
                    "identity": self._list(f"{kind}|identity", (names.identity,)),
                    "rows": _object(
                        {
                            name: self._list(f"{kind}|rows|{name}", columns)
                            for name, columns in names.rows.items()
                        }
                    ),
                }
            )
            for kind, names in taken.names.items()
        }
        return _object(
            {"format": to_json(FORMAT), "extra": _object(extra), "tables": _object(tables)}
        )

    def _list(
        self,
        key: str,
        columns: tuple[list[Any], ...],
        each: Callable[[Any], object] | None = None,
    ) -> bytes:
        """A list as JSON: its items, or of several columns its rows.

        Equal lists mostly hold the same objects: to compare them costs next to nothing.
        """
        told = self._told.get(key)
        if told is not None and told[0] == columns:
            return told[1]
        self.made += 1
        pieces = []
        for start in range(0, len(columns[0]), _ROWS_AT_ONCE):
            some = [one[start : start + _ROWS_AT_ONCE] for one in columns]
            rows: Sequence[object] = list(zip(*some, strict=True)) if len(some) > 1 else some[0]
            pieces.append(as_json(rows if each is None else list(map(each, rows)))[1:-1])
        text = b"[" + b",".join(pieces) + b"]"
        self._told[key] = columns, text
        return text


def as_json(value: object) -> bytes:
    """JSON of ``value``, tuples as lists; also where a text was no UTF-8."""
    try:
        return to_json(value)  # in a tenth of the time
    except ValueError:  # half a character
        return json.dumps(value, separators=(",", ":")).encode()


def _object(parts: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(to_json(name) + b":" + text for name, text in parts.items()) + b"}"


def _pair(entity: Entity) -> tuple[str, str]:
    return entity.node, entity.device


def _write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """As numpy.savez does, but without a copy of the data."""
    data = np.ascontiguousarray(array)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
        layout = np.lib.format.header_data_from_array_1_0(data)
        np.lib.format.write_array_header_1_0(part, layout)
        part.write(data.reshape(-1).view(np.uint8).data)


def load(saved: bytes, tables: Mapping[str, EntityTable]) -> Mapping[str, Any]:
    """Fills empty ``tables`` and returns ``extra``. Raises ValueError when it does not fit."""
    try:
        with np.load(io.BytesIO(saved), allow_pickle=False) as file:
            head = json.loads(file["head"].tobytes())
            if head.get("format") != FORMAT or set(head["tables"]) != set(tables):
                raise ValueError("the checkpoint has another format")
            for kind, table in tables.items():
                _load_table(table, kind, head["tables"][kind], file)
    except (zipfile.BadZipFile, KeyError, TypeError, EOFError, OSError) as error:
        raise ValueError(f"the checkpoint cannot be read: {error}") from error
    extra: Mapping[str, Any] = head["extra"]
    return extra


def _load_table(table: EntityTable, kind: str, head: Mapping[str, Any], file: Any) -> None:
    for node, device in head["entities"]:
        table.row(Entity(kind, node, device))
    table.identity = list(head["identity"])
    for name, rows in head["rows"].items():
        table.streams[name].row_of = {
            tuple((tag, value) for tag, value in tags): int(row) for tags, row in rows
        }
    prefix = f"{kind}|"
    names = [name for name in file.files if name.startswith(prefix)]
    table.arrays.load({name[len(prefix) :]: file[name] for name in names}, len(table))
