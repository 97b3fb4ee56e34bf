"""``decide``: from what is known to what should be done. Pure: no clock, no files, no Slurm.

Everything it decides from is handed in, and everything that moved a decision is kept in the
decision's ``inputs``, so that it can be rebuilt and explained days later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job
from daemon.drains.escalation import Escalation, escalate, first_step, repeats_of
from daemon.policy.candidates import (
    OUR_WORDS,
    Candidate,
    node_chances,
    of_facts,
    of_risks,
    reason_of,
)
from daemon.policy.cases import LedgerView
from daemon.policy.cost import Market, market, until_free_hours
from daemon.policy.decisions import Action, Decision, Guard, Mode, decision_id
from daemon.policy.groups import joined, of_reservations
from daemon.policy.guards import SECOND_NS, Scene, Verdict, ask_all, asks_now, first_no
from daemon.policy.limits import Limits
from daemon.policy.ran import RanOn
from daemon.policy.speaking import speaks
from models.facility import GroupEvent
from models.voices import Fact, Remedy, Risk, Silence

# The rule name under which silences of the whole fleet are told.
FLEET_SILENCE_RULE = "fleet_silence"
_NODE_FIELDS = tuple(one.name for one in fields(NodeState))


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known at one moment.

    ``groups`` gives the racks, leaf switches and PDUs that a node belongs to (``rack r07``), for
    common causes and caps; the reservation that it stands in is one beside them. ``coverage`` is
    the share of each node that is heard, 0 to 1; a node that is not in it counts as not heard.
    ``group_events`` is what happens to whole racks and power feeds. ``jobs`` are those that hold
    nodes, by id; ``ran`` those over several nodes that hold or held each node. ``refused`` are the
    nodes of which the head itself does not take all that they send, and why.
    """

    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    slurm_age_seconds: float = float("inf")
    facts: Sequence[Fact] = ()
    silences: Sequence[Silence] = ()
    risks: Sequence[Risk] = ()
    coverage: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_events: Sequence[GroupEvent] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    ran: RanOn = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def decide(
    situation: Situation, limits: Limits, ledger: LedgerView, mode: Mode, now_ns: int
) -> list[Decision]:
    """Every decision of this moment: alerts, drains, and refusals with the guard that said no.

    One drain or refusal a node at most, for the gravest candidate that may speak for it; what else
    stands against the node is in ``inputs``. The order is the order in which drains were weighed.
    """
    scene, drains, alerts, chances = _weighed(situation, limits, ledger, mode, now_ns)
    decisions = [_drain_or_hold(scene, one, chances) for one in drains]
    decisions.extend(_alert(scene, one, chances) for one in alerts)
    decisions.extend(_of_silences(scene, situation))
    return decisions


def explain_node(
    node: str, situation: Situation, limits: Limits, ledger: LedgerView, mode: Mode, now_ns: int
) -> tuple[list[Verdict], float | None]:
    """What the guards would say of a drain of ``node``, and its highest risk, if it has one.

    For ``tocsin explain NODE`` of a node against which nothing stands.
    """
    scene, drains, _, chances = _weighed(situation, limits, ledger, mode, now_ns)
    own = next((one for one in drains if one.node == node), None)
    one = own or Candidate(
        decision_id(node, "none", "", 0), node, "", "node", "none", "none", "fact",
        now_ns, 0, Remedy.NONE, 0.0, "nothing stands against it", "",
    )  # fmt: skip
    return ask_all(scene, one), chances.get(node)


def breaker_reason(wanted: int, limits: Limits, ledger: LedgerView, now_ns: int) -> str:
    """Why the breaker must open, or empty. ``wanted``: nodes that ask for a drain now."""
    window_ns = int(limits.breaker_window_seconds * SECOND_NS)
    hours = limits.breaker_window_seconds / 3600.0
    # What a person has looked at when closing it does not open it again.
    begin_ns = max(now_ns - window_ns, ledger.breaker_closed_ns)
    drains = sum(1 for at_ns in ledger.drains_ns if at_ns > begin_ns)
    wrong = sum(1 for at_ns in ledger.wrong_verdicts_ns if at_ns > begin_ns)
    if drains >= limits.breaker_drains:
        return f"{drains} drains within {hours:g} h; {limits.breaker_drains} open it"
    if wrong >= limits.breaker_wrong_verdicts:
        return f"{wrong} drains of the last {hours:g} h were called wrong"
    if wanted >= limits.breaker_candidates:
        return f"{wanted} nodes ask for a drain at once; {limits.breaker_candidates} open it"
    return ""


# ---- inside ------------------------------------------------------------------------------------


def _weighed(
    situation: Situation, limits: Limits, ledger: LedgerView, mode: Mode, now_ns: int
) -> tuple[Scene, list[Candidate], list[Candidate], Mapping[str, float]]:
    """The scene, drains (one a node, gravest first), alerts, the highest risk of each node."""
    wanted, alerts, chances = _candidates(situation, limits, ledger, now_ns)
    everything = [one for own in wanted.values() for one in own]
    scene = scene_of(situation, limits, ledger, mode, now_ns, everything)
    newest = {one.node: one for one in sorted(everything, key=lambda one: one.onset_ns)
              if one.voice == "fact"}  # fmt: skip
    drains = [
        replace(
            speaks(scene, own),
            newest_onset_ns=newest[node].onset_ns if node in newest else 0,
            newest=f"{newest[node].code} {newest[node].device}" if node in newest else "",
        )
        for node, own in wanted.items()
    ]
    # Where caps allow only some: of equally grave ones those that cost no job its place, idle
    # nodes first, then those whose jobs end soonest.
    drains.sort(
        key=lambda one: (
            *one.order[:2],
            until_free_hours(situation.nodes.get(one.node), situation.jobs, now_ns),
            *one.order[2:],
            one.id,
        )
    )
    return scene, drains, alerts, chances


def _candidates(
    situation: Situation, limits: Limits, ledger: LedgerView, now_ns: int
) -> tuple[dict[str, list[Candidate]], list[Candidate], Mapping[str, float]]:
    """What wants each node drained (gravest first), alerts, and the highest risk of each node."""
    chances = node_chances(situation.risks)
    facts = of_facts(situation.facts, chances)
    wanted = [one for one in facts if one.remedy is Remedy.DRAIN]
    wanted.extend(of_risks(situation.risks, limits.risk_threshold, ledger, now_ns))
    by_node: dict[str, list[Candidate]] = {}
    for one in sorted(wanted, key=lambda one: (*one.order, one.id)):
        by_node.setdefault(one.node, []).append(one)
    alerts = [one for one in facts if one.remedy is Remedy.ALERT]
    return by_node, alerts, chances


def scene_of(
    situation: Situation,
    limits: Limits,
    ledger: LedgerView,
    mode: Mode,
    now_ns: int,
    drains: Sequence[Candidate],
) -> Scene:
    """What the guards look at, for ``drains`` of this moment."""
    silences: dict[str, list[Silence]] = {}
    for silence in situation.silences:
        silences.setdefault(silence.node, []).append(silence)
    members: dict[str, set[str]] = {}
    for name, node in situation.nodes.items():
        for partition in node.partitions:
            members.setdefault(f"partition {partition}", set()).add(name)
    groups = joined(
        situation.groups,
        of_reservations({n: one.reservation for n, one in situation.nodes.items()}),
    )
    for name, own in groups.items():
        for group in own:
            members.setdefault(group, set()).add(name)
    heard = [situation.coverage.get(name, 0.0) for name in situation.nodes]
    scene = Scene(
        nodes=situation.nodes,
        slurm_age_seconds=situation.slurm_age_seconds,
        silences=silences,
        coverage=situation.coverage,
        fleet_coverage=sum(heard) / len(heard) if heard else 0.0,
        limits=limits,
        ledger=ledger,
        mode=mode,
        now_ns=now_ns,
        breaker=ledger.breaker,
        onsets=_onsets(drains),
        groups=groups,
        group_events=situation.group_events,
        members={group: frozenset(names) for group, names in members.items()},
        jobs=situation.jobs,
        ran=situation.ran,
        refused=situation.refused,
        in_our_words=frozenset(
            name
            for name, node in situation.nodes.items()
            if node.drain and node.reason.startswith(OUR_WORDS)
        ),
        wanted=market(situation.nodes, situation.jobs)
        if any(one.voice != "fact" for one in drains)
        else Market({}, {}),
    )
    if not scene.breaker:
        asking = {one.node for one in drains if asks_now(scene, one)}
        scene.breaker = breaker_reason(len(asking), limits, ledger, now_ns)
    return scene


def _onsets(drains: Iterable[Candidate]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Since when which nodes show the same rule and code, in order of time."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for one in drains:
        found.setdefault((one.rule, one.code), []).append((one.onset_ns, one.node))
    return {key: sorted(onsets) for key, onsets in found.items()}


def _drain_or_hold(scene: Scene, one: Candidate, chances: Mapping[str, float]) -> Decision:
    verdicts = ask_all(scene, one)
    refusal = first_no(verdicts)
    if refusal is None:
        scene.planned.append(one.node)
    return _decision(
        scene, one, Action.HOLD if refusal else Action.DRAIN, verdicts, chances, refusal
    )


def _alert(scene: Scene, one: Candidate, chances: Mapping[str, float]) -> Decision:
    return _decision(scene, one, Action.ALERT, [], chances, None)


def _decision(
    scene: Scene,
    one: Candidate,
    action: Action,
    verdicts: Sequence[Verdict],
    chances: Mapping[str, float],
    refusal: Verdict | None,
) -> Decision:
    held = scene.ledger.held.get(one.node)
    same = held is not None and held.id == one.id
    next_ = _escalation(scene, one)
    reason = (
        held.reason
        if same and held
        else reason_of(one, scene.ledger.names.like(one.id), chances.get(one.node))
    )
    return Decision(
        id=one.id,
        time_ns=scene.now_ns,
        node=one.node,
        device=one.device,
        component=one.component,
        action=action,
        voice=one.voice,
        rule=one.rule,
        code=one.code,
        mode=scene.limits.mode_of(one.rule.partition(":")[0], one.voice, scene.mode),
        reason=reason,
        guard=refusal.guard if refusal else None,
        guard_text=refusal.text if refusal else "",
        probability=one.probability,
        severity=one.severity,
        advice=_advice(scene, one, next_),
        inputs={
            **_inputs(scene, one, verdicts, chances),
            "escalation": next_.plain() if next_ else None,
        },
    )


def _escalation(scene: Scene, one: Candidate) -> Escalation | None:
    """The step for what is certain of a part; None for a likelihood or a mere alert."""
    if one.voice != "fact":
        return None
    seconds = scene.limits.flap_window_seconds
    begin_ns = scene.now_ns - int(seconds * SECOND_NS)
    repeats = repeats_of(one.id, one.node, one.device, scene.ledger, begin_ns, scene.now_ns)
    evidence = [str(line) for line in one.said.get("evidence") or ()]
    first = first_step(one.rule, one.code, one.text, evidence)
    return escalate(first, repeats, one.device, seconds / 86_400)


def _advice(scene: Scene, one: Candidate, next_: Escalation | None) -> str:
    """The voice's own advice, and more where the part or the node fails again and again."""
    limits = scene.limits
    begin_ns = scene.now_ns - int(limits.flap_window_seconds * SECOND_NS)
    begin_ns = max(begin_ns, scene.ledger.anew_ns.get(one.node, 0))
    before = sum(1 for at_ns in scene.ledger.drains_of.get(one.node, ()) if at_ns > begin_ns)
    words = [one.advice]
    if one.remedy is Remedy.DRAIN:
        if next_ is not None and next_.text:
            words.append(next_.text)
        if before >= limits.flap_drains:
            days = limits.flap_window_seconds / 86_400
            words.append(f"drained {before} times in {days:g} days: replace the part (RMA)")
    return "; ".join(word for word in words if word)


def _inputs(
    scene: Scene, one: Candidate, verdicts: Sequence[Verdict], chances: Mapping[str, float]
) -> dict[str, Any]:
    """Plain JSON data from which the decision can be rebuilt and told."""
    node = scene.nodes.get(one.node)
    weighed = scene.weighed(one)
    return {
        "onset_ns": one.onset_ns,
        "newest_onset_ns": one.newest_onset_ns,
        "newest": one.newest,
        "text": one.text,
        "said": dict(one.said),
        "beside": list(one.beside),
        "node": _plain_node(node) if node else None,
        "slurm_age_seconds": _finite(scene.slurm_age_seconds),
        "risk": chances.get(one.node),
        "cost": weighed.plain() if weighed else None,
        "coverage": scene.coverage.get(one.node),
        "fleet_coverage": scene.fleet_coverage,
        "silences": [asdict(silence) for silence in scene.silences.get(one.node, ())],
        "groups": list(scene.groups.get(one.node, ())),
        "cause": f"{one.rule}/{one.code}",
        "mode": scene.mode.value,
        "limits": scene.plain_limits(),
        "cluster": {
            "nodes": len(scene.nodes),
            "held": len(scene.ledger.held),
            "drains_of_node": len(scene.ledger.drains_of.get(one.node, ())),
            "planned": len(scene.planned),
            "alike": scene.first_alike(one),
        },
        "guards": [
            {"guard": verdict.guard.value, "passed": verdict.passed, "text": verdict.text}
            for verdict in verdicts
        ],
    }


def _plain_node(node: NodeState) -> dict[str, Any]:
    # Its fields one by one: asdict copies each value, of ten thousand nodes for two seconds.
    plain: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name in _NODE_FIELDS
        for value in (getattr(node, name),)
    }
    plain["flags"] = sorted(node.flags)
    plain["words"] = node.words
    return plain


def _finite(value: float) -> float | None:
    return value if value != float("inf") else None


def _of_silences(scene: Scene, situation: Situation) -> list[Decision]:
    """Silence is told and never drains. Many silent nodes are one thing to tell."""
    silent = {silence.node for silence in situation.silences if silence.cause == "agent"}
    total = len(scene.nodes)
    many = max(scene.limits.common_cause_nodes, scene.limits.share(total, 0.5))
    if total > 1 and len(silent) >= min(many, max(2, total // 2)):
        first = min(s.since_ns for s in situation.silences if s.cause == "agent")
        return [_fleet_silent(scene, silent, first)]
    return [_silent(scene, silence) for silence in situation.silences]


def _silent(scene: Scene, silence: Silence) -> Decision:
    rule = f"silence:{silence.source or silence.cause}"
    return Decision(
        id=decision_id(silence.node, rule, "", silence.since_ns),
        time_ns=scene.now_ns,
        node=silence.node,
        device="",
        component="node",
        action=Action.ALERT,
        voice="silence",
        rule=rule,
        code="silent",
        mode=scene.mode,
        reason=silence.text,
        severity=1,
        probability=0.0,
        inputs={"onset_ns": silence.since_ns, "silence": asdict(silence)},
    )


def _fleet_silent(scene: Scene, silent: set[str], since_ns: int) -> Decision:
    total = len(scene.nodes)
    return Decision(
        id=decision_id("", FLEET_SILENCE_RULE, "", since_ns),
        time_ns=scene.now_ns,
        node="",
        device="",
        component="fleet",
        action=Action.ALERT,
        voice="silence",
        rule=FLEET_SILENCE_RULE,
        code="silent",
        mode=scene.mode,
        reason=f"{len(silent)} of {total} nodes are not heard at once: one cause, and no drains",
        guard=Guard.COMMON_CAUSE,
        guard_text="many nodes fell silent at once",
        severity=3,
        probability=0.0,
        inputs={"onset_ns": since_ns, "nodes": sorted(silent)[:200], "count": len(silent)},
    )
