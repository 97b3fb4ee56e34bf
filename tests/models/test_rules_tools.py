"""What other programs say of a node: heard, told to people, never a drain, and over when it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collectors.events import CRITICAL, ERROR, INFO, WARNING, event
from collectors.gpu.dcgm_json import parse_diag, parse_health
from collectors.inventory import Board, Inventory
from collectors.kernel.lines import parse
from collectors.sample import Sample, sample, source_reading
from models.rule_tools import EVENTS
from models.rules import Rules
from models.voices import Fact, Remedy

SECOND = 10**9
NOW = 1_796_000_000 * SECOND
FIXTURES = Path(__file__).parents[1] / "fixtures"
PCI = "0000:9b:00"


@pytest.fixture
def rules() -> Rules:
    made = Rules()
    made.observe(sample("host", NOW - SECOND, {"load_1m": 1.0}, node="n3"), NOW - SECOND)
    return made


def one(
    kind: str, code: str, severity: float, device: str = PCI, at: int = NOW, text: str = "words"
) -> Sample:
    return event("n3", kind, code, at, text=text, severity=severity, device=device)


def facts(rules: Rules, *samples: Sample, expected: int = 0, now: int = NOW) -> list[Fact]:
    rules.observe(sample("host", now, {"load_1m": 1.0}, node="n3"), now)
    for part in samples:
        rules.observe(part, part.time_ns)
    return rules.facts(now, {"n3": expected})


def test_no_word_of_another_program_ever_drains(rules: Rules) -> None:
    for kind, code in EVENTS:
        for severity in (INFO, WARNING, ERROR, CRITICAL):
            told = facts(rules, one(kind, code.replace("*", "any"), severity))
            assert all(fact.remedy is Remedy.ALERT for fact in told), (kind, code)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("driver", "assertion"),
        ("driver", "insufficient_power"),
        ("driver", "nic_command"),
        ("driver", "no_permission"),
        ("hung_task", "blocked"),
    ],
)
def test_what_healthy_machines_print_as_well_stays_silent(
    rules: Rules, kind: str, code: str
) -> None:
    assert facts(rules, one(kind, code, WARNING)) == []


def test_failed_health_of_dcgm_is_told_until_dcgm_calls_it_well(rules: Rules) -> None:
    (fact,) = facts(rules, one("dcgm_health", "nvlink", ERROR, "gpu3"))
    assert (fact.rule, fact.code, fact.entity.device) == ("dcgm_health", "dcgm-nvlink", "gpu3")
    assert facts(rules, one("dcgm_health", "memory", INFO, "gpu3", NOW + SECOND)) == [fact]
    assert facts(rules, one("dcgm_health", "nvlink", INFO, "gpu3", NOW + SECOND)) == []


def test_warnings_and_internal_errors_of_dcgm_are_no_facts(rules: Rules) -> None:
    assert facts(rules, one("dcgm_health", "pcie", WARNING)) == []
    assert facts(rules, one("dcgm_health", "overall", ERROR, text="overall: Internal Error")) == []


def test_a_health_report_that_does_not_answer_says_nothing_of_the_node(rules: Rules) -> None:
    report = json.dumps({"body": {"Overall Health": {"value": "Internal Error"}}})
    samples, _ = parse_health(report, "n3", NOW)
    assert samples
    assert facts(rules, *samples) == []


def test_a_failed_diagnostic_is_told_and_one_that_did_not_run_is_not(rules: Rules) -> None:
    broken = (FIXTURES / "gpu/dcgm/diag_runtime-error.json").read_text()
    assert facts(rules, *parse_diag(broken, "n3", NOW)[0]) == []
    told = facts(rules, one("dcgm_diag", "memory", CRITICAL, "gpu1"))
    assert [(fact.code, fact.severity) for fact in told] == [("diag-memory", 3)]


def test_an_audit_fault_is_told_until_an_audit_finds_it_mended(rules: Rules) -> None:
    (fact,) = facts(rules, one("topology", "slot", WARNING))
    assert (fact.rule, fact.remedy) == ("topology", Remedy.ALERT)
    assert facts(rules, one("topology", "slot", INFO, at=NOW + SECOND)) == []


def test_missing_lanes_are_left_to_the_rule_of_their_state(rules: Rules) -> None:
    assert facts(rules, one("topology", "lanes", WARNING)) == []


def test_each_repair_ends_by_itself(rules: Rules) -> None:
    pending = [one("repair", code, WARNING) for code in ("channel_repair_pending", "tpc_repair")]
    assert len(facts(rules, *pending)) == 2
    (left,) = facts(rules, one("repair", "channel_repair_pending", INFO, at=NOW + SECOND))
    assert left.code == "repair-tpc"


def boards(*indices: int) -> dict[int, Board]:
    return {
        index: Board(index, f"GPU-{number}", f"0000:{number:02x}:00")
        for index, number in enumerate(indices)
    }


def test_a_gpu_out_of_its_fabric_is_told_until_it_is_in_it_again(rules: Rules) -> None:
    (fact,) = facts(rules, one("fabric", "fabric", ERROR))
    assert (fact.rule, fact.remedy) == ("fabric", Remedy.ALERT)
    again = one("fabric", "fabric", INFO, at=NOW + 60 * SECOND)
    assert facts(rules, again, now=NOW + 60 * SECOND) == []


def test_a_gpu_that_the_driver_no_longer_lists_is_told_by_its_address(rules: Rules) -> None:
    seen = Inventory("n3", 3600.0)
    facts(rules, *seen.events({"count": 3}, boards(1, 2, 3), True, NOW))
    # GPU 2 goes, and its index passes to GPU 3.
    later = seen.events({"count": 2}, boards(1, 3), True, NOW + SECOND)
    (fact,) = facts(rules, *later, now=NOW + SECOND)
    assert (fact.rule, fact.entity.device) == ("gpu_unlisted", "0000:02:00")
    # The next hourly inventory changes nothing; its return does.
    hourly = seen.events({"count": 2}, boards(1, 3), True, NOW + 3601 * SECOND)
    assert len(facts(rules, *hourly, now=NOW + 3601 * SECOND)) == 1
    back = seen.events({"count": 3}, boards(1, 2, 3), True, NOW + 3602 * SECOND)
    assert facts(rules, *back, now=NOW + 3602 * SECOND) == []


def test_the_drivers_own_count_stands_beside_ours_in_the_evidence(rules: Rules) -> None:
    seen = Inventory("n3", 3600.0)
    facts(rules, *seen.events({"count": 7}, boards(*range(1, 8)), True, NOW))
    told: list[Fact] = []
    for step in range(8):
        at = NOW + step * 10 * SECOND
        readings = [
            sample("gpu", at, {"power_watts": 90.0 + step}, node="n3", gpu=str(n), uuid=f"GPU-{n}")
            for n in range(7)
        ]
        up = source_reading("n3", "nvml", at, up=True, duration_seconds=0.1, age_seconds=0.0)
        told = facts(rules, *readings, up, expected=8, now=at)
    (fact,) = told
    assert (fact.rule, fact.remedy) == ("gpu_count", Remedy.DRAIN)
    assert "the driver lists 7 GPUs" in fact.evidence
    again = Rules()
    again.load(json.loads(json.dumps(rules.dump())))
    assert [one.evidence for one in again.facts(NOW + 70 * SECOND, {"n3": 8})] == [fact.evidence]


def test_kernel_lines_of_a_dying_host_reach_people(rules: Rules) -> None:
    lines = (
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]\n"
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff\n"
        "nvidia-nvswitch1: Failed to initialize device : -5\n"
    )
    told = facts(rules, *parse(lines, "n3", NOW)[0])
    assert {(fact.rule, fact.remedy) for fact in told} == {
        ("kernel", Remedy.ALERT),
        ("nvme", Remedy.ALERT),
        ("driver", Remedy.ALERT),
    }


def link(at: int, generation: float, load: float) -> Sample:
    fields = {
        "pcie_link_generation": generation,
        "pcie_link_generation_max": 5.0,
        "utilization_ratio": load,
        "power_watts": 90.0,
    }
    return sample("gpu", at, fields, node="n3", gpu="2", uuid="GPU-2")


def test_a_slow_link_is_told_only_under_load_and_only_if_it_stays_slow(rules: Rules) -> None:
    minute = 60 * SECOND
    assert facts(rules, link(NOW, 1.0, 0.0), link(NOW + minute, 1.0, 0.1), now=NOW + minute) == []
    assert facts(rules, link(NOW + 2 * minute, 3.0, 0.9), now=NOW + 2 * minute) == []
    (fact,) = facts(rules, link(NOW + 3 * minute, 3.0, 0.9), now=NOW + 3 * minute)
    assert (fact.rule, fact.remedy, fact.entity.device) == ("pcie_speed", Remedy.ALERT, "gpu2")
    assert fact.text == "PCIe generation 3 of 5 under load"
    assert facts(rules, link(NOW + 4 * minute, 5.0, 0.9), now=NOW + 4 * minute) == []
