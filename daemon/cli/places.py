"""Whether a place can be written to, asked before an hour of work and not after it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def unwritable(path: Path, *, folder: bool = False) -> str:
    """Why ``path`` (a file, or a ``folder`` that is made with its parents) can't be written; or "".

    The kernel's answer is asked for where nothing can go wrong by it; a disk may still fill up.
    """
    if path.is_dir() != folder and path.exists():
        return f"{path} is {'no' if folder else 'a'} folder"
    there = path if path.exists() else path.parent
    while folder and not there.exists():
        there = there.parent
    if not there.exists():
        return f"{path} cannot be written: there is no folder {there}"
    if not path.exists() and not there.is_dir():
        return f"{path} cannot be made: {there} is no folder"
    if not os.access(there, os.W_OK):
        return f"{path} cannot be written: no right to, or read-only ({there})"
    return ""


def left_in(without: Sequence[str], tables: Iterable[str]) -> list[str]:
    """What ``--without`` names in vain: it leaves nothing out. For standard error."""
    known = sorted(set(tables))
    return [
        f"note: --without {one} leaves nothing out: the tables are {', '.join(known)}"
        for one in without
        if one.partition(":")[0] not in known
    ]
