"""What tests of the ``ipmi`` source have in common: options, and what a batch says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from collectors.bmc import ipmi
from collectors.sample import Batch, Sample


def options(folder: Path, lines: dict[str, str], secret: Path, **more: object) -> ipmi.Options:
    """Options for the BMCs in ``lines``: node -> address."""
    file = folder / "bmcs"
    file.write_text("".join(f"{node} {address}\n" for node, address in lines.items()))
    given: dict[str, object] = {
        "file": str(file),
        "user": "admin",
        "password_file": str(secret),
        "period_seconds": 60,
        "timeout_seconds": 0.6,
        "tries": 2,
    }
    return ipmi.Options(**{**given, **more})


def values(batch: Batch, node: str) -> dict[str, float]:
    return {
        one.tag("sensor"): float(one.fields["value"])
        for one in batch.samples
        if one.measurement == "bmc" and one.tag("node") == node and "value" in one.fields
    }


def sensor(batch: Batch, node: str, name: str) -> dict[str, object]:
    found = [one for one in batch.samples if one.tag("node") == node and one.tag("sensor") == name]
    assert len(found) == 1
    return dict(found[0].fields)


def events(batch: Batch, node: str = "") -> list[Sample]:
    return [
        one
        for one in batch.samples
        if one.measurement == "event" and (not node or one.tag("node") == node)
    ]


def heard(batch: Batch) -> dict[str, dict[str, object]]:
    return {
        one.tag("node"): dict(one.fields)
        for one in batch.samples
        if one.measurement == "source" and one.tag("source") == "bmc"
    }


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ipmitool(address: str, secret: Path, *arguments: str) -> str:
    host, _, port = address.partition(":")
    login = ["-I", "lanplus", "-H", host, "-p", port, "-U", "admin", "-f", str(secret)]
    if "-C" not in arguments:
        login += ["-C", "3"]
    answer = subprocess.run(
        ["ipmitool", *login, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return answer.stdout
