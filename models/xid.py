"""What an Xid means: NVIDIA's catalogue, and what we make of each action in it.

The table (``tables/xid.csv``, 172 codes) is NVIDIA's; mnemonic and actions stand as published. What
follows from an *immediate action* is our choice, made here in one place:

- DRAIN for RESET_GPU, RESTART_BM, RESTART_VM and CHECK_MECHANICALS: the GPU can't serve the next
  job before somebody resets, restarts or opens it. A drain hurts no running job. Under Slurm the
  node is the VM, so RESTART_VM is a restart of the node.
- DRAIN for WORKFLOW_XID_48 (double-bit ECC error): contained or not, the remapped row or retired
  page comes into force only with a reset. DRAIN for WORKFLOW_NVLINK_ERR (74, A100 and H100):
  the link stays in error until the GPU is reset or the node restarted.
- ALERT for UPDATE_SWFW, CHECK_UVM and CONTACT_SUPPORT (most of these codes are unused: seeing
  one is news, not a broken GPU), and for codes without a published action (162 to 172): a fact
  is what somebody published, so we say it and do not act on it. 171 and 172 come with a 48.
- NONE for RESTART_APP, IGNORE and WORKFLOW_XID_45: the job was hurt, often by itself. 13, 31, 43,
  45, 68, 69 and their like never drain, however often they come.

Codes that the action alone would put wrongly:

- 94 (contained memory error, RESTART_APP): the GPU goes on, but its memory is wearing. ALERT.
- 92, 93, 121, 157, 161 (IGNORE, then CONTACT_SUPPORT or INVESTIGATE_SW): single-bit error storm,
  InfoROM wear, C2C error, retirement that failed. ALERT.
- 63 (row remapped, IGNORE): NONE; that a remap waits for a reset is read from NVML, as a state.
- 154: the line carries its own recovery word. A reset, a restart or a drain is a DRAIN, ``none``
  takes an earlier word back, an IMEX domain to recover is an ALERT (no fault of this GPU).
- 144 to 150 (NVLink 5): decoded from the registers in the line (:mod:`models.nvlink5`). Where the
  table says XID_154_EVAL, the 154 that the driver prints next decides.

Severity is the event's own (:func:`collectors.kernel.nvidia.xid_severity`).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from collectors.kernel.nvidia import XID_NVLINK5, recovery_action, xid_line, xid_severity
from models import nvlink5
from models.voices import Remedy

TABLES = Path(__file__).with_name("tables")

REMEDY_BY_ACTION: Mapping[str, Remedy] = MappingProxyType(
    {
        "RESET_GPU": Remedy.DRAIN,
        "RESTART_BM": Remedy.DRAIN,
        "RESTART_VM": Remedy.DRAIN,
        "CHECK_MECHANICALS": Remedy.DRAIN,
        "WORKFLOW_XID_48": Remedy.DRAIN,
        "WORKFLOW_NVLINK_ERR": Remedy.DRAIN,
        "UPDATE_SWFW": Remedy.ALERT,
        "CHECK_UVM": Remedy.ALERT,
        "CONTACT_SUPPORT": Remedy.ALERT,
        "": Remedy.ALERT,
        "RESTART_APP": Remedy.NONE,
        "IGNORE": Remedy.NONE,
        "WORKFLOW_XID_45": Remedy.NONE,
        "XID_154_EVAL": Remedy.NONE,
    }
)
_REMEDY_BY_CODE: Mapping[int, Remedy] = MappingProxyType(
    {
        92: Remedy.ALERT,
        93: Remedy.ALERT,
        94: Remedy.ALERT,
        121: Remedy.ALERT,
        157: Remedy.ALERT,
        161: Remedy.ALERT,
        162: Remedy.NONE,  # power smoothing is back: good news
    }
)
REMEDY_BY_RECOVERY: Mapping[str, Remedy] = MappingProxyType(
    {
        "none": Remedy.NONE,
        "gpu_reset": Remedy.DRAIN,
        "node_reboot": Remedy.DRAIN,
        "drain_p2p": Remedy.DRAIN,
        "drain_and_reset": Remedy.DRAIN,
        "bus_reset": Remedy.DRAIN,
        "system_reboot": Remedy.DRAIN,
        "recover_imex_domain": Remedy.ALERT,
        "unknown": Remedy.ALERT,
        "": Remedy.ALERT,
    }
)
RECOVERY_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "gpu_reset": "end its jobs and reset the GPU (nvidia-smi -r)",
        "node_reboot": "restart the node",
        "drain_p2p": "end the jobs that use peer-to-peer traffic, then look again",
        "drain_and_reset": "let its jobs end, then reset the GPU (nvidia-smi -r)",
        "bus_reset": "reset the GPU's PCIe bus, or restart the node",
        "system_reboot": "restart the node",
        "recover_imex_domain": "recover the IMEX domain; the GPU itself is well",
    }
)
_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "RESET_GPU": "let its jobs end, then reset the GPU (nvidia-smi -r)",
        "RESTART_BM": "restart the node; if it comes back, call support",
        "RESTART_VM": "restart the node",
        "CHECK_MECHANICALS": "check power cables and seating of the GPU",
        "WORKFLOW_XID_48": "let its jobs end, then reset the GPU (nvidia-smi -r)",
        "WORKFLOW_NVLINK_ERR": "reset the GPU; if it comes back, check the NVLink connection",
        "UPDATE_SWFW": "update driver and firmware",
        "CHECK_UVM": "look for other errors of this GPU at the same time",
        "CONTACT_SUPPORT": "call support",
        "RESTART_APP": "restart the application",
        "WORKFLOW_XID_45": "see the Xid that came before it",
    }
)
# Words for the reason of a drain: few, and in the terms of the field.
_WORDS: Mapping[int, str] = MappingProxyType(
    {
        48: "double-bit ECC error",
        54: "auxiliary power not connected",
        62: "microcontroller halt",
        63: "row remapped",
        64: "row remap failed",
        74: "NVLink error",
        79: "fell off the bus",
        92: "many single-bit ECC errors",
        94: "contained memory error",
        95: "uncontained memory error",
        109: "context switch timeout",
        119: "GSP timeout",
        120: "GSP error",
        136: "NVLink training failed",
        140: "unrecovered ECC error",
        143: "GPU did not initialise",
        156: "resource retired, reset needed",
        158: "GPU fatal timeout",
        # Named in the driver's nverror.h (595) and not in the catalogue yet.
        173: "fatal failure of the link to the CPU (C2C)",
        174: "a channel was reset and its process killed",
        175: "error of the memory subsystem",
        176: "correctable PCIe errors became a fault",
    }
)
_RECOVERY_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "gpu_reset": "driver asks for a GPU reset",
        "node_reboot": "driver asks for a node restart",
        "drain_p2p": "driver asks to drain P2P traffic",
        "drain_and_reset": "driver asks to drain and reset the GPU",
        "bus_reset": "driver asks for a PCIe bus reset",
        "system_reboot": "driver asks for a restart of the system",
        "recover_imex_domain": "driver asks to recover the IMEX domain",
        "none": "driver asks for nothing any more",
    }
)


@dataclass(frozen=True, slots=True)
class Xid:
    """One row of the catalogue, as published. ``applies`` holds ``a100``, ``h100`` ..."""

    code: int
    mnemonic: str
    description: str
    applies: frozenset[str]
    immediate: str
    investigatory: str
    recovery_since: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one Xid line asks for. ``text`` is a few ASCII words, ``advice`` what to do;
    ``takes_back`` says that an earlier recovery action is no longer needed."""

    code: int
    remedy: Remedy
    severity: int
    immediate: str
    investigatory: str
    text: str
    advice: str = ""
    takes_back: bool = False


@cache
def catalogue() -> Mapping[int, Xid]:
    """Every code that NVIDIA published, from ``tables/xid.csv``."""
    rows: dict[int, Xid] = {}
    with open(TABLES / "xid.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[int(row["code"])] = Xid(
                int(row["code"]),
                row["mnemonic"],
                row["description"],
                frozenset(name for name in ("a100", "h100", "b100", "gb200") if row[name] == "yes"),
                row["immediate_action"],
                row["investigatory_action"],
                row["recovery_since"],
            )
    return MappingProxyType(rows)


def judge(code: int, line: str = "") -> Verdict:
    """What Xid ``code`` asks for; ``line`` is the kernel's line, needed for 144 to 150 and 154.

    A code that is not in the catalogue stays unknown: it is told (ALERT) and never acted on.
    """
    severity = 1
    message = line
    if line:
        parts = xid_line(line)
        message = parts.message if parts is not None else line
    severity = int(xid_severity(code, message))
    row = catalogue().get(code)
    if row is None:
        named = f": {_WORDS[code]}" if code in _WORDS else ""
        text = f"Xid {code}, not in the catalogue{named}"
        return Verdict(code, Remedy.ALERT, severity, "", "", text, "look it up; tell us")
    if code == 154:
        return _recovery(row, severity, message)
    if code in XID_NVLINK5:
        return _nvlink(row, severity, message)
    remedy = _REMEDY_BY_CODE.get(code, REMEDY_BY_ACTION.get(row.immediate, Remedy.ALERT))
    advice = _ADVICE.get(row.immediate, "")
    return Verdict(code, remedy, severity, row.immediate, row.investigatory, words(code), advice)


def words(code: int) -> str:
    """A few ASCII words for ``code``.

    >>> words(79)
    'fell off the bus'
    """
    row = catalogue().get(code)
    if code in _WORDS:
        return _WORDS[code]
    if row is None:
        return f"Xid {code}"
    text = row.description if row.description != "Unused" else f"{row.mnemonic} (unused code)"
    return text if len(text) <= 60 else text[:57].rstrip() + "..."


def _recovery(row: Xid, severity: int, message: str) -> Verdict:
    action = recovery_action(message)
    return Verdict(
        154,
        REMEDY_BY_RECOVERY[action],
        severity,
        row.immediate,
        row.investigatory,
        _RECOVERY_WORDS.get(action, "driver changed the recovery action"),
        RECOVERY_ADVICE.get(action, ""),
        takes_back=action == "none",
    )


def _nvlink(row: Xid, severity: int, message: str) -> Verdict:
    decoded = nvlink5.decode(row.code, message)
    if decoded is None:
        text = f"{row.description}, not in the NVLink 5 table"
        advice = "see the Xid 154 that follows; if none does, call support"
        return Verdict(
            row.code, Remedy.ALERT, severity, row.immediate, row.investigatory, text, advice
        )
    remedy = REMEDY_BY_ACTION.get(decoded.immediate, Remedy.ALERT)
    if remedy is Remedy.NONE and decoded.investigatory not in ("", "IGNORE"):
        remedy = Remedy.ALERT
    if decoded.immediate == "XID_154_EVAL":
        remedy = Remedy.NONE
    where = f" link {decoded.link}" if decoded.link >= 0 else ""
    return Verdict(
        row.code,
        remedy,
        severity,
        decoded.immediate,
        decoded.investigatory,
        f"NVLink{where} {decoded.unit}",
        _ADVICE.get(decoded.immediate, "see the Xid 154 that follows"),
    )
