"""An operator's word on a decision, as an event: ``tocsin verdict`` writes it, labels read it.

It travels where readings travel (store, export, telemetry directory), so that training on site
and anywhere else sees the same words. The newest word on a case counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from collectors.events import event
from collectors.sample import Sample
from models.voices import Entity

KIND = "verdict"
RIGHT, WRONG = "right", "wrong"
_NAMES = (
    ("gpu", re.compile(r"gpu.*")),
    ("link", re.compile(r"[A-Za-z][\w.-]*/\d+")),
    ("disk", re.compile(r"nvme\d+")),
)
_TEXT = re.compile(r"^case=([0-9a-f]{1,64}) voice=([a-z]{1,20}) onset_ns=(-?\d{1,19})$")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``right`` is the word on case ``case``, which began at ``onset_ns`` and was told by
    ``voice`` (fact, silence, risk, history); ``said_ns`` is when it was said."""

    case: str
    entity: Entity
    voice: str
    onset_ns: int
    right: bool
    said_ns: int


def sample_of(verdict: Verdict) -> Sample:
    """The word as an ``event`` reading."""
    return event(
        verdict.entity.node,
        KIND,
        RIGHT if verdict.right else WRONG,
        verdict.said_ns,
        text=f"case={verdict.case} voice={verdict.voice} onset_ns={verdict.onset_ns}",
        severity=0,
        device=verdict.entity.device,
    )


def verdict_of(one: Sample) -> Verdict | None:
    """The word in an event of kind ``verdict``; None where it is none."""
    found = _TEXT.match(one.text("text"))
    if one.tag("kind") != KIND or one.tag("code") not in (RIGHT, WRONG) or not found:
        return None
    node, device = one.tag("node"), one.text("device")
    right = one.tag("code") == RIGHT
    part = part_named(node, device)
    return Verdict(found[1], part, found[2], int(found[3]), right, one.time_ns)


def part_named(node: str, device: str) -> Entity:
    """The part of a node that readings call ``device``; the node itself for any other name.

    >>> part_named("n1", "mlx5_0/1").kind, part_named("n1", "0000:41:00").kind
    ('link', 'node')
    """
    for kind, pattern in _NAMES:
        if pattern.fullmatch(device):
            return Entity(kind, node, device)
    return Entity("node", node)


def newest(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The last word on each case, in the order of onsets."""
    last: dict[str, Verdict] = {}
    for one in verdicts:
        held = last.get(one.case)
        if held is None or one.said_ns >= held.said_ns:
            last[one.case] = one
    return sorted(last.values(), key=lambda one: (one.onset_ns, one.case))
