"""The registry of features: name, unit, meaning. ``tocsin explain`` speaks these words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from models.features import counters, gauges, happenings, presence
from models.features.catalogue import CATALOGUE
from models.features.spec import EntitySpec


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of one kind of entity."""

    kind: str
    name: str
    unit: str
    meaning: str


def _own(spec: EntitySpec) -> list[Feature]:
    found: list[Feature] = []

    def add(stem: str, words: dict[str, tuple[str, str]], what: str, unit: str) -> None:
        for suffix, (meaning, unit_words) in words.items():
            found.append(
                Feature(
                    spec.kind,
                    f"{stem}.{suffix}",
                    unit_words.format(unit=unit),
                    meaning.format(what=what, unit=unit),
                )
            )

    for stream in spec.streams:
        for gauge in stream.gauges:
            add(gauge.name, gauges.WORDS, gauge.meaning, gauge.unit)
        for peer in stream.peers:
            add(peer.name, gauges.WORDS, peer.meaning, peer.unit)
        for counter in stream.counters:
            add(counter.name, counters.WORDS, counter.meaning, "count")
        if stream.presence:
            add("presence", presence.WORDS, "", "")
    for group in spec.groups:
        add(group.name, happenings.WORDS, group.meaning, "count")
    return found


_PARTS = {
    "gpu": "GPUs",
    "link": "links",
    "fan": "fans",
    "disk": "disks",
    "sensor": "sensors",
    "dimm": "memory modules",
}


@cache
def features(kind: str) -> tuple[Feature, ...]:
    """All features of a kind, in the order of the frame's columns."""
    by_kind = {spec.kind: spec for spec in CATALOGUE}
    spec = by_kind[kind]
    found = _own(spec)
    if spec.inherit:
        of_node = {one.name: one for one in _own(by_kind["node"])}
        for name in spec.inherit:
            one = of_node[name]
            found.append(Feature(kind, f"node.{name}", one.unit, f"on its node: {one.meaning}"))
    for other, names in spec.gather.items():
        own = {one.name: one for one in _own(by_kind[other])}
        for name in names:
            one = own[name]
            meaning = f"worst of its {_PARTS[other]}: {one.meaning}"
            found.append(Feature(kind, f"{other}_max.{name}", one.unit, meaning))
    for other, names in spec.stand_out.items():
        own = {one.name: one for one in _own(by_kind[other])}
        for name in names:
            one = own[name]
            meaning = f"the worst of its {_PARTS[other]} over the middle one: {one.meaning}"
            found.append(Feature(kind, f"{other}_odd.{name}", one.unit, meaning))
    return tuple(found)


@cache
def _index(kind: str) -> dict[str, Feature]:
    return {one.name: one for one in features(kind)}


def feature(kind: str, name: str) -> Feature:
    """One feature. Raises KeyError for a name that is not kept."""
    return _index(kind)[name]
