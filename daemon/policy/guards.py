"""The guards: each looks at one drain that is wanted and says why not, or what it saw.

A guard is a pure function of a Scene and a Candidate. All of them are asked, in the order of
GUARDS, so that ``tocsin explain`` can show what each one saw; the first that says no is the one
that a refusal names. Guards that count (the caps) come last: a drain that is refused for
another reason takes nobody's place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job
from collectors.slurm.state import left_over
from daemon.policy.candidates import Candidate
from daemon.policy.cases import ENDED, LedgerView, State
from daemon.policy.cost import Market, Weighed, weigh_node
from daemon.policy.decisions import Guard, Mode
from daemon.policy.holdout import held_out
from daemon.policy.limits import Limits
from daemon.policy.ran import RanOn
from models.facility import GroupEvent, held
from models.voices import Silence

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
ALIKE_TOLD_LIMIT = 50


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one guard said. ``text`` tells what it saw, also when it let the drain pass."""

    guard: Guard
    passed: bool
    text: str


@dataclass(slots=True)
class Scene:
    """Everything that a guard may look at. ``planned`` grows as drains of this cycle pass."""

    nodes: Mapping[str, NodeState]
    slurm_age_seconds: float
    silences: Mapping[str, Sequence[Silence]]
    coverage: Mapping[str, float]
    fleet_coverage: float
    limits: Limits
    ledger: LedgerView
    mode: Mode
    now_ns: int
    breaker: str
    onsets: Mapping[tuple[str, str], Sequence[tuple[int, str]]]  # (onset, node) in order of time
    groups: Mapping[str, tuple[str, ...]]
    members: Mapping[str, frozenset[str]]
    group_events: Sequence[GroupEvent] = ()
    planned: list[str] = field(default_factory=list)
    in_our_words: frozenset[str] = frozenset()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    ran: RanOn = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    wanted: Market = field(default_factory=lambda: Market({}, {}))
    # What each decision asks anew, and is the same for thousands of them.
    _alike: dict[tuple[str, str, int, int], frozenset[str]] = field(default_factory=dict)
    _first_alike: dict[frozenset[str], list[str]] = field(default_factory=dict)
    _plain_limits: dict[str, Any] = field(default_factory=dict)

    def held(self) -> set[str]:
        """The nodes that we hold out of service, those planned in this cycle included.

        For caps also those that stand drained in our words and are not in the ledger: one that was
        restored from a backup knows nothing of the drains since, and would make as many again.
        """
        return {*self.ledger.held, *self.planned, *self.in_our_words}

    def alike(self, one: Candidate) -> frozenset[str]:
        """The nodes that began to show the same within the window before or after ``one`` did.

        However long ago that was: what had one cause an hour ago has it still.
        """
        onsets = self.onsets.get((one.rule, one.code), ())
        window_ns = int(self.limits.common_cause_window_seconds * SECOND_NS)
        first = bisect_left(onsets, (one.onset_ns - window_ns, ""))
        last = bisect_left(onsets, (one.onset_ns + window_ns + 1, ""))
        key = (one.rule, one.code, first, last)
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = frozenset(node for _, node in onsets[first:last])
        return found

    def first_alike(self, one: Candidate) -> list[str]:
        """Those of them that a record names."""
        alike = self.alike(one)
        found = self._first_alike.get(alike)
        if found is None:
            found = self._first_alike[alike] = nsmallest(ALIKE_TOLD_LIMIT, alike)
        return found

    def plain_limits(self) -> dict[str, Any]:
        """The limits as JSON data, for a record."""
        if not self._plain_limits:
            self._plain_limits = self.limits.model_dump(mode="json")
        return self._plain_limits

    def weighed(self, one: Candidate) -> Weighed | None:
        """What a drain of a likelihood's node costs and saves; None for what is certain."""
        node = self.nodes.get(one.node)
        if one.voice == "fact" or node is None or not self.limits.cost.weigh:
            return None
        horizon_seconds = float(one.said.get("horizon_seconds") or 86_400.0)
        return weigh_node(
            node, one.probability, horizon_seconds, self.jobs, self.wanted,
            self.limits.cost, self.limits.jobs, self.now_ns,
        )  # fmt: skip

    def age(self, time_ns: int) -> str:
        """How long ago, in words."""
        seconds = max(0, self.now_ns - time_ns) // SECOND_NS
        return f"{seconds} s ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


Ask = Callable[[Scene, Candidate], tuple[bool, str]]


def _slurm_away(scene: Scene, one: Candidate) -> tuple[bool, str]:
    del one
    limit = scene.limits.slurm_age_seconds_max
    age = scene.slurm_age_seconds
    if age > limit:
        since = "never" if age == float("inf") else f"{age:.0f} s ago"
        return False, f"node states were last read {since}; at most {limit:g} s are trusted"
    return True, f"node states are {age:.0f} s old"


def _unknown_node(scene: Scene, one: Candidate) -> tuple[bool, str]:
    if one.node not in scene.nodes:
        return False, f"Slurm has no node {one.node}"
    return True, "Slurm knows the node"


def _ours(scene: Scene, one: Candidate) -> tuple[bool, str]:
    case = scene.ledger.held.get(one.node)
    if case is None:
        return True, "not held by tocsin"
    same = "this case" if case.id == one.id else f"case {case.id[:4]} ({case.code} {case.device})"
    return False, f"already taken out of service for {same}, {scene.age(case.intent_ns)}"


def _foreign(scene: Scene, one: Candidate) -> tuple[bool, str]:
    node = scene.nodes.get(one.node)
    if node is None:
        return True, "not in Slurm"
    if node.drain or node.failed or (node.down and node.reason):
        who = f" by {node.reason_user}" if node.reason_user else ""
        return False, f"{node.words}{who}, reason {node.reason!r}: not ours to change"
    if left_over(node, scene.ledger.returned_reasons.get(one.node, "")):
        return True, f"{node.words}; the reason is left from the drain that it came back from"
    if node.reason:
        return False, f"carries the reason {node.reason!r}, which is not ours"
    return True, f"{node.words} without a reason"


def _spent(scene: Scene, one: Candidate) -> tuple[bool, str]:
    case = scene.ledger.cases.get(one.id)
    if case is not None and case.state in ENDED:
        what = "was taken over by others" if case.state is State.FOREIGN else "came back"
        return False, f"this very case ended: the node {what} {scene.age(case.ended_ns)}"
    returned_ns = scene.ledger.returned_ns.get(one.node, 0)
    if one.voice == "fact" and one.onset_ns <= returned_ns:
        return False, f"older than the node's last return, {scene.age(returned_ns)}"
    return True, "newer than the node's last return"


def _not_registered(scene: Scene, one: Candidate) -> tuple[bool, str]:
    node = scene.nodes.get(one.node)
    if node is None or node.registered:
        return True, "registered and answering"
    return False, f"{node.words}: not registered and answering, so there is nothing to drain"


def _maintenance(scene: Scene, one: Candidate) -> tuple[bool, str]:
    node = scene.nodes.get(one.node)
    if node is not None and node.maintenance:
        where = f" {node.reservation}" if node.reservation else ""
        return False, f"in the maintenance reservation{where}"
    if node is not None and node.rebooting:
        return False, f"{node.words}: being rebooted through Slurm"
    return True, "no maintenance"


def _locked(scene: Scene, one: Candidate) -> tuple[bool, str]:
    by = scene.ledger.locked.get(one.node)
    if by:
        return False, f"locked: {by}"
    return True, "not locked"


def _denied(scene: Scene, one: Candidate) -> tuple[bool, str]:
    case = scene.ledger.cases.get(one.id)
    if case is not None and case.state is State.DENIED:
        return False, f"{case.user} said no to this case {scene.age(case.updated_ns)}"
    return True, "nobody said no"


def _hold_down(scene: Scene, one: Candidate) -> tuple[bool, str]:
    returned_ns = scene.ledger.returned_ns.get(one.node, 0)
    limit = scene.limits.hold_down_seconds
    if one.voice != "fact" and returned_ns and scene.now_ns - returned_ns < limit * SECOND_NS:
        return False, f"came back {scene.age(returned_ns)}; a risk counts after {limit:g} s"
    return True, "no hold-down"


def _tool_fault(scene: Scene, one: Candidate) -> tuple[bool, str]:
    silences = scene.silences.get(one.node, ())
    if one.voice == "fact" and one.rule not in scene.limits.absence_rules:
        return True, "read from something that was said, not from silence"
    readers = [silence for silence in silences if silence.cause in ("hung", "agent", "source")]
    if readers:
        return False, f"our own reader may be at fault: {readers[0].text}"
    if one.node in scene.refused:
        return False, f"this head refuses part of what the node sends: {scene.refused[one.node]}"
    return True, "the node's readers are heard"


def _coverage(scene: Scene, one: Candidate) -> tuple[bool, str]:
    if one.voice == "fact" and one.rule not in scene.limits.absence_rules:
        return True, "does not depend on what is missing"
    heard = scene.coverage.get(one.node, 0.0)
    limit = scene.limits.coverage_min
    if heard < limit:
        return False, f"{heard:.0%} of the node is heard, {limit:.0%} are needed"
    if scene.fleet_coverage < scene.limits.fleet_coverage_min:
        needed = scene.limits.fleet_coverage_min
        return False, f"{scene.fleet_coverage:.0%} of the fleet is heard, {needed:.0%} are needed"
    return True, f"{heard:.0%} of the node and {scene.fleet_coverage:.0%} of the fleet are heard"


def _common_cause(scene: Scene, one: Candidate) -> tuple[bool, str]:
    alike = scene.alike(one)
    limits = scene.limits
    window = f"within {limits.common_cause_window_seconds:g} s"
    if len(alike) > limits.common_cause_nodes:
        return False, f"{len(alike)} nodes show {one.code} {window}: one cause, look for it"
    for group in scene.groups.get(one.node, ()):
        near = alike & scene.members.get(group, frozenset())
        if len(near) > limits.common_cause_group_nodes:
            return False, f"{len(near)} nodes of {group} show {one.code} {window}: one cause"
    for job in scene.ran.get(one.node, ()):
        near = alike & job.nodes
        if len(near) > limits.common_cause_job_nodes and job.at(one.onset_ns):
            return False, (
                f"{len(near)} of the {len(job.nodes)} nodes of job {job.key} show {one.code} "
                f"{window}: one cause"
            )
    event = held(one.node, scene.groups, scene.group_events)
    if event is not None:
        return False, f"{event.group} has a {event.kind} of its own: {event.text}"
    return True, f"{max(1, len(alike))} node(s) show {one.code} {window}"


def _cost(scene: Scene, one: Candidate) -> tuple[bool, str]:
    if one.voice == "fact":
        return True, "certain: not weighed against what a drain costs"
    weighed = scene.weighed(one)
    if weighed is None:
        return True, "not weighed"
    case = scene.ledger.cases.get(one.id)
    if case is not None and case.state is State.APPROVED:
        return True, f"{case.user} said yes; {weighed.text}"
    return weighed.now, weighed.text


def _shadow(scene: Scene, one: Candidate) -> tuple[bool, str]:
    mode = scene.limits.mode_of(one.rule.partition(":")[0], one.voice, scene.mode)
    if mode is Mode.SHADOW:
        return False, "shadow: recorded, and nothing is done"
    return True, f"mode {mode.value}"


def _held_out(scene: Scene, one: Candidate) -> tuple[bool, str]:
    why = held_out(one.node, one.voice, scene.now_ns, scene.limits.holdout)
    return not why, why or "not held out"


def _approval(scene: Scene, one: Candidate) -> tuple[bool, str]:
    mode = scene.limits.mode_of(one.rule.partition(":")[0], one.voice, scene.mode)
    case = scene.ledger.cases.get(one.id)
    if mode is not Mode.APPROVE:
        return True, "needs no approval"
    if case is not None and case.state is State.APPROVED:
        return True, f"approved by {case.user} {scene.age(case.updated_ns)}"
    return False, "waits for a person: tocsin approve, or tocsin deny"


def _breaker(scene: Scene, one: Candidate) -> tuple[bool, str]:
    del one
    if scene.breaker:
        return False, f"the breaker is open: {scene.breaker}"
    return True, "the breaker is closed"


def _cap_cluster(scene: Scene, one: Candidate) -> tuple[bool, str]:
    del one
    limits = scene.limits
    total = len(scene.nodes)
    allowed = min(limits.drained_nodes_max, limits.share(total, limits.drained_share_max))
    held = len(scene.held())
    if held + 1 > allowed:
        return False, f"{held} of {total} nodes are held by tocsin; at most {allowed} may be"
    return True, f"{held} of at most {allowed} nodes held"


def _cap_partition(scene: Scene, one: Candidate) -> tuple[bool, str]:
    node = scene.nodes.get(one.node)
    limits = scene.limits
    held = scene.held()
    for partition in node.partitions if node else ():
        members = scene.members.get(f"partition {partition}", frozenset())
        allowed = limits.share(len(members), limits.partition_share_max)
        there = len(members & held)
        if there + 1 > allowed:
            return False, (
                f"{there} of {len(members)} nodes of partition {partition} are held; "
                f"at most {allowed} may be"
            )
    return True, "every partition keeps enough nodes"


def _cap_group(scene: Scene, one: Candidate) -> tuple[bool, str]:
    limits = scene.limits
    held = scene.held()
    for group in scene.groups.get(one.node, ()):
        members = scene.members.get(group, frozenset())
        allowed = limits.share(len(members), limits.group_share_max)
        there = len(members & held)
        if there + 1 > allowed:
            return False, (
                f"{there} of {len(members)} nodes of {group} are held; at most {allowed} may be"
            )
    return True, "every group keeps enough nodes"


def _cap_hour(scene: Scene, one: Candidate) -> tuple[bool, str]:
    del one
    recent = sum(1 for at_ns in scene.ledger.drains_ns if scene.now_ns - at_ns < HOUR_NS)
    recent += sum(
        1
        for name in scene.in_our_words - scene.ledger.held.keys()
        if scene.now_ns - scene.nodes[name].reason_time_ns < HOUR_NS
    )
    made = recent + len(scene.planned)
    allowed = scene.limits.drains_per_hour
    if made + 1 > allowed:
        return False, f"{made} drains in the last hour; at most {allowed} are allowed"
    return True, f"{made} of at most {allowed} drains in the last hour"


GUARDS: tuple[tuple[Guard, Ask], ...] = (
    (Guard.SLURM_AWAY, _slurm_away),
    (Guard.UNKNOWN_NODE, _unknown_node),
    (Guard.OURS, _ours),
    (Guard.FOREIGN, _foreign),
    (Guard.SPENT, _spent),
    (Guard.NOT_REGISTERED, _not_registered),
    (Guard.MAINTENANCE, _maintenance),
    (Guard.LOCKED, _locked),
    (Guard.DENIED, _denied),
    (Guard.HOLD_DOWN, _hold_down),
    (Guard.TOOL_FAULT, _tool_fault),
    (Guard.COVERAGE, _coverage),
    (Guard.COMMON_CAUSE, _common_cause),
    (Guard.COST, _cost),
    (Guard.SHADOW, _shadow),
    (Guard.HELD_OUT, _held_out),
    (Guard.APPROVAL, _approval),
    (Guard.BREAKER, _breaker),
    (Guard.CAP_CLUSTER, _cap_cluster),
    (Guard.CAP_PARTITION, _cap_partition),
    (Guard.CAP_GROUP, _cap_group),
    (Guard.CAP_HOUR, _cap_hour),
)


# Refusals of nodes that are out already, or about which a person or the hold-out has spoken.
SETTLED = frozenset(
    {
        Guard.UNKNOWN_NODE, Guard.OURS, Guard.FOREIGN, Guard.SPENT, Guard.NOT_REGISTERED,
        Guard.MAINTENANCE, Guard.LOCKED, Guard.DENIED, Guard.HELD_OUT,
    }
)  # fmt: skip


def only_watched(rule_mode: Mode, daemon: Mode) -> bool:
    """Whether a rule is in shadow where the daemon is not: it must change nothing."""
    return rule_mode is Mode.SHADOW and daemon is not Mode.SHADOW


def asks_now(scene: Scene, one: Candidate) -> bool:
    """Whether a candidate counts for the breaker: a node in service that is to be drained now."""
    mode = scene.limits.mode_of(one.rule.partition(":")[0], one.voice, scene.mode)
    if only_watched(mode, scene.mode):
        return False
    return all(ask(scene, one)[0] for guard, ask in GUARDS if guard in SETTLED)


def ask_all(scene: Scene, one: Candidate) -> list[Verdict]:
    """What every guard says, in order."""
    return [Verdict(guard, *ask(scene, one)) for guard, ask in GUARDS]


def first_no(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The guard that a refusal names."""
    return next((verdict for verdict in verdicts if not verdict.passed), None)
