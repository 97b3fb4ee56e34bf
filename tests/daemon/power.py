"""A power cut, as far as a file system's promises go: only what was synced is sure.

While :class:`Disk` watches a folder, it notes what each file held when it was last synced and
which names each directory had when *it* was. :meth:`Disk.cut` then writes one of the many
folders that a machine may find after the power is back: of what was not synced each file may
have some, all or none, cut off at any byte or with zeros where data should be, and each name
that was made, replaced or removed may have been or not.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Names = dict[str, int]  # name -> inode


class PowerCutError(BaseException):
    """The machine stops here."""


@dataclass
class Disk:
    """What of ``root`` is sure. ``plain`` says which files keep all that they hold: SQLite's."""

    root: Path
    rng: random.Random
    plain: Callable[[str], bool] = lambda name: ".sqlite" in name
    content: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, Names] = field(default_factory=dict)  # inode of a directory -> its names
    folders: set[int] = field(default_factory=set)
    syncs_left: int = -1  # so many more, then the power goes; below 0: never by itself
    image: Path | None = None
    _held: dict[int, int] = field(default_factory=dict)

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[Disk]:
        """Stands between the code and the system's sync calls."""
        real = {"fsync": os.fsync, "fdatasync": os.fdatasync}
        self._settle(self.root)
        with patch.context() as inside:
            for name, call in real.items():
                inside.setattr(os, name, self._hook(call))
            try:
                yield self
            finally:
                for handle in self._held.values():
                    os.close(handle)
                self._held.clear()

    def _settle(self, folder: Path) -> None:
        """All that is there when the watch begins is sure."""
        self.names[self._inode(folder)] = self._list(folder)
        for path in folder.iterdir():
            if path.is_dir():
                self._settle(path)
            else:
                self.content[self._inode(path)] = path.read_bytes()

    def _hook(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def synced(handle: int) -> None:
            call(handle)
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if not path.is_relative_to(self.root):
                return
            if self.syncs_left == 0 and self.image is not None:
                before = self.rng.random() < 0.5
                if not before:
                    self._note(path, handle)
                self.write(self.image)
                self.syncs_left = -1
                raise PowerCutError
            self.syncs_left -= self.syncs_left > 0
            self._note(path, handle)

        return synced

    def _note(self, path: Path, handle: int) -> None:
        found = os.fstat(handle)
        self._hold(found.st_ino, path)
        if stat.S_ISDIR(found.st_mode):
            self.names[found.st_ino] = self._list(path)
        else:
            self.content[found.st_ino] = path.read_bytes() if path.exists() else b""

    def write(self, target: Path) -> None:
        """Writes what may be found afterwards to ``target``."""
        self._folder(self.root, self._inode(self.root), target)

    def _folder(self, source: Path | None, inode: int, target: Path) -> None:
        """One directory; ``source`` is None when it has been removed since its last sync."""
        target.mkdir()
        now = self._list(source) if source is not None and source.is_dir() else {}
        sure = self.names.get(inode, {})
        for name in sorted({*now, *sure}):
            if self.plain(name):
                chosen, alive = now.get(name), True
            else:
                chosen = self.rng.choice((now.get(name), sure.get(name)))
                alive = chosen == now.get(name)
            if chosen is None:
                continue
            path = source / name if source is not None and alive else None
            if chosen in self.folders:
                self._folder(path, chosen, target / name)
            else:
                (target / name).write_bytes(self._file(path, chosen, self.plain(name)))

    def _file(self, path: Path | None, inode: int, plain: bool) -> bytes:
        sure = self.content.get(inode, b"")
        held = self._held.get(inode)
        now = Path(f"/proc/self/fd/{held}").read_bytes() if held is not None else b""
        if path is not None and path.exists():
            now = path.read_bytes()
        if plain:
            return now
        if not now.startswith(sure):
            return self.rng.choice((sure, now))
        tail = now[len(sure) :]
        tail = tail[: self.rng.randint(0, len(tail))]
        if tail and self.rng.random() < 0.3:
            tail = bytes(len(tail))  # the length was written and the data was not
        return sure + tail

    def _list(self, folder: Path) -> Names:
        found: Names = {}
        for path in folder.iterdir():
            inode = self._inode(path)
            found[path.name] = inode
            self._hold(inode, path)
        return found

    def _inode(self, path: Path) -> int:
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode):
            self.folders.add(found.st_ino)
        return found.st_ino

    def _hold(self, inode: int, path: Path) -> None:
        """An inode that is held open is not given to another file meanwhile."""
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)
