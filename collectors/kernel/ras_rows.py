"""What rasdaemon keeps, one row at a time, as events: memory, PCIe, machine checks, disks.

The rows are those of its SQLite tables; ``ras-mc-ctl --errors`` prints the same rows. Kinds and
codes are those of the kernel log's own lines, so that one fault has one name whoever tells it.

Source: the queries of ras-mc-ctl 0.6.8 and the tables of rasdaemon's ras-record.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from collectors.kernel.event import CRITICAL, ERROR, INFO, WARNING, KernelEvent
from collectors.node.pci import address
from collectors.sample import clip

Row = Mapping[str, object]

SECOND_NS = 1_000_000_000
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ([+-]\d{4})")
_UNCORRECTED_BIT = 1 << 61
# ras-mc-ctl's get_extlog_severity: UEFI's numbers.
_EXTLOG = {0: ("uncorrected", ERROR), 1: ("uncorrected", CRITICAL), 2: ("corrected", WARNING)}
_DOUBTFUL = ("", "unknown label", "unknown memory", "any memory")


def time_of(row: Row) -> int | None:
    """UTC nanoseconds of ``2019-05-30 16:14:36 +0900``, None if it is no such time."""
    found = _STAMP.fullmatch(_text(row.get("timestamp")))
    if found is None:
        return None
    try:
        at = datetime.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H:%M:%S %z")
        return int(at.timestamp()) * SECOND_NS
    except (ValueError, OverflowError):
        return None


def memory(row: Row) -> KernelEvent | None:
    """A row of mc_event."""
    word = _text(row.get("err_type")).lower()
    known = {
        "corrected": ("corrected", WARNING),
        "uncorrected": ("uncorrected", CRITICAL),
        "deferred": ("deferred", WARNING),
        "fatal": ("uncorrected", CRITICAL),
        "info": ("info", INFO),
    }.get(word)
    if known is None:
        return None
    label = _text(row.get("label"))
    controller = _number(row.get("mc"))
    place = "" if controller is None else f"MC{controller}"
    device = place if label.lower() in _DOUBTFUL else label
    text = f"rasdaemon: {word} memory error: {_text(row.get('err_msg'))} at {label or place}"
    count = _number(row.get("err_count")) or 1
    return KernelEvent("edac", *known, clip(text), device, count=max(1, min(count, 10**9)))


def pcie(row: Row) -> KernelEvent | None:
    """A row of aer_event. Old tables do not name the device."""
    word = _text(row.get("err_type")).lower()
    if word.startswith("corrected"):
        code, severity = "corrected", WARNING
    elif "non-fatal" in word:
        code, severity = "nonfatal", ERROR
    elif "fatal" in word:
        code, severity = "fatal", CRITICAL
    else:
        return None
    device = address(_text(row.get("dev_name")))
    text = f"rasdaemon: {word} PCIe error: {_text(row.get('err_msg'))}"
    return KernelEvent("aer", code, severity, clip(text), device)


def machine_check(row: Row) -> KernelEvent | None:
    """A row of mce_record: uncorrected by the status register's own bit or by its words."""
    status = _number(row.get("status")) or 0
    words = f"{_text(row.get('mcistatus_msg'))} {_text(row.get('error_msg'))}"
    wrong = status & _UNCORRECTED_BIT or re.search(r"\bUncorrected", words)
    cpu, bank = _number(row.get("cpu")), _number(row.get("bank"))
    device = " ".join(
        f"{name}{number}" for name, number in (("cpu", cpu), ("bank", bank)) if number is not None
    )
    place = _text(row.get("mc_location"))
    text = f"rasdaemon: machine check: {words.strip()} {place}"
    code, severity = ("uncorrected", CRITICAL) if wrong else ("corrected", WARNING)
    return KernelEvent("mce", code, severity, clip(text), device)


def firmware(row: Row) -> KernelEvent | None:
    """A row of extlog_event: an error that firmware saw first."""
    known = _EXTLOG.get(-1 if (value := _number(row.get("severity"))) is None else value)
    if known is None:
        return None
    part = _text(row.get("fru_text"))
    return KernelEvent("mce", *known, clip(f"rasdaemon: firmware error record: {part}"), part)


def memory_failure(row: Row) -> KernelEvent | None:
    """A row of memory_failure_event: a page that was taken out of use."""
    if not _text(row.get("action_result")):
        return None
    words = f"{_text(row.get('page_type'))}: {_text(row.get('action_result'))}"
    return KernelEvent("mce", "memory_failure", ERROR, clip(f"rasdaemon: memory failure: {words}"))


def disk(row: Row) -> KernelEvent | None:
    """A row of disk_errors."""
    device = _text(row.get("dev"))
    text = f"rasdaemon: I/O error on {device}: {_text(row.get('error'))}"
    return KernelEvent("filesystem", "io_error", ERROR, clip(text), device)


def network(row: Row) -> KernelEvent | None:
    """A row of devlink_event: a network driver's health reporter."""
    device = _text(row.get("dev_name"))
    words = f"{_text(row.get('reporter_name'))}: {_text(row.get('msg'))}"
    text = f"rasdaemon: {_text(row.get('driver_name'))} reports {words}"
    return KernelEvent("driver", "devlink", WARNING, clip(text), address(device) or device)


# Table -> what a row of it means. Tables of ARM and of single vendors are left out.
TABLES: Mapping[str, Callable[[Row], KernelEvent | None]] = {
    "mc_event": memory,
    "aer_event": pcie,
    "mce_record": machine_check,
    "extlog_event": firmware,
    "memory_failure_event": memory_failure,
    "disk_errors": disk,
    "devlink_event": network,
}


def _text(value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return clip(value, 300) if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    """A whole number; SQLite gives a register of 64 bits as a negative number."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    if not isinstance(value, int):
        return None
    return value + (1 << 64) if value < 0 else value
