"""How far the clock is off, as the kernel's own time keeping knows it. One system call.

The kernel is told the offset by ntpd and systemd-timesyncd (they steer its PLL). chrony steers
the clock itself and tells the kernel nothing, so with chrony the answer is "not known".

Source: ``adjtimex(2)``; ``struct timex`` of Linux on 64-bit machines.
"""

from __future__ import annotations

import ctypes
import ctypes.util

_STA_PLL = 0x0001
_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_byte * 128),
    )


def kernel_offset_seconds() -> float | None:
    """The kernel's clock offset in seconds, None where it is not known."""
    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = _Timex()
    if call(ctypes.byref(state)) < 0:
        return None
    return offset_seconds(state.status, state.offset)


def filtered(status: str) -> bool:
    """Whether /proc/self/status says that system calls are filtered (seccomp mode 2), or does
    not say: then adjtimex must not be tried, for the filter may end the process.

    >>> filtered("Name:\tx\nSeccomp:\t2\n")
    True
    """
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "Seccomp":
            return value.strip() != "0"
    return True


def offset_seconds(status: int, offset: int) -> float | None:
    """The offset that ``adjtimex`` tells, None unless a daemon steers and has synchronised.

    >>> offset_seconds(_STA_PLL | _STA_NANO, 2_500_000)
    0.0025
    """
    if not status & _STA_PLL or status & _STA_UNSYNC:
        return None
    return offset / (1e9 if status & _STA_NANO else 1e6)
