"""Which states of a port have held long enough, and how often it went down: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collectors.ib.units import ACTIVE
from models.link_state import (
    DAY_NS,
    Cable,
    Flap,
    HostPort,
    LinkThresholds,
    PortKey,
    Track,
)
from models.rule_state import SECOND_NS, Node


def forget(port: HostPort, now_ns: int, node: Node | None, limits: LinkThresholds) -> None:
    """Drops what is a day old, and drops that the node's restart explains."""
    boot_ns = node.boot_ns if node is not None else 0
    grace_ns = int(limits.restart_grace_seconds * SECOND_NS)
    port.flaps = [
        flap
        for flap in port.flaps
        if now_ns - flap.time_ns < DAY_NS and not (boot_ns and flap.before_ns < boot_ns + grace_ns)
    ]


def states_held(
    port: HostPort, now_ns: int, node: Node | None, limits: LinkThresholds
) -> Iterator[tuple[str, int, str]]:
    """(code, onset, words) of the states that are wrong, for long enough and still told."""
    track = port.track
    seconds = limits.fresh_intervals * track.interval_ns / SECOND_NS
    seconds = min(max(seconds, limits.fresh_low_seconds), limits.fresh_high_seconds)
    newest_ns = node.head_time(track.time_ns) if node is not None else track.arrival_ns
    if not port.expected or now_ns - newest_ns > int(seconds * SECOND_NS):
        return
    for code, since_ns, hold_seconds, words in (
        ("ibdown", port.down_since_ns, limits.down_hold_seconds, "link down"),
        ("ibinit", port.init_since_ns, limits.init_hold_seconds, "link not configured"),
        ("ibrate", port.narrow_since_ns, limits.narrow_hold_seconds, _rate_words(port)),
    ):
        held = track.time_ns - since_ns >= int(hold_seconds * SECOND_NS)
        if since_ns and held and code not in port.spent:
            yield code, since_ns, words


def other_end_says_no(
    code: str,
    port: HostPort,
    cable: Cable | None,
    fabric: Mapping[PortKey, Track],
    limits: LinkThresholds,
) -> bool:
    """Whether the switch's end, read since the host's end says so, does not find the link slow.

    Both ends of a link have one rate: one of them is misread (a kernel calls a speed that it does
    not know the slowest).
    """
    switch = fabric.get(cable.switch) if code == "ibrate" and cable is not None else None
    return (
        switch is not None
        and switch.time_ns > port.narrow_since_ns
        and switch.state == ACTIVE
        and switch.rate >= limits.rate_ratio * port.best_rate
    )


def flapped(
    port: HostPort, now_ns: int, node: Node | None, limits: LinkThresholds
) -> Iterator[tuple[str, int, str, bool]]:
    """(code, onset, words, whether a restart is ruled out) of a link that went down.

    A restart takes the link down, too. It is ruled out once the node's ``host`` source was
    heard after the drop; where none is, the drop is told later, and for a person only.
    """
    flaps = port.flaps
    if not flaps:
        return
    told_ns = node.host_time_ns if node is not None else 0
    sure = told_ns >= flaps[-1].time_ns
    quiet_ns = int(limits.quiet_seconds * SECOND_NS)
    if not sure and now_ns - flaps[-1].time_ns < quiet_ns:
        return
    count = sum(flap.count for flap in flaps)
    under_job = sum(flap.count for flap in flaps if flap.job)
    if count >= limits.flaps_day_count:
        onset_ns = _reached(flaps, limits.flaps_day_count)
        yield "ibflap", onset_ns, f"link went down {count:g} times in 24 h", sure
    elif under_job >= limits.flaps_job_count:
        onset_ns = next(flap.time_ns for flap in flaps if flap.job)
        yield "ibflap", onset_ns, "link went down under a job", sure


def _rate_words(port: HostPort) -> str:
    return f"link at {port.track.rate / 1e9:g} of {port.best_rate / 1e9:g} Gb/s"


def _reached(flaps: list[Flap], count: float) -> int:
    """When the ``count``-th time down was told."""
    total = 0.0
    for flap in flaps:
        total += flap.count
        if total >= count:
            return flap.time_ns
    return flaps[-1].time_ns
