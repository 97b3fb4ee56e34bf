"""The rules: what counts as a fact, why, from which threshold on, and what it asks for.

Each rule is a row of RULES (its name, meaning, threshold and remedy are what ``tocsin explain`` and
the documentation print) and, where it judges, a small pure function. :mod:`models.rules` keeps
the state between readings and calls them. Nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from collectors.kernel_nvidia import RECOVERY_ACTIONS
from collectors.sample import Sample, Value
from models import xid
from models.voices import Remedy


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the rule book. ``remedy`` is the strongest thing the rule ever asks for."""

    name: str
    component: str
    meaning: str
    threshold: str
    remedy: Remedy
    ends: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says of one reading: the parts of a Fact that the rule knows."""

    rule: str
    code: str
    remedy: Remedy
    severity: int
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every number that a rule compares with. Seconds, counts, ratios as their names say."""

    # Uncorrectable ECC errors of one GPU within a day before its node is drained for them; the
    # first one is an alert, for its Xid (48, 94, 95) has spoken already.
    ecc_uncorrected_day_count: float = 4.0
    # How long fewer GPUs than Slurm expects must be seen before it counts: a driver reload
    # takes some seconds.
    gpu_count_hold_seconds: float = 30.0
    # Readings in a row that must be frozen, with families gone, before a GPU counts as lost.
    freeze_readings: int = 2
    # A reading is fresh for this many of its own intervals, within these bounds.
    fresh_intervals: float = 3.0
    fresh_low_seconds: float = 90.0
    fresh_high_seconds: float = 7_200.0
    # A node whose newest reading is this much behind on arrival is catching up from its spool:
    # what it told of then may be over by now, so nothing is concluded until it has caught up.
    behind_seconds: float = 120.0
    clock_offset_seconds: float = 5.0
    # Readings in a row in which a BMC must call a sensor critical.
    bmc_readings: int = 2


_LATCHED = "when the node restarts, or comes back into service"
_STATE = "when a fresh reading says otherwise"

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule(
                "xid",
                "gpu",
                "The kernel logged an Xid whose action in NVIDIA's catalogue takes the GPU out of "
                "service (drain) or needs a person (alert). Xids of applications say nothing.",
                "one line; see models/xid.py for each code",
                Remedy.DRAIN,
                _LATCHED,
            ),
            Rule(
                "gpu_lost",
                "gpu",
                "The GPU is off the PCIe bus: NVML answers GPU_IS_LOST, or the kernel says so.",
                "one answer or line",
                Remedy.DRAIN,
                "kernel: " + _LATCHED + "; NVML: " + _STATE,
            ),
            Rule(
                "recovery_action",
                "gpu",
                "The driver itself asks for a reset, a restart or a drain (NVML field 230).",
                "any action but none",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "row_remap_failed",
                "gpu",
                "A row of GPU memory could not be remapped: NVIDIA's threshold for replacement.",
                "flag set",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "row_remap_pending",
                "gpu",
                "A row remap, or the retirement of a page, waits for a reset of the GPU.",
                "flag set",
                Remedy.ALERT,
                _STATE,
            ),
            Rule(
                "ecc_sram_threshold",
                "gpu",
                "Uncorrectable SRAM errors passed the threshold that the GPU itself keeps.",
                "flag set",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "ecc_uncorrected",
                "gpu",
                "Uncorrectable memory errors of one GPU within a day.",
                "1 for an alert, 4 for a drain",
                Remedy.DRAIN,
                "a day after the last one, or " + _LATCHED,
            ),
            Rule(
                "gpu_count",
                "gpu",
                "Fewer GPUs are seen than Slurm gives to jobs, while the source that counts "
                "them works. Not judged where MIG is on.",
                "one GPU short for 30 s",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "gpu_vanished",
                "gpu",
                "Memory, energy and counters of a GPU vanished at once while temperature, power, "
                "load and clocks stand still to the last digit: how a lost GPU looks.",
                "two readings in a row",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "sxid",
                "chassis",
                "An NVSwitch reported a fatal error: jobs over NVLink can't run until the "
                "switch and its GPUs are reset.",
                "one line with the word Fatal",
                Remedy.DRAIN,
                _LATCHED,
            ),
            Rule(
                "driver_init",
                "gpu",
                "The driver could not start the GPU (RmInitAdapter failed).",
                "one line",
                Remedy.DRAIN,
                _LATCHED + ", or NVML reads the GPU again",
            ),
            Rule(
                "driver",
                "node",
                "The driver does not work as it should: versions that do not match, a GPU "
                "that it says should be reset, a GPU that it can't reach.",
                "one line",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "pcie",
                "gpu",
                "A fatal PCIe error, a contained port or a link that went down.",
                "one line",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "memory_uncorrected",
                "memory",
                "The host's memory had an uncorrectable error (EDAC, or firmware by GHES).",
                "one",
                Remedy.DRAIN,
                _LATCHED,
            ),
            Rule(
                "machine_check",
                "chassis",
                "An uncorrected machine check that the host survived.",
                "one line",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "filesystem_readonly",
                "disk",
                "A local filesystem that should be writable went read-only.",
                "one",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "filesystem",
                "disk",
                "The kernel shut a filesystem down or made it read-only.",
                "one line",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "nic",
                "link",
                "A network adapter reports its own failure (health, fatal firmware error).",
                "one line",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "bmc_critical",
                "chassis",
                "The BMC calls a sensor critical: a fan, a power supply, a temperature.",
                "two readings in a row",
                Remedy.ALERT,
                _STATE,
            ),
            Rule(
                "sel",
                "chassis",
                "The BMC logged a critical event (SEL, Redfish log).",
                "one entry",
                Remedy.ALERT,
                _LATCHED + ", or the BMC says that it is over",
            ),
            Rule(
                "link_down",
                "link",
                "A port that was in use is down. Where a quarter of a switch's hosts (three at "
                "least) have trouble at once, it is the switch: an alert, no drain.",
                "60 s",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "link_not_configured",
                "link",
                "A port that was in use stays in Init: no subnet manager configures it. A drain "
                "only while the manager answers and no other host of the switch has trouble.",
                "300 s",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "link_degraded",
                "link",
                "A link runs at less than 95 % of the rate that it has held before: lanes are "
                "lost, or it trained too slowly.",
                "60 s",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "link_flaps",
                "link",
                "A link went down and came back, by its LinkDowned counter, and the node was not "
                "restarted meanwhile. Where a restart can't be ruled out: an alert.",
                "2 in 24 h, or 1 under a job",
                Remedy.DRAIN,
                "a day after the last one, or " + _LATCHED,
            ),
            Rule(
                "disk",
                "disk",
                "An NVMe disk reports a critical warning (SMART).",
                "any bit of the critical warning",
                Remedy.ALERT,
                _STATE,
            ),
            Rule(
                "clock",
                "node",
                "The node's clock is off: times of its events can't be trusted.",
                "5 s",
                Remedy.ALERT,
                _STATE,
            ),
        )
    }
)


# ---- events -----------------------------------------------------------------------------------


def of_xid(code: str, text: str) -> Finding | None:
    """The fact in one Xid event, None for an Xid of an application."""
    if not code.isascii() or not code.isdigit() or len(code) > 9:
        return None
    verdict = xid.judge(int(code), text)
    if verdict.remedy is Remedy.NONE:
        return None
    return Finding(
        "xid", f"x{code}", verdict.remedy, verdict.severity, verdict.text, verdict.advice
    )


def of_event(kind: str, code: str, severity: float, text: str) -> Finding | None:
    """The fact in an event of another kind, None if there is none."""
    make = _EVENTS.get((kind, code)) or _EVENTS.get((kind, "*"))
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


def of_sel(code: str, severity: float, text: str, device: str) -> Finding | None:
    """The fact in an entry of a BMC's log: an uncorrectable memory error, or a critical event."""
    if severity < 3:
        return None
    if code == "memory_uncorrectable":
        return of_event("edac", "uncorrected", severity, text)
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


# Rules whose latched fact a good NVML reading of the same GPU ends.
ENDED_BY_READING = frozenset({"driver_init"})


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


def gpu_count(seen: int, expected: int) -> Answer:
    """``seen`` GPUs where Slurm gives ``expected`` to jobs."""
    if seen >= expected:
        return False
    text = f"{seen} of {expected} GPUs seen"
    advice = "restart the node; if it comes back, look for the missing GPU"
    return Finding("gpu_count", "count", Remedy.DRAIN, 3, text, advice)


def readonly(fields: Mapping[str, Value]) -> Answer:
    """``filesystem_readonly``: how many local filesystems turned read-only."""
    return _flag(fields, "filesystem_readonly", _READONLY)


def disk_warning(fields: Mapping[str, Value]) -> Answer:
    """``critical_warning`` of a disk: a mask, 0 when all is well (NVMe base specification)."""
    return _flag(fields, "critical_warning", _DISK)


def clock(fields: Mapping[str, Value], thresholds: Thresholds) -> Answer:
    """``clock_offset_seconds``: how far the node's clock is from its time servers."""
    value = fields.get("clock_offset_seconds")
    if not isinstance(value, float):
        return None
    if abs(value) < thresholds.clock_offset_seconds:
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


def event_finding(sample: Sample) -> Finding | None:
    """The fact in an ``event`` sample, whatever its kind."""
    kind, code = sample.tag("kind"), sample.tag("code")
    text = sample.text("text")
    if kind == "xid":
        return of_xid(code, text)
    if kind == "sel":
        return of_sel(code, sample.number("severity") or 0.0, text, sample.text("device"))
    return of_event(kind, code, sample.number("severity") or 0.0, text)
