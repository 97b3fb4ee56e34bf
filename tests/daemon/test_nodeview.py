"""One node as people see it in the grid: state, owner, loudest voice, a mark for each GPU."""

from __future__ import annotations

import pytest

from collectors.sample import sample
from collectors.slurm.nodes import NodeState
from daemon.latest import Latest, NodeNow
from daemon.nodeview import gpu_marks, node_view, sorted_state
from daemon.page.view import NodeView
from daemon.policy.decisions import Action, Decision, Guard, Mode
from models.voices import Entity, Fact, Remedy, Risk
from tests.daemon.worlds import SECOND_NS, START_NS, alert, idle, lost, risk

NOW_NS = START_NS + 100 * SECOND_NS
SILENT_NS = 90 * SECOND_NS


def heard(*gpus: int, at_ns: int = NOW_NS, lost_gpu: int = -1) -> NodeNow:
    latest = Latest()
    for gpu in gpus:
        fields = {"temperature_celsius": 40.0, "lost": float(gpu == lost_gpu)}
        latest.observe([sample("gpu", at_ns, fields, node="n1", gpu=str(gpu))], at_ns)
    return latest.nodes["n1"]


def view(
    node: NodeState,
    now: NodeNow | None = None,
    facts: tuple[Fact, ...] = (),
    decision: Decision | None = None,
    risks: dict[str, Risk] | None = None,
    *,
    silent: bool = False,
) -> NodeView:
    return node_view(
        node,
        now,
        facts,
        risks or {},
        decision,
        None,
        silent=silent,
        now_ns=NOW_NS,
        silent_ns=SILENT_NS,
    )


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (idle("n1"), "idle"),
        (idle("n1", base="allocated"), "busy"),
        (idle("n1", base="mixed"), "busy"),
        (idle("n1", base="allocated", flags=frozenset({"DRAIN"})), "draining"),
        (idle("n1", flags=frozenset({"DRAIN"})), "drained"),
        (idle("n1", base="down"), "down"),
        (idle("n1", base="down", flags=frozenset({"DRAIN"})), "down"),
        (idle("n1", flags=frozenset({"NOT_RESPONDING"})), "down"),
        (idle("n1", flags=frozenset({"FAIL"})), "down"),
        (idle("n1", base="future"), "unknown"),
        (idle("n1", base=""), "unknown"),
    ],
)
def test_states_are_sorted_as_people_do(node: NodeState, state: str) -> None:
    assert sorted_state(node) == state


def test_each_gpu_has_one_mark_the_worst_that_is_said_of_it() -> None:
    now = heard(0, 1, 2, 3, 4, lost_gpu=4)
    facts = [lost("n1", 1), alert("n1")]  # gpu1 fell off; gpu0 has a pending remap
    risks = {"gpu2": risk("n1", 0.5, 2), "gpu3": risk("n1", 0.01, 3)}
    assert gpu_marks(idle("n1"), now, facts, risks, NOW_NS, SILENT_NS) == "fxr.x???"


def test_gpus_not_heard_lately_are_silent_and_never_healthy() -> None:
    old = heard(0, 1, at_ns=NOW_NS - SILENT_NS - 1)
    node = idle("n1", gpus_configured=2)
    assert gpu_marks(node, old, [], {}, NOW_NS, SILENT_NS) == "ss"
    assert gpu_marks(node, None, [], {}, NOW_NS, SILENT_NS) == "??"


def test_a_gpu_that_is_read_seldom_is_late_by_its_own_pace() -> None:
    latest = Latest()
    for at_ns in (START_NS - 300 * SECOND_NS, START_NS):
        row = sample("gpu", at_ns, {"temperature_celsius": 40.0}, node="n1", gpu="0")
        latest.observe([row], at_ns)
    node, now = idle("n1", gpus_configured=1), latest.nodes["n1"]
    for late_seconds, mark in ((1199, "."), (1201, "s")):
        now_ns = START_NS + late_seconds * SECOND_NS
        assert gpu_marks(node, now, [], {}, now_ns, SILENT_NS) == mark


def test_more_gpus_than_slurm_knows_are_shown_and_bounded() -> None:
    node = idle("n1", gpus_configured=1)
    assert gpu_marks(node, heard(0, 2), [], {}, NOW_NS, SILENT_NS) == ".?."
    many = idle("n1", gpus_configured=100_000)
    assert len(gpu_marks(many, None, [], {}, NOW_NS, SILENT_NS)) == 256


def test_a_drain_of_somebody_else_is_shown_as_theirs() -> None:
    theirs = idle("n1", flags=frozenset({"DRAIN"}), reason="swap PSU 2")
    assert (view(theirs).owner, view(theirs).reason) == ("other", "swap PSU 2")
    assert view(idle("n1")).owner == ""
    assert view(idle("n1", base="down")).owner == "other"


def test_the_loudest_voice_speaks() -> None:
    node = idle("n1")
    assert view(node).voice == ""
    assert view(node, silent=True).voice == "silence"
    quiet = Fact(Entity("gpu", "n1", "gpu0"), "note", "n", 0, Remedy.NONE, START_NS, "")
    assert view(node, facts=(quiet,), silent=True).voice == "silence"
    both = view(node, facts=(alert("n1"), lost("n1", 3)), silent=True)
    assert (both.voice, both.code, both.device) == ("fact", "x79", "gpu3")


def test_a_refused_drain_shows_its_guard() -> None:
    decision = Decision(
        id="9f2c",
        node="n1",
        device="gpu3",
        component="gpu",
        action=Action.HOLD,
        reason="",
        guard=Guard.CAP_CLUSTER,
        voice="fact",
        rule="xid",
        code="x79",
        mode=Mode.ACT,
        time_ns=NOW_NS,
    )
    shown = view(idle("n1"), decision=decision)
    assert (shown.voice, shown.code, shown.guard) == ("fact", "x79", Guard.CAP_CLUSTER.value)


def test_when_it_was_heard_last() -> None:
    assert view(idle("n1")).heard_seconds is None
    assert view(idle("n1"), heard(0, at_ns=START_NS)).heard_seconds == 100.0
    ahead = view(idle("n1"), heard(0, at_ns=NOW_NS + SECOND_NS))
    assert ahead.heard_seconds == 0.0
