"""Reads /dev/kmsg: the kernel's own ring of messages, one record a read.

A record's stamp is the processor's local clock since boot. It is not corrected like the wall
clock (it drifts by seconds a week) and stands still while the machine sleeps. A record that
came between two looks was written between them, whatever its stamp says; for older ones the stamp
is all there is.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from collectors.bell import Bell
from collectors.kernel.cursor import Position
from collectors.kernel.records import Record, kmsg_record
from collectors.sample import Problem, SourceUnavailable

# The kernel's own limit of one record as it prints it (CONSOLE_EXT_LOG_MAX), and room.
_RECORD_BYTES = 16 * 1024
# The offset between the clocks is kept unless it moves by more than this: the same record
# must get the same time when it is read again.
_OFFSET_SLACK_NS = 200_000_000


class KmsgReader:
    """Takes new records from /dev/kmsg. ``position`` names the last one that was taken."""

    kind = "kmsg"
    fault = ""

    def __init__(
        self,
        path: Path,
        boot_id: str,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._path = path
        self._boot_id = boot_id
        self._monotonic_ns = monotonic_ns
        self._descriptor = -1
        self._after = -1  # sequence number of the last record taken
        self._looked_ns: int | None = None  # when the end was reached last
        self._offset_ns: int | None = None
        self.problems: list[Problem] = []

    def resume(self, position: Position | None) -> None:
        """Goes on after ``position``, if it is of this boot; else reads what the ring holds."""
        if position is None or position.get("boot_id") != self._boot_id:
            return
        sequence, looked_ns, offset_ns = (
            position.get(name) for name in ("sequence", "looked_ns", "offset_ns")
        )
        if isinstance(sequence, int):
            self._after = sequence
        if isinstance(looked_ns, int):
            self._looked_ns = looked_ns
        if isinstance(offset_ns, int):
            self._offset_ns = offset_ns

    def position(self) -> Position:
        """Where to go on: boot, sequence number, and what gives equal records equal times."""
        return {
            "kind": self.kind,
            "boot_id": self._boot_id,
            "sequence": self._after,
            "looked_ns": self._looked_ns,
            "offset_ns": self._offset_ns,
        }

    def read(self, now_ns: int, limit_records: int) -> list[Record]:
        """New records with their UTC times. Raises SourceUnavailable where it may not read."""
        if self._descriptor < 0:
            self._open()
        offset_ns = self._offset(now_ns)
        found: list[Record] = []
        ended = False
        while len(found) < limit_records:
            try:
                raw = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                ended = True
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before we came; reading goes on
                    continue
                if error.errno == errno.EINVAL:
                    self.problems.append(Problem("a kernel record too long to be read"))
                    continue
                self.close()
                if found:
                    break  # what was read counts; the next look says what is wrong
                raise SourceUnavailable(f"{self._path} can't be read: {error.strerror}") from error
            record = kmsg_record(raw.decode("utf-8", "replace"))
            if record is None or record.sequence is None or record.sequence <= self._after:
                continue
            if 0 <= self._after < record.sequence - 1:
                lost = record.sequence - 1 - self._after
                self.problems.append(Problem(f"{lost} kernel records were overwritten unread"))
            self._after = record.sequence
            found.append(self._timed(record, offset_ns, now_ns))
        if ended:
            self._looked_ns = now_ns
        return found

    def wait(self, seconds: float, bell: Bell) -> None:
        """Returns when the ring has a record that was not read, or after ``seconds``."""
        bell.wait(seconds if self._descriptor >= 0 else 0.0, self._descriptor)

    def close(self) -> None:
        """Lets go of the device."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_SET)  # the oldest record of the ring
        except PermissionError as error:
            raise SourceUnavailable(
                f"{self._path} may not be read: the agent needs CAP_SYSLOG "
                "(AmbientCapabilities=CAP_SYSLOG), or root"
            ) from error
        except OSError as error:
            raise SourceUnavailable(
                f"{self._path} can't be opened: {error.strerror}; "
                'set backend = "journald" or "file" to read the kernel log elsewhere'
            ) from error

    def _offset(self, now_ns: int) -> int:
        offset_ns = now_ns - self._monotonic_ns()
        if self._offset_ns is None or abs(offset_ns - self._offset_ns) > _OFFSET_SLACK_NS:
            self._offset_ns = offset_ns
        return self._offset_ns

    def _timed(self, record: Record, offset_ns: int, now_ns: int) -> Record:
        time_ns = offset_ns + (record.uptime_ns or 0)
        if self._looked_ns is not None:
            time_ns = max(time_ns, self._looked_ns)
        return Record(
            record.text,
            record.kernel,
            max(1, min(time_ns, now_ns)),
            record.uptime_ns,
            record.sequence,
            self._boot_id,
        )
