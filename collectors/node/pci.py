"""PCI addresses: one spelling for the many that tools print."""

from __future__ import annotations

import re

# domain:bus:slot.function; the domain (4 or 8 digits) and the function may be missing.
ADDRESS = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"

_PARTS = re.compile(
    r"(?:(?P<domain>[0-9A-Fa-f]{4,8}):)?(?P<bus>[0-9A-Fa-f]{2}):(?P<slot>[0-9A-Fa-f]{2})"
    r"(?:\.[0-7])?"
)
# Drivers of the 2000s wrote bus and slot only, the bus with four digits: ``0005:00``.
_OLD = re.compile(r"(?P<bus>[0-9A-Fa-f]{4}):(?P<slot>[0-9A-Fa-f]{2})")


def address(text: str) -> str:
    """``text`` as ``0000:3b:00``: lower case, no function; empty when it is no address.

    The domain has four digits, and eight only where it needs them.

    >>> address("00000000:3B:00.0"), address("18:00.0"), address("00010000:01:00")
    ('0000:3b:00', '0000:18:00', '00010000:01:00')
    """
    found = _PARTS.fullmatch(text) or _OLD.fullmatch(text)
    if found is None:
        return ""
    parts = found.groupdict()
    domain = int(parts.get("domain") or "0", 16)
    bus, slot = int(parts["bus"], 16), int(parts["slot"], 16)
    if bus > 0xFF or slot > 0x1F:
        return ""
    width = 8 if domain > 0xFFFF else 4
    return f"{domain:0{width}x}:{bus:02x}:{slot:02x}"


def requester(identity: int, domain: str = "0000") -> str:
    """The address of a 16-bit PCIe requester id: bus in the high byte, slot in the next 5 bits.

    >>> requester(0x3B00)
    '0000:3b:00'
    """
    return f"{domain.lower()}:{(identity >> 8) & 0xFF:02x}:{(identity >> 3) & 0x1F:02x}"
