"""DCGM's values of one board, on their way to ours: blanks refused, one field chosen of several."""

from __future__ import annotations

import math

from collectors.gpu.dcgm_fields import (
    FABRIC,
    MEMORY_FREE,
    MEMORY_RESERVED,
    MIB,
    THROTTLE,
    XID,
    DcgmField,
)
from collectors.gpu.smi_columns import MASK_BITS

# dcgm_structs.h and dcgm_fields.h: "no value" of 32-bit, 64-bit and floating-point fields, and
# the reasons just above each.
_BLANK_32 = range(0x7FFFFFF0, 0x80000000)
_BLANK_64 = 9.2e18
_BLANK_FLOAT = 140_737_488_355_328.0
# A count of millijoules passes the 32-bit blank in an hour.
_WIDE = frozenset({156})
# A link's own counters are blank from 2^31 - 16 on.
_LINK_MOST = 2**31 - 16
_LINKS_MOST = 1024


def is_blank(field: DcgmField, value: float) -> bool:
    """Whether DCGM means "no value" by this number.

    >>> from collectors.gpu.dcgm_fields import BY_SHORT
    >>> is_blank(BY_SHORT["TMPTR"], 2147483632.0), is_blank(BY_SHORT["TOTEC"], 2147483632.0)
    (True, False)
    """
    if math.isnan(value) or abs(value) >= _BLANK_64:
        return True
    if _BLANK_FLOAT <= value < _BLANK_FLOAT + 16:
        return True
    return field.number not in _WIDE and value in _BLANK_32


class BoardValues:
    """The values of one board while they come in, field by field."""

    def __init__(self) -> None:
        self.xid: float | None = None
        self.fabric: int | None = None  # a state of collectors.gpu.fabric
        self._values: dict[str, tuple[int, float]] = {}
        self._links: dict[tuple[str, str, str], float] = {}
        self._free: float | None = None
        self._reserved: float | None = None

    def put(self, field: DcgmField, value: float) -> None:
        """Takes one value in DCGM's unit. The first of one rank wins: jobs repeat a board."""
        if is_blank(field, value):
            return
        if field is THROTTLE:
            if 0 <= value < 2**53:
                for name, bit in MASK_BITS.items():
                    self._values.setdefault(name, (0, float(bool(int(value) & bit))))
        elif field is FABRIC:
            self.fabric = int(value) if value in range(5) else None
        elif field is XID:
            self.xid = value if self.xid is None else self.xid
        elif field is MEMORY_FREE:
            self._free = value * MIB
        elif field is MEMORY_RESERVED:
            self._reserved = value * MIB
        else:
            known = self._values.get(field.ours)
            if known is None or field.rank < known[0]:
                self._values[field.ours] = (field.rank, value * field.scale)

    def put_link(self, name: str, what: str, link: str, value: float) -> None:
        """Takes a counter of one NVLink: it counts where the board itself tells no sum of it.

        ``what`` is DCGM's own name of it: CRC errors of flits and of data add up to ours.
        """
        if 0 <= value < _LINK_MOST and len(self._links) < _LINKS_MOST:
            self._links[name, what, link] = value

    def values(self) -> dict[str, float]:
        """Our fields in our units."""
        found: dict[str, float] = {}
        for (name, _, _), value in self._links.items():
            found[name] = found.get(name, 0.0) + value
        found.update((name, value) for name, (_, value) in self._values.items())
        used = found.get("memory_used_bytes")
        known = (used, self._free, self._reserved)
        if "memory_total_bytes" not in found and None not in known:
            found["memory_total_bytes"] = sum(part for part in known if part is not None)
        return found
