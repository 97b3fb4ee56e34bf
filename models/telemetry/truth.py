"""truth.csv: what really happened, beside the telemetry."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from models.simulate.faults import Truth
from models.telemetry.unpack import open_bytes

# Ten thousand nodes that fail weekly for years are a hundredth of it.
_LIMIT_BYTES = 256 * 1024**2

COLUMNS = (
    "node",
    "device",
    "component",
    "fault_class",
    "onset",
    "noticed",
    "repaired",
    "predictable",
)


def iso(time_ns: int) -> str:
    """UTC time as ISO text with milliseconds, empty for 0.

    >>> iso(1_700_000_000_123_000_000)
    '2023-11-14T22:13:20.123Z'
    """
    if not time_ns:
        return ""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{rest // 1_000_000:03d}Z"


def from_iso(text: str) -> int:
    """The reverse of :func:`iso`; a text without zone is UTC. Raises ValueError."""
    if not text.strip():
        return 0
    moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1000


def write_truth(path: Path, truths: Iterable[Truth]) -> None:
    """Writes truth.csv."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for one in truths:
            writer.writerow(
                [
                    one.node,
                    one.device,
                    one.component,
                    one.fault_class,
                    iso(one.onset_ns),
                    iso(one.noticed_ns),
                    iso(one.repaired_ns),
                    str(one.predictable).lower(),
                ]
            )


def read_truth(path: Path) -> list[Truth]:
    """Reads truth.csv. Raises ValueError naming the line that cannot be read."""
    found = []
    with io.TextIOWrapper(open_bytes(path, _LIMIT_BYTES), "utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                found.append(
                    Truth(
                        row["node"],
                        row.get("device") or "",
                        row.get("component") or "",
                        row.get("fault_class") or "",
                        from_iso(row["onset"]),
                        from_iso(row.get("noticed") or ""),
                        from_iso(row.get("repaired") or ""),
                        (row.get("predictable") or "").strip().lower() in ("true", "1", "yes"),
                    )
                )
            except (KeyError, ValueError) as error:
                raise ValueError(f"{path}:{number}: {error}") from error
    return sorted(found, key=lambda one: one.onset_ns)
