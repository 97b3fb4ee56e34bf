"""Event samples: something that happened once, in words, with a code.

Every source that reports events builds them here, so that one code never has two spellings.
"""

from __future__ import annotations

from collections.abc import Iterable

from collectors.sample import Metric, Sample, Tags, Value, clip, sample

INFO = 0.0
WARNING = 1.0
ERROR = 2.0
CRITICAL = 3.0

EVENT_METRICS: tuple[Metric, ...] = (
    Metric("event", "text", "text", "What was read, in the words of the program that said it."),
    Metric("event", "severity", "state", "0 info, 1 warning, 2 error, 3 critical.", 0, 3),
    Metric("event", "device", "text", "PCI address (0000:3b:00), port (mlx5_0/1), DIMM label."),
    Metric("event", "pid", "gauge", "Process that was named with the event.", 0, 2**32),
    Metric("event", "process", "text", "Name of that process."),
    Metric("event", "count", "gauge", "How many alike this one stands for; absent for one.", 1),
)


def event(
    node: str,
    kind: str,
    code: str,
    time_ns: int,
    *,
    text: str,
    severity: float,
    device: str = "",
    pid: float | None = None,
    process: str = "",
    count: float | None = None,
) -> Sample:
    """One ``event`` sample. Empty device, pid and process are left out, not stored as empty.

    ``count`` is given where alike events were joined into one (a storm of one error).

    >>> event("n1", "xid", "79", 0, text="fell off the bus", severity=3).tag("code")
    '79'
    """
    fields: dict[str, Value] = {"text": clip(text), "severity": float(severity)}
    if device:
        fields["device"] = clip(device, 200)
    if pid is not None:
        fields["pid"] = float(pid)
    if process:
        fields["process"] = clip(process, 200)
    if count is not None:
        fields["count"] = float(count)
    return sample("event", time_ns, fields, node=node, kind=kind, code=code)


def spaced(samples: Iterable[Sample]) -> list[Sample]:
    """``samples`` with times moved on by 1 ns where measurement, tags and time are the same.

    A store keeps one point per measurement, tags and time; two events must not become one.
    """
    taken: set[tuple[str, Tags, int]] = set()
    free: dict[tuple[str, Tags, int], int] = {}  # where to look on, for many of the same time
    result: list[Sample] = []
    for one in samples:
        wanted = (one.measurement, one.tags, one.time_ns)
        time_ns = free.get(wanted, one.time_ns)
        while (one.measurement, one.tags, time_ns) in taken:
            time_ns += 1
        taken.add((one.measurement, one.tags, time_ns))
        free[wanted] = time_ns + 1
        moved = time_ns != one.time_ns
        result.append(Sample(one.measurement, one.tags, one.fields, time_ns) if moved else one)
    return result
