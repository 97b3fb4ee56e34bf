"""What to do about a fault, and what next when that did not help. Pure.

The first step is the one that the vendor publishes for the cause (the Xid catalogue, the recovery
action, the rule's own table). Each drain of the same part that comes after it goes one step up:
reset, reboot, power cycle, RMA. A reset runs inside the driver, a reboot makes the driver anew,
only a power cycle takes the voltage away, and what comes back after that is the part's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from collectors.kernel.nvidia import recovery_action
from daemon.policy.cases import LedgerView, State
from models import xid


class Step(StrEnum):
    """What is done to a node or its part; the order of the members is the order of force."""

    NONE = ""  # no step of these: look at the advice
    RESET = "reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    RMA = "rma"


LADDER = (Step.RESET, Step.REBOOT, Step.POWER_CYCLE, Step.RMA)
WORDS: Mapping[Step, str] = MappingProxyType(
    {
        Step.NONE: "",
        Step.RESET: "reset the GPU (nvidia-smi -r)",
        Step.REBOOT: "reboot the node",
        Step.POWER_CYCLE: "power cycle the node: off for a minute, then on",
        Step.RMA: "replace the part (RMA)",
    }
)

_BY_IMMEDIATE: Mapping[str, Step] = MappingProxyType(
    {
        "RESET_GPU": Step.RESET,
        "WORKFLOW_XID_48": Step.RESET,
        "WORKFLOW_NVLINK_ERR": Step.RESET,
        "RESTART_BM": Step.REBOOT,
        "RESTART_VM": Step.REBOOT,
        "CHECK_MECHANICALS": Step.POWER_CYCLE,
        "CONTACT_SUPPORT": Step.RMA,
    }
)
_BY_RECOVERY: Mapping[str, Step] = MappingProxyType(
    {
        "gpu_reset": Step.RESET,
        "drain_and_reset": Step.RESET,
        "bus_reset": Step.RESET,
        "node_reboot": Step.REBOOT,
        "system_reboot": Step.REBOOT,
    }
)
_BY_RULE: Mapping[str, Step] = MappingProxyType(
    {
        "sxid": Step.RESET,
        "row_remap_pending": Step.RESET,
        "ecc_uncorrected": Step.RESET,
        # A lost GPU does not answer a reset either.
        "gpu_lost": Step.REBOOT,
        "gpu_vanished": Step.REBOOT,
        "gpu_count": Step.REBOOT,
        "pcie_gone": Step.REBOOT,
        "driver_init": Step.REBOOT,
        "gpu_unreadable": Step.REBOOT,
        # NVIDIA's own criteria for a replacement: no spare row left, SRAM threshold passed.
        "row_remap_failed": Step.RMA,
        "ecc_sram_threshold": Step.RMA,
    }
)


@dataclass(frozen=True, slots=True)
class Escalation:
    """The step to take now; ``repeats``: drains of the same part before this one."""

    step: Step
    first: Step
    repeats: int
    text: str

    def plain(self) -> dict[str, object]:
        """As JSON data."""
        return {"step": self.step.value, "first": self.first.value, "repeats": self.repeats,
                "text": self.text}  # fmt: skip


def first_step(rule: str, code: str, text: str, evidence: Sequence[str]) -> Step:
    """What the published tables say of a cause. ``evidence``: the lines that told it.

    >>> first_step("xid", "x79", "", ())
    <Step.REBOOT: 'reboot'>
    """
    line = evidence[0] if evidence else ""
    if rule == "xid" and code[1:].isdecimal() and len(code) <= 6:
        number = int(code[1:])
        if number == 154:
            return _BY_RECOVERY.get(recovery_action(line), Step.NONE)
        return _BY_IMMEDIATE.get(xid.judge(number, line).immediate, Step.NONE)
    if rule == "recovery_action":
        asked = text.removeprefix("driver asks: ").replace(" ", "_")
        return _BY_RECOVERY.get(asked, Step.NONE)
    return _BY_RULE.get(rule, Step.NONE)


def repeats_of(
    case: str, node: str, device: str, view: LedgerView, begin_ns: int, before_ns: int
) -> int:
    """Drains of the same part since ``begin_ns``, this case and those called wrong left out.

    What was before the part was replaced counts for another part.
    """
    begin_ns = max(begin_ns, view.anew_ns.get(node, 0), view.anew_ns.get(f"{node}/{device}", 0))
    return sum(
        1
        for one in view.cases_of(node, device)
        if one.id != case
        and one.acknowledged_ns
        and begin_ns < one.intent_ns < before_ns
        and one.verdict is not False
        and one.state is not State.FOREIGN
    )


def escalate(first: Step, repeats: int, device: str, days: float) -> Escalation:
    """The step for a part that was drained ``repeats`` times before within ``days``.

    >>> escalate(Step.REBOOT, 1, "gpu3", 30).step
    <Step.POWER_CYCLE: 'power_cycle'>
    """
    if first is Step.NONE:
        return Escalation(first, first, repeats, "")
    step = LADDER[min(len(LADDER) - 1, LADDER.index(first) + repeats)]
    if not repeats:
        return Escalation(step, first, 0, "")
    times = "once" if repeats == 1 else f"{repeats} times"
    what = device or "the node"
    text = f"{what} was drained {times} before in {days:g} days: {WORDS[step]}"
    return Escalation(step, first, repeats, text)
