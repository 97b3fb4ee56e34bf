"""Reads the smaller texts of nvidia-smi: ``-L``, ``nvlink -s``, ``nvlink -e`` and ``dmon``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from collectors.gpu.findings import Findings, Text, accepted, lines, without_escapes
from collectors.gpu.smi_failures import Failure, failure_event, failure_of
from collectors.gpu.smi_places import Means
from collectors.inventory import Board, board_events
from collectors.sample import Problem, Sample, clip, sample

_GPU = re.compile(
    r"\s*GPU\s+(?P<index>\d{1,3}):\s*(?P<name>.*?)\s*\(UUID:\s*(?P<uuid>[^)\s]{1,80})\)\s*"
)
_MIG = re.compile(r"\s+MIG\s.*\(UUID:.*")
_LINK_COUNT = re.compile(
    r"\s*Link\s+(?P<link>\d{1,3}):\s*(?P<what>[A-Za-z][A-Za-z0-9 -]{0,60}?)\s*:"
    r"\s*(?P<count>\d[\d.eE+-]{0,40})\s*"
)
_LINK_STATE = re.compile(r"\s*Link\s+(?P<link>\d{1,3}):\s*(?P<state>.{1,60}?)\s*")
_SPEED = re.compile(r"\d{1,6}(?:\.\d{1,6})?\s*[GM]B/s")
_NO_LINKS = re.compile(r"all links are in\s?active", re.I)
_MIG_LINKS = re.compile(r"not supported for Devices in MIG", re.I)

# The last two are of NVLink 5, which counts other things: see collectors.gpu.nvml_links.
LINK_COUNTERS = {
    "replay errors": "nvlink_replays_total",
    "recovery errors": "nvlink_recoveries_total",
    "crc errors": "nvlink_crc_errors_total",
    "crc flit errors": "nvlink_crc_errors_total",
    "rx errors": "nvlink_crc_errors_total",
    "total link recovery events": "nvlink_recoveries_total",
}

# Columns of dmon: our field and the kind of smi_values. Its units stand in its second line.
DMON = {
    "pwr": ("power_watts", "watts"),
    "gtemp": ("temperature_celsius", "celsius"),
    "temp": ("temperature_celsius", "celsius"),
    "mtemp": ("memory_temperature_celsius", "celsius"),
    "sm": ("utilization_ratio", "ratio"),
    "mem": ("memory_utilization_ratio", "ratio"),
    "mclk": ("memory_clock_hertz", "hertz"),
    "pclk": ("sm_clock_hertz", "hertz"),
    "fb": ("memory_used_bytes", "bytes"),
    "pci": ("pcie_replays_total", "count"),
}


def parse_list(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``nvidia-smi -L``: which GPUs there are, and which cannot be read. Never raises."""
    findings = Findings()
    boards, failures = listed(text, findings)
    for one in failed(failures, node, now_ns):
        findings.add(one)
    for one in board_events(node, boards.values(), {}, None, now_ns):
        findings.add(one)
    return findings.close()


def listed(text: Text, findings: Findings) -> tuple[dict[int, Board], list[tuple[int, Failure]]]:
    """The boards of ``-L`` by index, and the failures with the index that they stand at.

    It goes through the indices in order, so that a GPU which cannot be read has the index after
    the line before it; a failure of the whole tool has the index -1.
    """
    boards: dict[int, Board] = {}
    failures: list[tuple[int, Failure]] = []
    place = 0
    for line, whole in lines(text, findings):
        found = _GPU.fullmatch(line)
        if found is not None and whole:
            index = int(found["index"])
            boards[index] = Board(index, uuid=found["uuid"], model=clip(found["name"], 100))
            place = index + 1
        elif line.strip() and not _MIG.fullmatch(line):
            failure = failure_of(line)
            if failure is not None:
                failures.append((place if failure.device else -1, failure))
                place += bool(failure.device)
            _told(failure, line, "nvidia-smi -L", findings)
    return boards, failures


def failed(failures: list[tuple[int, Failure]], node: str, now_ns: int) -> list[Sample]:
    """What failures say of GPUs: an event each, and ``lost`` or a wanted reset as fields."""
    told: list[Sample] = []
    for index, failure in failures:
        one = failure_event(failure, node, now_ns)
        if one is not None:
            told.append(one)
        fields = {"lost": {"lost": 1.0}, "reset_required": {"lost": 0.0, "recovery_action": 1.0}}
        known = fields.get(failure.code)
        if known is not None and index >= 0:
            told.append(sample("gpu", now_ns, known, node=node, gpu=str(index)))
    return told


def parse_nvlink(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``nvidia-smi nvlink -s`` and ``-e``: links that are up, errors summed over links."""
    findings = Findings()
    board: Board | None = None
    values: dict[str, float] = {}

    def put() -> None:
        if board is not None:
            where = f"gpu{board.index}"
            findings.add(
                sample(
                    "gpu",
                    now_ns,
                    accepted(values, findings, where),
                    node=node,
                    gpu=str(board.index),
                    uuid=board.uuid,
                )
            )

    for raw, whole in lines(text, findings):
        line = without_escapes(raw)
        found = _GPU.fullmatch(line)
        if found is not None:
            put()
            board = Board(int(found["index"]), uuid=found["uuid"])
            values = {}
        elif line.strip() and (not whole or board is None or not _link(line, values)):
            _told(failure_of(line), line, "nvidia-smi nvlink", findings)
    put()
    return findings.close()


def _link(line: str, values: dict[str, float]) -> bool:
    """Takes one line under a GPU. False when it is no line about links."""
    counted = _LINK_COUNT.fullmatch(line)
    if counted is not None:
        name = LINK_COUNTERS.get(counted["what"].strip().lower())
        if name is not None:
            if not counted["count"].isdigit():
                return False
            values[name] = values.get(name, 0.0) + float(counted["count"])
        return True
    state = _LINK_STATE.fullmatch(line)
    if state is not None:
        up = _SPEED.fullmatch(state["state"]) is not None
        if not up and "inactive" not in state["state"].lower():
            return False
        values["nvlink_links_active"] = values.get("nvlink_links_active", 0.0) + up
        return True
    if _NO_LINKS.search(line):
        values["nvlink_links_active"] = 0.0
        return True
    return _MIG_LINKS.search(line) is not None


def parse_dmon(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``nvidia-smi dmon``: columns by its header, which it prints again and again."""
    findings = Findings()
    columns: list[str] = []
    for line, whole in lines(text, findings):
        words = line.split()
        if not words:
            continue
        if words[0].startswith("#"):
            names = [word.lower().lstrip("#") for word in words]
            names = [name for name in names if name]
            if "gpu" in names:
                columns = names
            continue
        if not whole:
            findings.problem("cut off in this line, which is left out", line)
        elif not columns or len(words) != len(columns):
            _told(failure_of(line), line, "nvidia-smi dmon", findings)
        else:
            _dmon_row(dict(zip(columns, words, strict=True)), node, now_ns, line, findings)
    return findings.close()


def _dmon_row(
    row: Mapping[str, str], node: str, now_ns: int, line: str, findings: Findings
) -> None:
    index = row["gpu"]
    if not (index.isascii() and index.isdigit() and len(index) < 4):
        findings.problem("not a line that nvidia-smi dmon prints", line)
        return
    where = f"gpu{index}"
    means = Means()
    values: dict[str, float] = {}
    for column, (name, kind) in DMON.items():
        number = means.number(name, row.get(column), kind)
        if number is not None:
            values[name] = number
    for words, names in means.errors.items():
        findings.problem(f"{where}: {', '.join(names)}: {words}")
    fields = accepted(values, findings, where)
    findings.add(sample("gpu", now_ns, fields, node=node, gpu=str(int(index))))


def _told(failure: Failure | None, line: str, tool: str, findings: Findings) -> None:
    if failure is None:
        findings.problem(f"not a line that {tool} prints", line)
    else:
        findings.problem(failure.advice or "nvidia-smi reports a GPU that it cannot read", line)
