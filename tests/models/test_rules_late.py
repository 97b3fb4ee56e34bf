"""The tool's own troubles: spools, absences and clocks are no faults of a node."""

from __future__ import annotations

import json

from collectors.events import event
from collectors.kernel.lines import parse
from models.rules import Rules
from models.voices import Remedy
from tests.models.rule_samples import (
    NOW,
    SECOND,
    feed,
    gpu,
    host,
    inventory,
    told,
    xid,
)

# ---- the tool's own troubles ----------------------------------------------------------------


def test_a_spool_that_is_emptied_tells_nothing_until_it_has_caught_up(rules: Rules) -> None:
    """The head was away for two hours; the node lost a GPU then, and restarted since."""
    old = NOW - 7_200 * SECOND
    arrival = NOW
    feed_at = [
        host(old - 10 * SECOND),
        xid(79, old),
        gpu(3, old, row_remap_failed=1.0),
        host(old),
    ]
    for one in feed_at:
        rules.observe(one, arrival)
    assert told(rules, arrival) == []
    boot = old + 3_600 * SECOND
    rest = [
        event("n3", "reboot", "boot", boot, text="restarted", severity=0),
        gpu(3, NOW, row_remap_failed=0.0),
        host(NOW, boot_time_seconds=boot / SECOND),
    ]
    for one in rest:
        rules.observe(one, arrival + SECOND)
    assert told(rules, arrival + SECOND) == []


def test_a_spool_that_is_emptied_tells_what_still_holds_in_the_end(rules: Rules) -> None:
    old = NOW - 7_200 * SECOND
    for one in [host(old), xid(79, old)]:
        rules.observe(one, NOW)
    assert told(rules) == []
    rules.observe(host(NOW), NOW)
    assert told(rules) == [("x79", "0000:9b:00")]


def test_urgent_events_that_come_before_their_readings_wait_for_them(rules: Rules) -> None:
    """The head was away; the spool sends the Xid first, and the restart after it."""
    feed(rules, [host(NOW - 7_300 * SECOND + step * 10 * SECOND) for step in range(10)])
    rules.observe(xid(79, NOW - 7_000 * SECOND), NOW)
    assert told(rules) == []
    rules.observe(host(NOW - 7_000 * SECOND), NOW)
    assert told(rules) == []
    boot = (NOW - 3_600 * SECOND) / SECOND
    rules.observe(host(NOW - 10 * SECOND, boot_time_seconds=boot), NOW)
    assert told(rules) == []


def test_a_live_event_does_not_wait(rules: Rules) -> None:
    feed(rules, [host(NOW - 60 * SECOND + step * 10 * SECOND) for step in range(6)])
    rules.observe(xid(79), NOW + SECOND // 2)
    assert told(rules, NOW + SECOND // 2) == [("x79", "0000:9b:00")]


def test_what_a_first_look_at_the_log_finds_is_told_but_not_acted_on(rules: Rules) -> None:
    old = NOW - 40_000 * SECOND
    rules.observe(xid(119, old), NOW)
    rules.observe(host(NOW), NOW)
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.remedy, fact.onset_ns) == ("x119", Remedy.ALERT, old)
    assert "before this node was watched" in fact.text
    # It happens again, under our eyes.
    rules.observe(xid(119, NOW + 5 * SECOND), NOW + 5 * SECOND)
    (fact,) = rules.facts(NOW + 5 * SECOND, {})
    assert (fact.remedy, fact.onset_ns) == (Remedy.DRAIN, NOW + 5 * SECOND)


def test_what_came_while_the_head_was_away_is_acted_on(rules: Rules) -> None:
    feed(rules, [host(NOW - 90_000 * SECOND + step * 10 * SECOND) for step in range(10)])
    rules.observe(xid(119, NOW - 40_000 * SECOND), NOW)
    rules.observe(host(NOW), NOW)
    (fact,) = rules.facts(NOW, {})
    assert fact.remedy is Remedy.DRAIN


def test_a_node_that_fell_silent_while_behind_keeps_its_facts(rules: Rules) -> None:
    old = NOW - 7_200 * SECOND
    for one in [host(old), xid(79, old)]:
        rules.observe(one, NOW)
    assert told(rules) == []
    assert told(rules, NOW + 600 * SECOND) == [("x79", "0000:9b:00")]


def test_a_head_that_was_away_for_long_hears_its_nodes_before_it_concludes(rules: Rules) -> None:
    """The Xid was stored; the node restarted while the head was down, and has not said so yet."""
    feed(rules, [host(NOW - 60 * SECOND), xid(79)])
    state = json.loads(json.dumps(rules.dump()))
    back = NOW + 7_200 * SECOND
    again = Rules()
    again.load(state)
    assert told(again, back) == []
    boot = (NOW + 3_600 * SECOND) / SECOND
    again.observe(host(back + 10 * SECOND, boot_time_seconds=boot), back + 10 * SECOND)
    assert told(again, back + 10 * SECOND) == []
    silent = Rules()
    silent.load(state)
    assert told(silent, back) == []
    assert told(silent, back + 200 * SECOND) == [("x79", "0000:9b:00")]
    soon = Rules()  # killed and started again at once
    soon.load(state)
    assert told(soon, NOW + 5 * SECOND) == [("x79", "0000:9b:00")]


def test_old_events_read_again_from_the_store_do_not_act_without_a_memory() -> None:
    """The checkpoint is lost: a month of events is read again, each as of its own time."""
    rules = Rules()
    feed(rules, [xid(119, NOW - 40_000 * SECOND), xid(95, NOW - 60 * SECOND)])
    feed(rules, [host(NOW - step * 10 * SECOND) for step in range(30, 0, -1)])
    facts = {fact.code: fact.remedy for fact in rules.facts(NOW, {})}
    assert facts == {"x119": Remedy.ALERT, "x95": Remedy.DRAIN}


def test_a_node_whose_clock_is_slow_is_believed_once_that_is_known(rules: Rules) -> None:
    slow = 1_800 * SECOND
    for step in range(12):
        at = NOW + step * 10 * SECOND
        rules.observe(gpu(3, at - slow, row_remap_failed=1.0), at)
    assert told(rules, NOW + 110 * SECOND) == [("remap", "gpu3")]
    assert told(rules, NOW + 900 * SECOND) == []


def test_a_clock_that_is_far_from_the_heads_is_told(rules: Rules) -> None:
    for step in range(12):
        at = NOW + step * 10 * SECOND
        rules.observe(host(at - 600 * SECOND), at)
    (fact,) = rules.facts(at, {})
    assert (fact.code, fact.remedy, fact.text) == (
        "clock",
        Remedy.ALERT,
        "clock is off by -600.0 s",
    )
    late = Rules()  # sent a few seconds late, as agents do
    for step in range(12):
        at = NOW + step * 10 * SECOND
        late.observe(host(at - 9 * SECOND), at)
    assert late.facts(at, {}) == []


def test_an_older_reading_does_not_overrule_a_newer_one(rules: Rules) -> None:
    feed(rules, [gpu(3, NOW, row_remap_failed=0.0)])
    rules.observe(gpu(3, NOW - 60 * SECOND, row_remap_failed=1.0), NOW)
    assert told(rules) == []


def test_the_driver_that_starts_the_gpu_after_all_ends_the_fact(rules: Rules) -> None:
    text = "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x65:2417)\n"
    feed(rules, [inventory(4, "0000:9b:00", NOW - SECOND), *parse(text, "n3", NOW)[0]])
    assert told(rules) == [("init", "gpu4")]
    feed(rules, [gpu(4, NOW + 60 * SECOND)])
    assert told(rules, NOW + 60 * SECOND) == []
