"""Ports that lie: what one odd reading, or one end alone, says is no fact."""

from __future__ import annotations

import json

import pytest

from collectors.events import event
from models.rules import Rules
from models.voices import Remedy
from tests.models.test_links import NOW, UP, Story


@pytest.fixture
def story() -> Story:
    told = Story()
    told.run(15)
    assert told.facts() == []
    return told


@pytest.mark.parametrize("said", [0.0, 1.0, 255.0, 65_535.0, 4_294_967_295.0, 1e18])
def test_one_odd_reading_of_the_counter_of_drops_is_no_drop(said: float) -> None:
    """A port that answers "all bits set", zero or nonsense once, and then the truth again."""
    story = Story()
    story.jobs["n1"] = 1.0
    for count in (7.0, said, 7.0):
        story.fields["n1"]["link_downs_total"] = count
        story.run(0.5 if count == said else 15)
        assert story.facts() == []
    story.fields["n1"]["link_downs_total"] = 8.0
    story.run(5)
    assert [one.text for one in story.facts()] == ["link went down under a job"]


def test_a_counter_that_is_read_with_fewer_bits_for_a_while_has_not_grown() -> None:
    """By the tools, while the sweep does not run."""
    story = Story()
    for count in (300.0, 255.0, 300.0):
        story.fields["n1"]["link_downs_total"] = count
        story.run(15)
        assert story.facts() == []


def test_a_counter_that_stays_full_is_believed(story: Story) -> None:
    story.fields["n1"]["link_downs_total"] = 255.0
    story.run(0.5)
    assert story.facts() == []
    story.run(5)
    assert [one.text for one in story.facts()] == ["link went down 255 times in 24 h"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_drop_is_seen_although_the_counter_could_not_be_read_for_a_while(
    story: Story, restarts: bool
) -> None:
    story.jobs["n1"] = 1.0
    del story.fields["n1"]["link_downs_total"]
    story.run(3)
    if restarts:
        kept = json.loads(json.dumps(story.rules.dump()))
        story.rules = Rules()
        story.rules.load(kept)
    story.fields["n1"]["link_downs_total"] = 1.0
    story.run(5)
    assert [one.text for one in story.facts()] == ["link went down under a job"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_rate_that_a_port_shows_for_a_moment_is_not_its_own(story: Story, restarts: bool) -> None:
    """Else the right rate would be too slow for ever after, and the node drained for it."""
    right = story.fields["n1"]["rate_bits_per_second"]
    story.fields["n1"]["rate_bits_per_second"] = 8 * right
    story.run(2)
    if restarts:
        kept = json.loads(json.dumps(story.rules.dump()))
        story.rules = Rules()
        story.rules.load(kept)
    story.fields["n1"]["rate_bits_per_second"] = right
    story.run(30)
    assert story.facts() == []
    # One that it holds is.
    story.fields["n1"]["rate_bits_per_second"] = 2 * right
    story.run(11)
    story.fields["n1"]["rate_bits_per_second"] = right
    story.run(3)
    assert [one.code for one in story.facts()] == ["ibrate"]


def test_a_rate_that_only_the_host_finds_low_is_misread(story: Story) -> None:
    """A kernel that does not know a speed calls it the slowest; the switch's end has it as ever."""
    slow = {"rate_bits_per_second": 10e9}
    story.fields["n1"] |= slow
    story.switch["n1"] = {**UP, "link_width": 4.0}
    story.run(5)
    (fact,) = story.facts()
    assert (fact.code, fact.remedy) == ("ibrate", Remedy.ALERT)
    assert fact.text.startswith("link at 10 of 400 Gb/s, but not at the switch's end")
    story.switch["n1"] |= slow
    story.run(5)
    assert [one.remedy for one in story.facts()] == [Remedy.DRAIN]


def test_a_rate_of_none_is_no_rate(story: Story) -> None:
    story.fields["n1"]["rate_bits_per_second"] = 0.0
    story.run(10)
    assert story.facts() == []


@pytest.mark.parametrize("code", ["unreachable", "gone", "sm_lost", "saturated"])
def test_what_the_sweep_tells_of_the_fabric_is_no_fault_of_a_gpu(code: str) -> None:
    rules = Rules()
    words = "ib: adapter gpu-0004 mlx5_0: no answer"
    rules.observe(event("head", "fabric", code, NOW, text=words, severity=2, device="0xb8"), NOW)
    assert rules.facts(NOW, {"head": 0}) == []
