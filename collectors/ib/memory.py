"""What is remembered of a port, and what a new reading changes: link events.

A link that drops and returns between two readings leaves its trace in counters that only grow
(LinkDowned, the interface's carrier_down_count). They are compared with what was remembered,
also across a restart of the agent, so a short drop is told once, however short it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from collectors.events import ERROR, INFO, WARNING, event
from collectors.ib.sysfs import PortReading
from collectors.ib.units import (
    ACTIVE,
    INIT,
    LINK_UP,
    PHYSICAL_WORDS,
    STATE_WORDS,
    speed_words,
)
from collectors.sample import Sample


@dataclass(frozen=True, slots=True)
class PortMemory:
    """What was last known of a port. ``best_rate_bits_per_second`` is the highest rate that it
    had while it was active; ``active_since_ns`` 0 while it is not; ``expected`` says that it
    was active long enough (or is declared), so that its absence is a fault."""

    state: float = 0.0
    physical_state: float = 0.0
    link_downs: float | None = None
    carrier_downs: int | None = None
    best_rate_bits_per_second: float = 0.0
    rate_bits_per_second: float = 0.0
    active_since_ns: int = 0
    expected: bool = False
    ipoib_up: bool | None = None
    saturated: tuple[str, ...] = ()
    sm_lid: int = 0
    missing: bool = False

    def dump(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def load_memory(data: Mapping[str, Any]) -> PortMemory | None:
    """What ``dump`` gave, or None for anything else."""
    try:
        memory = PortMemory(**{**data, "saturated": tuple(map(str, data.get("saturated", ())))})
    except TypeError:
        return None
    for name, kind in _KINDS.items():
        if not isinstance(data.get(name, _EMPTY[name]), kind):
            return None
    return memory


_EMPTY = asdict(PortMemory())
_NUMBER = (int, float)
_KINDS: dict[str, Any] = {
    "state": _NUMBER,
    "physical_state": _NUMBER,
    "link_downs": (*_NUMBER, type(None)),
    "carrier_downs": (int, type(None)),
    "best_rate_bits_per_second": _NUMBER,
    "rate_bits_per_second": _NUMBER,
    "active_since_ns": int,
    "expected": bool,
    "ipoib_up": (bool, type(None)),
    "sm_lid": int,
    "missing": bool,
}


@dataclass(frozen=True, slots=True)
class Learning:
    """How a port becomes expected: declared, or active for ``learn_seconds`` in a row."""

    declared: bool
    learn_seconds: float


def port_words(fields: Mapping[str, float]) -> str:
    """``Active/LinkUp at 4X NDR (400 Gb/s)``."""
    state = STATE_WORDS.get(fields.get("state", -1.0), "state unknown")
    physical = PHYSICAL_WORDS.get(fields.get("physical_state", -1.0), "unknown")
    if fields.get("state") == ACTIVE:
        return f"{state}/{physical} at {speed_words(fields)}"
    return f"{state}/{physical}"


def remember(
    node: str,
    reading: PortReading,
    before: PortMemory | None,
    learning: Learning,
    now_ns: int,
) -> tuple[PortMemory, list[Sample]]:
    """The new memory of a port, and the events that the step from ``before`` is worth.

    Without ``before`` there are none, except that a declared port that is not active is told.
    """
    fields = reading.fields
    old = before or PortMemory(expected=learning.declared)
    state = fields.get("state", old.state)
    active = state == ACTIVE
    since = (old.active_since_ns or now_ns) if active else 0
    rate = fields.get("rate_bits_per_second", 0.0) if active else 0.0
    best = old.best_rate_bits_per_second
    if not best or rate == old.rate_bits_per_second:
        best = max(best, rate)  # what one reading alone shows is not what the link can do
    carriers = [d.carrier_downs for d in reading.netdevs if d.carrier_downs is not None]
    ipoib = [d.up for d in reading.netdevs if d.ipoib and d.up is not None]
    new = replace(
        old,
        state=state,
        physical_state=fields.get("physical_state", old.physical_state),
        link_downs=fields.get("link_downs_total", old.link_downs),
        carrier_downs=max(carriers) if carriers else None,
        best_rate_bits_per_second=best,
        rate_bits_per_second=rate or old.rate_bits_per_second,
        active_since_ns=since,
        expected=old.expected
        or learning.declared
        or (active and now_ns - since >= learning.learn_seconds * 1e9),
        ipoib_up=any(ipoib) if ipoib else None,
        saturated=reading.saturated,
        sm_lid=reading.sm_lid if reading.sm_lid is not None else old.sm_lid,
        missing=False,
    )
    told: list[tuple[str, float, str]] = []
    if before is not None:
        told += _state_change(reading, old, new)
        told += _drops(old, new)
        told += _rate_change(reading, old, new)
        told += _service_change(old, new)
    elif learning.declared and not active and "state" in fields:
        told.append(("down", ERROR, f"is {port_words(fields)} and is declared as in use"))
    if new.saturated and new.saturated != old.saturated:
        names = ", ".join(new.saturated)
        told.append(("saturated", WARNING, f"counters stand at their ceiling: {names}"))
    return new, [
        event(
            node,
            "link",
            code,
            now_ns,
            text=f"{reading.name} {text}",
            severity=severity,
            device=reading.name,
        )
        for code, severity, text in told
    ]


def _state_change(
    reading: PortReading, old: PortMemory, new: PortMemory
) -> list[tuple[str, float, str]]:
    words = port_words(reading.fields)
    if new.state == ACTIVE and old.state != ACTIVE:
        return [("up", INFO, f"is {words}")] if old.state or old.missing else []
    if new.state == old.state and new.physical_state == old.physical_state and not old.missing:
        return []
    if new.state == INIT and new.physical_state == LINK_UP:
        severity = ERROR if new.expected else INFO
        return [("no_sm", severity, "is up but not configured: no subnet manager answers")]
    if old.state == ACTIVE or old.missing:
        was = speed_words({"rate_bits_per_second": old.rate_bits_per_second})
        return [("down", ERROR, f"is {words}, was active at {was}")]
    return []


def _drops(old: PortMemory, new: PortMemory) -> list[tuple[str, float, str]]:
    """A drop that no reading saw: active before and after, and a counter of drops has grown."""
    if not (old.state == ACTIVE and new.state == ACTIVE):
        return []
    downs = (new.link_downs or 0.0) - (old.link_downs if old.link_downs is not None else 1e18)
    if downs > 0:
        return [
            (
                "flap",
                WARNING,
                f"went down {downs:g} times and is up again (LinkDowned {new.link_downs:g})",
            )
        ]
    if old.carrier_downs is not None and new.carrier_downs is not None:
        carriers = new.carrier_downs - old.carrier_downs
        if carriers > 0:
            return [("flap", WARNING, f"lost its carrier {carriers} times and is up again")]
    return []


def _rate_change(
    reading: PortReading, old: PortMemory, new: PortMemory
) -> list[tuple[str, float, str]]:
    rate, was = new.rate_bits_per_second, old.rate_bits_per_second
    if new.state != ACTIVE or not was or rate == was:
        return []
    words = speed_words(reading.fields)
    best = speed_words({"rate_bits_per_second": new.best_rate_bits_per_second})
    if rate < was:
        return [("rate", WARNING, f"runs at {words}, has run at {best}")]
    return (
        [("rate", INFO, f"runs at {words} again")] if rate == old.best_rate_bits_per_second else []
    )


def _service_change(old: PortMemory, new: PortMemory) -> list[tuple[str, float, str]]:
    told: list[tuple[str, float, str]] = []
    if new.state == ACTIVE and old.sm_lid and new.sm_lid and old.sm_lid != new.sm_lid:
        text = f"is managed by the subnet manager at LID {new.sm_lid}, before at {old.sm_lid}"
        told.append(("sm_changed", INFO, text))
    if old.ipoib_up and new.ipoib_up is False:
        told.append(("ipoib_down", WARNING, "has its IPoIB interface down"))
    elif old.ipoib_up is False and new.ipoib_up:
        told.append(("ipoib_up", INFO, "has its IPoIB interface up"))
    return told


def vanished(
    node: str, name: str, before: PortMemory, now_ns: int
) -> tuple[PortMemory, list[Sample]]:
    """A port that was there and is not: told once, and only of one that is expected."""
    if before.missing:
        return before, []
    new = replace(before, missing=True, state=0.0, physical_state=0.0, active_since_ns=0)
    if not before.expected:
        return new, []
    text = f"{name} is gone: the driver no longer lists its device"
    return new, [event(node, "link", "missing", now_ns, text=text, severity=ERROR, device=name)]
