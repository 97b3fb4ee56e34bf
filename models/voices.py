"""The three voices that speak about a node: Fact, Silence, Risk.

A *fact* is certain and published (an XID of the catalogue, a failed row remap). *Silence*
is a state of its own: it says that we do not hear, never that something is broken.
A *risk* is a probability with a horizon. Policy weighs them; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class Entity:
    """A part that can fail: ``kind`` is gpu, link, chassis, memory, disk or node.

    ``device`` is ``gpu3`` for a GPU by its NVML index, ``0000:9b:00`` when only the PCI
    address is known, ``mlx5_0/1`` for a port, empty for the node itself.
    """

    kind: str
    node: str
    device: str = ""


class Remedy(StrEnum):
    """The strongest thing a fact asks for. The order of the members is the order of force."""

    NONE = "none"  # record it
    ALERT = "alert"  # a person should know
    DRAIN = "drain"  # the node should take no new job until somebody has mended it


@dataclass(frozen=True, slots=True)
class Fact:
    """Something certain about one entity, from ``onset_ns`` on.

    ``rule`` names the rule in the registry (``xid``, ``gpu_lost``, ``row_remap`` ...),
    ``code`` what the reason shows (``x79``), ``text`` a few words for people and ``advice``
    what to do (``restart the node``). ``evidence`` is what it was read from, verbatim.
    """

    entity: Entity
    rule: str
    code: str
    severity: int
    remedy: Remedy
    onset_ns: int
    text: str
    advice: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Silence:
    """One source of one node (or the whole node) is not heard since ``since_ns``.

    ``cause`` is ``agent`` (nothing comes from the node), ``source`` (one source does not
    come, the others do) or ``hung`` (a source says that its worker is stuck).
    """

    node: str
    source: str
    cause: str
    since_ns: int
    age_seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing that moved a risk: a feature, its value and how much it counted."""

    feature: str
    value: float
    weight: float
    text: str


# (horizon in seconds, probability), the shortest horizon first.
Outlook = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Risk:
    """Probability in [0, 1] that ``entity`` fails within ``horizon_seconds``.

    ``voice`` is ``history`` (what it did before) or ``risk`` (what it does now). ``outlook`` tells
    the same within each horizon that people are shown, this one among them; it never falls.
    """

    entity: Entity
    probability: float
    horizon_seconds: float
    model: str
    voice: str
    signals: tuple[Signal, ...] = ()
    outlook: Outlook = ()
