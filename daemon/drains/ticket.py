"""The text of a ticket: what a vendor asks for before it replaces a GPU. Pure.

Serial, UUID, VBIOS and driver, the Xids with their lines, counters of memory and row remapping,
what was done already, and what to attach. What tocsin did not read is said to be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daemon.drains.escalation import WORDS, Step
from daemon.drains.ledger import Entry
from daemon.page.view import Explanation, iso
from daemon.store.events import Event

# The counters that vendors ask for, as the ``gpu`` table names them.
COUNTERS = (
    "ecc_corrected_total",
    "ecc_uncorrected_total",
    "ecc_sram_threshold_exceeded",
    "remapped_rows_corrected_total",
    "remapped_rows_uncorrected_total",
    "row_remap_pending",
    "row_remap_failed",
    "retired_pages_single_total",
    "retired_pages_double_total",
    "retired_pages_pending",
    "remap_banks_none",
    "remap_banks_low",
    "pcie_replays_total",
)
_LINES_SHOWN = 5
_DONE = frozenset({"drained", "returned", "reboot_done", "reboot_late", "proof_job", "replaced"})


@dataclass(frozen=True, slots=True)
class Board:
    """Who a GPU is; empty where it was not told."""

    address: str = ""
    uuid: str = ""
    serial: str = ""
    model: str = ""
    vbios: str = ""
    driver: str = ""


def board_of(device: str, events: Sequence[Event]) -> Board:
    """The board at ``gpu3``, or at a PCI address, by the newest inventory events of its node."""
    found = Board()
    for one in sorted(events, key=lambda one: one.time_ns):
        if one.kind == "inventory" and one.code == "gpu":
            told = re.match(r"gpu=(\d+)(?=\s|\Z)", one.text)
            if told is None or device not in (f"gpu{int(told[1])}", one.device):
                continue
            words = dict(re.findall(r"\b(uuid|serial)=(\S+)", one.text))
            _, _, model = one.text.partition("model=")
            found = replace(
                found, address=one.device, uuid=words.get("uuid", ""),
                serial=words.get("serial", ""), model=model.strip(),
            )  # fmt: skip
        elif one.kind == "version" and one.code == "driver":
            found = replace(found, driver=one.text)
    for one in sorted(events, key=lambda one: one.time_ns):
        if (one.kind, one.code) == ("version", "vbios") and one.device == found.address:
            found = replace(found, vbios=one.text)
    return found


def with_ticket(
    told: Explanation,
    device: str,
    events: Sequence[Event],
    counters: Mapping[str, float],
    entries: Sequence[Entry],
) -> Explanation:
    """``told`` with its ticket, where a person may have to open one: a drain for a certain fault
    of a GPU. ``events`` are the node's of the last weeks, ``counters`` the last that were read."""
    step = told.inputs.get("escalation")
    gpu = device.startswith("gpu") or re.fullmatch(r"[0-9a-f:.]{7,16}", device) is not None
    if not isinstance(step, Mapping) or not gpu:
        return told
    lines = _lines(told, device, Step(step.get("step", "")), events, counters, entries)
    return replace(told, ticket=tuple(lines))


def _lines(
    told: Explanation,
    device: str,
    step: Step,
    events: Sequence[Event],
    counters: Mapping[str, float],
    entries: Sequence[Entry],
) -> Iterator[str]:
    board = board_of(device, events)
    chassis = _newest(events, "inventory", "chassis")
    yield f"Node {told.node}, {device}: {told.inputs.get('text') or told.title}"
    yield f"Model {_or(board.model)}, serial {_or(board.serial)}, UUID {_or(board.uuid)}"
    yield f"PCI {_or(board.address)}, VBIOS {_or(board.vbios)}, driver {_or(board.driver)}"
    yield f"Node's own: {chassis or 'serial not read (dmidecode -s system-serial-number)'}"
    lines = [one for one in events if one.kind in ("xid", "gpu_lost") and
             one.device in (device, board.address)]  # fmt: skip
    lines.sort(key=lambda one: one.time_ns)
    codes: dict[str, int] = {}
    for one in lines:
        codes[one.code] = codes.get(one.code, 0) + 1
    listed = ", ".join(f"{code} ({count} times)" for code, count in sorted(codes.items()))
    yield f"Xids of 30 days: {listed or 'none'}"
    for one in lines[-_LINES_SHOWN:]:
        yield f"  {iso(one.time_ns)} {one.text}"
    known = [f"{name} {counters[name]:g}" for name in COUNTERS if name in counters]
    yield f"Counters, last read: {', '.join(known) or 'none was read'}"
    done = [one for one in reversed(entries) if one.verb in _DONE]
    yield f"Done so far: {'; '.join(f'{iso(one.time_ns)} {one.verb}' for one in done) or 'nothing'}"
    if step is not Step.NONE:
        yield f"Step now: {WORDS[step]}"
    yield "Attach: nvidia-bug-report.sh (as root, before a reset or a restart), nvidia-smi -q"


def _newest(events: Sequence[Event], kind: str, code: str) -> str:
    found = [one for one in events if (one.kind, one.code) == (kind, code)]
    return max(found, key=lambda one: one.time_ns).text if found else ""


def _or(text: str) -> str:
    return text or "not read"


def newest_counters(table: Any) -> dict[str, float]:
    """The last value of each counter in a table of ``gpu`` rows, in order of time."""
    found: dict[str, float] = {}
    for name in COUNTERS:
        if name in table.column_names:
            values = [value for value in table.column(name).to_pylist() if value is not None]
            if values:
                found[name] = float(values[-1])
    return found
