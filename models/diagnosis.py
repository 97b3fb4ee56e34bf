"""The checks that an expert walks through for a node's InfiniBand, and what they mean together.

Pure: evidence in (:class:`LinkEvidence`), checks and a conclusion out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from collectors.ib.units import ACTIVE, BY_FIELD, INIT, LINK_UP, speed_words
from models.links import End, LinkView, Part, Placement, end_words, place

Verdict = Literal["ok", "bad", "note", "unknown"]

# Error counters in the order in which an expert reads them, and what one of them means.
MEANINGS = {
    "link_downs_total": "the link went down",
    "symbol_errors_total": "the receiver saw broken symbols",
    "receive_errors_total": "packets arrived broken",
    "local_link_integrity_errors_total": "errors passed the port's own threshold",
    "link_recoveries_total": "the link was retrained",
    "excessive_buffer_overruns_total": "the other end sent more than it had room for",
    "transmit_discards_total": "packets were dropped because the other end took none",
    "receive_remote_physical_errors_total": "another link had already spoilt packets",
    "vl15_drops_total": "management packets were dropped",
}


@dataclass(frozen=True, slots=True)
class LinkEvidence:
    """What is known of one port of the node.

    ``view`` has both ends (their ``growth`` over the seconds of observation). ``totals`` are the
    error counters as they stand, host's and switch's. ``ipoib`` are its IPoIB interfaces with
    whether they are up (None: not told). ``host_source`` says where the host's end was read.
    """

    name: str
    view: LinkView
    host_source: str = ""
    ipoib: tuple[tuple[str, bool | None], ...] = ()
    sm_lid: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a node: its links, the subnet manager, the driver's messages."""

    node: str
    links: tuple[LinkEvidence, ...] = ()
    manager_up: bool | None = None
    manager_words: str = ""
    messages: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was looked at, how it is, in words."""

    name: str
    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The checks of one port and what they mean together."""

    name: str
    checks: tuple[Check, ...]
    placement: Placement


@dataclass(frozen=True, slots=True)
class Report:
    """The diagnosis of a node. ``healthy`` is None when nothing could be looked at."""

    node: str
    checks: tuple[Check, ...]
    links: tuple[LinkReport, ...]
    healthy: bool | None
    conclusion: str
    advice: str = ""
    missing: tuple[str, ...] = field(default=())


def usual_rate(rates: Iterable[float], share_low: float = 0.5) -> float:
    """The rate that most ports have, bits per second; 0 where not at least three of them and more
    than ``share_low`` of all have it.

    >>> usual_rate([400e9, 400e9, 200e9, 400e9])
    400000000000.0
    """
    count = Counter(rates)
    if not count:
        return 0.0
    rate, number = count.most_common(1)[0]
    return rate if number >= 3 and number > share_low * count.total() else 0.0


def diagnose(evidence: Evidence) -> Report:
    """Walks the checks: link, width and rate, subnet manager, IPoIB, counters, messages."""
    common = [_manager(evidence), _messages(evidence)]
    links = tuple(_link(one, evidence) for one in evidence.links)
    if not links:
        text = f"no InfiniBand port of {evidence.node} could be looked at"
        advice = (
            "is that its name in the fabric? ibnetdiscover shows what hosts call themselves; a "
            f"link that is down and that no sweep has seen before is seen on {evidence.node} only"
        )
        return Report(evidence.node, tuple(common), (), None, text, advice, evidence.missing)
    sick = [link for link in links if link.placement.part is not Part.NONE]
    bad = [c for link in links for c in link.checks if c.verdict == "bad"]
    if not sick:
        wrong = bad + [check for check in common if check.verdict == "bad"]
        if wrong:
            text = f"the links are sound, but: {wrong[0].text}"
            return Report(evidence.node, tuple(common), links, False, text, "", evidence.missing)
        text = f"nothing is wrong with the {len(links)} InfiniBand ports of {evidence.node}"
        return Report(evidence.node, tuple(common), links, True, text, "", evidence.missing)
    worst = min(sick, key=lambda link: _ORDER.index(link.placement.certainty))
    others = f" ({len(sick)} of {len(links)} ports)" if len(sick) > 1 else ""
    text = f"{worst.name}: {worst.placement.text}{others}"
    return Report(
        evidence.node,
        tuple(common),
        links,
        False,
        text,
        worst.placement.advice,
        evidence.missing,
    )


_ORDER = ("sure", "likely", "open")


def _link(one: LinkEvidence, evidence: Evidence) -> LinkReport:
    view = one.view
    checks = [
        _state(view),
        _rate(view),
        _configured(one, evidence),
        _ipoib(one),
        _counters("host's counters", view.host, evidence.seconds),
        _counters("switch's counters", view.switch, evidence.seconds),
        _neighbours(view),
    ]
    return LinkReport(one.name, tuple(checks), place(view))


def _state(view: LinkView) -> Check:
    text = f"host {end_words(view.host)}; {view.at_switch()} {end_words(view.switch)}"
    states = [end.state for end in (view.host, view.switch) if end.heard and end.state is not None]
    if not states:
        return Check("link", "unknown", text)
    return Check("link", "ok" if all(state == ACTIVE for state in states) else "bad", text)


def _rate(view: LinkView) -> Check:
    rates = [
        (end, end.fields["rate_bits_per_second"])
        for end in (view.host, view.switch)
        if end.heard and end.state == ACTIVE and "rate_bits_per_second" in end.fields
    ]
    if not rates:
        return Check("width and rate", "unknown", "an inactive link has none")
    end, rate = min(rates, key=lambda pair: pair[1])
    expected = view.expected_rate_bits_per_second
    if not expected:
        return Check("width and rate", "note", f"{speed_words(end.fields)}; none to compare with")
    words = speed_words({"rate_bits_per_second": expected})
    if rate < 0.95 * expected:
        return Check("width and rate", "bad", f"{speed_words(end.fields)}, others have {words}")
    return Check("width and rate", "ok", f"{speed_words(end.fields)}, as others have")


def _configured(one: LinkEvidence, evidence: Evidence) -> Check:
    ends = [end for end in (one.view.host, one.view.switch) if end.heard]
    if any(end.state == INIT and end.physical in (LINK_UP, None) for end in ends):
        return Check("configured", "bad", "the link is up, but no subnet manager configured it")
    if any(end.state == ACTIVE for end in ends):
        where = f" by the manager at LID {one.sm_lid}" if one.sm_lid else ""
        return Check("configured", "ok", f"configured{where}")
    return Check("configured", "unknown", "a link that is down is not configured")


def _ipoib(one: LinkEvidence) -> Check:
    told = [(name, up) for name, up in one.ipoib if up is not None]
    if not told:
        return Check("IPoIB", "unknown", "no IPoIB interface was seen")
    down = [name for name, up in told if not up]
    names = ", ".join(down or [name for name, _ in told])
    return Check("IPoIB", "bad" if down else "ok", f"{names} {'down' if down else 'up'}")


def _counters(name: str, end: End, seconds: float) -> Check:
    """Growth is bad; a counter that stands above 0 is of unknown age and only noted."""
    if not end.heard or not any(field_ in end.fields for field_ in MEANINGS):
        return Check(name, "unknown", "not read")
    grown = [
        f"{field_.removesuffix('_total')} +{end.growth[field_]:g} in {seconds:g} s "
        f"({MEANINGS[field_]})"
        for field_ in MEANINGS
        if end.growth.get(field_, 0.0) > 0
    ]
    if grown:
        return Check(name, "bad", "; ".join(grown))
    standing = [
        f"{field_.removesuffix('_total')} {end.fields[field_]:g}"
        for field_ in MEANINGS
        if end.fields.get(field_, 0.0) > 0
    ]
    full = [
        field_.removesuffix("_total")
        for field_ in MEANINGS
        if end.fields.get(field_) == BY_FIELD[field_].ceiling
    ]
    if full:
        text = f"{', '.join(full)} at the ceiling: whether they grow cannot be seen until somebody"
        return Check(name, "unknown", f"{text} resets them (perfquery -R LID PORT)")
    if standing:
        return Check(name, "note", "of unknown age, not growing: " + ", ".join(standing))
    return Check(name, "ok", "no errors")


def _neighbours(view: LinkView) -> Check:
    if not view.switch_hosts:
        return Check("neighbours", "unknown", "it is not known which switch it hangs on")
    others = max(0, view.switch_sick_hosts - (1 if place_alone(view) else 0))
    text = f"{others} other of {view.switch_hosts} hosts on {view.switch_name} have trouble"
    return Check("neighbours", "bad" if others >= 2 else "ok", text)


def place_alone(view: LinkView) -> bool:
    """Whether this link itself is among the sick ones of its switch."""
    return view.switch_sick_hosts > 0 and place(view).part is not Part.NONE


def _manager(evidence: Evidence) -> Check:
    if evidence.manager_up is None:
        words = evidence.manager_words or "not asked"
        return Check("subnet manager", "unknown", words)
    return Check("subnet manager", "ok" if evidence.manager_up else "bad", evidence.manager_words)


def _messages(evidence: Evidence) -> Check:
    if evidence.messages is None:
        return Check("driver messages", "unknown", "the kernel log of the node was not read")
    if not evidence.messages:
        return Check("driver messages", "ok", "none of the adapter's driver")
    last = evidence.messages[-1]
    more = f" (and {len(evidence.messages) - 1} more)" if len(evidence.messages) > 1 else ""
    return Check("driver messages", "note", f"{last}{more}")


def report_lines(report: Report) -> Sequence[str]:
    """The report as text for a terminal."""
    marks = {"ok": " ok ", "bad": "BAD ", "note": "note", "unknown": " ?  "}

    def line(check: Check) -> str:
        return f"  [{marks[check.verdict]}] {check.name:<17} {check.text}"

    lines = [f"InfiniBand of {report.node}", ""]
    lines += [line(check) for check in report.checks]
    for link in report.links:
        lines += ["", link.name, *(line(check) for check in link.checks)]
        placement = link.placement
        if placement.part is not Part.NONE:
            lines.append(f"  -> {placement.part} ({placement.certainty}): {placement.text}")
    lines += ["", report.conclusion]
    if report.advice:
        lines.append(f"Next: {report.advice}.")
    lines += [f"Not seen: {one}" for one in report.missing]
    return lines
