"""What should a person be told? Decisions and silences in, active alerts out; pure.

One cause gives one alert: five drains that a cap refuses are one alert, a fleet that falls
silent is one alert, and so is one fault code on many nodes at once. Whether and when an alert
is *sent* is for ``daemon.alerts.tell``; here it is only said what is the case now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collectors.slurm.reader import Job
from daemon.policy.decisions import Action, Decision, Guard
from daemon.settings import Section
from models.facility import GroupEvent
from models.voices import Silence

INFO, WARNING, ERROR, CRITICAL = 0, 1, 2, 3

# So many node names are spelt out in an alert's text; the rest is a count.
_NAMES_SHOWN = 8
# So many jobs stand in an alert's text, and in its data.
_JOBS_SHOWN, _JOBS_KEPT = 8, 1000
# A drain that was made, or that waits for a yes.
_OF_DRAINS = frozenset({"drained", "waiting"})


class GroupOptions(Section):
    """When alerts of many nodes become one."""

    group_nodes: int = 5  # so many nodes of one kind make one alert ...
    fleet_silence_ratio: float = 0.2  # ... and this share of a fleet makes its silence one
    fleet_silence_nodes: int = 3  # but never fewer nodes than these
    settle_seconds: float = 10.0  # a grouped alert waits so long for others to join
    silence_settle_seconds: float = 30.0  # a silence must last so long to be told


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that is the case now and that a person should know.

    ``key`` names it: while the same key stays active it is one alert. ``state`` is what it
    is in one word; a new word, a higher severity or a doubled number of ``nodes`` is a
    change worth telling, a new ``text`` alone is not. ``covers`` are keys that this alert
    speaks for: they end without a word of their own. It is told only once it has lasted
    ``settle_seconds``. ``jobs`` are those that run where a drain is made or asked for: each one's
    number and its owner.
    """

    key: str
    severity: int
    title: str
    text: str
    node: str
    time_ns: int
    state: str = "active"
    nodes: tuple[str, ...] = ()
    id: str = ""
    code: str = ""
    settle_seconds: float = 0.0
    covers: frozenset[str] = field(default_factory=frozenset)
    jobs: tuple[tuple[str, str], ...] = ()

    @property
    def shape(self) -> str:
        """What must differ for a change to be told."""
        return f"{self.state}/{self.severity}/{len(self.nodes).bit_length()}"


# Guards that refuse many drains for one reason: (key, severity, title).
_GROUPED: dict[Guard, tuple[str, int, str]] = {
    Guard.CAP_CLUSTER: ("caps", ERROR, "{n} refused: the cap on drains is reached"),
    Guard.CAP_HOUR: ("caps", ERROR, "{n} refused: the cap on drains is reached"),
    Guard.CAP_PARTITION: ("caps", ERROR, "{n} refused: the cap on drains is reached"),
    Guard.CAP_GROUP: ("caps", ERROR, "{n} refused: the cap on drains is reached"),
    Guard.BREAKER: ("breaker", CRITICAL, "breaker open: {n} refused until a person closes it"),
    Guard.SLURM_AWAY: ("slurm_away", ERROR, "Slurm does not answer: {n} waiting"),
    Guard.TOOL_FAULT: ("tool_fault", WARNING, "{n} held: the fault may be our own tool's"),
    Guard.COVERAGE: ("coverage", WARNING, "{n} held: too little telemetry is heard"),
    Guard.COMMON_CAUSE: ("common_cause", CRITICAL, "{n} held: one cause behind many nodes"),
    Guard.UNKNOWN_NODE: ("unknown_node", WARNING, "{n} held: Slurm does not know the nodes"),
    Guard.NOT_REGISTERED: ("not_registered", INFO, "{n} held: the nodes are not registered"),
    Guard.COST: ("cost", INFO, "{n} held: a drain would cost more than it saves"),
    Guard.MAINTENANCE: ("maintenance", INFO, "{n} held: maintenance"),
}

# A person has already spoken, or the cause is spent: nothing to tell.
_QUIET = frozenset({Guard.LOCKED, Guard.DENIED, Guard.SPENT})


def active_alerts(
    decisions: Iterable[Decision],
    silences: Iterable[Silence],
    nodes: int,
    now_ns: int,
    options: GroupOptions,
    out_of_service: Collection[str] = (),
    events: Sequence[GroupEvent] = (),
) -> list[Alert]:
    """All alerts that are active at ``now_ns``, loudest first.

    ``decisions`` are those of this cycle, refusals too; ``nodes`` is the size of the fleet;
    ``out_of_service`` names nodes that are drained or down: their silence is no news. What
    ``events`` of whole groups explain is told with them, and not node by node.
    """
    held: dict[str, list[Decision]] = {}
    single: list[Alert] = []
    for decision in decisions:
        grouped = _GROUPED.get(decision.guard) if decision.guard is not None else None
        if grouped is not None and decision.action is Action.HOLD:
            held.setdefault(_group_key(decision, grouped[0]), []).append(decision)
        else:
            alert = of_decision(decision)
            if alert is not None:
                single.append(alert)
    single = _one_a_node(single)
    quiet = {alert.node for alert in single if alert.state == "drained"}.union(out_of_service)
    heard_less = [silence for silence in silences if silence.node not in quiet]
    made = [_refusals(key, found, options) for key, found in held.items()]
    groups = [of_group(one, [it for it in single if _explains(one, it)]) for one in events]
    told = frozenset[str]().union(*(group.covers for group in groups))
    made += [*groups, *_merged([one for one in single if one.key not in told], options)]
    made += _silent(heard_less, nodes, options)
    return sorted(made, key=lambda alert: (-alert.severity, alert.time_ns, alert.key))


def of_head(faults: Iterable[tuple[str, str]], now_ns: int) -> list[Alert]:
    """One alert for each fault of the head itself: (what, in words). Our faults, nobody's node."""
    return [
        Alert(
            key=f"head/{what}",
            severity=CRITICAL,
            title=f"tocsin's {what} is at fault",
            text=f"{text}; no node is drained for it",
            node="",
            time_ns=now_ns,
        )
        for what, text in faults
        if text
    ]


def of_senders(words: str, now_ns: int) -> list[Alert]:
    """One alert for all senders that are over their share or a budget; ``words`` name them."""
    title = "a sender is cut short"
    text = f"{words}; what is over is refused and counted: a fault there, or a stolen token"
    alert = Alert("gateway/senders", WARNING, title, text, node="", time_ns=now_ns)
    return [alert] if words else []


# What nodes tell of their own while their group has the event: (codes, words in their titles).
_EXPLAINED: dict[str, tuple[frozenset[str], re.Pattern[str]]] = {
    "heat": (frozenset({"bmc"}), re.compile(r"(?i)inlet|intake|ambient|temp")),
    "power": (frozenset({"psu", "bmc"}), re.compile(r"(?i)psu?\d|suppl")),
    "fans": (frozenset({"fans", "bmc"}), re.compile(r"(?i)fan|tach|blower")),
    "leak": (frozenset({"leak"}), re.compile(r"(?i)leak")),
}


def _explains(event: GroupEvent, alert: Alert) -> bool:
    """Whether what a node tells people is its group's event, and nothing of its own."""
    codes, words = _EXPLAINED.get(event.kind, (frozenset(), None))
    mine = alert.state == "alert" and alert.node in event.nodes and alert.code in codes
    return mine and words is not None and words.search(alert.title) is not None


def of_group(event: GroupEvent, spoken_for: Sequence[Alert] = ()) -> Alert:
    """The alert for what happens to a rack or a power feed, however many nodes show it.

    ``spoken_for`` are the alerts of single nodes that it takes the place of.
    """
    return Alert(
        key=event.key,
        severity=event.severity,
        title=f"{event.group}: {event.kind} on {len(event.nodes)} nodes",
        text=event.text + ("; no node of it is drained meanwhile" if event.holds else ""),
        node="",
        time_ns=event.since_ns,
        nodes=event.nodes,
        covers=frozenset(alert.key for alert in spoken_for),
    )


def of_decision(decision: Decision) -> Alert | None:
    """The alert of one decision that stands for itself, or None when it needs none."""
    if decision.action is Action.RESUME or decision.guard in _QUIET:
        return None
    if decision.voice == "silence":
        return None  # _silent tells it
    what = " ".join(filter(None, (decision.device, phrase(decision))))
    severity = decision.severity
    node = decision.node
    if decision.action is Action.ALERT:
        state, title = "alert", f"{node}: {what}"
    elif decision.guard is None or decision.guard is Guard.OURS:
        state, title = "drained", f"{node} taken out of service: {what}"
    elif decision.guard is Guard.APPROVAL:
        state, title = "waiting", f"{node}: drain waits for a yes: {what}"
        severity = max(severity, ERROR)
    elif decision.guard is Guard.SHADOW:
        state, title = "shadow", f"{node} would be drained (shadow): {what}"
    elif decision.guard is Guard.FOREIGN:
        state, title = "foreign", f"{node}, out of service by others, has a fault too: {what}"
        severity = min(severity, WARNING)
    else:
        state, title = "held", f"{node} not drained ({decision.guard.value}): {what}"
    text = [decision.reason]
    if decision.guard_text:
        text.append(decision.guard_text)
    if decision.advice:
        text.append(f"advice: {decision.advice}")
    if state == "waiting":
        text.append(f"tocsin approve {decision.short_id} or tocsin deny {decision.short_id}")
    text.append(f"tocsin explain {decision.short_id}")
    return Alert(
        key=f"case/{decision.id}",
        severity=severity,
        title=title,
        text="\n".join(text),
        node=node,
        time_ns=decision.time_ns,
        state=state,
        nodes=(node,),
        id=decision.id,
        code=decision.code,
    )


def with_owners(alerts: Iterable[Alert], jobs: Iterable[Job]) -> list[Alert]:
    """The alerts, those of drains with the jobs that run there: whom a receiver may tell."""
    there: dict[str, list[tuple[str, str]]] = {}
    for job in jobs:
        for node in job.nodes if job.state in ("RUNNING", "SUSPENDED") else ():
            there.setdefault(node, []).append((job.key, job.user))
    return [_with_jobs(one, there) if one.state in _OF_DRAINS else one for one in alerts]


def _with_jobs(alert: Alert, there: Mapping[str, Sequence[tuple[str, str]]]) -> Alert:
    found = tuple(dict.fromkeys(one for node in alert.nodes for one in there.get(node, ())))
    if not found:
        return alert
    shown = ", ".join(f"{number} of {user}" for number, user in found[:_JOBS_SHOWN])
    more = f" and {len(found) - _JOBS_SHOWN} more" if len(found) > _JOBS_SHOWN else ""
    text = f"{alert.text}\njobs there: {shown}{more}"
    return replace(alert, text=text, jobs=found[:_JOBS_KEPT])


def phrase(decision: Decision) -> str:
    """The words of a reason without owner, id and hint: ``fell off the bus (x79)``."""
    parts = [part.strip() for part in decision.reason.split(";")]
    words = parts[1] if len(parts) > 1 and parts[0].startswith("tocsin") else decision.reason
    odds = decision.voice in ("risk", "history")
    tail = f"{decision.voice} {decision.probability:.2f}" if odds else decision.code
    return f"{words} ({tail})" if tail and tail not in words else words


def _group_key(decision: Decision, key: str) -> str:
    cause = decision.inputs.get("cause")
    return f"{key}/{cause}" if key == "common_cause" and isinstance(cause, str) else key


def _refusals(key: str, found: Sequence[Decision], options: GroupOptions) -> Alert:
    guard = found[0].guard
    assert guard is not None
    _, severity, title = _GROUPED[guard]
    nodes = tuple(sorted({decision.node for decision in found}))
    lines = [f"{one.node}: {one.device} {phrase(one)}; {one.guard_text}" for one in found]
    more = len(lines) - _NAMES_SHOWN
    shown = lines[:_NAMES_SHOWN] + ([f"and {more} more"] if more > 0 else [])
    count = len(nodes)
    return Alert(
        key=f"guard/{key}",
        severity=severity,
        title=title.format(n=f"{count} drain{'s' if count > 1 else ''}") + f": {names(nodes)}",
        text="\n".join(shown),
        node=nodes[0] if count == 1 else "",
        time_ns=min(decision.time_ns for decision in found),
        state=key,
        nodes=nodes,
        settle_seconds=options.settle_seconds,
        covers=frozenset(f"case/{decision.id}" for decision in found),
    )


def _merged(single: Sequence[Alert], options: GroupOptions) -> list[Alert]:
    """Alerts of one state and code on many nodes become one."""
    kinds: dict[tuple[str, str], list[Alert]] = {}
    for alert in single:
        kinds.setdefault((alert.state, alert.code), []).append(alert)
    made: list[Alert] = []
    for (state, code), alerts in kinds.items():
        nodes = tuple(sorted({alert.node for alert in alerts}))
        if len(nodes) < options.group_nodes:
            made.extend(alerts)
            continue
        words = {
            "drained": "taken out of service",
            "waiting": "wait for a yes",
            "shadow": "would be drained (shadow)",
            "foreign": "out of service by others, have a fault too",
        }.get(state, state)
        shown = [alert.title for alert in alerts[:_NAMES_SHOWN]]
        made.append(
            Alert(
                key=f"many/{state}/{code}",
                severity=max(alert.severity for alert in alerts),
                title=f"{len(nodes)} nodes {words} ({code}): {names(nodes)}",
                text="\n".join(shown),
                node="",
                time_ns=min(alert.time_ns for alert in alerts),
                state=state,
                nodes=nodes,
                code=code,
                settle_seconds=options.settle_seconds,
                covers=frozenset(alert.key for alert in alerts),
            )
        )
    return made


def _one_a_node(single: Sequence[Alert]) -> list[Alert]:
    """A node that is out of service by us is one alert, whatever else is wrong with it."""
    drained: dict[str, list[Alert]] = {}
    for alert in single:
        if alert.state == "drained":
            drained.setdefault(alert.node, []).append(alert)
    made = []
    for node, causes in drained.items():
        first = min(causes, key=lambda alert: (-alert.severity, alert.time_ns, alert.key))
        also = [one for one in single if one.node == node and one is not first]
        text = "\n".join([first.text, *(f"also: {one.title}" for one in also[:_NAMES_SHOWN])])
        covers = frozenset(one.key for one in also) | {first.key}
        made.append(replace(first, key=f"drained/{node}", text=text, covers=covers))
    return made + [alert for alert in single if alert.node not in drained]


def _silent(silences: Sequence[Silence], fleet: int, options: GroupOptions) -> list[Alert]:
    whole = {one.node: one for one in silences if one.cause == "agent"}
    parts = [one for one in silences if one.cause != "agent" and one.node not in whole]
    many = max(options.fleet_silence_nodes, int(fleet * options.fleet_silence_ratio))
    least = min(many, options.group_nodes)
    made = _silence_alerts("silence/fleet", "silence", list(whole.values()), least, options)
    if len(whole) >= many:
        share = (
            "the whole fleet is" if len(whole) >= fleet else f"{len(whole)} of {fleet} nodes are"
        )
        made = [
            replace(
                made[0],
                severity=CRITICAL,
                title=f"{share} silent: nothing is drained for it",
                text="Look first at the head, its network and its tokens.\n" + made[0].text,
            )
        ]
    sources: dict[str, list[Silence]] = {}
    for one in parts:
        sources.setdefault(one.source, []).append(one)
    for source, found in sources.items():
        key = f"silence/source/{source}"
        made += _silence_alerts(key, f"{source} silence", found, options.group_nodes, options)
    return made


def _silence_alerts(
    key: str, state: str, found: Sequence[Silence], least: int, options: GroupOptions
) -> list[Alert]:
    """One alert for each silent node, or one for all when they are ``least`` or more."""
    singles = [
        Alert(
            key=f"silence/{one.node}/{one.source}"
            if one.cause != "agent"
            else f"silence/{one.node}",
            severity=WARNING,
            title=f"{one.node} is silent"
            if one.cause == "agent"
            else f"{one.node}: {one.source} {'hangs' if one.cause == 'hung' else 'is silent'}",
            text=one.text,
            node=one.node,
            time_ns=one.since_ns,
            state=state,
            nodes=(one.node,),
            settle_seconds=options.silence_settle_seconds,
        )
        for one in found
    ]
    if len(singles) < least or not singles:
        return singles
    nodes = tuple(sorted(one.node for one in found))
    what = "silent" if found[0].cause == "agent" else f"without {found[0].source}"
    return [
        Alert(
            key=key,
            severity=ERROR,
            title=f"{len(nodes)} nodes {what}: {names(nodes)}",
            text=found[0].text,
            node="",
            time_ns=min(one.since_ns for one in found),
            state=state,
            nodes=nodes,
            settle_seconds=options.silence_settle_seconds,
            covers=frozenset(alert.key for alert in singles),
        )
    ]


def names(nodes: Sequence[str]) -> str:
    """The first nodes by name and the rest as a count.

    >>> names(("n1", "n2"))
    'n1, n2'
    """
    shown = ", ".join(nodes[:_NAMES_SHOWN])
    more = len(nodes) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
