"""What a store says when it cannot. Light: the gateway imports it without the store."""

from __future__ import annotations

import errno
from pathlib import Path


class StoreUnavailableError(Exception):
    """The store cannot keep anything now (disk full, read-only). The text says why."""


_ADVICE = {
    errno.ENOSPC: "free space there or lower the store's limit_bytes",
    errno.EDQUOT: "the quota of the store's user is used up",
    errno.EROFS: "the file system is read-only; look for disk errors in the kernel log",
    errno.EIO: "the disk fails; look for disk errors in the kernel log",
    errno.EACCES: "the directory must belong to the user that tocsin runs as",
    errno.EPERM: "the directory must belong to the user that tocsin runs as",
    errno.EMFILE: "raise LimitNOFILE of the service",
}


def unavailable(error: OSError, path: Path) -> StoreUnavailableError:
    """``error`` in words that say where and what to do."""
    advice = _ADVICE.get(error.errno or 0, "")
    what = error.strerror or str(error)
    return StoreUnavailableError(f"store {path}: {what}" + (f"; {advice}" if advice else ""))
