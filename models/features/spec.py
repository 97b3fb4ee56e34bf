"""What the engine keeps of each kind of entity: gauges, counters, events, peers. Data only.

A kind of entity (gpu, node, link ...) is fed by one or more *streams*: a measurement, and
how its tags name the entity. Add a kind here and the engine keeps it; no code changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0

# Horizons in seconds. A decayed statistic of horizon h weighs a reading of age a by exp(-a/h).
GAUGE_HORIZONS: dict[str, float] = {
    "10m": 10 * MINUTE,
    "1h": HOUR,
    "6h": 6 * HOUR,
    "1d": DAY,
}
COUNTER_HORIZONS: dict[str, float] = {"1h": HOUR, "1d": DAY, "7d": 7 * DAY}
EVENT_HORIZONS: dict[str, float] = {"1h": HOUR, "1d": DAY, "7d": 7 * DAY, "28d": 28 * DAY}


@dataclass(frozen=True, slots=True)
class Gauge:
    """A level. ``name`` is the feature's stem, ``field`` what is read.

    ``over`` divides by another field of the same reading (clock over its maximum).
    ``lively``: on a living device it hardly ever stays the same bit for bit.
    """

    name: str
    field: str
    unit: str
    meaning: str
    over: str = ""
    lively: bool = False


@dataclass(frozen=True, slots=True)
class Counter:
    """A count that only grows, until it starts anew.

    ``wrap``: the value after which the device starts at 0 (2**32), 0 when it never does.
    ``changes``: count how often the value changed, whatever it is (boot time).
    """

    name: str
    field: str
    meaning: str
    wrap: float = 0.0
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """Deviation of ``gauge`` from siblings of the same node at like ``load`` (a gauge).

    Alike means: both loads within ``tolerance`` of each other, as a share of the larger
    one plus ``slack`` (in the load's unit).
    """

    name: str
    gauge: str
    load: str
    tolerance: float
    slack: float
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Group:
    """Events that mean one thing. Empty ``codes`` takes every code of ``kinds``."""

    name: str
    meaning: str
    kinds: frozenset[str]
    codes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Stream:
    """One measurement that feeds an entity.

    ``device_tags`` are joined by "/" to the device; ``prefix`` stands before ("gpu" + "3").
    ``identity`` is the tag that tells one part from its replacement (uuid).
    ``only`` keeps the readings whose tag has this value, e.g. ("source", "nvml").
    """

    name: str
    measurement: str
    device_tags: tuple[str, ...] = ()
    prefix: str = ""
    identity: str = ""
    only: tuple[str, str] | None = None
    gauges: tuple[Gauge, ...] = ()
    counters: tuple[Counter, ...] = ()
    peers: tuple[Peer, ...] = ()
    presence: bool = False


@dataclass(frozen=True, slots=True)
class EntitySpec:
    """A kind of entity with its streams and event groups.

    ``inherit`` names features of its node that stand beside its own (as ``node.<name>``);
    ``gather`` names, by kind, features of the node's parts of which the node keeps the largest
    (as ``gpu_max.<name>``, ``link_max.<name>``); ``stand_out`` names those of which it keeps how
    far the largest is above the middle one (as ``fan_odd.<name>``): what moves all parts is none.
    """

    kind: str
    streams: tuple[Stream, ...]
    groups: tuple[Group, ...] = ()
    inherit: tuple[str, ...] = ()
    gather: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stand_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
