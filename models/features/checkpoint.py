"""Exact save and restore of the engine: an npz file, numbers as arrays, names as JSON.

No pickle is written or read. The layout of all statistics is part of the file; a state
saved by a version that keeps other statistics is refused, and features are then rebuilt
from the store.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from pydantic_core import to_json

from models.features.table import EntityTable
from models.voices import Entity

FORMAT = 1


def write(tables: Mapping[str, EntityTable], extra: Mapping[str, Any], file: BinaryIO) -> None:
    """Writes all tables and ``extra`` (JSON data, tuples among it) to ``file``.

    It is some hundred megabytes of a large fleet each minute: nothing of it is copied on its way,
    and tags stay the tuples that they are, which JSON tells as lists.
    """
    head: dict[str, Any] = {"format": FORMAT, "extra": extra, "tables": {}}
    arrays: dict[str, Any] = {}
    for kind, table in tables.items():
        head["tables"][kind] = {
            "entities": [(one.node, one.device) for one in table.entities],
            "identity": table.identity,
            "rows": {name: list(state.row_of.items()) for name, state in table.streams.items()},
        }
        for name, array in table.arrays.first(len(table)).items():
            arrays[f"{kind}|{name}"] = array
    try:
        text = to_json(head)
    except ValueError:  # half a character, in a text that was no UTF-8
        text = json.dumps(head, separators=(",", ":")).encode()
    np.savez(file, head=np.frombuffer(text, np.uint8), **arrays)


def dump(tables: Mapping[str, EntityTable], extra: Mapping[str, Any]) -> bytes:
    """What :func:`write` writes, as bytes."""
    file = io.BytesIO()
    write(tables, extra, file)
    return file.getvalue()


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
