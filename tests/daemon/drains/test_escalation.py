"""What to do about a fault, and what next when it comes again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.alerts.active import of_decision
from daemon.drains.escalation import LADDER, Step, escalate, first_step, repeats_of
from daemon.policy.cases import Case, LedgerView, State
from daemon.policy.decisions import Decision
from models.rulebook import RULES
from models.voices import Remedy
from models.xid import catalogue, judge
from tests.daemon.policy.judging import NOW_NS, case
from tests.daemon.policy.judging import judge as decided
from tests.daemon.worlds import GENEROUS, SECOND_NS, START_NS, House, lost, risk, simulated

DAY_NS = 86_400 * SECOND_NS


@pytest.mark.parametrize(
    ("rule", "code", "text", "line", "step"),
    [
        ("xid", "x79", "", "", Step.REBOOT),
        ("xid", "x48", "", "", Step.RESET),
        ("xid", "x95", "", "", Step.RESET),
        ("xid", "x74", "", "", Step.RESET),
        ("xid", "x154", "", "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from "
         "0x0 (None) to 0x2 (Node Reboot Required)", Step.REBOOT),
        ("xid", "x154", "", "", Step.NONE),
        ("xid", "x99999", "", "", Step.NONE),
        ("xid", "x", "", "", Step.NONE),
        ("xid", "x999999999999", "", "", Step.NONE),
        ("recovery_action", "recov", "driver asks: gpu reset", "", Step.RESET),
        ("recovery_action", "recov", "driver asks: unknown", "", Step.NONE),
        ("row_remap_failed", "remap", "", "", Step.RMA),
        ("ecc_sram_threshold", "sram", "", "", Step.RMA),
        ("gpu_vanished", "vanish", "", "", Step.REBOOT),
        ("memory_uncorrected", "ue", "", "", Step.NONE),
        ("no_such_rule", "", "", "", Step.NONE),
    ],
)  # fmt: skip
def test_the_first_step_is_the_one_that_is_published(
    rule: str, code: str, text: str, line: str, step: Step
) -> None:
    assert first_step(rule, code, text, (line,) if line else ()) is step


def test_every_gpu_rule_that_drains_and_every_xid_that_asks_for_a_drain_has_a_first_step() -> None:
    left_out = {"xid", "recovery_action"}  # their steps come with the line
    for rule in RULES.values():
        if rule.component == "gpu" and rule.remedy is Remedy.DRAIN and rule.name not in left_out:
            assert first_step(rule.name, "", "", ()) is not Step.NONE, rule.name
    for code in catalogue():
        if judge(code).remedy is Remedy.DRAIN:
            assert first_step("xid", f"x{code}", "", ()) is not Step.NONE, code


def test_each_repeat_goes_one_step_up_and_ends_at_the_part() -> None:
    steps = [escalate(Step.RESET, n, "gpu3", 30).step for n in range(6)]
    assert steps == [*LADDER, Step.RMA, Step.RMA]
    assert escalate(Step.NONE, 5, "", 30).step is Step.NONE
    assert "gpu3 was drained once before in 30 days" in escalate(Step.REBOOT, 1, "gpu3", 30).text


def drained(number: int, **changes: object) -> Case:
    made = case("n1", state=State.RETURNED, device="gpu3", acknowledged_ns=START_NS)
    at_ns = NOW_NS - (10 - number) * DAY_NS
    return replace(made, id=f"{number:016x}", intent_ns=at_ns, **changes)  # type: ignore[arg-type]


def ledger(*cases: Case, **more: object) -> LedgerView:
    return LedgerView(cases={one.id: one for one in cases}, **more)  # type: ignore[arg-type]


def test_only_drains_of_the_same_part_count_and_none_of_before_it_was_replaced() -> None:
    def count(view: LedgerView) -> int:
        return repeats_of("f" * 16, "n1", "gpu3", view, NOW_NS - 30 * DAY_NS, NOW_NS)

    assert count(ledger(drained(1), drained(2))) == 2
    others = (
        drained(1, device="gpu4"), drained(2, node="n2"), drained(3, acknowledged_ns=0),
        drained(4, verdict=False), drained(5, state=State.FOREIGN), drained(-25),
    )  # fmt: skip
    assert count(ledger(*others)) == 0
    assert count(ledger(drained(1), drained(8), anew_ns={"n1/gpu3": NOW_NS - 5 * DAY_NS})) == 1
    assert count(ledger(drained(1), drained(8), anew_ns={"n1": NOW_NS - DAY_NS})) == 0


def test_the_decision_its_advice_and_its_alert_tell_the_step() -> None:
    first = decided(lost("n1"))[0]
    assert first.inputs["escalation"]["step"] == "reboot"
    assert first.advice == "restart the node"
    again = decided(lost("n1"), ledger=ledger(drained(1)))[0]
    assert again.inputs["escalation"]["step"] == "power_cycle"
    assert "power cycle the node" in again.advice
    third = decided(lost("n1"), ledger=ledger(drained(1), drained(2)))[0]
    assert third.inputs["escalation"] == {
        "step": "rma", "first": "reboot", "repeats": 2,
        "text": "gpu3 was drained 2 times before in 30 days: replace the part (RMA)",
    }  # fmt: skip
    told = of_decision(third)
    assert told is not None
    assert "replace the part (RMA)" in told.text


def test_a_likelihood_has_no_step() -> None:
    assert decided(risks=(risk("n1", 0.95),))[0].inputs["escalation"] is None


def test_over_a_ledger_the_same_gpu_goes_up_the_ladder_and_another_begins_below() -> None:
    made = House(simulated(2), limits=GENEROUS.model_copy(update={"flap_drains": 10}))
    made.clock.pass_seconds(10)

    def once(gpu: int) -> Decision:
        made.facts = [lost("n1", gpu, onset_ns=made.clock.pass_seconds(3600))]
        found = made.cycle()[0]
        made.clock.pass_seconds(60)
        made.cycle()
        made.drains.resume("n1", "ann", made.clock.pass_seconds(60))
        return found

    steps = [once(3).inputs["escalation"]["step"] for _ in range(2)]
    assert steps == ["reboot", "power_cycle"]
    assert once(5).inputs["escalation"]["step"] == "reboot"
    made.ledger.begin_anew("n1", "gpu3", "another GPU", made.clock.pass_seconds(60))
    assert once(3).inputs["escalation"]["step"] == "reboot"
