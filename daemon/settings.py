"""Reads a TOML file into a pydantic model, and says *all* that is wrong with it at once.

Each fault names its path in the file, the line where it stands, what is wrong and, where a
key is misspelt, the key that was probably meant.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

# A configuration is a page or two; anything larger is some other file.
FILE_LIMIT_BYTES = 1_000_000


class Section(BaseModel):
    """One table of the configuration: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where, what, and what to do."""

    path: str
    text: str
    line: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.text}" if self.path else f"{where}{self.text}"


class ConfigError(Exception):
    """A configuration that cannot be used. ``faults`` holds every fault of it."""

    def __init__(self, file: Path | None, faults: list[Fault]) -> None:
        self.file = file
        self.faults = faults
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """What people read: one line a fault, the file's name first."""
        head = f"{self.file}: " if self.file else ""
        return [f"{head}{fault}" for fault in self.faults]


Model = TypeVar("Model", bound=BaseModel)


def load(model: type[Model], file: Path) -> Model:
    """The configuration in ``file``, or ConfigError with every fault in it."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}; name another file with --config FILE"
        raise ConfigError(file, [Fault("", what)]) from error
    if len(raw) > FILE_LIMIT_BYTES:
        raise ConfigError(file, [Fault("", "is over 1 MB: this is no tocsin configuration")])
    try:
        text = raw.decode()
        values = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(file, [Fault("", f"is not valid TOML: {error}")]) from error
    return validate(model, values, file, text)


def validate(
    model: type[Model], values: Mapping[str, Any], file: Path | None = None, text: str = ""
) -> Model:
    """``values`` as a ``model``, or ConfigError; ``text`` gives line numbers."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [_fault(model, item, text) for item in error.errors(include_url=False)]
        faults.sort(key=lambda fault: (fault.line or 0, fault.path))
        raise ConfigError(file, faults) from error


def _fault(model: type[BaseModel], item: Any, text: str) -> Fault:
    location = [str(part) for part in item["loc"]]
    path = ".".join(location)
    line = _line_of(location, text)
    if item["type"] == "extra_forbidden":
        return Fault(path, "unknown key" + _suggestion(model, location), line)
    if item["type"] == "missing":
        return Fault(path, "is required and missing", line)
    message = str(item["msg"])
    message = message[:1].lower() + message[1:]
    given = item.get("input")
    if isinstance(given, str | int | float | bool) and not _secret(location):
        shown = repr(given)
        message += f", not {shown if len(shown) <= 60 else shown[:60] + '...'}"
    return Fault(path, message, line)


def _secret(location: list[str]) -> bool:
    return (
        any(word in location[-1] for word in ("token", "password", "secret")) if location else False
    )


def _suggestion(model: type[BaseModel], location: list[str]) -> str:
    """The key probably meant, or where else the key would belong."""
    parent = _model_at(model, location[:-1])
    key = location[-1]
    known = sorted(parent.model_fields) if parent else []
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{close[0]}"?'
    elsewhere = [path for path in paths_of(model) if path.split(".")[-1] == key]
    if elsewhere:
        return f'; did you mean "{elsewhere[0]}"?'
    return f"; known here: {', '.join(known)}" if known else ""


def paths_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of ``model`` and of the sections below it, as dotted paths."""
    paths: list[str] = []
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        paths.append(path)
        below = _section_in(info.annotation)
        if below is not None:
            paths.extend(paths_of(below, path + "."))
    return paths


def _model_at(model: type[BaseModel], location: list[str]) -> type[BaseModel] | None:
    here: type[BaseModel] | None = model
    for part in location:
        if here is None or part not in here.model_fields:
            return None
        here = _section_in(here.model_fields[part].annotation)
    return here


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            found = _section_in(part)
            if found is not None:
                return found
    return None


def _line_of(location: list[str], text: str) -> int | None:
    """The line where a key stands: a simple look, good for files written by hand."""
    table: list[str] = []
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\[?([^\]]+)\]", line)
        if header:
            table = [part.strip().strip("\"'") for part in header[1].split(".")]
            if table == location[: len(table)]:
                best = number
            continue
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if key:
            here = table + [part.strip("\"'") for part in key[1].split(".")]
            if here == location[: len(here)]:
                return number
    return best
