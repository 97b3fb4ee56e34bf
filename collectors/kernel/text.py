"""Reads the kernel's messages from a log file of any form, with the truest time each tells.

The kernel's own stamp says more than a date: a syslog daemon or ``dmesg`` that starts again writes
the whole kernel ring once more, old lines with a new date. Such lines are known by stamps that run
back. A line whose stamp runs on was written since the last look, whatever the stamp says.

In a log that programs write into too, nothing shows that the kernel wrote a line: any user can
call himself the kernel there. Such a log is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from collectors.bell import Bell
from collectors.kernel.cursor import Position
from collectors.kernel.file import FileTail, Line
from collectors.kernel.hosts import Hosts
from collectors.kernel.lines import of_interest
from collectors.kernel.programs import Carried
from collectors.kernel.records import Record, journal_record, kmsg_record, text_record
from collectors.sample import SourceUnavailable

SECOND_NS = 1_000_000_000
_UPTIME = re.compile(rb"\[\s*(\d{1,10})\.(\d{1,9})\]|^\d{1,6},\d{1,19},(\d{1,18}),")
_FRONT_BYTES = 120
# A look at an idle file is two system calls.
_LOOK_SECONDS = 0.25
# So many lines of each look tell, whatever they say, whether the log is one of many hosts.
_HOSTS_LINES = 50
# Written by a program, in a log without facilities: "DATE HOST sshd[812]: ..." and RFC 5424's form.
_BY_PROGRAM = re.compile(
    rb"(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\d\d-\d\dT\S{8,30}) [^\s\[\]:]{1,255} "
    rb"(?!kernel\[)[^\s:\[\]]{1,128}\[\d{1,10}\]: "
    rb"|1 \d{4}-\d\d-\d\dT\S{8,30} \S{1,255} (?!kernel )\S{1,128} \d{1,10} "
)
# The boot time that /proc tells moves a little when the clock is set.
_SAME_BOOT_NS = 60 * SECOND_NS


class TextReader:
    """Takes new records from the file ``path``."""

    kind = "file"

    def __init__(
        self, path: Path, boot_ns: Callable[[], int], hosts: Hosts, *, trust_mixed: bool = False
    ) -> None:
        self._hosts = hosts
        self._trust_mixed = trust_mixed
        self._mixed = False
        self._carried = Carried(_message)
        self._tail = FileTail(path)
        self._path = path
        self._read_boot_ns = boot_ns
        self._boot_ns = 0
        self._first = True  # no cursor: only this boot counts
        self._before: Record | None = None
        self._above = b""
        self._looked_ns = 0
        self._newest_uptime_ns = 0
        self.problems = self._tail.problems

    def resume(self, position: Position | None) -> None:
        """Goes on where ``position`` of the same file ended."""
        if position is None or position.get("path") != str(self._path):
            return
        self._first = False
        self._hosts.shared = position.get("shared") is True
        self._tail.resume(position)
        looked_ns, uptime_ns, boot_ns = (
            position.get(name) for name in ("looked_ns", "uptime_ns", "boot_ns")
        )
        self._looked_ns = looked_ns if isinstance(looked_ns, int) else 0
        same_boot = isinstance(boot_ns, int) and abs(boot_ns - self._read_boot_ns()) < _SAME_BOOT_NS
        if same_boot and isinstance(uptime_ns, int):
            self._newest_uptime_ns = uptime_ns

    def position(self) -> Position:
        """Where to go on."""
        return {
            "kind": self.kind,
            "path": str(self._path),
            "looked_ns": self._looked_ns,
            "uptime_ns": self._newest_uptime_ns,
            "boot_ns": self._boot_ns,
            "shared": self._hosts.shared,
            **self._tail.position(),
        }

    def read(self, now_ns: int, limit_records: int) -> list[Record]:
        """New records with their UTC times. Raises SourceUnavailable where none can be believed."""
        self._refuse_mixed()
        found: list[Record] = []
        lines = self._tail.read(limit_records)
        if not lines:
            self._looked_ns = now_ns
            return found
        self._boot_ns = self._read_boot_ns()
        for number, line in enumerate(lines):
            if number < _HOSTS_LINES and not of_interest(line.raw):
                other = _read(line.raw, now_ns, None)
                self._hosts.look("" if other is None else other.host)
            self._mixed = self._mixed or _BY_PROGRAM.match(line.raw) is not None
            record = self._record(line, now_ns)
            if record is not None:
                found.append(record)
                self._hosts.look(record.host)
        self._looked_ns = now_ns
        self._refuse_mixed()
        return [record for record in found if self._hosts.ours(record.host)]

    @property
    def fault(self) -> str:
        """What an operator should know about the file as a whole."""
        return f"{self._path}: {self._hosts.words}" if self._hosts.shared else ""

    def wait(self, seconds: float, bell: Bell) -> None:
        """Returns when the file has grown or was replaced, or after ``seconds``."""
        end = time.monotonic() + seconds
        while not self._tail.behind() and (left := end - time.monotonic()) > 0:
            if bell.wait(min(left, _LOOK_SECONDS)):
                return

    def close(self) -> None:
        """Lets go of the file."""
        self._tail.close()

    def _refuse_mixed(self) -> None:
        if self._mixed and not self._trust_mixed:
            raise SourceUnavailable(
                f"{self._path}: programs write into this log too, where any user can write as the "
                "kernel (logger -t kernel), so it is not read; name a file of the kernel's lines "
                "only (kern.*), or read /dev/kmsg or journald (or see trust_mixed_log)"
            )

    def _record(self, line: Line, now_ns: int) -> Record | None:
        above = self._above
        if line.raw[:1] not in (b" ", b"\t"):
            self._above = line.raw  # the first line of a message tells who wrote it
        runs_on = self._runs_on(line.raw)
        self._carried.take(line.raw)
        if not of_interest(line.raw):
            return None
        before = None
        if line.raw[:1] in (b" ", b"\t"):  # shares the stamp of the line above it
            before = _read(above, now_ns, self._before)
        record = _read(line.raw, now_ns, before)
        if record is None:
            return None
        self._before = record
        if self._carried.newest_is_carried():
            return None
        time_ns = self._time(record, line.live and runs_on, now_ns)
        if self._first and not line.live and time_ns < self._boot_ns:
            return None
        return Record(record.text, record.kernel, time_ns, record.uptime_ns, host=record.host)

    def _runs_on(self, raw: bytes) -> bool:
        """Whether the kernel's stamp on this line is newer than all before it."""
        found = _UPTIME.search(raw[:_FRONT_BYTES])
        if found is None:
            return False
        if found[3]:
            uptime_ns = int(found[3]) * 1000
        else:
            uptime_ns = int(found[1]) * SECOND_NS + int(found[2].ljust(9, b"0"))
        newer = uptime_ns > self._newest_uptime_ns
        self._newest_uptime_ns = max(self._newest_uptime_ns, uptime_ns)
        return newer

    def _time(self, record: Record, runs_on: bool, now_ns: int) -> int:
        dated_ns = record.time_ns
        if runs_on and record.uptime_ns is not None:
            by_uptime_ns = self._boot_ns + record.uptime_ns if self._boot_ns else now_ns
            return max(1, min(max(by_uptime_ns, self._looked_ns), now_ns))
        this_boot = self._boot_ns and (dated_ns is None or dated_ns >= self._boot_ns)
        if record.uptime_ns is not None and this_boot:
            by_uptime_ns = self._boot_ns + record.uptime_ns
            if by_uptime_ns <= now_ns + 5 * SECOND_NS:
                return max(1, min(by_uptime_ns, now_ns))
        if dated_ns is not None:
            return max(1, min(dated_ns, now_ns))
        # No stamp at all: the line is not newer than the file itself.
        return max(1, min(self._tail.mtime_ns or now_ns, now_ns))


def _read(raw: bytes, now_ns: int, before: Record | None) -> Record | None:
    text = raw.decode("utf-8", "replace").strip("\r\0\x1e")
    if text.startswith("{"):
        return journal_record(text)
    return kmsg_record(text) or text_record(text, now_ns, before)


def _message(raw: bytes) -> str:
    record = _read(raw.strip(b" \t"), 0, None)
    return record.text if record is not None and record.kernel else ""
