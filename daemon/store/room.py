"""How much room is left on the disk, and when nothing more of readings may be written to it.

A disk that is full takes no decision, no ledger entry and no operator's word either. So the
last of it is kept for those: below ``floor_bytes`` readings are refused, and whoever sent them
keeps them and comes again. Below ``reserve_bytes`` the oldest days go (:mod:`daemon.store.upkeep`),
and what still is too little after that is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemon.store.options import StoreOptions

# On a small disk the floor is smaller: such a share of it.
_FLOOR_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system: its size, and what an ordinary user may still write."""

    total_bytes: int
    free_bytes: int


def disk_of(path: Path) -> Disk:
    """The file system that ``path`` is on. Raises OSError."""
    found = os.statvfs(path)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


class Room:
    """What the disk of one store still holds."""

    def __init__(
        self, directory: Path, options: StoreOptions, disk: Callable[[Path], Disk] = disk_of
    ) -> None:
        self.directory = directory
        self.options = options
        self._disk = disk

    def refusal(self) -> str:
        """Why no reading may be written now; empty when it may. Takes some microseconds."""
        disk = self._look()
        floor = self.floor_bytes(disk)
        if disk is None or disk.free_bytes >= floor:
            return ""
        return (
            f"store {self.directory}: {_mebibytes(disk.free_bytes)} are free, and the last "
            f"{_mebibytes(floor)} are kept for decisions and the ledger; free space there or lower "
            "the store's limit_bytes"
        )

    def short(self) -> str:
        """That there is less than the reserve, in words; empty when there is enough."""
        disk = self._look()
        if disk is None or disk.free_bytes >= self.options.reserve_bytes:
            return ""
        return (
            f"store {self.directory}: {_mebibytes(disk.free_bytes)} are free, less than "
            f"reserve_bytes ({_mebibytes(self.options.reserve_bytes)}), and the store may remove "
            "no more of its own; free space there"
        )

    def floor_bytes(self, disk: Disk | None) -> int:
        """What is kept for decisions and the ledger."""
        share = int(disk.total_bytes * _FLOOR_SHARE) if disk is not None else 0
        return min(self.options.floor_bytes, share)

    def _look(self) -> Disk | None:
        try:
            return self._disk(self.directory)
        except OSError:
            return None  # the write itself will say it


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
