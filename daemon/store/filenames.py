"""How the tables of a telemetry directory are called, whatever their measurements are called.

A measurement's name is anything that a sender thought of (``disk/io``, ``.x``, ``truth``), a
file's name is not. So a file has a safe form of the name, and the name itself stands in the
file; for CSV, which has no room for it, in ``tables.json`` beside it, together with what else a
CSV cannot say: which columns are tags and which are texts.
"""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from daemon.frames import replace_file

LIST_NAME = "tables.json"
_LIST_LIMIT_BYTES = 16 * 1024 * 1024
_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".csv.bz2", ".csv.xz")
_FILE_NAME_LIMIT_BYTES = 255
# ``truth.csv`` is no table of readings: it says what really was, to those who judge.
_TRUTH = "truth"


class CsvTable(BaseModel):
    """What a CSV cannot say of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measurement: str
    tags: list[str] = Field(default_factory=list)
    texts: list[str] = Field(default_factory=list)


class CsvList(BaseModel):
    """``tables.json``: the tables by their files' names without suffix."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tables: dict[str, CsvTable] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a telemetry directory, and the table that its name says."""

    path: Path
    stem: str
    is_csv: bool

    @property
    def measurement(self) -> str:
        """The measurement, as far as the name says it."""
        return urllib.parse.unquote(self.stem)


def stem_of(measurement: str) -> str:
    """The file's name, without suffix, for a measurement.

    >>> stem_of("gpu"), stem_of("disk/io"), stem_of(".x"), stem_of("truth")
    ('gpu', 'disk%2Fio', '%2Ex', '%74ruth')
    """
    name = urllib.parse.quote(measurement, safe="") or "%"
    if name.startswith(".") or name == _TRUTH:
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) + len(".parquet") <= _FILE_NAME_LIMIT_BYTES:
        return name
    return f"{name[:180]}~{hashlib.sha256(measurement.encode()).hexdigest()[:16]}"


def tables_in(directory: Path) -> list[TableFile]:
    """The files that may be tables, sorted; of a folder ``gpu`` each Parquet file in it.

    Raises FileNotFoundError for what is no folder, and ValueError for a link that leads out of
    the directory: whoever made the directory may not choose what else of this machine is read.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is not a folder")
    found: list[TableFile] = []
    for path in sorted(directory.iterdir()):
        _stay_inside(path, directory)
        if path.is_dir():
            for part in sorted(path.rglob("*.parquet")):
                _stay_inside(part, directory)
                if part.is_file():
                    found.append(TableFile(part, path.name, is_csv=False))
            continue
        for suffix in _SUFFIXES:
            stem = path.name.removesuffix(suffix)
            if stem not in ("", path.name) and path.is_file():
                is_csv = suffix != ".parquet"
                if not (is_csv and stem == _TRUTH):
                    found.append(TableFile(path, stem, is_csv))
                break
    return found


def _stay_inside(path: Path, directory: Path) -> None:
    if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
        raise ValueError(
            f"{path} is a link out of {directory}, which is not followed; put the file itself there"
        )


def read_list(directory: Path) -> dict[str, CsvTable]:
    """What ``tables.json`` says; nothing without one. Raises ValueError for a damaged one."""
    path = directory / LIST_NAME
    if not path.exists():
        return {}
    _stay_inside(path, directory)
    if not path.is_file() or path.stat().st_size > _LIST_LIMIT_BYTES:
        raise ValueError(f"{path}: is no list of tables")
    try:
        return CsvList.model_validate_json(path.read_bytes()).tables
    except ValidationError as error:
        raise ValueError(f"{path}: is no list of tables: {error.errors()[0]['msg']}") from error


def add_to_list(directory: Path, tables: dict[str, CsvTable]) -> None:
    """Writes ``tables.json``, with what it held before. Raises OSError and ValueError."""
    known = {**read_list(directory), **tables}
    plain = {"tables": {stem: known[stem].model_dump() for stem in sorted(known)}}
    replace_file(directory / LIST_NAME, json.dumps(plain, indent=1).encode())
