"""The settings of the agent's own part: who it is, where it sends, what it keeps."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from daemon.settings import Section


class SpoolOptions(Section):
    """What is kept on disk while the head is away. The bounds hold for the two lanes together."""

    directory: Path = Path("/var/lib/tocsin-agent/spool")
    limit_bytes: int = Field(default=256 * 1024 * 1024, ge=64 * 1024, le=1 << 40)
    limit_age_seconds: float = Field(default=7 * 86_400.0, gt=0)


class UplinkOptions(Section):
    """How the agent reaches the head."""

    head_url: str = "http://127.0.0.1:8086"
    # Where the head is when it is not there: the other one of two. Tried in turn.
    standby_urls: tuple[str, ...] = Field(default=(), max_length=8)
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    batch_seconds: float = Field(default=10.0, gt=0, le=3600)
    request_deadline_seconds: float = Field(default=10.0, gt=0, le=300)
    backoff_limit_seconds: float = Field(default=60.0, gt=0, le=3600)
    urgent_backoff_limit_seconds: float = Field(default=5.0, gt=0, le=3600)
    drain_batches_per_second: float = Field(default=5.0, gt=0, le=1000)
    quarantine_limit_bytes: int = Field(default=1024 * 1024, ge=0)

    @field_validator("standby_urls")
    @classmethod
    def _http_only_too(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(cls._http_only(one) for one in value)

    @property
    def urls(self) -> tuple[str, ...]:
        """Every place where the head may be, the usual one first."""
        return (self.head_url, *self.standby_urls)

    @field_validator("head_url")
    @classmethod
    def _http_only(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must look like https://head:8086")
        if parts.username or parts.password:
            raise ValueError("must hold no user or password; put the token into token_file")
        return value.rstrip("/")


class AgentOptions(Section):
    """Everything the agent needs but its sources. ``node`` is Slurm's NodeName."""

    node: str = ""
    uplink: UplinkOptions = UplinkOptions()
    spool: SpoolOptions = SpoolOptions()
