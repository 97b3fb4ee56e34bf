"""Silence: who is not heard, since when, whose fault; and when nothing may be said yet."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sample import Sample, sample, source_reading
from models.silence import SilenceOptions, SilenceTracker
from models.turns import put_together

SECOND = 10**9
START = 1_796_000_000 * SECOND


def reading(source: str, at: int, node: str = "n3", up: bool = True, fault: str = "") -> Sample:
    return source_reading(
        node, source, at, up=up, duration_seconds=0.1, age_seconds=0.0, fault=fault
    )


def run(
    tracker: SilenceTracker,
    seconds: Iterable[int],
    sources: Iterable[str] = ("nvml", "host"),
    nodes: Iterable[str] = ("n3",),
    clock: int = 0,
) -> None:
    for second in seconds:
        at = START + second * SECOND
        for node in nodes:
            for source in sources:
                tracker.observe(reading(source, at + clock, node), at)


def told(tracker: SilenceTracker, second: int) -> list[tuple[str, str, str]]:
    found = tracker.silences(START + second * SECOND)
    return [(one.node, one.source, one.cause) for one in found]


@pytest.fixture
def tracker() -> SilenceTracker:
    return started()


def started(options: SilenceOptions | None = None) -> SilenceTracker:
    """A tracker that somebody asks since START."""
    made = SilenceTracker(options)
    assert made.silences(START) == []
    return made


def test_who_speaks_is_not_silent(tracker: SilenceTracker) -> None:
    for second in range(0, 1_000, 10):
        run(tracker, [second])
        assert told(tracker, second + 9) == []
    assert tracker.coverage("n3", START + 995 * SECOND) == 1.0


def test_a_node_that_stops_is_silent_as_a_whole(tracker: SilenceTracker) -> None:
    run(tracker, range(0, 300, 10))
    assert told(tracker, 340) == []
    (one,) = tracker.silences(START + 400 * SECOND)
    assert (one.node, one.source, one.cause) == ("n3", "", "agent")
    assert one.since_ns == START + 290 * SECOND
    assert one.age_seconds == 110.0
    assert tracker.coverage("n3", START + 400 * SECOND) == 0.0
    run(tracker, [410])
    assert told(tracker, 411) == []


def test_one_source_that_stops_is_told_apart(tracker: SilenceTracker) -> None:
    run(tracker, range(0, 300, 10))
    run(tracker, range(300, 500, 10), sources=["host"])
    assert told(tracker, 500) == [("n3", "nvml", "source")]
    assert tracker.coverage("n3", START + 500 * SECOND) == 0.5


def test_each_source_has_its_own_cadence(tracker: SilenceTracker) -> None:
    for second in range(0, 4_000, 10):
        run(tracker, [second], sources=["nvml"])
        if second % 600 == 0:
            run(tracker, [second], sources=["inventory"])
        assert told(tracker, second + 1) == []
    run(tracker, range(4_000, 6_500, 10), sources=["nvml"])
    assert told(tracker, 6_500) == [("n3", "inventory", "source")]


def test_a_stuck_worker_is_told_at_once_with_its_words(tracker: SilenceTracker) -> None:
    run(tracker, range(0, 100, 10))
    fault = "nvml worker (pid 12) is hung for 65 s in state D at os_acquire_mutex"
    at = START + 100 * SECOND
    tracker.observe(reading("nvml", at, up=False, fault=fault), at)
    tracker.observe(reading("host", at), at)
    (one,) = tracker.silences(at + SECOND)
    assert (one.source, one.cause) == ("nvml", "hung")
    assert "state D" in one.text
    assert one.since_ns == at
    run(tracker, [110])
    assert told(tracker, 111) == []


def test_a_source_that_cannot_read_is_told_when_it_lasts(tracker: SilenceTracker) -> None:
    run(tracker, range(0, 100, 10))
    for second in range(100, 200, 10):
        at = START + second * SECOND
        tracker.observe(reading("nvml", at, up=False, fault="no driver"), at)
        tracker.observe(reading("host", at), at)
        expected = [("n3", "nvml", "source")] if second > 160 else []
        assert told(tracker, second) == expected
    assert tracker.coverage("n3", START + 191 * SECOND) == 0.5


def test_a_wrong_clock_makes_nobody_silent(tracker: SilenceTracker) -> None:
    for clock in (-86_400, 86_400):
        fresh = SilenceTracker()
        for second in range(0, 600, 10):
            run(fresh, [second], clock=clock * SECOND)
            assert told(fresh, second + 5) == []


def test_what_the_head_reads_itself_does_not_hide_a_silent_agent(tracker: SilenceTracker) -> None:
    run(tracker, range(0, 300, 10), sources=["nvml", "ipmi"])
    run(tracker, range(300, 600, 10), sources=["ipmi"])
    assert told(tracker, 600) == [("n3", "", "agent")]


def test_a_dead_bmc_is_silence_of_that_source(tracker: SilenceTracker) -> None:
    run(tracker, range(0, 300, 10), sources=["nvml", "ipmi"])
    run(tracker, range(300, 600, 10), sources=["nvml"])
    assert told(tracker, 600) == [("n3", "ipmi", "source")]


def test_a_node_that_was_never_heard_is_silent_after_twice_its_time(
    tracker: SilenceTracker,
) -> None:
    tracker.expect(["n3", "n4"], START)
    run(tracker, range(0, 1_000, 10))
    assert told(tracker, 400) == []
    assert told(tracker, 500) == [("n4", "", "agent")]
    assert tracker.coverage("n4", START) == 0.0


def test_a_node_that_leaves_the_cluster_is_forgotten(tracker: SilenceTracker) -> None:
    tracker.expect(["n3", "n4"], START)
    run(tracker, range(0, 100, 10), nodes=["n3", "n4"])
    tracker.expect(["n4"], START + 100 * SECOND)
    assert told(tracker, 1_000) == [("n4", "", "agent")]


def test_our_own_restart_is_not_silence(tracker: SilenceTracker) -> None:
    nodes = [f"n{number}" for number in range(8)]
    tracker.expect(nodes, START)
    run(tracker, range(0, 300, 10), nodes=nodes)
    state = json.loads(json.dumps(tracker.dump()))
    # The head is away for two hours and starts again.
    again = SilenceTracker()
    again.load(state)
    back = 7_500
    again.expect(nodes, START + back * SECOND)
    assert told(again, back) == []
    assert told(again, back + 60) == []
    run(again, range(back + 65, back + 200, 10), nodes=nodes[:-1])
    # All but one are heard again; the last one is silent since long before.
    (one,) = again.silences(START + (back + 195) * SECOND)
    assert (one.node, one.cause) == ("n7", "agent")
    assert one.since_ns == START + 290 * SECOND


def test_history_read_again_after_a_restart_does_not_pass_for_hearing() -> None:
    """The store is read again before the first judgement; the agents are still on their way."""
    tracker = SilenceTracker()
    nodes = [f"n{number}" for number in range(8)]
    run(tracker, range(0, 300, 10), nodes=nodes)
    back = 7_500
    tracker.expect(nodes, START + back * SECOND)
    assert told(tracker, back) == []
    assert told(tracker, back + 60) == []


def test_a_source_that_now_and_then_says_more_is_not_late(tracker: SilenceTracker) -> None:
    seconds = [*range(0, 600, 30), *range(600, 606), *range(630, 1_200, 30)]
    for second in range(1_200):
        if second in seconds:
            run(tracker, [second], sources=["kernel_log"])
        run(tracker, [second], sources=["host"])
        assert told(tracker, second) == []


def test_a_fleet_that_falls_silent_at_once_is_recognised(tracker: SilenceTracker) -> None:
    nodes = [f"n{number}" for number in range(10)]
    tracker.expect(nodes, START)
    run(tracker, range(0, 300, 10), nodes=nodes)
    assert not tracker.fleet_silent(START + 300 * SECOND)
    run(tracker, range(300, 600, 10), nodes=nodes[:2])
    assert tracker.fleet_silent(START + 600 * SECOND)
    run(tracker, range(600, 900, 10), nodes=nodes[:8])
    assert not tracker.fleet_silent(START + 900 * SECOND)


def test_readings_without_source_readings_speak_for_themselves(tracker: SilenceTracker) -> None:
    for second in range(0, 300, 10):
        at = START + second * SECOND
        for index in range(8):
            point = sample("gpu", at, {"lost": 0.0}, node="n3", gpu=str(index))
            tracker.observe(point, at)
    assert tracker.coverage("n3", START + 300 * SECOND) == 1.0
    assert told(tracker, 300) == []
    assert told(tracker, 600) == [("n3", "", "agent")]


def test_a_spool_that_is_emptied_does_not_make_a_source_look_fast(
    tracker: SilenceTracker,
) -> None:
    now = START + 7_200 * SECOND
    for second in range(0, 7_200, 30):
        tracker.observe(reading("nvml", START + second * SECOND), now)
    assert tracker.silences(now + 110 * SECOND) == []
    assert len(tracker.silences(now + 130 * SECOND)) == 1


def test_a_source_that_was_switched_off_is_forgotten_in_the_end() -> None:
    tracker = started(SilenceOptions(forget_seconds=3_600))
    run(tracker, range(0, 300, 10))
    for second in range(300, 6_000, 10):
        run(tracker, [second], sources=["host"])
        told(tracker, second)
    assert told(tracker, 6_000) == []
    assert tracker.coverage("n3", START + 6_000 * SECOND) == 1.0


def test_what_is_remembered_goes_through_json_and_back(tracker: SilenceTracker) -> None:
    tracker.expect(["n3"], START)
    run(tracker, range(0, 300, 10))
    other = SilenceTracker()
    other.load(json.loads(json.dumps(tracker.dump())))
    assert other.dump() == tracker.dump()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["nvml", "", "ipmi"]),
            st.integers(1, 2**62),
            st.integers(1, 2**62),
            st.booleans(),
            st.text(max_size=20),
        ),
        max_size=12,
    )
)
def test_no_readings_give_a_traceback(rows: list[tuple[str, int, int, bool, str]]) -> None:
    tracker = SilenceTracker()
    for source, at, arrival, up, fault in rows:
        tracker.observe(reading(source, at, up=up, fault=fault), arrival)
        tracker.silences(arrival)
        assert 0.0 <= tracker.coverage("n3", arrival) <= 1.0
        tracker.fleet_silent(arrival)


def test_who_goes_while_a_checkpoint_is_taken_is_expected_anew_when_it_is_back(
    tracker: SilenceTracker,
) -> None:
    tracker.expect(["n3", "n4"], START)
    turns = tracker.dump_turns()
    taken = [next(turns)]
    tracker.expect(["n3"], START + SECOND)
    taken.extend(turns)
    again = SilenceTracker()
    again.load(json.loads(json.dumps(put_together(taken))))
    again.expect(["n3", "n4"], START + 2 * SECOND)
    run(again, range(2, 1_000, 10))
    assert told(again, 600) == [("n4", "", "agent")]
