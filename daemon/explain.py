"""Why a node was, or was not, drained, in words. Pure: records in, an Explanation out.

Everything comes from what was written down when the decision was made (its ``inputs``), the
audit and the events, so that the answer is the same days later and after any restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from daemon.drains.ledger import Entry
from daemon.page.view import (
    DecisionView,
    Explanation,
    GuardView,
    SignalView,
    TimelineEntry,
    iso,
)
from daemon.policy.cases import Case, State
from daemon.policy.decisions import Action, Decision, Guard
from daemon.policy.guards import Verdict
from daemon.store.events import Event
from models.rulebook import RULES

STATUS = {
    State.WATCH: "recorded",
    State.PROPOSED: "waiting",
    State.APPROVED: "approved",
    State.DENIED: "denied",
    State.INTENT: "draining",
    State.DRAINING: "draining",
    State.DRAINED: "drained",
    State.TESTING: "drained",
    State.RETURNED: "returned",
    State.FOREIGN: "refused",
    State.ABANDONED: "refused",
}
_STANDS = {
    State.WATCH: "The case is recorded; nothing was done to the node.",
    State.PROPOSED: "It waits for a person: tocsin approve ID, or tocsin deny ID.",
    State.APPROVED: "A person said yes; the drain is about to be written.",
    State.DENIED: "A person said no: this cause will not drain the node.",
    State.INTENT: "The drain is written down and not yet seen in Slurm.",
    State.DRAINING: "The node is drained by tocsin; jobs still run on it to their end.",
    State.DRAINED: "The node is drained by tocsin and empty. Give it back with: tocsin resume NODE",
    State.TESTING: "The node is drained by tocsin and being tested.",
    State.RETURNED: "The node came back into service.",
    State.FOREIGN: "Somebody else's reason stands there now: the drain is theirs.",
    State.ABANDONED: "The drain was given up; nothing of it stands in Slurm.",
}


def decision_view(decision: Decision, case: Case | None) -> DecisionView:
    """A decision as lists show it, with where its case stands now."""
    status = STATUS[case.state] if case is not None else "recorded"
    if status == "recorded" and decision.guard not in (None, Guard.SHADOW, Guard.APPROVAL):
        status = "refused"
    return DecisionView(
        id=decision.id,
        time_ns=decision.time_ns,
        node=decision.node,
        device=decision.device,
        component=decision.component,
        action=decision.action.value,
        voice=decision.voice,
        rule=decision.rule,
        code=decision.code,
        mode=decision.mode.value,
        reason=decision.reason,
        guard=decision.guard.value if decision.guard else "",
        guard_text=decision.guard_text,
        probability=decision.probability,
        severity=decision.severity,
        advice=decision.advice,
        status=status,
        user=case.user if case else "",
        verdict=case.verdict if case else None,
    )


def of_case(
    case: Case,
    decisions: Sequence[Decision],
    entries: Sequence[Entry],
    events: Sequence[Event],
    similar: Sequence[str],
) -> Explanation:
    """One case. ``decisions`` are its own, newest first; the one that acted is told."""
    told = next((one for one in decisions if one.action is Action.DRAIN), None)
    told = told or (decisions[0] if decisions else None)
    inputs: Mapping[str, Any] = told.inputs if told else {}
    return Explanation(
        subject=case.id,
        node=case.node,
        title=_title(case, told),
        sentences=tuple(_sentences(case, told, inputs)),
        decision=decision_view(told, case) if told else None,
        voice=case.voice,
        rule=case.rule,
        signals=tuple(_signals(case, inputs)),
        guards=tuple(
            GuardView(str(one["guard"]), bool(one["passed"]), str(one["text"]))
            for one in inputs.get("guards", ())
        ),
        evidence=tuple(map(str, (inputs.get("said") or {}).get("evidence", ()))),
        timeline=tuple(timeline(decisions, entries, events)),
        similar=tuple(similar),
        inputs=inputs,
    )


def _title(case: Case, told: Decision | None) -> str:
    what = " ".join(part for part in (case.rule, case.code, case.device) if part)
    state = STATUS[case.state]
    if told is not None and told.guard is not None and case.state is State.WATCH:
        state = f"not drained ({told.guard.value})"
    elif told is not None and told.action is Action.ALERT:
        state = "an alert"
    return f"{case.node or 'the fleet'}: {what}: {state} (case {case.id})"


def _sentences(case: Case, told: Decision | None, inputs: Mapping[str, Any]) -> Iterable[str]:
    text = inputs.get("text") or (told.reason if told else case.reason)
    yield f"What: {text}, since {iso(case.onset_ns)}."
    rule = RULES.get(case.rule)
    if rule is not None:
        yield f"Rule {rule.name}: {rule.meaning} Threshold: {rule.threshold}. Ends {rule.ends}."
    if told is not None and told.advice:
        yield f"To do: {told.advice}."
    if case.voice in ("risk", "history") and told is not None:
        within = by_horizon((inputs.get("said") or {}).get("outlook") or {})
        yield (
            f"Probability of failure {told.probability:.3f}, a {case.voice} and no certainty."
            + (f" Within {within}." if within else "")
        )
    if told is not None and told.guard is not None:
        yield f"Guard {told.guard.value} said no: {told.guard_text}."
    elif told is not None and told.action is Action.DRAIN:
        yield f"Every guard let it pass; the reason given to Slurm is: {told.reason}"
    if told is None or told.action is not Action.ALERT:
        yield _STANDS[case.state].replace("ID", case.id[:4]).replace("NODE", case.node)
    for other in inputs.get("beside", ()):
        yield f"Beside it stands: {other}."


def _signals(case: Case, inputs: Mapping[str, Any]) -> Iterable[SignalView]:
    said = inputs.get("said") or {}
    rule = RULES.get(case.rule)
    if case.voice == "fact":
        threshold = rule.threshold if rule else None
        yield SignalView(case.rule, str(said.get("code", case.code)), threshold, None,
                         str(said.get("text", "")))  # fmt: skip
    for part in said.get("parts", ()):
        for signal in part.get("signals", ()):
            yield SignalView(
                f"{part.get('device') or part.get('component')} {signal['feature']}",
                signal["value"],
                None,
                signal["weight"],
                str(signal["text"]),
            )
    risk = inputs.get("risk")
    if isinstance(risk, float):
        limit = (inputs.get("limits") or {}).get("risk_threshold")
        yield SignalView("risk", risk, limit, None, "probability of failure of the whole node")
    cost = inputs.get("cost")
    if isinstance(cost, Mapping):
        saves, costs = cost.get("saves_gpu_hours"), cost.get("costs_gpu_hours")
        if isinstance(saves, float) and isinstance(costs, float):
            words = "GPU-hours; the limit is what it costs"
            yield SignalView("drain saves", saves, costs, None, words)
    for name in ("coverage", "fleet_coverage", "slurm_age_seconds"):
        value = inputs.get(name)
        if isinstance(value, int | float):
            limits = inputs.get("limits") or {}
            limit = {
                "coverage": limits.get("coverage_min"),
                "fleet_coverage": limits.get("fleet_coverage_min"),
                "slurm_age_seconds": limits.get("slurm_age_seconds_max"),
            }[name]
            yield SignalView(name, float(value), limit, None, _INPUT_WORDS[name])


def by_horizon(outlook: Mapping[str, float]) -> str:
    """The risk within each horizon.

    >>> by_horizon({"1h": 0.01, "24h": 0.2, "7d": 0.4})
    '1h: 0.0100, 24h: 0.2000, 7d: 0.4000'
    """
    return ", ".join(f"{name}: {probability:.4f}" for name, probability in outlook.items())


_INPUT_WORDS = {
    "coverage": "share of the node's sources that were heard",
    "fleet_coverage": "share of the fleet's sources that were heard",
    "slurm_age_seconds": "age of what Slurm had said of the node",
}


def of_node(
    name: str,
    verdicts: Sequence[Verdict],
    sentences: Sequence[str],
    risk: float | None,
    threshold: float,
    entries: Sequence[Entry],
    events: Sequence[Event],
    decisions: Sequence[Decision],
) -> Explanation:
    """A node that no case holds: why it is not drained."""
    signals = []
    if risk is not None:
        text = "probability of failure; a drain is proposed from the limit on"
        signals.append(SignalView("risk", risk, threshold, None, text))
    return Explanation(
        subject=name,
        node=name,
        title=f"{name} is not drained by tocsin",
        sentences=tuple(sentences),
        decision=None,
        voice="",
        rule="",
        signals=tuple(signals),
        guards=tuple(GuardView(one.guard.value, one.passed, one.text) for one in verdicts),
        evidence=(),
        timeline=tuple(timeline(decisions, entries, events)),
    )


def timeline(
    decisions: Sequence[Decision], entries: Sequence[Entry], events: Sequence[Event]
) -> list[TimelineEntry]:
    """Events, decisions, writes to Slurm and operators' words in one row, newest first."""
    found = [
        TimelineEntry(
            one.time_ns,
            "event",
            f"{one.kind} {one.code}: {one.text}".strip(),
            int(one.severity),
            one.device,
        )
        for one in events
        if one.kind != "inventory"
    ]
    for decision in decisions:
        held = f": {decision.guard.value}, {decision.guard_text}" if decision.guard else ""
        found.append(
            TimelineEntry(
                decision.time_ns,
                "silence" if decision.voice == "silence" else "decision",
                f"{decision.action.value}{held}: {decision.reason}",
                decision.severity,
                decision.device,
                id=decision.id,
            )
        )
    for entry in entries:
        ours = entry.user in ("", "tocsin")
        found.append(
            TimelineEntry(
                entry.time_ns,
                "slurm" if ours else "operator",
                f"{entry.verb}: {entry.text}" if entry.text else entry.verb,
                0,
                "",
                entry.user,
                entry.subject,
            )
        )
    found.sort(key=lambda one: -one.time_ns)
    return found
