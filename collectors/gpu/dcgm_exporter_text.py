"""Reads what dcgm-exporter offers to Prometheus, of all its versions.

Labels changed their case (``Hostname``, ``hostname``; ``UUID``, ``uuid``, ``gpu_uuid``), fields
their names; jobs repeat a board (``hpc_job``, pods); with MIG the board's own values stand at its
instances. Every board gives one sample, instances none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.events import CRITICAL, WARNING, event
from collectors.gpu.dcgm_dmon import last_xid
from collectors.gpu.dcgm_fields import BY_SYMBOL
from collectors.gpu.dcgm_values import BoardValues
from collectors.gpu.fabric import fault
from collectors.gpu.findings import Findings, Text, accepted
from collectors.gpu.metrics import COUNT_MOST
from collectors.inventory import Board, board_events
from collectors.kernel.nvidia import xid_severity
from collectors.node.pci import address
from collectors.prometheus_text import Labels, points
from collectors.sample import Problem, Sample, clip, sample

BOARDS_MOST = 4_096

XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
HEALTH = "DCGM_EXP_GPU_HEALTH_STATUS"


@dataclass
class Scraped:
    """One board: who it is, its values, Xids counted in the exporter's window, its health."""

    board: Board
    host: str
    driver: str = ""
    values: BoardValues = field(default_factory=BoardValues)
    xid_counts: dict[int, float] = field(default_factory=dict)
    health: dict[str, float] = field(default_factory=dict)
    instances: bool = False


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """Samples and problems of one scrape. Never raises.

    ``node`` names them, unless the text holds several hosts: then their own names do.
    """
    findings = Findings()
    boards = scraped(text, findings)
    hosts = {one.host for one in boards if one.host}
    for one in boards:
        name = one.host.partition(".")[0] if len(hosts) > 1 and one.host else node
        for told in (*board_samples(one, name, now_ns, findings), *xids(one, name, now_ns)):
            findings.add(told)
        bad = fault(one.board, one.values.fabric or 0, name, now_ns)
        if bad is not None:
            findings.add(bad)
        versions = {"driver": one.driver} if one.driver else {}
        for told in board_events(name, [one.board], versions, None, now_ns):
            findings.add(told)
    samples, problems = findings.close()
    if not samples and not problems:
        problems.append(Problem("no metric of dcgm-exporter in this text"))
    return _without_repeated_versions(samples), problems


def scraped(text: Text, findings: Findings) -> list[Scraped]:
    """The boards of one scrape, in the order of their first appearance."""
    boards: dict[tuple[str, str], Scraped] = {}
    for point in points(text, findings):
        name, lower = point.name, point.labels
        if not name.startswith(("DCGM_", "dcgm_")):
            continue
        uuid = lower.get("uuid") or lower.get("gpu_uuid") or ""
        host = clip(lower.get("hostname", ""), 200)
        key = (host, uuid or lower.get("gpu", ""))
        if not key[1] or "nvswitch" in lower or "cpu" in lower:
            continue
        one = boards.get(key)
        if one is None:
            if len(boards) >= BOARDS_MOST:
                findings.problem(f"more than {BOARDS_MOST} boards: the rest is left out", once=True)
                continue
            made = _board(lower, uuid)
            if made is None:
                findings.problem("a GPU without a number", str(lower)[:200], once=True)
                continue
            one = boards[key] = Scraped(made, host)
        _take(one, name, point.value, lower, findings)
    for one in boards.values():
        if one.instances:
            findings.problem("MIG is on: boards are scored, their instances are not", once=True)
    return list(boards.values())


def _board(labels: Labels, uuid: str) -> Board | None:
    index = labels.get("gpu", "")
    if not (index.isascii() and index.isdigit() and len(index) < 6):
        return None
    model = labels.get("modelname") or labels.get("model_name") or ""
    return Board(
        int(index),
        uuid=clip(uuid, 100),
        bus=address(labels.get("pci_bus_id", "")),
        serial=clip(labels.get("dcgm_fi_dev_serial", ""), 100),
        model=clip(model, 100),
        vbios=clip(labels.get("dcgm_fi_dev_vbios_version", ""), 100),
    )


LINK_COUNTERS = {
    "CRC_FLIT": "nvlink_crc_errors_total",
    "CRC_DATA": "nvlink_crc_errors_total",
    "REPLAY": "nvlink_replays_total",
    "RECOVERY": "nvlink_recoveries_total",
}
_SUMMED = frozenset(LINK_COUNTERS.values())
# One counter of one link under the GPU's own labels: DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L3.
_LINK = re.compile(
    rf"(?:DCGM_FI_DEV_NVLINK|dcgm_nvlink)_(?P<what>{'|'.join(LINK_COUNTERS)})_ERROR_COUNT"
    r"_L(?P<link>\d{1,2})",
    re.I,
)


def _take(
    one: Scraped, name: str, value: float, labels: Mapping[str, str], findings: Findings
) -> None:
    instance = bool(labels.get("gpu_i_id"))
    one.instances = one.instances or instance
    if not one.driver:
        one.driver = clip(labels.get("dcgm_fi_driver_version", ""), 60)
    link = _LINK.fullmatch(name)
    known = BY_SYMBOL.get(name)
    if link is not None:
        what = link["what"].upper()
        one.values.put_link(LINK_COUNTERS[what], what, link["link"], value)
    elif "nvlink" in labels:
        if known is not None and known.ours in _SUMMED:
            one.values.put_link(known.ours, known.short, labels["nvlink"], value)
    elif known is not None:
        if known.board or not instance:
            one.values.put(known, value)
    elif name == XID_COUNT:
        code = labels.get("xid", "")
        known_code = code.isascii() and code.isdigit() and len(code) < 7 and int(code) > 0
        if not known_code or not 0 <= value <= COUNT_MOST or value % 1:
            words = f"gpu{one.board.index}: {value:g} times Xid {clip(code, 20)}: not believed"
            findings.problem(words)
        elif value:
            one.xid_counts[int(code)] = max(value, one.xid_counts.get(int(code), 0.0))
    elif name == HEALTH:
        watch = labels.get("health_watch", "")
        if watch and 0 <= value < 1000:
            one.health[clip(watch.lower(), 60)] = max(value, one.health.get(watch.lower(), 0.0))


def board_samples(one: Scraped, node: str, now_ns: int, findings: Findings) -> list[Sample]:
    """The ``gpu`` sample of one board and an event for each health watch that is not well."""
    board = one.board
    values = one.values.values()
    if one.instances:
        values["mig_enabled"] = 1.0
    fields = accepted(values, findings, f"{node} gpu{board.index}")
    told = [sample("gpu", now_ns, fields, node=node, gpu=str(board.index), uuid=board.uuid)]
    # dcgm_structs.h, dcgmHealthWatchResults_t: 0 pass, 10 warning, 20 failure.
    for watch, value in one.health.items():
        if value >= 10:
            told.append(
                event(
                    node,
                    "dcgm_health",
                    watch,
                    now_ns,
                    text=f"gpu{board.index}: DCGM health of {watch}: "
                    f"{'failure' if value >= 20 else 'warning'}",
                    severity=CRITICAL if value >= 20 else WARNING,
                    device=device_of(one),
                )
            )
    return told


def device_of(one: Scraped) -> str:
    """What an event of this board names as its device."""
    return one.board.bus or f"gpu{one.board.index}"


def xids(one: Scraped, node: str, now_ns: int) -> list[Sample]:
    """An event for each Xid that the scrape names: the last one, and those of the window."""
    board = one.board
    told = [
        event(
            node,
            "xid",
            str(code),
            now_ns,
            text=f"gpu{board.index}: DCGM counted Xid {code} {count:.0f} times in its window",
            severity=xid_severity(code),
            device=device_of(one),
            count=count,
        )
        for code, count in sorted(one.xid_counts.items())
    ]
    last = last_xid(one.values, node, now_ns, board.index, board.bus)
    if last is not None and not any(one.tag("code") == last.tag("code") for one in told):
        told.append(last)
    return told


def _without_repeated_versions(samples: list[Sample]) -> list[Sample]:
    """One ``version`` event a node for the driver, though every board names it."""
    seen: set[tuple[str, str, str]] = set()
    kept: list[Sample] = []
    for one in samples:
        if one.tag("kind") == "version" and not one.text("device"):
            key = (one.tag("node"), one.tag("code"), one.text("text"))
            if key in seen:
                continue
            seen.add(key)
        kept.append(one)
    return kept
