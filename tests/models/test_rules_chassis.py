"""Facts about a node's chassis that need more than one sensor."""

from __future__ import annotations

import json
import random

import pytest

from collectors.sample import Sample, sample
from models.rules_chassis import ChassisRules, part_of
from models.voices import Fact, Remedy

SECOND = 1_000_000_000
T0 = 1_760_000_000 * SECOND


def bmc(
    sensor: str,
    kind: str = "state",
    turn: int = 0,
    *,
    value: float | None = None,
    critical: float | None = None,
    present: float | None = None,
) -> Sample:
    given = {"value": value, "critical": critical, "present": present}
    fields = {name: number for name, number in given.items() if number is not None}
    return sample("bmc", T0 + turn * 60 * SECOND, fields, node="n1", sensor=sensor, kind=kind)


def feed(rules: ChassisRules, *samples: Sample) -> None:
    for one in samples:
        rules.observe(one, one.time_ns)


def facts(rules: ChassisRules, turn: int) -> list[Fact]:
    return list(rules.facts(T0 + turn * 60 * SECOND))


@pytest.fixture
def rules() -> ChassisRules:
    made = ChassisRules()
    for turn in range(3):
        for number in range(1, 7):
            feed(made, bmc(f"PSU{number} Status", turn=turn, critical=0.0, present=1.0))
        for number in range(1, 11):
            feed(made, bmc(f"FAN{number}", "rpm", turn, value=9000.0, critical=0.0, present=1.0))
    return made


def test_a_healthy_chassis_has_no_facts(rules: ChassisRules) -> None:
    assert facts(rules, 3) == []


def test_a_supply_that_was_there_and_is_gone_is_a_fact_after_two_readings(
    rules: ChassisRules,
) -> None:
    feed(rules, bmc("PSU2 Status", turn=3, present=0.0))
    assert facts(rules, 3) == []
    feed(rules, bmc("PSU2 Status", turn=4, present=0.0))
    (fact,) = facts(rules, 4)
    assert (fact.rule, fact.code, fact.severity, fact.remedy) == (
        "supplies",
        "psu",
        2,
        Remedy.ALERT,
    )
    assert fact.onset_ns == T0 + 3 * 60 * SECOND
    assert fact.text == "PSU2 Status failed or gone, 5 of 6 supplies left"
    feed(rules, bmc("PSU2 Status", turn=5, critical=0.0, present=1.0))
    assert facts(rules, 5) == []


def test_half_of_the_supplies_gone_is_critical(rules: ChassisRules) -> None:
    for turn in (3, 4):
        for number in (1, 3, 5):
            feed(rules, bmc(f"PSU{number} Status", turn=turn, critical=1.0, present=1.0))
    (fact,) = facts(rules, 4)
    assert fact.severity == 3
    assert "may lose power" in fact.advice


def test_a_slot_that_never_had_a_supply_is_not_missed(rules: ChassisRules) -> None:
    for turn in range(6):
        feed(rules, bmc("PSU7 Status", turn=turn, present=0.0))
    assert facts(rules, 5) == []


def test_two_fans_down_are_a_fact_and_one_is_not(rules: ChassisRules) -> None:
    for turn in (3, 4):
        feed(rules, bmc("FAN3", "rpm", turn, value=600.0, critical=1.0, present=1.0))
    assert facts(rules, 4) == []
    for turn in (5, 6):
        feed(rules, bmc("FAN3", "rpm", turn, value=600.0, critical=1.0, present=1.0))
        feed(rules, bmc("FAN4", "rpm", turn, value=0.0, critical=0.0, present=1.0))
    (fact,) = facts(rules, 6)
    assert (fact.rule, fact.severity) == ("fans", 3)
    assert fact.text == "2 of 10 fans down: FAN3, FAN4"


def test_a_host_that_is_switched_off_has_no_facts(rules: ChassisRules) -> None:
    for turn in (3, 4):
        feed(rules, bmc("System Power", turn=turn, present=0.0))
        for number in range(1, 11):
            feed(rules, bmc(f"FAN{number}", "rpm", turn, present=0.0))
            feed(rules, bmc(f"PSU{number % 6 + 1} Status", turn=turn, present=0.0))
    assert facts(rules, 4) == []


@pytest.mark.parametrize("power", ["System Power", "system power"])
def test_a_meter_called_like_the_power_state_switches_nothing_off(
    rules: ChassisRules, power: str
) -> None:
    for turn in (3, 4):
        feed(rules, bmc(power, "watts", turn, present=0.0))
        feed(rules, bmc("PSU2 Status", turn=turn, present=0.0))
    assert [one.rule for one in facts(rules, 4)] == ["supplies"]


def test_that_a_host_was_off_excuses_its_fans_for_a_while_only(rules: ChassisRules) -> None:
    """It is asked only while fans stand: that it is on again nobody may have said."""
    feed(rules, bmc("System Power", turn=3, present=0.0))
    for turn in range(3, 20):
        for number in (1, 2):
            feed(rules, bmc(f"FAN{number}", "rpm", turn, value=0.0, present=1.0))
    again = ChassisRules()
    again.load(json.loads(json.dumps(rules.dump())))
    for one in (rules, again):
        assert facts(one, 13) == []
        assert [fact.rule for fact in facts(one, 14)] == ["fans"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("times", [2, 5])
def test_a_reading_that_is_told_again_is_no_second_reading(
    rules: ChassisRules, times: int, restarts: bool
) -> None:
    """By a sender that got no answer, by a head that started, or by a second source."""

    def bad(turn: int) -> list[Sample]:
        return [
            bmc("PSU2 Status", turn=turn, critical=1.0, present=1.0),
            bmc("FAN3", "rpm", turn, value=0.0, critical=1.0, present=1.0),
            bmc("FAN4", "rpm", turn, value=0.0, present=1.0),
            bmc("Tray leak detector", turn=turn, critical=1.0, present=1.0),
        ]

    for _ in range(times):
        feed(rules, *bad(3))
        assert facts(rules, 3) == []
        if restarts:
            kept = json.loads(json.dumps(rules.dump()))
            rules = ChassisRules()
            rules.load(kept)
    feed(rules, *bad(4))
    assert [one.code for one in facts(rules, 4)] == ["psu", "fans", "leak"]
    # Nor is what was good once, and told twice, good again.
    well = bmc("PSU9 Status", turn=5, critical=0.0, present=1.0)
    feed(rules, well, well, *(bmc("PSU9 Status", turn=turn, present=0.0) for turn in (6, 7)))
    assert not any("PSU9" in one.text for one in facts(rules, 7))


def test_fans_that_are_told_in_percent_only_count_as_well() -> None:
    """As some vendors do. Where a fan tells its rpm too, these are what counts: a stopped fan is
    still asked for 40 percent."""
    rules = ChassisRules()
    for turn in range(5):
        speed = 0.4 if turn < 3 else 0.0
        for number in (1, 2, 3):
            feed(rules, bmc(f"Fan {number}", "ratio", turn, value=speed, present=1.0))
            feed(rules, bmc(f"Fan {number} PWM", "ratio", turn, value=0.0, present=1.0))
    (fact,) = facts(rules, 4)
    assert fact.text == "3 of 3 fans down: Fan 1, Fan 2, Fan 3"

    both = ChassisRules()
    for turn in range(5):
        for number in (1, 2):
            still = turn >= 3 and number == 1
            rpm = bmc(f"Fan {number}", "rpm", turn, value=0.0 if still else 9000.0, present=1.0)
            percent = bmc(f"Fan {number}", "ratio", turn, value=0.0 if still else 0.4, present=1.0)
            feed(both, *((percent, rpm) if turn == 0 else (rpm, percent)))
    assert facts(both, 4) == [], "one fan is not two"


def test_a_leak_is_a_fact(rules: ChassisRules) -> None:
    for turn in (3, 4):
        feed(rules, bmc("Manifold leak detector", turn=turn, critical=1.0, present=1.0))
    (fact,) = facts(rules, 4)
    assert (fact.rule, fact.severity, fact.text) == (
        "leak",
        3,
        "coolant leak: Manifold leak detector",
    )


def test_readings_that_stop_are_no_evidence(rules: ChassisRules) -> None:
    for turn in (3, 4):
        feed(rules, bmc("PSU2 Status", turn=turn, present=0.0))
    assert len(facts(rules, 10)) == 1
    assert facts(rules, 20) == []


def test_what_was_known_when_the_node_came_back_is_spent(rules: ChassisRules) -> None:
    for turn in (3, 4):
        feed(rules, bmc("PSU2 Status", turn=turn, present=0.0))
    rules.clear("n1", T0 + 5 * 60 * SECOND)
    assert facts(rules, 5) == []


def test_what_is_remembered_survives_json(rules: ChassisRules) -> None:
    for turn in (3, 4):
        feed(rules, bmc("PSU2 Status", turn=turn, present=0.0))
    again = ChassisRules()
    again.load(json.loads(json.dumps(rules.dump())))
    assert facts(again, 4) == facts(rules, 4) != []


@pytest.mark.parametrize(
    ("sensor", "kind", "part"),
    [
        ("PSU2 Status", "state", "supplies"),
        ("PS1 Status", "state", "supplies"),
        ("HpeServerPowerSupply #1", "state", "supplies"),
        ("PSU.Slot.2", "state", "supplies"),
        ("PSU Redundancy", "state", ""),
        ("System Power", "state", ""),
        ("PSU2 Power In", "watts", ""),
        ("FAN3", "rpm", "fans"),
        ("Fan Block 1", "ratio", "fans"),
        ("Fan 1 PWM", "ratio", ""),
        ("Fan Utilization", "ratio", ""),
        ("Humidity", "ratio", ""),
        ("CPU1 Status", "state", ""),
        ("Tray leak detector", "state", "leaks"),
        ("PS/2 Keyboard Power", "state", ""),
    ],
)
def test_sensors_are_told_apart_by_name_and_kind(sensor: str, kind: str, part: str) -> None:
    assert part_of(sensor, kind) == part


def test_samples_of_any_order_and_content_never_raise() -> None:
    rng = random.Random(3)
    rules = ChassisRules()
    names = ["PSU1 Status", "FAN1", "leak 1", "System Power", "", "PSU9"]
    for _ in range(3_000):
        fields = {
            name: rng.choice([0.0, 1.0, -5.0, 1e9])
            for name in ("value", "critical", "present")
            if rng.random() < 0.5
        }
        one = sample(
            "bmc", T0 + rng.randrange(10**12), fields, node=rng.choice(["n1", "n2", ""]),
            sensor=rng.choice(names), kind=rng.choice(["state", "rpm", "celsius", ""]),
        )  # fmt: skip
        rules.observe(one, one.time_ns)
        for fact in rules.facts(one.time_ns):
            assert fact.remedy is Remedy.ALERT
