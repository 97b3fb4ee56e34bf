"""The table of rules: what each means, from which threshold on, what it asks for, when it ends.

``tocsin explain`` and the documentation print it; the numbers themselves stand in Thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
    # A dcgm-exporter reads each 30 s, and answers everybody from that: what it missed once may be
    # told several times. So long it must last where one is among the readers.
    freeze_cached_seconds: float = 60.0
    # Where no other GPU of the node answers either, an exporter whose fields were changed looks the
    # same. Work does not stand still: for so long at part load, or at full load (which is steady).
    freeze_part_load_seconds: float = 300.0
    freeze_full_load_seconds: float = 3600.0
    # Where readings come so seldom, what a single one tells is told at once.
    seldom_seconds: float = 60.0
    # A reading is fresh for this many of its own intervals, within these bounds.
    fresh_intervals: float = 3.0
    fresh_low_seconds: float = 90.0
    fresh_high_seconds: float = 7_200.0
    # A node whose newest reading is this much behind on arrival is catching up from its spool:
    # what it told of then may be over by now, so nothing is concluded until it has caught up.
    behind_seconds: float = 120.0
    # What happened this long before the first reading of a node is only told, not acted on.
    watch_slack_seconds: float = 300.0
    clock_offset_seconds: float = 5.0
    # The same by when readings arrive, which is late by sending, too.
    clock_skew_seconds: float = 60.0
    # Readings in a row in which a BMC must call a sensor critical.
    bmc_readings: int = 2
    # Readings in a row in which a PCIe device must be gone, or its link narrow.
    pcie_readings: int = 2

    def fresh_ns(self, interval_ns: int) -> int:
        """For how long a reading of something that comes every ``interval_ns`` is evidence."""
        seconds = self.fresh_intervals * interval_ns / 1e9
        return int(min(max(seconds, self.fresh_low_seconds), self.fresh_high_seconds) * 1e9)


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
                "them works. Not judged where MIG is on. Where Slurm newly asks for more than were "
                "ever seen, its configuration was changed: an alert, no drain. The same where only "
                "dcgm-exporter counts and never listed more: it may be restricted (-d).",
                "one GPU short for 30 s",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "gpu_vanished",
                "gpu",
                "Memory, energy and counters of a GPU vanished at once while temperature, power, "
                "load and clocks stand still to the last digit: how a lost GPU looks. Where no "
                "other GPU of the node still has them, their reader may be the cause: an alert.",
                "two readings in a row; a minute where a dcgm-exporter reads",
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
                "pcie_gone",
                "gpu",
                "A PCIe device is no longer there, or reads all ones: it is off the bus. A drain "
                "for a GPU, an alert for a network card or a disk.",
                "two readings in a row (a reset of the GPU takes it away for a moment)",
                Remedy.DRAIN,
                _STATE,
            ),
            Rule(
                "pcie_width",
                "gpu",
                "A PCIe link has fewer lanes than both of its ends can do. The speed is "
                "judged by pcie_speed, for an idle GPU lowers it by itself.",
                "two readings in a row",
                Remedy.ALERT,
                _STATE,
            ),
            Rule(
                "pcie_speed",
                "gpu",
                "The PCIe link of a GPU under load runs slower than both of its ends can. While it "
                "is idle nothing is said: the driver lowers the speed by itself.",
                "load of half or more, two readings in a row",
                Remedy.ALERT,
                _STATE,
            ),
            Rule(
                "memory_uncorrected",
                "memory",
                "The host's memory had an uncorrectable error (EDAC, firmware by GHES, the BMC's "
                "log). An entry of that log whose time is not known is an alert.",
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
                "supplies",
                "chassis",
                "A power supply that was there failed or is gone; critical when half are gone.",
                "two readings in a row",
                Remedy.ALERT,
                _STATE,
            ),
            Rule(
                "fans",
                "chassis",
                "Several fans at once are critical or stand still.",
                "two fans, two readings in a row",
                Remedy.ALERT,
                _STATE,
            ),
            Rule(
                "leak",
                "chassis",
                "The BMC's leak detector reports coolant where it should not be.",
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
                "least) have trouble at once, it is the switch: an alert, no drain. Without a "
                "sweep of the fabric three hosts at once are enough.",
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
                "gpu_unlisted",
                "gpu",
                "The driver no longer lists a GPU that it has listed before. Whether the node is "
                "short of GPUs is for gpu_count to say: an operator may have taken one away.",
                "one complete list without it",
                Remedy.ALERT,
                _LATCHED + ", or the driver lists it again",
            ),
            Rule(
                "gpu_unreadable",
                "gpu",
                "nvidia-smi names a GPU that it can't read, for another reason than that it is "
                "lost. A device that a cgroup hides is no fault and says nothing.",
                "one answer",
                Remedy.ALERT,
                _LATCHED + ", or NVML reads the GPU again",
            ),
            Rule(
                "repair",
                "gpu",
                "A repair of GPU memory or of a TPC waits for a reset, memory can't be repaired "
                "any more, or nvidia-smi calls the board's own data (infoROM) damaged.",
                "one report",
                Remedy.ALERT,
                _LATCHED + ", or it is no longer reported",
            ),
            Rule(
                "fabric",
                "gpu",
                "The GPU has not joined its NVLink fabric: Fabric Manager or IMEX does not run, or "
                "failed. On machines with NVSwitches no job can use it then.",
                "five minutes of it",
                Remedy.ALERT,
                _LATCHED + ", or the fabric is set up again",
            ),
            Rule(
                "dcgm_health",
                "gpu",
                "A health watch of DCGM reports a failure. Its warnings are kept and not told; "
                "what DCGM calls an internal error is DCGM's own and no fault of a GPU.",
                "one report",
                Remedy.ALERT,
                _LATCHED + ", or DCGM calls it well again",
            ),
            Rule(
                "dcgm_diag",
                "gpu",
                "A test of DCGM's diagnostics failed.",
                "one result",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "topology",
                "chassis",
                "A GPU or network card sits otherwise than its peers: in a weaker slot, on "
                "another memory node than its card, or with fewer NVLinks.",
                "one audit",
                Remedy.ALERT,
                _LATCHED + ", or an audit finds it as it should be",
            ),
            Rule(
                "check",
                "node",
                "A check of the site's own, or a systemd unit that must be active, failed.",
                "one result",
                Remedy.ALERT,
                _LATCHED + ", or the check is well again",
            ),
            Rule(
                "kernel",
                "node",
                "The kernel had a panic or an oops, or a processor was locked up.",
                "one line",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "nvme",
                "disk",
                "The kernel lost an NVMe drive: its controller is down or does not answer.",
                "one line",
                Remedy.ALERT,
                _LATCHED,
            ),
            Rule(
                "clock",
                "node",
                "The node's clock is off: times of its events can't be trusted.",
                "5 s by its time servers, 60 s by the head's clock",
                Remedy.ALERT,
                _STATE,
            ),
        )
    }
)
