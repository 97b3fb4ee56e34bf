"""Kernel lines whose words a program chose: no user's job may speak in the kernel's name.

The kernel prints names that users choose: of processes (up to 15 characters, of any kind) and of
files. A job that calls itself ``EDAC MC0: 1 UE`` and crashes makes the kernel write that at the
front of a line. A file's name may even hold a line end, and where a log is kept as plain text (a
syslog file) what follows it stands on a line of its own, with a stamp of the kernel. Both must
never become a fault of the node.

Sources: Linux ``arch/*/mm/fault.c``, ``arch/*/kernel/traps.c``, ``kernel/signal.c``,
``mm/oom_kill.c``, ``mm/page_alloc.c``; ``kernel/printk`` (each line of a message gets the stamp);
open-gpu-kernel-modules (a client's version text in "API mismatch").
"""

from __future__ import annotations

import re
from collections.abc import Callable

# What the kernel writes behind a process's name, or before it.
_PROGRAM = re.compile(
    r"traps: |signal: |umip: |process '|.{1,15}?(?:\[\d{1,10}\][: ]| ?\(\d{1,10}\)[: ]"
    r"|/\d{1,10}: |: page allocation |: vmalloc | invoked oom-killer: )",
    re.S,
)
# A client's own version text is part of this one.
_CLIENT = "NVRM: API mismatch"
_STAMP = re.compile(rb"\[\s*\d{1,10}\.\d{1,9}\]|^\d{1,6},\d{1,19},\d{1,18},")
_FRONT_BYTES = 120
# A look that spares most lines of a log without stamps a closer one.
_PERHAPS = re.compile(rb"\[\d|\(\d|/\d|traps: |process '|page alloc|oom-killer|API mismatch")
# A file's name has at most 255 bytes: so many lines can it bring, each with a character.
_NAME_LINES = 128


def of_program(text: str) -> bool:
    """Whether a kernel message begins with the name of a process, or tells of one's fault.

    >>> of_program("EDAC MC0: 1 UE[77]: segfault at 0 ip 0"), of_program("EDAC MC0: 1 UE on x")
    (True, False)
    """
    return _PROGRAM.match(text) is not None


def tells_of_program(text: str) -> bool:
    """Whether a message holds a text that a program chose, and that may hold line ends."""
    return of_program(text) or text.startswith(_CLIENT)


class Carried:
    """Finds lines that a name with a line end in it has put behind a line of the kernel.

    All lines of one message carry one stamp. Of lines with one stamp, those that begin like the
    first one are believed (drivers write reports of many lines); after a line that tells of a
    program, or that begins otherwise, none is: two parts of the kernel hardly ever write within
    one microsecond. Where the log has no such stamps, no line is believed that comes close behind
    one that tells of a program.
    """

    def __init__(self, message: Callable[[bytes], str]) -> None:
        """``message`` gives what the kernel said in a line, empty where it is not the kernel's."""
        self._message = message
        self._stamp = b""
        self._group: list[bytes] = []
        self._close_lines = 0

    def take(self, raw: bytes) -> None:
        """Takes each line of the log, in order."""
        found = _STAMP.search(raw[:_FRONT_BYTES])
        self._close_lines = max(0, self._close_lines - 1)
        if found is None and raw[:1] not in (b" ", b"\t"):
            self._stamp, self._group = b"", [raw]
            if _PERHAPS.search(raw[:_FRONT_BYTES]) and tells_of_program(self._message(raw)):
                self._close_lines = _NAME_LINES + 1
            return
        stamp = self._stamp if found is None else found[0]
        if stamp != self._stamp:
            self._stamp, self._group = stamp, []
        if len(self._group) <= _NAME_LINES:
            self._group.append(raw)

    def newest_is_carried(self) -> bool:
        """Whether the line that was taken last is not to be believed."""
        if 0 < self._close_lines <= _NAME_LINES:
            return True
        if len(self._group) < 2:
            return False
        said = [self._message(raw) for raw in self._group]
        first = said[0].partition(" ")[0]
        return any(
            tells_of_program(one) or one.partition(" ")[0] != first for one in said[:-1]
        ) or (said[-1].partition(" ")[0] != first)
