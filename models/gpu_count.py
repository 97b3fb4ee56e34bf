"""How many GPUs of a node are seen, and whether whoever counts them can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.rule_state import SECOND_NS, GpuSource, Node
from models.rule_table import Thresholds

# Sources whose ``gpu`` readings are counted against Slurm's GRES.
GPU_SOURCES = frozenset({"nvml", "nvidia_smi", "smi", "dcgm", "dcgm_exporter"})
# Those that people restrict to some of a node's GPUs (dcgm-exporter's option -d): that such a one
# lists fewer than Slurm has is no word about the node, unless it listed more before.
NARROWED_SOURCES = frozenset({"dcgm_exporter"})
_SLACK_NS = 5 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Count:
    """``seen`` GPUs at ``time_ns``; ``full_ns`` is when the last of the missing ones was seen,
    or when the counting began. ``interval_ns`` is how often they are counted. ``narrowed``: all
    who count may be restricted to some GPUs."""

    seen: int
    time_ns: int
    full_ns: int
    interval_ns: int
    narrowed: bool = False


def count_gpus(node: Node, now_ns: int, thresholds: Thresholds) -> Count | None:
    """The GPUs of ``node`` that were seen in the last cycle of a source that works.

    None is no evidence: while any source that counts GPUs is down, hung or not heard (a fault of
    the tool), and where MIG is on (Slurm then counts instances, NVML counts boards).
    """
    newest, names = _counting_source(node, now_ns, thresholds)
    if newest is None:
        return None
    # Told from the end of the source's last whole cycle, not from the newest GPU: after a step of
    # the clock the first GPUs of a cycle are far ahead of the others, and none is missing.
    time_ns = newest.time_ns
    seen, full_ns, least_ns = 0, newest.since_ns, newest.interval_ns
    for gpu in node.gpus.values():
        if gpu.mig:
            return None
        pace_ns = max(gpu.interval_ns, least_ns)
        if gpu.time_ns and time_ns - gpu.time_ns <= _SLACK_NS + pace_ns * 8 // 5:
            seen += 1
        else:
            full_ns = max(full_ns, gpu.time_ns)
    narrowed = bool(names) and names <= NARROWED_SOURCES
    return Count(seen, time_ns, full_ns, newest.interval_ns, narrowed)


def _counting_source(
    node: Node, now_ns: int, thresholds: Thresholds
) -> tuple[GpuSource | None, frozenset[str]]:
    """The newest source that counts, and the names of all that do; None unless each fresh one is
    up.

    Telemetry of old may have no ``source`` readings: then the GPU readings speak.
    """
    sources: Mapping[str, GpuSource] = node.sources
    if not sources and node.gpus:
        interval_ns = max(gpu.interval_ns for gpu in node.gpus.values())
        time_ns = max(gpu.time_ns for gpu in node.gpus.values())
        sources = {"": GpuSource(True, time_ns, interval_ns, node.gpu_since_ns)}
    fresh = {
        name: one
        for name, one in sources.items()
        if now_ns - node.head_time(one.time_ns) <= thresholds.fresh_ns(one.interval_ns)
    }
    if not fresh or not all(one.up for one in fresh.values()):
        return None, frozenset()
    return max(fresh.values(), key=lambda one: one.time_ns), frozenset(fresh)
