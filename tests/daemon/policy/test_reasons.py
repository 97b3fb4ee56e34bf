"""In which words a decision is told: the reason in Slurm, its id, its explanation."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.slurm.nodes import NodeState
from daemon.policy.candidates import head_of_reason, reason_of, short_id
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation, explain_node
from daemon.policy.decisions import Guard, Mode
from daemon.policy.guards import GUARDS
from daemon.policy.limits import Limits
from tests.daemon.policy.judging import NOW_NS, judge
from tests.daemon.worlds import (
    SECOND_NS,
    alert,
    cluster,
    lost,
    risk,
)


def test_a_risk_keeps_its_id_while_it_lasts() -> None:
    first = judge(risks=(risk("n1", 0.95),))[0]
    ledger = LedgerView(onsets={("n1", first.rule, first.device): first.inputs["onset_ns"]})
    later = judge(risks=(risk("n1", 0.96),), ledger=ledger, now_ns=NOW_NS + 3600 * SECOND_NS)[0]
    assert later.id == first.id


# ---- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "device", "head"),
    [
        ("x79", "gpu3", "tocsin:x79 gpu3"),
        ("vanish", "gpu11", "tocsin:vanish gpu11"),
        ("remap", "0000:9b:00", "tocsin:remap 9b:00"),
        ("x79", "", "tocsin:x79"),
        ("linkdown", "mlx5_0/1", "tocsin:link mlx5_0/1"),
    ],
)
def test_the_first_twenty_characters_tell_owner_cause_and_part(
    code: str, device: str, head: str
) -> None:
    assert head_of_reason(code, device) == head
    assert len(head) <= 20


def test_ids_are_as_short_as_they_may_be() -> None:
    assert short_id("9f2c000000000000", []) == "9f2c"
    assert short_id("9f2c000000000000", ["9f2c100000000000"]) == "9f2c0"
    assert short_id("9f2c000000000000", ["9f2c000000000000", "aaaa"]) == "9f2c"


@given(st.text(max_size=400), st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_text_makes_a_reason_that_is_not_plain(text: str, code: str, device: str) -> None:
    from daemon.policy.candidates import of_facts

    fact = replace(
        lost("n1"), text=text, code=code, entity=replace(lost("n1").entity, device=device)
    )
    reason = reason_of(of_facts([fact], {})[0], [], None)
    assert reason.startswith("tocsin:")
    assert len(reason) <= 200
    assert all(" " <= character <= "~" and character not in "\"'`\\" for character in reason)
    assert "\n" not in reason


def test_what_moved_a_decision_is_kept_as_plain_json() -> None:
    decision = judge(lost("n1"), risks=(risk("n1", 0.4),), limits=Limits(drains_per_hour=0))[0]
    inputs = json.loads(json.dumps(decision.inputs))
    assert decision.guard is Guard.CAP_HOUR
    assert [one["guard"] for one in inputs["guards"]] == [guard.value for guard, _ in GUARDS]
    assert [one["guard"] for one in inputs["guards"] if not one["passed"]] == ["cap_hour"]
    assert inputs["said"]["evidence"] == ["NVRM: Xid (PCI:0000:9b:00): 79"]
    assert inputs["node"]["words"] == "IDLE"
    assert inputs["limits"]["drains_per_hour"] == 0
    assert inputs["risk"] == pytest.approx(0.4)


def test_a_healthy_node_is_explained_too() -> None:
    nodes = cluster(4)
    situation = Situation(nodes, 1.0, coverage=dict.fromkeys(nodes, 1.0), risks=(risk("n1", 0.1),))
    verdicts, chance = explain_node("n1", situation, Limits(), LedgerView(), Mode.ACT, NOW_NS)
    assert all(verdict.text for verdict in verdicts)
    assert chance == pytest.approx(0.1)


def test_a_record_of_a_node_holds_all_that_slurm_said_of_it() -> None:
    (told,) = judge(alert("n1"))
    plain = told.inputs["node"]
    assert set(plain) == {one.name for one in fields(NodeState)} | {"words"}
    assert plain["partitions"] == ["batch"]
    assert json.loads(json.dumps(plain)) == plain
