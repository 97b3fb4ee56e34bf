"""The settings of the embedded store."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from daemon.settings import Section


class StoreOptions(Section):
    """Where the store is and how much it keeps."""

    directory: Path = Path("/var/lib/tocsin/store")
    commit_window_seconds: float = Field(default=0.02, ge=0, le=1)
    segment_bytes: int = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    roll_seconds: float = Field(default=600.0, gt=0, le=3600)
    keep_days: float = Field(default=90.0, gt=0)
    keep_rollup_days: float = Field(default=730.0, gt=0)
    keep_event_days: float = Field(default=730.0, gt=0)
    limit_bytes: int = Field(default=200 * 1024**3, ge=1024 * 1024)
    reserve_bytes: int = Field(default=1024**3, ge=0)
    # Of the disk's free bytes the last ones, kept for decisions and the ledger: with less (or
    # less than 5 % of the disk, if that is smaller) readings are refused.
    floor_bytes: int = Field(default=256 * 1024**2, ge=0)
    # Rows of the events' database: of one node, and of all.
    events_per_node_limit: int = Field(default=100_000, ge=1)
    events_limit: int = Field(default=5_000_000, ge=1)
    compression_level: int = Field(default=3, ge=1, le=19)
