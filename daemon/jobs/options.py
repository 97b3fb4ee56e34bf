"""Section ``[jobs]`` of the configuration."""

from __future__ import annotations

from pydantic import Field

from daemon.settings import Section


class JobOptions(Section):
    """Section ``[jobs]``: when a job that holds GPUs counts as idle. It is told to people, and that
    is all: no job is ended for it.
    """

    # All GPUs of the job's nodes have done nothing for so long. 0: nobody is told.
    idle_hours: float = Field(default=2.0, ge=0, le=720)
    # A GPU whose utilisation is not above this does nothing.
    idle_ratio: float = Field(default=0.01, ge=0, le=0.5)
    # Jobs of these partitions may idle (interactive ones, say).
    idle_partitions: frozenset[str] = frozenset()
    # 0 info, 1 warning, 2 error, 3 critical; mail and webhook have limits of their own.
    idle_severity: int = Field(default=0, ge=0, le=3)
