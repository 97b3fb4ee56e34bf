"""The one place that acts, over a Slurm in memory: drains, whose they are, collisions, notes."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from daemon.drains.drains import RefusedError
from daemon.policy.cases import State
from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.limits import Limits
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.drains.houses import house, node, slurm
from tests.daemon.worlds import (
    Clock,
    House,
    by_node,
    cluster,
    idle,
    lost,
)


def test_a_drain_is_made_once_and_then_known_as_ours() -> None:
    made = house()
    made.facts = [lost("n3")]
    first = made.cycle()[0]
    assert (first.action, first.guard) == (Action.DRAIN, None)
    assert node(made, "n3").drain
    assert node(made, "n3").reason == first.reason
    writes = slurm(made).writes_total
    for _ in range(5):
        made.clock.pass_seconds(10)
        assert made.cycle()[0].guard is Guard.OURS
    assert slurm(made).writes_total == writes
    case = made.ledger.case_of("n3")
    assert case is not None
    assert case.state is State.DRAINED
    verbs = [entry.verb for entry in made.ledger.audit(subject=case.id)]
    assert verbs[::-1] == ["intend", "drained"]


def test_decisions_are_recorded_on_change_only() -> None:
    made = house(limits=Limits(drains_per_hour=0))
    made.facts = [lost("n3")]
    for _ in range(5):
        made.cycle()
        made.clock.pass_seconds(10)
    found = made.ledger.decisions(node="n3")
    assert [(one.action, one.guard) for one in found] == [(Action.HOLD, Guard.CAP_HOUR)]


def test_a_busy_node_is_draining_until_its_last_job_ends() -> None:
    made = house()
    slurm(made).put(idle("n3", base="mixed", jobs=("7",)))
    made.facts = [lost("n3")]
    made.cycle()
    assert made.ledger.case_of("n3").state is State.DRAINING  # type: ignore[union-attr]
    slurm(made).put(replace(node(made, "n3"), base="idle", jobs=()))
    made.cycle()
    assert made.ledger.case_of("n3").state is State.DRAINED  # type: ignore[union-attr]


def test_shadow_writes_nothing_and_records_what_it_would_do() -> None:
    made = house(Mode.SHADOW)
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.SHADOW
    assert slurm(made).writes_total == 0
    assert made.ledger.decisions(node="n3")[0].guard is Guard.SHADOW


def test_an_operators_drain_between_decision_and_look_is_left_alone() -> None:
    made = house()
    made.facts = [lost("n3")]
    stale = made.adapter.nodes()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    decision = made.cycle(stale)[0]
    assert (decision.action, decision.guard) == (Action.HOLD, Guard.FOREIGN)
    assert "ops: PSU" in decision.guard_text
    assert node(made, "n3").reason == "ops: PSU"
    assert made.ledger.case_of("n3") is None


def test_an_operators_drain_between_look_and_write_is_theirs() -> None:
    clock = Clock()
    slurm_ = SimulatedSlurm(
        cluster(4).values(), clock.now_ns, lambda: slurm_.set("n3", state="drain", reason="ops")
    )
    made = House(slurm_)
    made.facts = [lost("n3")]
    decision = made.cycle()[0]
    assert decision.guard is Guard.FOREIGN
    assert node(made, "n3").reason == "ops"
    assert made.ledger.find(decision.id).state is State.FOREIGN
    assert made.ledger.audit(subject=decision.id)[0].detail["reason"] == "ops"


def test_a_relabelled_node_is_theirs_for_good() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    slurm(made).set("n3", reason="ann: I look at it")
    made.clock.pass_seconds(10)
    assert made.cycle()[0].guard is Guard.FOREIGN
    with pytest.raises(RefusedError, match="ann: I look at it"):
        made.drains.resume("n3", "bob", made.now_ns())
    assert node(made, "n3").drain
    # When they give it back, the same cause does not drain it again.
    slurm(made).set("n3", state="resume")
    for _ in range(3):
        made.clock.pass_seconds(10)
        made.cycle()
    assert not node(made, "n3").drain


def test_a_node_that_others_give_back_starts_anew() -> None:
    made = house()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    made.facts = [lost("n3")]
    assert made.cycle()[0].guard is Guard.FOREIGN
    made.clock.pass_seconds(10)
    slurm(made).set("n3", state="resume")
    assert made.cycle() == []
    assert not node(made, "n3").drain
    made.facts = [lost("n3", onset_ns=made.clock.pass_seconds(10))]
    assert made.cycle()[0].action is Action.DRAIN


def _still_says(made: House, reason: str) -> None:
    """As Slurm 23.11 to 25.11 without accounting leave a node that was resumed."""
    slurm(made).change("n3", lambda node: replace(node, reason=reason))


def test_a_reason_left_from_a_drain_that_ended_keeps_no_node_from_the_next() -> None:
    for who in ("others", "tocsin"):
        made = house()
        if who == "others":
            slurm(made).set("n3", state="drain", reason="ops: PSU")
        else:
            made.facts = [lost("n3")]
        made.cycle()
        reason = node(made, "n3").reason
        made.clock.pass_seconds(10)
        slurm(made).set("n3", state="resume")
        _still_says(made, reason)
        made.facts = []
        made.cycle()
        made.facts = [lost("n3", onset_ns=made.clock.pass_seconds(10))]
        assert made.cycle()[0].action is Action.DRAIN
        assert node(made, "n3").drain
        assert node(made, "n3").reason.startswith("tocsin:")


@pytest.mark.parametrize("reason", ["ann: benchmark until Friday, do not drain", "ops: PSU 2"])
def test_any_other_reason_at_a_node_in_service_is_its_owners_word(reason: str) -> None:
    made = house()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    made.cycle()
    made.clock.pass_seconds(10)
    slurm(made).set("n3", state="resume")
    _still_says(made, reason)
    made.cycle()
    made.facts = [lost("n3", onset_ns=made.clock.pass_seconds(10))]
    decision = made.cycle()[0]
    assert decision.guard is Guard.FOREIGN
    assert repr(reason) in decision.guard_text
    assert (node(made, "n3").drain, node(made, "n3").reason) == (False, reason)


def test_a_drain_that_a_person_lifted_in_slurm_is_not_made_again() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    made.clock.pass_seconds(10)
    slurm(made).set("n3", state="resume")
    assert made.cycle() == []
    made.facts = [lost("n3")]
    made.clock.pass_seconds(10)
    assert made.cycle()[0].guard is Guard.SPENT
    assert not node(made, "n3").drain


def test_a_reading_older_than_our_write_changes_nothing() -> None:
    made = house()
    stale = made.adapter.nodes()
    made.facts = [lost("n3")]
    made.cycle()
    made.clock.pass_seconds(1)
    assert made.cycle(stale)[0].guard is Guard.OURS
    assert node(made, "n3").drain
    assert made.ledger.case_of("n3") is not None


def test_a_node_that_left_slurm_is_no_longer_held() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    del slurm(made)._nodes["n3"]
    made.cycle()
    assert made.ledger.held() == []


def test_a_down_node_keeps_being_ours_while_its_reason_is() -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    slurm(made).put(replace(node(made, "n3"), base="down"))
    made.cycle()
    assert made.ledger.case_of("n3") is not None


def test_a_foreign_node_with_a_fault_gets_a_line_in_its_comment_and_loses_it_when_back() -> None:
    made = house()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    slurm(made).set("n4", state="drain", reason="ops: PSU")
    slurm(made).put(replace(node(made, "n4"), comment="rack move"))
    made.facts = [lost("n3"), lost("n4")]
    found = by_node(made.cycle())
    assert node(made, "n3").comment == (f"tocsin {found['n3'].short_id}: x79 gpu3 fell off the bus")
    assert node(made, "n3").reason == "ops: PSU"
    assert node(made, "n4").comment == "rack move"
    writes = slurm(made).writes_total
    made.cycle()
    assert slurm(made).writes_total == writes
    slurm(made).set("n3", state="resume")
    slurm(made).set("n4", state="resume")
    made.cycle()
    assert node(made, "n3").comment == ""
    assert node(made, "n4").comment == "rack move"


def test_audit_and_decisions_can_only_grow() -> None:
    made = house()
    made.facts = [lost("n1")]
    made.cycle()
    for table in ("audit", "decisions"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET node = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                made.database.execute(statement)


def test_nodes_of_one_cycle_are_written_together() -> None:
    made = house()
    made.facts = [lost(f"n{i}") for i in range(1, 5)]
    found = by_node(made.cycle())
    assert {one.action for one in found.values()} == {Action.DRAIN}
    assert all(one.drain for one in made.adapter.nodes().values())


@pytest.mark.parametrize("words", ["; power supply swap, ann: hands off", " reboot it never. bob",
                                   ": reboot issued by hand, ann is on it", "; Not responding to "
                                   "ping, ask ops", " : power"])  # fmt: skip
def test_a_reason_that_a_person_added_to_is_theirs(words: str) -> None:
    made = house()
    made.facts = [lost("n3")]
    made.cycle()
    reason = node(made, "n3").reason + words
    slurm(made).set("n3", user="ann", state="drain", reason=reason)
    made.cycle()
    assert made.ledger.held() == []
    with pytest.raises(RefusedError, match="not tocsin's"):
        made.drains.resume("n3", "bob", made.clock.pass_seconds(5))
    assert node(made, "n3").reason == reason


@pytest.mark.parametrize("words", ["tocsin keeps draining this one, ask bob",
                                   "{note} - ann: RMA 4711 is open"])  # fmt: skip
def test_a_comment_of_a_person_is_never_taken_for_our_note(words: str) -> None:
    made = house()
    slurm(made).set("n3", state="drain", reason="ops: PSU")
    made.facts = [lost("n3")]
    made.cycle()
    theirs = words.format(note=node(made, "n3").comment)
    slurm(made).change("n3", lambda shown: replace(shown, comment=theirs))
    made.facts = [lost("n3", onset_ns=made.clock.pass_seconds(60))]
    made.cycle()
    assert node(made, "n3").comment == theirs
    slurm(made).set("n3", state="resume")
    made.facts = []
    made.cycle()
    assert node(made, "n3").comment == theirs
