"""The settings of the InfluxDB sink, apart from its code: an agent must not load the client."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from daemon.settings import Section


class InfluxOptions(Section):
    """Section ``[influxdb]``: switched on by its URL.

    ``bucket`` is the database (and ``database/retention_policy``) of InfluxDB 1. A token
    file is for InfluxDB 2 and 3; user and password file are for InfluxDB 1 and for others
    that ask for them.
    """

    url: str = ""
    bucket: str = "tocsin"
    org: str = "tocsin"
    token_file: Path | None = None
    username: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    verify_certificate: bool = True
    batch_lines: int = Field(default=5000, ge=1, le=100_000)
    poll_seconds: float = Field(default=1.0, gt=0, le=60)
    request_deadline_seconds: float = Field(default=20.0, gt=0, le=300)
    backoff_limit_seconds: float = Field(default=60.0, gt=0, le=3600)
    outbox_limit_bytes: int = Field(default=4 * 1024**3, ge=1024 * 1024)
    quarantine_limit_bytes: int = Field(default=16 * 1024 * 1024, ge=0)

    @field_validator("url")
    @classmethod
    def _http_only(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("must look like http://influx:8086")
        if parts.username or parts.password:
            raise ValueError("must hold no password; use token_file, or username and password_file")
        return value.rstrip("/")
