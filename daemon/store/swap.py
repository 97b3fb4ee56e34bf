"""Puts a mended database in the place of a damaged one, so that a crash anywhere loses neither.

SQLite's file has a second one, the WAL, and no call renames two files at once. A new database
beside an old WAL would take the old one's pages for its own, so the WAL must go first; between
the two an old file without its newest rows stands in the place of both. The mended file's name is
what tells: while it is there, complete and synced, the swap is not done, and whoever opens the
database next finishes it.

Source: https://www.sqlite.org/howtocorrupt.html (1.4, unlinking or renaming a database file)
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from daemon.frames import make_directory, sync_directory
from daemon.store.aside import FOLDER, free_name


def mended_path(path: Path) -> Path:
    """Where the mended database stands until the swap is done."""
    return path.with_name(f".{path.name}.mended")


def unfinished_path(path: Path) -> Path:
    """Where it is written; whatever is there after a crash is of no use."""
    return path.with_name(f".{path.name}.new")


def swap(path: Path) -> Path | None:
    """Sets the file ``path`` aside and puts the mended one there; where it is now.

    Does nothing, and answers None, where no mended file stands; goes on where an earlier call
    was cut off. Raises OSError.
    """
    mended = mended_path(path)
    if not mended.exists():
        return None
    damaged = path.parent / FOLDER
    make_directory(damaged)
    aside = _kept(path, damaged)
    if aside is None:
        aside = free_name(damaged, "_".join(path.parts[-3:]))
        with contextlib.suppress(FileNotFoundError):
            os.link(path, aside)
    sync_directory(damaged)
    # What was not read of these belongs to the old file.
    for extra in ("-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + extra).rename(aside.with_name(aside.name + extra))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    sync_directory(damaged)
    sync_directory(path.parent)
    mended.replace(path)
    sync_directory(path.parent)
    return aside


def _kept(path: Path, damaged: Path) -> Path | None:
    """The second name that an earlier call gave to ``path``."""
    for one in damaged.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if one.samefile(path):
                return one
    return None
