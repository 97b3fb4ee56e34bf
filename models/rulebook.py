"""The rules as functions: each is small and pure, and says what one event or reading means.

What the rules are called, mean and ask for stands in :mod:`models.rule_table`. :mod:`models.rules`
keeps the state between readings and calls these. Nothing here looks at a clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from collectors.bmc.ipmi_sel_entry import TIME_UNKNOWN
from collectors.kernel.nvidia import RECOVERY_ACTIONS
from collectors.sample import Sample, Value
from models import xid
from models.rule_table import RULES, Finding, Rule, Thresholds
from models.rule_tools import EVENTS
from models.voices import Remedy

__all__ = ["RULES", "Finding", "Rule", "Thresholds"]


# ---- events -----------------------------------------------------------------------------------


def of_xid(code: str, text: str) -> Finding | None:
    """The fact in one Xid event, None for an Xid of an application."""
    if not code.isascii() or not code.isdigit() or len(code) > 9:
        return None
    if int(code) == 0:  # what DCGM and NVML say for "none so far"
        return None
    verdict = xid.judge(int(code), text)
    if verdict.remedy is Remedy.NONE:
        return None
    return Finding(
        "xid", f"x{code}", verdict.remedy, verdict.severity, verdict.text, verdict.advice
    )


def of_event(kind: str, code: str, severity: float, text: str) -> Finding | None:
    """The fact in an event of another kind, None if there is none."""
    make = _EVENTS.get((kind, code)) or EVENTS.get((kind, code)) or _EVENTS.get((kind, "*"))
    make = make or EVENTS.get((kind, "*"))
    return None if make is None else make(code, severity, text)


def _sxid(code: str, severity: float, text: str) -> Finding | None:
    if severity < 3:
        return None
    words = "NVSwitch fatal error"
    return Finding(
        "sxid", f"sxid{code}", Remedy.DRAIN, 3, words, "reset the NVSwitches and GPUs, or restart"
    )


def _lost(code: str, severity: float, text: str) -> Finding | None:
    return Finding("gpu_lost", "lost", Remedy.DRAIN, 3, "fell off the bus", "restart the node")


def _plain(
    rule: str, code: str, remedy: Remedy, severity: int, text: str, advice: str
) -> Callable[[str, float, str], Finding | None]:
    finding = Finding(rule, code, remedy, severity, text, advice)
    return lambda _code, _severity, _text: finding


_SERVICE = "look at the hardware, then restart the node"
_EVENTS: Mapping[tuple[str, str], Callable[[str, float, str], Finding | None]] = {
    ("sxid", "*"): _sxid,
    ("gpu_lost", "*"): _lost,
    ("driver", "init_failed"): _plain(
        "driver_init", "init", Remedy.DRAIN, 3, "driver can't start the GPU", "restart the node"
    ),
    ("driver", "probe_failed"): _plain(
        "driver", "probe", Remedy.ALERT, 2, "driver found no GPU to start", "restart the node"
    ),
    ("driver", "api_mismatch"): _plain(
        "driver",
        "mismatch",
        Remedy.ALERT,
        2,
        "driver and library versions differ",
        "restart the node, or load the new driver",
    ),
    ("driver", "reset_required"): _plain(
        "driver", "reset", Remedy.ALERT, 2, "driver says reset required", "reset the GPU"
    ),
    ("driver", "reset_likely"): _plain(
        "driver", "reset", Remedy.ALERT, 2, "driver says reset likely needed", "reset the GPU"
    ),
    ("driver", "inaccessible"): _plain(
        "driver", "noaccess", Remedy.ALERT, 2, "driver can't reach the device", _SERVICE
    ),
    ("driver", "nic_health"): _plain(
        "nic", "nic", Remedy.ALERT, 3, "network adapter failing", _SERVICE
    ),
    ("aer", "fatal"): _plain("pcie", "aer", Remedy.ALERT, 3, "fatal PCIe error", _SERVICE),
    ("aer", "dpc"): _plain("pcie", "dpc", Remedy.ALERT, 3, "PCIe port contained", _SERVICE),
    ("link", "pcie_link_down"): _plain(
        "pcie", "linkdown", Remedy.ALERT, 2, "PCIe link down", _SERVICE
    ),
    ("link", "pcie_inaccessible"): _plain(
        "pcie", "noaccess", Remedy.ALERT, 2, "PCIe device can't be reached", _SERVICE
    ),
    ("edac", "uncorrected"): _plain(
        "memory_uncorrected",
        "ue",
        Remedy.DRAIN,
        3,
        "uncorrectable memory error",
        "replace the DIMM",
    ),
    ("mce", "uncorrected"): _plain(
        "machine_check", "mce", Remedy.ALERT, 3, "uncorrected machine check", _SERVICE
    ),
    ("filesystem", "readonly"): _plain(
        "filesystem", "fs", Remedy.ALERT, 3, "filesystem went read-only", "check the disk"
    ),
    ("filesystem", "shutdown"): _plain(
        "filesystem", "fs", Remedy.ALERT, 3, "filesystem was shut down", "check the disk"
    ),
}


# A GPU's part, and not a host called gpu-0017 that a message names.
_OF_GPU = re.compile(r"(?i)\bgpu(?!-?\d\d)|sxm|\bhbm|nvswitch")


def of_sel(code: str, severity: float, text: str, device: str) -> Finding | None:
    """The fact in an entry of a BMC's log: an uncorrectable memory error, or a critical event.

    An entry whose time nobody knows may be of a DIMM that was replaced long ago: it drains not. Nor
    does one of a GPU's memory: that is no DIMM, and what it asks for its XID says.
    """
    if severity < 3:
        return None
    if code == "memory_uncorrectable" and not _OF_GPU.search(f"{text} {device}"):
        found = of_event("edac", "uncorrected", severity, text)
        if found is not None and TIME_UNKNOWN in text:
            words = f"{found.text}, {TIME_UNKNOWN}"
            return replace(found, remedy=Remedy.ALERT, text=words, advice="look at the BMC's log")
        return found
    words = f"{code.replace('_', ' ')}" + (f" ({device})" if device else "")
    return Finding("sel", code[:20], Remedy.ALERT, 2, words[:80], "look at the BMC's log")


def bmc_critical(sensor: str) -> Finding:
    """A sensor that the BMC calls critical."""
    return Finding(
        "bmc_critical",
        "bmc",
        Remedy.ALERT,
        2,
        f"BMC: {sensor[:60]} critical",
        "look at the chassis",
    )


def pcie_gone(is_gpu: bool) -> Finding:
    """A PCIe device that does not answer any more."""
    remedy = Remedy.DRAIN if is_gpu else Remedy.ALERT
    text = "GPU is off the PCIe bus" if is_gpu else "PCIe device is gone"
    return Finding("pcie_gone", "gone", remedy, 3, text, "restart the node; look at its seating")


def pcie_width(fields: Mapping[str, Value]) -> Answer:
    """``link_width`` against the most that both ends can do."""
    width, most = fields.get("link_width"), fields.get("link_width_max")
    if not isinstance(width, float) or not isinstance(most, float) or width <= 0:
        return None
    if width >= most:
        return False
    text = f"PCIe link has {width:g} of {most:g} lanes"
    return Finding("pcie_width", "lanes", Remedy.ALERT, 2, text, "reseat the card or its riser")


def pcie_speed(fields: Mapping[str, Value]) -> Answer:
    """``pcie_link_generation`` against the most of GPU and slot, judged only under load: an idle
    GPU lowers it by itself."""
    now, most = fields.get("pcie_link_generation"), fields.get("pcie_link_generation_max")
    load = fields.get("utilization_ratio")
    if not isinstance(now, float) or not isinstance(most, float) or not isinstance(load, float):
        return None
    if now >= most:
        return False
    if load < LOAD_RATIO or now < 1:
        return None
    text = f"PCIe generation {now:g} of {most:g} under load"
    return Finding("pcie_speed", "pciegen", Remedy.ALERT, 2, text, "reseat the card or its riser")


# From this share of time with a kernel running on, a GPU is under load.
LOAD_RATIO = 0.5
# Rules whose latched fact a good NVML reading of the same GPU ends.
ENDED_BY_READING = frozenset({"driver_init", "gpu_unreadable"})


# ---- readings ------------------------------------------------------------------------------------
#
# Each takes the fields of one reading. None: the reading says nothing (the field is absent).
# False: the reading says that all is well. A Finding: it says that it is not.

Answer = Finding | None | bool


def _flag(fields: Mapping[str, Value], name: str, finding: Finding) -> Answer:
    value = fields.get(name)
    if not isinstance(value, float):
        return None
    return finding if value >= 1 else False


def lost(fields: Mapping[str, Value]) -> Answer:
    """``lost`` = 1: NVML answers GPU_IS_LOST for this GPU."""
    return _flag(fields, "lost", _LOST)


def recovery(fields: Mapping[str, Value]) -> Answer:
    """``recovery_action``: NVIDIA's number, 0 for none."""
    value = fields.get("recovery_action")
    if not isinstance(value, float) or value < 0 or not value.is_integer():
        return None
    action = RECOVERY_ACTIONS.get(int(value), "unknown")
    remedy = xid.REMEDY_BY_RECOVERY[action]
    if remedy is Remedy.NONE:
        return False
    text = "driver asks: " + action.replace("_", " ")
    return Finding("recovery_action", "recov", remedy, 2, text, xid.RECOVERY_ADVICE.get(action, ""))


def remap_failed(fields: Mapping[str, Value]) -> Answer:
    """``row_remap_failed`` = 1."""
    return _flag(fields, "row_remap_failed", _REMAP_FAILED)


def remap_pending(fields: Mapping[str, Value]) -> Answer:
    """``row_remap_pending`` or ``retired_pages_pending`` = 1."""
    answers = (
        _flag(fields, "row_remap_pending", _REMAP_PENDING),
        _flag(fields, "retired_pages_pending", _REMAP_PENDING),
    )
    for answer in answers:
        if isinstance(answer, Finding):
            return answer
    return False if False in answers else None


def sram_threshold(fields: Mapping[str, Value]) -> Answer:
    """``ecc_sram_threshold_exceeded`` = 1."""
    return _flag(fields, "ecc_sram_threshold_exceeded", _SRAM)


def ecc_count(day_count: float, thresholds: Thresholds) -> Answer:
    """``day_count`` uncorrectable errors of one GPU within a day."""
    if day_count < 1:
        return False
    drain = day_count >= thresholds.ecc_uncorrected_day_count
    return Finding(
        "ecc_uncorrected",
        "ecc",
        Remedy.DRAIN if drain else Remedy.ALERT,
        3 if drain else 2,
        f"{day_count:g} uncorrectable memory errors in a day",
        "reset the GPU; if it comes back, replace it",
    )


def gpu_count(
    seen: int, expected: int, newly_asked: bool = False, never_more: bool = False
) -> Answer:
    """``seen`` GPUs where Slurm gives ``expected`` to jobs; ``newly_asked``: Slurm asked for no
    more than these before, and no more were ever seen; ``never_more``: who counts may be
    restricted to some GPUs, and never saw more.
    """
    if seen >= expected:
        return False
    text = f"{seen} of {expected} GPUs seen"
    if newly_asked:
        advice = f"was Slurm's configuration changed? no more than {seen} were ever seen here"
        return Finding("gpu_count", "count", Remedy.ALERT, 2, text, advice)
    if never_more:
        advice = (
            f"is dcgm-exporter restricted to some GPUs (its option -d)? it never listed more than "
            f"{seen} here; if it is not, look for the missing GPU"
        )
        return Finding("gpu_count", "count", Remedy.ALERT, 2, text, advice)
    advice = "restart the node; if it comes back, look for the missing GPU"
    return Finding("gpu_count", "count", Remedy.DRAIN, 3, text, advice)


def readonly(fields: Mapping[str, Value]) -> Answer:
    """``filesystem_readonly``: how many local filesystems turned read-only."""
    return _flag(fields, "filesystem_readonly", _READONLY)


def disk_warning(fields: Mapping[str, Value]) -> Answer:
    """``critical_warning`` of a disk: a mask, 0 when all is well (NVMe base specification)."""
    return _flag(fields, "critical_warning", _DISK)


def clock(fields: Mapping[str, Value], skew_seconds: float, thresholds: Thresholds) -> Answer:
    """``clock_offset_seconds``: how far the node's clock is from its time servers; where that is
    not known, ``skew_seconds``: by how much all its readings are late against the head's clock."""
    value = fields.get("clock_offset_seconds")
    limit = thresholds.clock_offset_seconds
    if not isinstance(value, float):
        value, limit = -skew_seconds, thresholds.clock_skew_seconds
    if abs(value) < limit:
        return False
    return Finding(
        "clock", "clock", Remedy.ALERT, 1, f"clock is off by {value:.1f} s", "check time service"
    )


VANISHED = Finding(
    "gpu_vanished",
    "vanish",
    Remedy.DRAIN,
    3,
    "readings frozen, memory and counters gone",
    "restart the node",
)
# The first reading without them: whether it stands still, the next one tells.
VANISHED_ONCE = Finding(
    "gpu_vanished",
    "vanish",
    Remedy.ALERT,
    2,
    "memory and counters gone at once; the next reading tells whether it stands still",
    "look at the GPU and at what reads it",
)
# What no other GPU of the node still answers, its reader may have been told to leave out.
VANISHED_ALL = Finding(
    "gpu_vanished",
    "vanish",
    Remedy.ALERT,
    2,
    "readings frozen, memory and counters gone, and no other GPU here has them",
    "look at what reads them (the exporter's fields, the driver), then at the GPU",
)
# But a reader with fewer fields still sees work move.
VANISHED_AT_WORK = Finding(
    "gpu_vanished",
    "vanish",
    Remedy.DRAIN,
    3,
    "all GPUs frozen at work, memory and counters gone",
    "restart the node",
)
_LOST = Finding("gpu_lost", "lost", Remedy.DRAIN, 3, "driver says GPU is lost", "restart the node")
_REMAP_FAILED = Finding(
    "row_remap_failed", "remap", Remedy.DRAIN, 3, "row remap failed", "replace the GPU"
)
_REMAP_PENDING = Finding(
    "row_remap_pending",
    "pending",
    Remedy.ALERT,
    1,
    "row remap waits for a reset",
    "reset the GPU when it is idle",
)
_SRAM = Finding(
    "ecc_sram_threshold", "sram", Remedy.DRAIN, 3, "SRAM error threshold passed", "replace the GPU"
)
_READONLY = Finding(
    "filesystem_readonly", "fs", Remedy.DRAIN, 3, "local filesystem is read-only", "check the disk"
)
_DISK = Finding("disk", "smart", Remedy.ALERT, 2, "disk reports a critical warning", "check it")

GPU_STATES: tuple[Callable[[Mapping[str, Value]], Answer], ...] = (
    lost,
    recovery,
    remap_failed,
    remap_pending,
    sram_threshold,
)
# The field that each state rule reads: what tells, at little cost, whether to call it.
GPU_STATE_RULES = (
    "gpu_lost",
    "recovery_action",
    "row_remap_failed",
    "row_remap_pending",
    "ecc_sram_threshold",
)


def may_tell(fields: Mapping[str, Value]) -> bool:
    """Whether a GPU_STATES rule may find something: all fields that they read are 0 otherwise."""
    read = fields.get  # one after the other: half the time of a loop, for each reading
    return bool(
        read("lost")
        or read("recovery_action")
        or read("row_remap_failed")
        or read("row_remap_pending")
        or read("retired_pages_pending")
        or read("ecc_sram_threshold_exceeded")
    )


def event_finding(sample: Sample) -> Finding | None:
    """The fact in an ``event`` sample, whatever its kind."""
    kind, code = sample.tag("kind"), sample.tag("code")
    text = sample.text("text")
    if kind == "xid":
        return of_xid(code, text)
    if kind == "sel":
        return of_sel(code, sample.number("severity") or 0.0, text, sample.text("device"))
    return of_event(kind, code, sample.number("severity") or 0.0, text)
