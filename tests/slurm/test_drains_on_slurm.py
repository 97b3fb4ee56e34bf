"""How drains behave on a real Slurm: what operators fear, each as a test."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from collectors.slurm.source import Options
from daemon.drains.drains import RefusedError
from daemon.policy.cases import State
from daemon.policy.decisions import Action, Guard, Mode
from daemon.policy.limits import Limits
from daemon.slurm.cli import CliAdapter
from daemon.store.database import Database
from tests.daemon.worlds import GENEROUS, House, by_node, lost
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
THEIRS = "ann: swapping the PSU"
ROOT = Path(__file__).parents[2]


def house(
    slurm: Cluster, limits: Limits = GENEROUS, mode: Mode = Mode.ACT, **more: object
) -> House:
    adapter = CliAdapter(Options(), **more)  # type: ignore[arg-type]
    made = House(adapter, limits=limits, mode=mode, now_ns=time.time_ns)
    made.facts = []
    return made


def fresh(node: str):  # type: ignore[no-untyped-def]
    """A fact that is newer than any return of the node in earlier tests."""
    return lost(node, onset_ns=time.time_ns())


def test_a_running_job_goes_on_and_new_jobs_go_elsewhere(slurm: Cluster) -> None:
    job = slurm.start_job("n3", "--gres=gpu:2")
    made = house(slurm)
    made.facts = [fresh("n3")]
    decision = made.cycle()[0]
    assert decision.action is Action.DRAIN
    shown = slurm.run("sinfo", "-R", "-h", "-o", "%20E|%N")
    assert f"tocsin:x79 gpu3 {decision.short_id}|n3" in shown
    assert slurm.words("n3") == {"MIXED", "DRAIN"}
    assert slurm.jobs()[job] == ("RUNNING", "n3")
    others = [slurm.submit("-N1", "--gres=gpu:8") for _ in range(3)]
    wait_for(lambda: all(slurm.jobs()[o][0] == "RUNNING" for o in others), "the other jobs")
    assert {slurm.jobs()[other][1] for other in others} == {"n1", "n2", "n4"}
    assert made.ledger.case_of("n3").state is State.DRAINING  # type: ignore[union-attr]
    slurm.run("scancel", job)
    wait_for(lambda: slurm.words("n3") == {"IDLE", "DRAIN"}, "n3 to be empty")
    made.cycle()
    assert made.ledger.case_of("n3").state is State.DRAINED  # type: ignore[union-attr]


def test_an_operators_drain_is_never_changed_and_never_lifted(slurm: Cluster) -> None:
    slurm.drain("n1", THEIRS)
    slurm.drain("n2", "tocsin:x79 gpu3 0000; looks like ours and is not in the ledger")
    before = slurm.show()
    made = house(slurm)
    made.facts = [fresh("n1"), fresh("n2")]
    begin = slurm.log_size()
    assert {one.guard for one in made.cycle()} == {Guard.FOREIGN}
    for node in ("n1", "n2"):
        with pytest.raises(RefusedError):
            made.drains.resume(node, "bob", time.time_ns())
    assert slurm.show() == before
    assert slurm.updates_since(begin) == []


def test_a_drain_set_between_our_read_and_our_write_stays(slurm: Cluster) -> None:
    made = house(slurm, window=lambda: slurm.drain("n3", THEIRS))
    made.facts = [fresh("n3")]
    decision = made.cycle()[0]
    assert (decision.action, decision.guard) == (Action.HOLD, Guard.FOREIGN)
    assert slurm.words("n3") == {"IDLE", "DRAIN"}
    assert slurm.reason("n3") == THEIRS
    assert made.ledger.find(decision.id).state is State.FOREIGN
    for _ in range(2):
        assert made.cycle()[0].guard is Guard.FOREIGN
    assert slurm.reason("n3") == THEIRS


def test_a_node_relabelled_by_a_person_is_theirs(slurm: Cluster) -> None:
    made = house(slurm)
    made.facts = [fresh("n3")]
    made.cycle()
    slurm.update("n3", reason=THEIRS)
    assert made.cycle()[0].guard is Guard.FOREIGN
    with pytest.raises(RefusedError, match="swapping"):
        made.drains.resume("n3", "bob", time.time_ns())
    assert slurm.reason("n3") == THEIRS
    assert "DRAIN" in slurm.words("n3")


def test_resume_lifts_ours_and_leaves_a_down_node_down(slurm_start) -> None:  # type: ignore[no-untyped-def]
    # Times as short as slurmctld takes them: n4 is DOWN after a few seconds.
    slurm = slurm_start(nodes=4, extra="SlurmdTimeout=2\nMessageTimeout=2\n")
    made = house(slurm)
    made.facts = [fresh("n3"), fresh("n4")]
    # With times as short as these a node may not answer for a moment, and is not drained then.
    wait_for(lambda: made.cycle() and len(made.ledger.held()) == 2, "both drains")
    made.drains.resume("n3", "ann", time.time_ns())
    wait_for(lambda: slurm.show()["n3"] == (frozenset({"IDLE"}), ""), "n3 to be idle")
    slurm.node("kill-node", "n4")
    wait_for(lambda: "DOWN" in slurm.words("n4"), "n4 to be down")
    assert made.cycle()[-1].guard in (Guard.OURS, Guard.FOREIGN)
    with contextlib.suppress(RefusedError):
        made.drains.resume("n4", "ann", time.time_ns())
    assert "DOWN" in slurm.words("n4")


def test_a_down_or_unregistered_node_is_never_drained(slurm: Cluster) -> None:
    slurm.update("n1", state="down", reason="bad DIMM")
    made = house(slurm)
    made.facts = [fresh("n1")]
    assert made.cycle()[0].guard is Guard.FOREIGN
    assert slurm.show()["n1"] == (frozenset({"DOWN"}), "bad DIMM")


def test_shadow_writes_nothing_by_slurmctlds_own_log(slurm: Cluster) -> None:
    made = house(slurm, mode=Mode.SHADOW)
    made.facts = [fresh(node) for node in slurm.nodes]
    begin = slurm.log_size()
    for _ in range(3):
        assert {one.guard for one in made.cycle()} == {Guard.SHADOW}
    assert slurm.updates_since(begin) == []
    assert all(words == {"IDLE"} for words, _ in slurm.show().values())


def test_one_drain_an_hour_and_four_refusals(slurm_start) -> None:  # type: ignore[no-untyped-def]
    cluster = slurm_start(nodes=5)
    made = house(cluster, Limits(drains_per_hour=1, drained_share_max=1.0, partition_share_max=1.0))
    made.facts = [fresh(node) for node in cluster.nodes]
    for _ in range(3):
        made.cycle()
    drained = [name for name, (words, _) in cluster.show().items() if "DRAIN" in words]
    assert len(drained) == 1
    guards = sorted(made.ledger.decisions(node=node)[0].guard_text for node in cluster.nodes)
    assert sum("drains in the last hour; at most 1 are allowed" in text for text in guards) == 4


# ---- slurmctld's own troubles ----------------------------------------------------------------


def settle(made: House, slurm: Cluster, node: str) -> None:
    """Cycles, with what Slurm answers, until ``node`` is drained by us and acknowledged."""

    def done() -> bool:
        try:
            made.cycle()
        except Exception:  # Slurm away: the head's own cycle would skip this one
            return False
        case = made.ledger.case_of(node)
        return case is not None and case.state is State.DRAINED

    wait_for(done, f"the drain of {node}")


def test_with_slurmctld_stopped_nothing_happens_and_the_drain_comes_when_it_is_back_once(
    slurm: Cluster,
) -> None:
    made = house(slurm)
    nodes = made.adapter.nodes()
    begin = slurm.log_size()
    slurm.stop_controller()
    try:
        made.facts = [fresh("n3")]
        decision = made.cycle(nodes)[0]
        assert (decision.action, decision.guard) == (Action.HOLD, Guard.SLURM_AWAY)
    finally:
        slurm.start_controller()
    settle(made, slurm, "n3")
    made.cycle()
    writes = [line for line in slurm.updates_since(begin) if "reason set to: tocsin" in line]
    assert len(writes) == 1
    assert made.ledger.decisions(node="n3")[0].action is Action.DRAIN


def test_a_slurmctld_that_hangs_in_the_write_gives_one_drain_once_it_goes_on(
    slurm: Cluster,
) -> None:
    frozen: list[int] = []

    def freeze() -> None:
        if not frozen:
            slurm.freeze_controller()
            frozen.append(1)

    made = House(
        CliAdapter(Options(deadline_seconds=4), window=freeze),
        limits=GENEROUS,
        now_ns=time.time_ns,
    )
    made.facts = [fresh("n3")]
    try:
        decision = made.cycle()[0]
        assert decision.action is Action.DRAIN
        assert made.ledger.case_of("n3").state is State.INTENT  # type: ignore[union-attr]
    finally:
        slurm.thaw_controller()
    settle(made, slurm, "n3")
    reason = made.ledger.case_of("n3").reason  # type: ignore[union-attr]
    assert slurm.reason("n3") == reason
    assert [e.verb for e in made.ledger.audit(node="n3")].count("drained") == 1


def crash(slurm: Cluster, how: str, saved: Path) -> None:
    """slurmctld ends and starts again, with what it saved, or with what it had saved before."""
    if how == "restarted":
        slurm.stop_controller()
    else:
        slurm.kill_controller()
    if how == "forgot":
        shutil.rmtree(slurm.directory / "state")
        shutil.copytree(saved, slurm.directory / "state")
    slurm.start_controller()


def save(slurm: Cluster, saved: Path) -> None:
    """Keeps slurmctld's state as it is on disk now; it saves all of it when it stops."""
    slurm.stop_controller()
    shutil.copytree(slurm.directory / "state", saved)
    slurm.start_controller()
    wait_for(lambda: all(w == {"IDLE"} or "DRAIN" in w for w, _ in slurm.show().values()), "nodes")


@pytest.mark.parametrize("how", ["restarted", "killed", "forgot"])
def test_a_slurmctld_that_comes_back_keeps_or_gets_back_its_one_drain(
    slurm_start, tmp_path: Path, how: str
) -> None:  # type: ignore[no-untyped-def]
    slurm = slurm_start(nodes=3)
    save(slurm, tmp_path / "state")
    made = house(slurm)
    made.facts = [fresh("n3")]
    made.cycle()
    reason = slurm.reason("n3")
    crash(slurm, how, tmp_path / "state")
    settle(made, slurm, "n3")
    wait_for(lambda: made.cycle() and slurm.reason("n3") == reason, "the drain to be back")
    others = [words for name, (words, _) in slurm.show().items() if name != "n3"]
    assert not any("DRAIN" in words for words in others)
    told = [entry.verb for entry in made.ledger.audit(node="n3")]
    assert ("forgotten" in told) == (how == "forgot")


def test_a_drain_that_slurmctld_brings_back_from_before_its_return_is_ours_again(
    slurm_start, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    slurm = slurm_start(nodes=2)
    made = house(slurm)
    made.facts = [fresh("n2")]
    made.cycle()
    reason = slurm.reason("n2")
    save(slurm, tmp_path / "state")
    made.drains.resume("n2", "ann", time.time_ns())
    made.cycle()
    crash(slurm, "forgot", tmp_path / "state")
    assert slurm.reason("n2") == reason
    made.cycle()
    case = made.ledger.case_of("n2")
    assert case is not None
    assert case.reason == reason
    made.drains.resume("n2", "ann", time.time_ns())
    wait_for(lambda: slurm.reason("n2") == "", "n2 to be free")


# ---- kill -9 ---------------------------------------------------------------------------------


def test_kill_9_at_any_moment_leaves_one_drain_a_node_and_a_ledger_that_agrees(
    slurm: Cluster, tmp_path: Path
) -> None:
    database = tmp_path / "ledger.db"
    nodes = ["n1", "n2", "n3"]
    begin = slurm.log_size()
    rng = random.Random(7)
    command = [sys.executable, "-m", "tests.slurm.drain_once", str(database), *nodes]
    for _ in range(10):
        child = subprocess.Popen(
            command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            # Imports take most of it; the drain path itself is some 50 ms behind them.
            assert child.stdout is not None
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0.3, 1.2))
            else:
                child.stdout.readline()
                time.sleep(rng.uniform(0.0, 0.05))
        finally:
            child.kill()
            child.wait()
    made = House(
        CliAdapter(Options()),
        database=Database(database),
        limits=GENEROUS,
        now_ns=time.time_ns,
    )
    made.facts = [lost(node) for node in nodes]
    for _ in range(2):
        assert {one.guard for one in made.cycle()} == {Guard.OURS}
    shown = slurm.show()
    held = {case.node: case for case in made.ledger.held()}
    assert set(held) == set(nodes)
    for node in nodes:
        assert shown[node] == (frozenset({"IDLE", "DRAIN"}), held[node].reason)
    assert shown["n4"] == (frozenset({"IDLE"}), "")
    # One reason a node, whatever was killed: a write that is repeated is the same drain.
    reasons = {line for line in slurm.updates_since(begin) if "reason set to" in line}
    assert len(reasons) == 3
    for node in nodes:
        # No decision is lost, wherever the kill came.
        assert [one.action for one in made.ledger.decisions(node=node)] == [Action.DRAIN]
        told = [entry.verb for entry in made.ledger.audit(subject=held[node].id)]
        assert "intend" in told
        assert "drained" in told


# ---- a person beside us, at full speed -------------------------------------------------------


def test_a_person_who_drains_at_the_same_moment_is_never_overwritten(slurm: Cluster) -> None:
    """Races for real: no hook, two processes, the same node, 20 times."""
    rng = random.Random(3)
    collisions = 0
    for turn in range(20):
        node = slurm.nodes[turn % 4]
        theirs = f"ann: hands off {turn}"
        made = house(slurm)
        made.facts = [fresh(node)]
        made.adapter.describe()  # the log is known before the race begins

        def person(node: str = node, theirs: str = theirs) -> None:
            time.sleep(rng.uniform(0.0, 0.03))
            slurm.drain(node, theirs)

        thread = threading.Thread(target=person)
        nodes = made.adapter.nodes()
        thread.start()
        made.cycle(nodes)
        thread.join()
        collisions += any(e.verb == "collision" for e in made.ledger.audit(node=node))
        # Whoever was first, the person's word stands at the end.
        assert slurm.reason(node) == theirs
        assert "DRAIN" in slurm.words(node)
        made.cycle()
        assert made.ledger.held() == []
        slurm.update(node, state="undrain")
    print(f"collisions in the window: {collisions} of 20")


def test_several_nodes_at_once_are_drained_in_one_cycle(slurm: Cluster) -> None:
    made = house(slurm)
    made.facts = [fresh(node) for node in slurm.nodes]
    found = by_node(made.cycle())
    assert {one.action for one in found.values()} == {Action.DRAIN}
    assert all("DRAIN" in words for words, _ in slurm.show().values())
