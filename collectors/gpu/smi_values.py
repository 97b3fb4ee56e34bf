"""How nvidia-smi writes a value: numbers with units, words for yes and no, words for "no value".

"No value" has many words and they differ in what they mean: not there on this board (``N/A``,
``[Not Supported]``), not readable now (``ERR!``, ``[Unknown Error]``), or the GPU itself is gone
(``GPU is lost``). None of them is zero. Words: nvidia-smi(1) and its output, 418 to 595.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Meaning = Literal["absent", "error", "lost", "reset"]

UNITS: dict[str, dict[str, float]] = {
    "watts": {"": 1, "W": 1, "mW": 1e-3, "kW": 1e3},
    "joules": {"": 1e-3, "mJ": 1e-3, "J": 1},
    "celsius": {"": 1, "C": 1},
    "hertz": {"": 1e6, "MHz": 1e6, "GHz": 1e9},
    "ratio": {"": 0.01, "%": 0.01},
    "bytes": {"": 2**20, "MiB": 2**20, "KiB": 2**10, "GiB": 2**30, "B": 1, "MB": 2**20},
    "count": {"": 1, "bank(s)": 1, "banks": 1},
    "lanes": {"": 1, "x": 1},
    "seconds": {"": 1e-6, "us": 1e-6},
    "plain": {"": 1},
}

_NUMBER = re.compile(
    r"\s*x?(?P<number>[-+]?\d{1,30}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?)\s*(?P<unit>\S{0,16})\s*"
)
_ABSENT = {
    "",
    "-",
    "n/a",
    "na",
    "none",
    "not supported",
    "not available",
    "not applicable",
    "unsupported",
    "not found",
    "no data",
    "function not found",
    "requested functionality has been deprecated",
    "deprecated",
    "not active",
}
_ERROR = {
    "err!",
    "error",
    "unknown error",
    "unknown",
    "insufficient permissions",
    "timeout",
    "corrupted inforom",
    "not ready",
}
_YES = {"yes", "enabled", "active", "1", "true", "on"}
_NO = {"no", "disabled", "not active", "0", "false", "off", "none"}

# What the driver asks for, in the words of nvidia-smi -q (gpu_recovery_action) and of the kernel;
# numbers of nvml.h, NVML_GPU_RECOVERY_ACTION_*.
RECOVERY_ACTIONS = {
    "none": 0,
    "reset": 1,
    "gpu reset": 1,
    "reboot": 2,
    "node reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
    "recover imex domain": 5,
    "recover imex": 5,
    "bus reset": 6,
    "system reboot": 7,
}


@dataclass(frozen=True, slots=True)
class Said:
    """One cell: its number, or what it means that there is none."""

    number: float | None = None
    meaning: Meaning | None = None
    words: str = ""


def meaning_of(text: str) -> Said | None:
    """What a cell without a number means; None when its words are not known."""
    words = text.strip().strip("[]").strip()
    low = words.lower().rstrip(".")
    if "gpu is lost" in low:
        return Said(meaning="lost", words=words)
    if "requires reset" in low or "reset required" in low or "gpu reset must occur" in low:
        return Said(meaning="reset", words=words)
    if low in _ABSENT or low.startswith("<<<"):
        return Said(meaning="absent", words=words)
    if low in _ERROR:
        return Said(meaning="error", words=words)
    return None


def quantity(text: str, kind: str) -> Said:
    """A number in our unit. ``kind`` is a key of UNITS; a unit that does not belong is an error.

    >>> quantity("81559 MiB", "bytes").number, quantity("[N/A]", "watts").meaning
    (85520809984.0, 'absent')
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return meaning_of(text) or Said(meaning="error", words=f"not a number: {text.strip()!r}")
    scale = UNITS[kind].get(found["unit"])
    if scale is None:
        return Said(meaning="error", words=f"unexpected unit: {text.strip()!r}")
    return Said(number=float(found["number"]) * scale)


def flag(text: str) -> Said:
    """1 for yes, enabled or active; 0 for no, disabled or not active."""
    low = text.strip().lower()
    if low in _YES:
        return Said(number=1.0)
    if low in _NO:
        return Said(number=0.0)
    return meaning_of(text) or Said(meaning="error", words=f"neither yes nor no: {text.strip()!r}")


def recovery_action(text: str) -> Said:
    """The number of a recovery action, from its words or its number."""
    low = " ".join(text.replace("_", " ").lower().split())
    for word in (" required", " recommended"):  # as the kernel says it
        low = low.removesuffix(word)
    if low in RECOVERY_ACTIONS:
        return Said(number=float(RECOVERY_ACTIONS[low]))
    if low.isascii() and low.isdigit() and len(low) < 3:
        return Said(number=float(low))
    return meaning_of(text) or Said(meaning="error", words=f"unknown action: {text.strip()!r}")


def mask(text: str) -> Said:
    """A hexadecimal mask (``0x0000000000000060``)."""
    word = text.strip()
    if re.fullmatch(r"0[xX][0-9A-Fa-f]{1,16}", word):
        return Said(number=float(int(word, 16)))
    return meaning_of(text) or Said(meaning="error", words=f"not a mask: {word!r}")


READERS = {"flag": flag, "recovery": recovery_action, "mask": mask}


def read(text: str, kind: str) -> Said:
    """Reads a cell as ``kind``: a key of UNITS, or flag, recovery or mask."""
    reader = READERS.get(kind)
    return quantity(text, kind) if reader is None else reader(text)
