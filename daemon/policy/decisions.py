"""The words of policy: Action, Mode, Guard, Decision. Data only; ``policy.decide`` makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Mode(StrEnum):
    """How far tocsin may go: watch only, ask a person, or act."""

    SHADOW = "shadow"
    APPROVE = "approve"
    ACT = "act"


class Action(StrEnum):
    """What a decision is about. ``hold`` is a drain that a guard refused."""

    ALERT = "alert"
    DRAIN = "drain"
    HOLD = "hold"
    RESUME = "resume"


class Guard(StrEnum):
    """Why a drain was refused. Each value is a word that operators meet; keep it stable."""

    SHADOW = "shadow"  # the rule or the daemon only watches
    APPROVAL = "approval"  # waits for a person's yes
    DENIED = "denied"  # a person said no to this very cause
    FOREIGN = "foreign"  # the node is drained, down or reasoned by somebody else
    OURS = "ours"  # already drained by us
    UNKNOWN_NODE = "unknown_node"  # Slurm does not know this node
    NOT_REGISTERED = "not_registered"  # down, not responding, powered off, or slurmctld just back
    SLURM_AWAY = "slurm_away"  # node states are stale: slurmctld does not answer
    TOOL_FAULT = "tool_fault"  # what we heard may be our own tool's fault
    COVERAGE = "coverage"  # too little of the node or fleet is heard to judge
    COMMON_CAUSE = "common_cause"  # many nodes at once: one cause, not many faults
    CAP_CLUSTER = "cap_cluster"
    CAP_HOUR = "cap_hour"
    CAP_PARTITION = "cap_partition"
    BREAKER = "breaker"  # tripped: no drains until a person closes it
    MAINTENANCE = "maintenance"  # the node is in a maintenance reservation
    LOCKED = "locked"  # a person locked the node against tocsin
    HOLD_DOWN = "hold_down"  # it came back a short while ago
    CAP_GROUP = "cap_group"  # rack, leaf switch, PDU or reservation
    SPENT = "spent"  # the cause is older than the node's last return
    HELD_OUT = "held_out"  # a risk on a node that is held out this week: recorded, not acted on
    COST = "cost"  # a drain for a risk would cost more GPU-hours than it saves now


def decision_id(node: str, rule: str, device: str, onset_ns: int) -> str:
    """The id of the case "this rule, this device, this onset": 16 hex digits.

    It is a hash of what happened, not a counter, so that a head that is killed and started
    again names the same case by the same id and never acts on it twice.
    """
    text = f"{node}\0{rule}\0{device}\0{onset_ns}"
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Decision:
    """What tocsin decided about one node: an act, or a refusal with the guard that said no.

    ``id`` names the case; ``guard`` is None when nothing refused. ``inputs`` is plain JSON
    data: everything ``tocsin explain`` needs to rebuild the decision (fact or risk, the
    node's state in Slurm, thresholds, what each guard saw).
    """

    id: str
    time_ns: int
    node: str
    device: str
    component: str
    action: Action
    voice: str  # fact, silence, risk or history
    rule: str
    code: str
    mode: Mode
    reason: str
    guard: Guard | None = None
    guard_text: str = ""
    probability: float = 1.0
    severity: int = 2
    advice: str = ""
    inputs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def short_id(self) -> str:
        """What people type: the first four hex digits of the id."""
        return self.id[:4]
