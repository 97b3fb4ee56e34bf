"""What could not be read, or was taken from a head that stood still: kept in ``damaged/``.

For people to look at, and not for ever: such files count as the store's, go with the days on which
they were set aside (:mod:`daemon.store.upkeep`), and each one that goes is named in the log. How
old one is says its change time, which is when it got the name that it has.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from daemon.frames import make_directory, sync_directory

FOLDER = "damaged"


@dataclass(frozen=True, slots=True, order=True)
class Aside:
    """One file that was set aside."""

    since_ns: int
    path: Path
    size_bytes: int


def files_aside(directory: Path) -> list[Aside]:
    """What lies in ``damaged/`` of the store in ``directory``, the oldest first."""
    found: list[Aside] = []
    with contextlib.suppress(FileNotFoundError):
        for path in (directory / FOLDER).iterdir():
            with contextlib.suppress(FileNotFoundError):
                one = path.lstat()
                if stat.S_ISREG(one.st_mode):
                    found.append(Aside(one.st_ctime_ns, path, one.st_size))
    return sorted(found)


def copy_aside(path: Path, directory: Path) -> Path:
    """A second name for ``path`` in ``damaged/``, which takes no room; where it is.

    The same name where an earlier call was cut off after it. Raises OSError.
    """
    folder = directory / FOLDER
    make_directory(folder)
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if one.samefile(path):
                return one
    target = free_name(folder, path.name)
    os.link(path, target)
    sync_directory(folder)
    return target


def move_aside(path: Path, directory: Path) -> Path:
    """Takes ``path`` away; where it is now. Never over a file set aside earlier. Raises OSError."""
    folder = directory / FOLDER
    make_directory(folder)
    target = free_name(folder, "_".join(path.parts[-3:]))
    path.rename(target)
    sync_directory(folder)
    return target


def free_name(folder: Path, name: str) -> Path:
    """``name`` in ``folder``, or with a number: never one that is taken."""
    target, number = folder / name, 1
    while target.exists():
        number += 1
        target = folder / f"{name}.{number}"
    return target


def words(files: list[Aside], directory: Path, since_ns: int) -> str:
    """What was set aside after ``since_ns``, in words; empty where nothing was."""
    fresh = [one for one in files if one.since_ns > since_ns]
    if not fresh:
        return ""
    size = sum(one.size_bytes for one in fresh)
    return (
        f"store {directory}: {len(fresh)} files ({size} bytes) were set aside in {FOLDER}/ within "
        f"the last day, the newest is {fresh[-1].path.name}: something in them could not be read, "
        "or another head stood still over them; look at the disk and the log, then at the files"
    )
