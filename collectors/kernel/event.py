"""What one kernel line says, before it has a node and a time: :class:`KernelEvent`."""

from __future__ import annotations

from dataclasses import dataclass

from collectors.events import CRITICAL, ERROR, INFO, WARNING, event
from collectors.sample import Sample

__all__ = ["CRITICAL", "ERROR", "INFO", "WARNING", "KernelEvent"]


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One event read from the kernel's own words.

    ``kind`` and ``code`` are the tags of an ``event`` sample, ``device`` is a PCI address
    (``0000:3b:00``), a DIMM label or a block device, ``text`` the line as it was written,
    without its time stamp. ``count`` is how many such lines this event stands for.
    """

    kind: str
    code: str
    severity: float
    text: str
    device: str = ""
    pid: int | None = None
    process: str = ""
    count: int = 1

    def sample(self, node: str, time_ns: int) -> Sample:
        """The event as a sample of ``node`` at ``time_ns``."""
        return event(
            node,
            self.kind,
            self.code,
            time_ns,
            text=self.text,
            severity=self.severity,
            device=self.device,
            pid=None if self.pid is None else float(self.pid),
            process=self.process,
            count=float(self.count) if self.count > 1 else None,
        )
