"""The time of a parser grows with its text, also where a text says the same again and again."""

from __future__ import annotations

import pytest

from collectors.bmc.points import Reading, Readings
from collectors.parsers import PARSERS

NOW_NS = 1_796_007_000_000_000_000


def test_many_sensors_of_one_name_each_get_their_own() -> None:
    found = Readings()
    for place in range(3):
        found.add(Reading("n1", "Fan", "rpm", value=float(place)))
    found.add(Reading("n1", "Fan #2", "rpm", value=9.0))
    names = [one.tag("sensor") for one in found.samples(NOW_NS)]
    assert names == ["Fan", "Fan #2", "Fan #3", "Fan #2 #2"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("ipmitool-sdr", "Fan1,4200,RPM,ok\n"),
        ("ipmitool-sensor", "Fan1             | 4200.000   | RPM        | ok    | 300.000\n"),
    ],
)
def test_very_many_sensors_of_one_name_are_read_to_the_end(source: str, line: str) -> None:
    # Once each looked through all the places taken by those before it: minutes.
    samples, problems = PARSERS[source](line * 40_000, "n1", NOW_NS)
    assert len({one.tag("sensor") for one in samples}) == len(samples)
    assert samples or problems
