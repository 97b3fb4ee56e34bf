"""Local filesystems that should be writable and are not.

The kernel turns a filesystem read-only when its disk gives errors (``errors=remount-ro``, btrfs,
f2fs): the *super block* is then read-only, in whatever way it is mounted. Mounts that are
read-only on purpose (containers, a service's own sandbox) have a writable super block and don't
count. A super block that was read-only from the start counts only if /etc/fstab wants it
writable, and one of an image that is mounted as a disk (a loop device, as containers of users are)
only if /etc/fstab names it.

Source: ``proc_pid_mountinfo(5)``; the last field holds the options of the super block.
"""

from __future__ import annotations

from pathlib import Path

_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "reiserfs", "bcachefs"})
_LIMIT_BYTES = 4 * 1024 * 1024
_DEVICES_LIMIT = 1_000
_LOOP = "7:"  # the major number of loop devices


class ReadOnly:
    """Counts them, and remembers which ones it has seen writable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._written: set[str] = set()

    def count(self) -> int | None:
        """How many local filesystems turned read-only; None where mounts can't be read."""
        text = self._mountinfo()
        if text is None:
            return None
        wanted = self._wanted_writable()
        turned: set[str] = set()
        for line in text.splitlines():
            left, mark, right = line.partition(" - ")
            fields, tail = left.split(), right.split()
            if not mark or len(fields) < 6 or len(tail) < 3 or tail[0] not in _LOCAL:
                continue
            device, place = fields[2], fields[4]
            options = tail[2].split(",")
            if device.startswith(_LOOP) and place not in wanted:
                continue
            if "rw" in options and "emergency_ro" not in options:
                if len(self._written) < _DEVICES_LIMIT:
                    self._written.add(device)
            elif device in self._written or place in wanted or "emergency_ro" in options:
                turned.add(device)
        return len(turned)

    def _mountinfo(self) -> str | None:
        # The first process sees what the host sees; an agent in a sandbox may see less.
        for name in ("1", "self"):
            try:
                with open(self._root / "proc" / name / "mountinfo", "rb") as file:
                    return file.read(_LIMIT_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
        return None

    def _wanted_writable(self) -> set[str]:
        """The mount points that /etc/fstab wants writable, in mountinfo's spelling."""
        try:
            with open(self._root / "etc/fstab", "rb") as file:
                text = file.read(_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError:
            return set()
        found: set[str] = set()
        for line in text.splitlines():
            fields = line.split()
            comment = not fields or fields[0].startswith("#")
            if not comment and len(fields) >= 4 and "ro" not in fields[3].split(","):
                found.add(fields[1])
        return found
