"""Facts from Xids: what is concluded, what is not, and for how long."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.events import event
from collectors.kernel.lines import parse
from collectors.sample import Sample, sample
from models.rulebook import RULES, Thresholds
from models.rules import Rules
from models.voices import Entity, Fact, Remedy
from tests.models.rule_samples import (
    BOOT,
    LINE,
    NOW,
    SECOND,
    cycle,
    feed,
    gpu,
    host,
    inventory,
    told,
    xid,
)

# ---- the rule book --------------------------------------------------------------------------


def test_every_rule_says_what_it_means_when_it_holds_and_when_it_ends() -> None:
    for name, rule in RULES.items():
        assert name == rule.name
        assert rule.meaning
        assert rule.threshold
        assert rule.ends
        assert rule.remedy in (Remedy.ALERT, Remedy.DRAIN)


# ---- Xids -----------------------------------------------------------------------------------


def test_xid_79_is_a_drain_of_the_gpu_at_that_address(rules: Rules) -> None:
    feed(rules, [inventory(4, "0000:9b:00", NOW - SECOND), xid(79)])
    (fact,) = rules.facts(NOW, {"n3": 8})
    assert fact == Fact(
        Entity("gpu", "n3", "gpu4"),
        "xid",
        "x79",
        3,
        Remedy.DRAIN,
        NOW,
        "fell off the bus",
        "restart the node; if it comes back, call support",
        (LINE.format(79),),
    )


def test_without_an_inventory_the_address_names_the_gpu(rules: Rules) -> None:
    feed(rules, [xid(79)])
    assert told(rules) == [("x79", "0000:9b:00")]


def test_an_inventory_that_comes_later_does_not_rename_a_known_fact(rules: Rules) -> None:
    feed(rules, [xid(79), inventory(4, "0000:9b:00", NOW + SECOND)])
    assert told(rules) == [("x79", "0000:9b:00")]
    feed(rules, [xid(79)])
    assert told(rules) == [("x79", "0000:9b:00")]


def test_after_a_renumbering_an_index_names_one_address(rules: Rules) -> None:
    feed(rules, [inventory(3, "0000:3b:00"), inventory(4, "0000:9b:00")])
    feed(rules, [inventory(3, "0000:9b:00", NOW + SECOND)])
    feed(rules, [xid(79, NOW + 2 * SECOND), xid(119, NOW + 2 * SECOND, "0000:3b:00")])
    assert sorted(told(rules, NOW + 2 * SECOND)) == [("x119", "0000:3b:00"), ("x79", "gpu3")]


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69])
def test_application_xids_are_no_facts(rules: Rules, code: int) -> None:
    feed(rules, [xid(code, NOW + i) for i in range(200)])
    assert told(rules) == []


def test_the_same_line_twice_is_one_fact_with_one_onset(rules: Rules) -> None:
    feed(rules, [xid(79), xid(79), xid(79, NOW + 60 * SECOND)])
    facts = rules.facts(NOW + 60 * SECOND, {})
    assert [(fact.code, fact.onset_ns) for fact in facts] == [("x79", NOW)]


def test_154_is_what_its_word_says_and_can_be_taken_back(rules: Rules) -> None:
    text = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to "
    feed(rules, [xid(154, NOW, text=text + "0x4 (Drain and Reset)")])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.remedy) == ("x154", Remedy.DRAIN)
    assert "drain and reset" in fact.text
    feed(rules, [xid(154, NOW + 9 * SECOND, text=text + "0x0 (None)")])
    assert told(rules) == []
    feed(rules, [xid(154, NOW, text=text + "0x4 (Drain and Reset)")])  # a replay
    assert told(rules) == []


def test_nvml_without_a_recovery_action_ends_a_154(rules: Rules) -> None:
    text = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1"
    feed(rules, [inventory(4, "0000:9b:00"), xid(154, text=text)])
    feed(rules, [gpu(4, NOW + 10 * SECOND, recovery_action=1.0)])
    assert ("x154", "gpu4") in told(rules, NOW + 10 * SECOND)
    feed(rules, [gpu(4, NOW + 60 * SECOND, recovery_action=0.0)])
    assert told(rules, NOW + 60 * SECOND) == []


def test_xid_0_is_none(rules: Rules) -> None:
    feed(rules, [xid(0)])
    assert told(rules) == []


def test_an_unknown_code_alerts(rules: Rules) -> None:
    feed(rules, [xid(999)])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.remedy) == ("x999", Remedy.ALERT)


def test_the_lost_line_beside_xid_79_is_evidence_not_a_second_fact(rules: Rules) -> None:
    text = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
    lost = event("n3", "gpu_lost", "lost", NOW + 20, text=text, severity=3, device="0000:9b:00")
    feed(rules, [xid(79), lost])
    (fact,) = rules.facts(NOW, {})
    assert fact.code == "x79"
    assert fact.evidence == (LINE.format(79), text)


def test_a_gpu_lost_without_an_xid_is_a_fact(rules: Rules) -> None:
    lines = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:2330) installed in "
        "this system has\n               NVRM: fallen off the bus and is not responding.\n"
    )
    feed(rules, parse(lines, "n3", NOW)[0])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.rule, fact.remedy) == ("lost", "gpu_lost", Remedy.DRAIN)


def test_only_fatal_sxids_are_facts(rules: Rules) -> None:
    log = (
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32 egress\n"
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30\n"
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
    )
    feed(rules, parse(log, "n3", NOW)[0])
    (fact,) = rules.facts(NOW, {})
    assert (fact.code, fact.entity) == ("sxid20034", Entity("chassis", "n3", "0000:c1:00"))


# ---- how long a fact holds ------------------------------------------------------------------


def test_a_latched_fact_holds_through_silence(rules: Rules) -> None:
    feed(rules, [xid(79)])
    assert told(rules, NOW + 7 * 86_400 * SECOND) == [("x79", "0000:9b:00")]


def test_a_restart_ends_what_was_before_and_nothing_after(rules: Rules) -> None:
    feed(rules, [xid(79), xid(48, NOW + 200 * SECOND)])
    reboot = event("n3", "reboot", "boot", NOW + 100 * SECOND, text="restarted", severity=0)
    feed(rules, [reboot])
    assert told(rules, NOW + 300 * SECOND) == [("x48", "0000:9b:00")]
    feed(rules, [xid(79)])  # the old line, told again
    assert told(rules, NOW + 300 * SECOND) == [("x48", "0000:9b:00")]


def test_a_new_boot_time_is_a_restart(rules: Rules) -> None:
    feed(rules, [host(NOW - 10 * SECOND), xid(79)])
    assert told(rules) == [("x79", "0000:9b:00")]
    later = NOW + 400 * SECOND
    feed(rules, [host(later, boot_time_seconds=(NOW + 300 * SECOND) / SECOND)])
    assert told(rules, later) == []


def test_a_step_of_the_clock_is_no_restart(rules: Rules) -> None:
    feed(rules, [host(NOW - 10 * SECOND), xid(79)])
    # The clock is put forward by an hour: boot time and readings move with it.
    step = 3_600 * SECOND
    feed(rules, [host(NOW + step, boot_time_seconds=(BOOT + step) / SECOND)])
    assert told(rules, NOW + step) == [("x79", "0000:9b:00")]


def test_clear_spends_what_was_before_it(rules: Rules) -> None:
    feed(rules, [xid(79)])
    rules.clear("n3", NOW + 10 * SECOND)
    assert told(rules, NOW + 20 * SECOND) == []
    feed(rules, [xid(79)])  # found again after a restart of the agent
    assert told(rules, NOW + 20 * SECOND) == []
    feed(rules, [xid(79, NOW + 30 * SECOND)])
    assert told(rules, NOW + 30 * SECOND) == [("x79", "0000:9b:00")]


def test_clear_before_an_onset_leaves_it(rules: Rules) -> None:
    feed(rules, [xid(79)])
    rules.clear("n3", NOW - SECOND)
    assert told(rules) == [("x79", "0000:9b:00")]


def test_an_event_of_a_fast_clock_is_spent_by_clear_all_the_same(rules: Rules) -> None:
    ahead = xid(79, NOW + 600 * SECOND)
    rules.observe(ahead, NOW)
    rules.clear("n3", NOW + 10 * SECOND)
    rules.observe(ahead, NOW + 11 * SECOND)
    assert told(rules, NOW + 20 * SECOND) == []


def test_a_state_that_lasts_over_clear_stays_hidden_until_it_has_gone(rules: Rules) -> None:
    feed(rules, [gpu(3, NOW, row_remap_failed=1.0)])
    assert told(rules) == [("remap", "gpu3")]
    rules.clear("n3", NOW + SECOND)
    feed(rules, [gpu(3, NOW + 10 * SECOND, row_remap_failed=1.0)])
    assert told(rules, NOW + 10 * SECOND) == []
    feed(rules, [gpu(3, NOW + 20 * SECOND, row_remap_failed=0.0)])
    feed(rules, [gpu(3, NOW + 30 * SECOND, row_remap_failed=1.0)])
    assert told(rules, NOW + 30 * SECOND) == [("remap", "gpu3")]


# ---- memory ---------------------------------------------------------------------------------


def test_what_is_remembered_goes_through_json_and_back(rules: Rules) -> None:
    feed(rules, [inventory(4, "0000:9b:00"), host(NOW), xid(79), xid(48, pci="0000:3b:00")])
    feed(rules, [gpu(3, NOW, row_remap_failed=1.0, ecc_uncorrected_total=1.0)])
    feed(rules, [gpu(3, NOW + SECOND, row_remap_failed=1.0, ecc_uncorrected_total=3.0)])
    feed(rules, cycle(NOW + SECOND, range(8)))
    other = Rules()
    other.load(json.loads(json.dumps(rules.dump())))
    now = NOW + 2 * SECOND
    assert other.facts(now, {"n3": 8}) == rules.facts(now, {"n3": 8})
    assert len(other.facts(now, {"n3": 8})) >= 3
    assert other.dump() == rules.dump()
    for one in (rules, other):
        feed(one, [xid(79), gpu(3, NOW + 11 * SECOND, ecc_uncorrected_total=9.0)])
    assert other.facts(now, {}) == rules.facts(now, {})


def test_a_node_that_sends_nonsense_costs_bounded_memory(rules: Rules) -> None:
    for number in range(3_000):
        feed(rules, [xid(79, NOW + number, pci=f"{number:04x}:01:00")])
        feed(rules, [inventory(number, f"{number:04x}:02:00")])
        feed(rules, [gpu(number, NOW)])
    (node,) = rules.dump()["nodes"].values()
    assert len(node["active"]) <= 256
    assert len(node["gpus"]) <= 256
    assert len(node["inventory"]) <= 256


VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0, -1.0, 2.0**63])
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "lost",
            "recovery_action",
            "row_remap_failed",
            "ecc_uncorrected_total",
            "memory_used_bytes",
            "temperature_celsius",
            "boot_time_seconds",
            "clock_offset_seconds",
            "critical",
            "present",
            "link_width",
            "link_width_max",
            "up",
        ]
    ),
    VALUES,
    min_size=1,
)
SAMPLES = st.builds(
    lambda measurement, at, fields, gpu_index, kind, code, text: sample(
        measurement,
        at,
        {**fields, "text": text, "device": text} if measurement == "event" else fields,
        node="n3",
        gpu=gpu_index,
        source="nvml",
        kind=kind,
        code=code,
    ),
    st.sampled_from(["gpu", "event", "host", "source", "disk", "bmc", "pcie", "other"]),
    st.integers(1, 2**62),
    FIELDS,
    st.sampled_from(["", "0", "3", "x"]),
    st.sampled_from(["xid", "sxid", "inventory", "reboot", "gpu_lost", "driver", "sel", ""]),
    st.sampled_from(["79", "13", "154", "144", "", "x", "init_failed", "9" * 30]),
    st.sampled_from(["", "gpu=3 uuid=x", "0000:9b:00", "NVRM: Xid (PCI:0000:9b:00): 154, x"]),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(SAMPLES, st.integers(1, 2**62)), max_size=12))
def test_no_samples_give_a_traceback(pairs: list[tuple[Sample, int]]) -> None:
    rules = Rules(Thresholds())
    for one, arrival in pairs:
        rules.observe(one, arrival)
        rules.facts(arrival, {"n3": 8})
        rules.clear("n3", arrival)
    other = Rules()
    other.load(json.loads(json.dumps(rules.dump())))
    assert other.facts(NOW, {"n3": 8}) == rules.facts(NOW, {"n3": 8})
