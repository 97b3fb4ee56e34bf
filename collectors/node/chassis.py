"""Which machine this is: an ``event`` of kind ``inventory`` and code ``chassis``.

Its text is ``serial=...`` (the board's own, which only root may read on most systems) and
``disk=...`` (the serial of the disk that ``/`` lies on). A node name that moves to another machine
shows here, and in its GPUs' UUIDs. Nothing is told where neither can be read.
"""

from __future__ import annotations

import re
from pathlib import Path

from collectors.sample import clip

_SERIALS = ("sys/class/dmi/id/product_serial", "sys/class/dmi/id/board_serial")
# What vendors leave in place of a serial.
_EMPTY = re.compile(
    r"(?i)(none|unknown|default string|to be filled by o\.?e\.?m\.?|not specified|system serial "
    r"number|0+|x+|n/?a|\.*)"
)
_DISK = re.compile(r"/dev/(nvme\d+n\d+|sd[a-z]+|vd[a-z]+)(?:p?\d+)?")
_LIMIT_BYTES = 64 * 1024


def identity(root: Path) -> str:
    """``serial=ABC123 disk=S5XYNG0T`` as far as they can be read; empty for neither."""
    words = []
    serial = next((text for text in (_plain(root / one) for one in _SERIALS) if text), "")
    if serial:
        words.append(f"serial={serial}")
    disk = _boot_disk(root)
    if disk:
        words.append(f"disk={disk}")
    return clip(" ".join(words))


def _boot_disk(root: Path) -> str:
    for line in _read(root / "proc/mounts").splitlines():
        parts = line.split()
        match = _DISK.fullmatch(parts[0]) if len(parts) > 1 and parts[1] == "/" else None
        if match:
            device = root / "sys/block" / match[1]
            return _plain(device / "device/serial") or _plain(device / "serial")
    return ""


def _plain(path: Path) -> str:
    text = re.sub(r"[^!-~]+", "_", _read(path).strip())[:80]
    return "" if _EMPTY.fullmatch(text.replace("_", " ")) else text


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
