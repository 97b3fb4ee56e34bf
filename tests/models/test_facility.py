"""A whole rack or power feed: one event, and no node drained for it."""

from __future__ import annotations

import json

import pytest

from collectors.sample import Sample, sample, source_reading
from models.facility import Facility, GroupEvent, held

SECOND = 1_000_000_000
T0 = 1_760_000_000 * SECOND
RACKS = {f"n{number:02d}": (f"rack r{number // 8}",) for number in range(32)}


def bmc(node: str, sensor: str, kind: str, at: int, **fields: float) -> Sample:
    return sample("bmc", at, fields, node=node, sensor=sensor, kind=kind)


def minute(facility: Facility, turn: int, hot: dict[str, float] | None = None,
           lost: dict[str, str] | None = None) -> int:  # fmt: skip
    """One round over all BMCs; ``hot`` and ``lost`` say who shows what."""
    at = T0 + turn * 60 * SECOND
    for node in RACKS:
        inlet = (hot or {}).get(node, 23.0)
        for one in (
            bmc(node, "Inlet Temp", "celsius", at, value=inlet, critical=0.0, present=1.0),
            bmc(node, "Exhaust Temp", "celsius", at, value=inlet + 20, critical=0.0, present=1.0),
            bmc(node, "DCMI Power", "watts", at, value=6700.0, present=1.0),
            source_reading(node, "bmc", at, up=True, duration_seconds=0.1, age_seconds=0.0),
        ):
            facility.observe(one, at)
        for supply in ("PSU1 Status", "PSU2 Status"):
            bad = (lost or {}).get(node) == supply
            state = bmc(node, supply, "state", at, critical=1.0 if bad else 0.0, present=1.0)
            facility.observe(state, at)
    return at


def rack(number: int) -> list[str]:
    return [node for node, groups in RACKS.items() if groups == (f"rack r{number}",)]


@pytest.fixture
def facility() -> Facility:
    made = Facility()
    minute(made, 0)
    return made


def test_nothing_happens_in_a_cool_room(facility: Facility) -> None:
    assert facility.events(T0, RACKS) == []
    (first, *_rest) = facility.readings(T0, RACKS)
    assert (first.group, first.nodes, first.heard) == ("rack r0", 8, 8)
    assert (first.inlet_celsius, first.outlet_celsius) == (23.0, 43.0)
    assert first.power_watts == 8 * 6700.0


def test_a_hot_rack_is_one_event_that_lasts_and_ends(facility: Facility) -> None:
    hot = dict.fromkeys(rack(2), 36.0)
    at = minute(facility, 1, hot)
    (event,) = facility.events(at, RACKS)
    assert (event.group, event.kind, event.severity) == ("rack r2", "heat", 3)
    assert event.nodes == tuple(rack(2))
    assert "8 of 8 nodes" in event.text
    assert "elsewhere 23 C" in event.text
    later = minute(facility, 5, hot)
    (again,) = facility.events(later, RACKS)
    assert (again.key, again.since_ns) == (event.key, event.since_ns)
    assert facility.events(minute(facility, 6), RACKS) == []


def test_a_rack_warmer_than_the_others_counts_before_it_is_hot(facility: Facility) -> None:
    at = minute(facility, 1, dict.fromkeys(rack(1), 32.0))
    (event,) = facility.events(at, RACKS)
    assert (event.group, event.severity) == ("rack r1", 2)


def test_one_hot_node_is_that_node_and_no_rack(facility: Facility) -> None:
    at = minute(facility, 1, {rack(1)[0]: 48.0, rack(1)[1]: 48.0})
    assert facility.events(at, RACKS) == []


def test_one_sensor_that_reads_high_does_not_make_a_node_hot(facility: Facility) -> None:
    at = minute(facility, 1)
    for node in rack(1):
        facility.observe(bmc(node, "Inlet Temp 2", "celsius", at, value=90.0), at)
    assert facility.events(at, RACKS) == []


def test_coolant_is_no_room_air(facility: Facility) -> None:
    at = minute(facility, 1)
    for node in rack(1):
        facility.observe(bmc(node, "Coolant Inlet", "celsius", at, value=45.0), at)
    assert facility.events(at, RACKS) == []


def test_a_lost_feed_is_one_event_that_names_the_supplies(facility: Facility) -> None:
    at = minute(facility, 1, lost=dict.fromkeys(rack(3), "PSU2 Status"))
    (event,) = facility.events(at, RACKS)
    assert (event.group, event.kind, event.severity) == ("rack r3", "power", 3)
    assert "8 of 8 nodes lost 8 supplies together, all of them PSU2 Status" in event.text


def test_supplies_that_failed_one_by_one_are_no_event(facility: Facility) -> None:
    lost: dict[str, str] = {}
    for turn, node in enumerate(rack(3)):
        lost[node] = "PSU2 Status"
        at = minute(facility, 1 + turn * 60, lost=lost)
    assert facility.events(at, RACKS) == []


def fans(facility: Facility, turn: int, still: list[str], rpm: float = 0.0) -> int:
    """One round over the fans: those of ``still`` do not turn."""
    at = T0 + turn * 60 * SECOND
    for node in RACKS:
        for fan in ("FAN1", "FAN2"):
            value = rpm if node in still else 9_000.0
            facility.observe(bmc(node, fan, "rpm", at, value=value, present=1.0), at)
    return at


def test_fans_that_stop_in_half_a_rack_are_one_event(facility: Facility) -> None:
    fans(facility, 0, [])
    half = rack(2)[:4]
    assert facility.events(fans(facility, 1, half), RACKS) == []  # once may be a BMC that starts
    (event,) = facility.events(fans(facility, 2, half), RACKS)
    assert (event.group, event.kind, event.severity, event.holds) == ("rack r2", "fans", 3, True)
    assert event.nodes == tuple(half)
    assert event.text == "fans in rack r2: 8 stopped together in 4 of 8 nodes"
    again = Facility()
    again.load(json.loads(json.dumps(facility.dump())))
    (told,) = again.events(fans(again, 3, half), RACKS)
    assert told.since_ns == event.since_ns
    assert again.events(fans(again, 4, []), RACKS) == []


def test_fans_of_few_nodes_or_of_hosts_that_are_off_are_no_event(facility: Facility) -> None:
    fans(facility, 0, [])
    for turn in (1, 2):
        at = fans(facility, turn, rack(2)[:3])
    assert facility.events(at, RACKS) == []
    for turn in (3, 4):
        for node in rack(1):
            facility.observe(bmc(node, "System Power", "state", at, present=0.0), at)
        at = fans(facility, turn, rack(1))
    assert facility.events(at, RACKS) == []


def test_fans_in_percent_count_where_they_tell_no_more(facility: Facility) -> None:
    for turn in range(4):
        at = T0 + turn * 60 * SECOND
        for node in RACKS:
            still = turn >= 2 and node in rack(1)
            percent = bmc(node, "Fan 1", "ratio", at, value=0.0 if still else 0.4, present=1.0)
            if node not in rack(1)[:5]:
                # The percentage is what it was asked for; here it turns.
                facility.observe(bmc(node, "Fan 1", "rpm", at, value=9e3, present=1.0), at)
            facility.observe(percent, at)
    (event,) = facility.events(at, RACKS)
    assert event.text == "fans in rack r1: 5 stopped together in 5 of 8 nodes"
    for node in rack(1):
        facility.observe(bmc(node, "System Power", "watts", at, present=0.0), at)
    assert len(facility.events(at, RACKS)) == 1


def test_fans_that_never_turned_are_not_missed(facility: Facility) -> None:
    for turn in (1, 2):
        at = fans(facility, turn, list(RACKS))
    assert facility.events(at, RACKS) == []


def test_a_rack_of_silent_bmcs_is_their_network_and_holds_no_drain(facility: Facility) -> None:
    at = T0 + 60 * SECOND
    for node in rack(0):
        one = source_reading(
            node, "bmc", at, up=False, duration_seconds=1, age_seconds=60, fault="no answer"
        )
        facility.observe(one, at)
    (event,) = facility.events(at, RACKS)
    assert (event.group, event.kind, event.holds) == ("rack r0", "silence", False)
    assert held(rack(0)[0], RACKS, [event]) is None


def test_readings_that_stopped_are_no_evidence(facility: Facility) -> None:
    at = minute(facility, 1, dict.fromkeys(rack(2), 36.0))
    assert facility.events(at, RACKS)
    assert facility.events(at + 3600 * SECOND, RACKS) == []


def test_nodes_of_the_group_are_held_and_no_others() -> None:
    event = GroupEvent("rack r2", "heat", T0, ("n16",), 3, "heat in rack r2")
    assert held("n16", RACKS, [event]) is event
    assert held("n01", RACKS, [event]) is None
    assert held("unknown", RACKS, [event]) is None


def test_a_node_may_be_in_a_rack_and_on_a_feed(facility: Facility) -> None:
    groups = {node: (*listed, "pdu p1") for node, listed in RACKS.items()}
    at = minute(facility, 1, lost=dict.fromkeys(RACKS, "PSU1 Status"))
    kinds = {(event.group, event.kind) for event in facility.events(at, groups)}
    assert ("pdu p1", "power") in kinds


def test_what_is_remembered_survives_json(facility: Facility) -> None:
    lost = dict.fromkeys(rack(3), "PSU2 Status")
    event = facility.events(minute(facility, 1, lost=lost), RACKS)[0]
    again = Facility()
    again.load(json.loads(json.dumps(facility.dump())))
    (told,) = again.events(minute(again, 2, lost=lost), RACKS)
    assert told.since_ns == event.since_ns
