"""Proof before return, in memory: every kill, every answer, and whose node it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daemon.drains.drains import RefusedError
from daemon.explain import of_case
from daemon.policy.cases import State
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.proofs.proof import Probe, ProofOptions, Result, judge, parse_result
from daemon.proofs.records import ProofRecords
from daemon.proofs.story import with_proofs
from tests.daemon.proving import SimulatedProving
from tests.daemon.worlds import GENEROUS, Clock, House, lost, simulated

PASSING = ProofOptions(when="drained", returns="passed", passes=2, clean_seconds=30)


class Killed(BaseException):
    """The head was killed."""


class World:
    """One Slurm, one database, and heads that come and go."""

    def __init__(self, options: ProofOptions = PASSING, mode: Mode = Mode.ACT) -> None:
        self.clock = Clock()
        self.slurm = simulated(3, self.clock)
        self.kill_at = -1
        self.writes = 0
        self.tools = SimulatedProving(self.slurm, self.write)
        self.limits = Limits(**{**GENEROUS.model_dump(), "proof": options})
        self.mode = mode
        self.house = House(self.slurm, limits=self.limits, mode=mode, prover=self.tools)
        self._own_drain = self.slurm.drain
        self._own_undrain = self.slurm.undrain
        self.slurm.drain = self.drain  # type: ignore[method-assign]
        self.slurm.undrain = self.undrain  # type: ignore[method-assign]
        self.restart()

    def restart(self) -> None:
        old = self.house
        self.house = House(
            self.slurm, database=old.database, limits=self.limits, mode=self.mode,
            prover=self.tools,
        )  # fmt: skip
        self.house.clock = self.clock
        self.house.now_ns = self.clock.now_ns
        self.house.facts = old.facts

    def write(self, what: str) -> None:
        self.writes += 1
        self.closed()
        if self.writes == self.kill_at:
            raise Killed

    def drain(self, reasons, check):  # type: ignore[no-untyped-def]
        self.write("before drain")
        outcome = self._own_drain(reasons, check)
        self.write("after drain")
        return outcome

    def undrain(self, names, check):  # type: ignore[no-untyped-def]
        self.write("before undrain")
        outcome = self._own_undrain(names, check)
        self.write("after undrain")
        return outcome

    def cycle(self, seconds: float = 15) -> None:
        self.clock.pass_seconds(seconds)
        try:
            self.house.cycle()
        except Killed:
            self.restart()
        self.closed()

    def drained(self, node: str = "n1") -> str:
        self.house.facts = [lost(node, onset_ns=self.clock.pass_seconds(1))]
        while not self.house.ledger.held():
            self.cycle(5)
        case = self.house.ledger.case_of(node)
        assert case is not None
        return case.id

    def state(self, case: str) -> State:
        return self.house.ledger.find(case).state

    def closed(self) -> None:
        """A node that has been tested is never open before a passed proof is on record."""
        for case in self.house.ledger.held():
            shown = self.slurm.nodes()[case.node]
            reserved = case.node in self.tools.reservations.values()
            if case.state is State.TESTING and not shown.drain and not reserved:
                told = [e.verb for e in self.house.ledger.audit(subject=case.id)]
                assert "proof_releasing" in told or "resume" in told


def test_a_node_that_passes_comes_back_after_its_clean_window() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    assert world.state(case) is State.TESTING
    assert world.tools.reservations == {f"tocsin_{case[:8]}": "n1"}
    world.cycle()
    assert not world.slurm.nodes()["n1"].drain
    world.cycle(31)
    assert world.state(case) is State.RETURNED
    assert world.tools.reservations == {}
    assert world.tools.jobs_run_on == ["n1", "n1"]
    assert world.house.facts == [], "its causes are spent"


@pytest.mark.parametrize("result", ["tocsin=failed:gemm:exit1", "", "rubbish"])
def test_a_node_that_fails_is_drained_again_with_the_reason(result: str) -> None:
    world = World()
    world.tools.result = result
    case = world.drained()
    world.cycle()
    world.cycle()
    assert world.state(case) is State.DRAINED
    node = world.slurm.nodes()["n1"]
    assert node.drain
    assert "; proof failed: " in node.reason
    assert node.reason.startswith("tocsin:x79 gpu3 ")
    assert world.tools.reservations == {}
    writes = world.slurm.writes_total
    for _ in range(5):
        world.cycle()
    assert world.slurm.writes_total == writes, "once a boot"


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("kill_at", range(1, 19))
def test_a_kill_at_any_write_is_settled_by_the_next_head(kill_at: int, passes: bool) -> None:
    world = World()
    world.tools.result = "tocsin=ok" if passes else "tocsin=failed:gemm:exit1"
    world.kill_at = kill_at
    case = world.drained()
    for _ in range(14):
        world.cycle()
    told = [e.verb for e in world.house.ledger.audit(subject=case)]
    assert world.tools.reservations == {}
    assert "proof_begins" in told
    if passes:
        assert world.state(case) is State.RETURNED
        assert not world.slurm.nodes()["n1"].drain
    else:
        assert world.state(case) is State.DRAINED
        assert world.slurm.nodes()["n1"].reason == world.house.ledger.find(case).reason
    assert world.house.ledger.decisions(case=case)


def test_off_by_default_and_in_shadow_nothing_is_tested() -> None:
    world = World(ProofOptions())
    case = world.drained()
    for _ in range(5):
        world.cycle()
    assert world.state(case) is State.DRAINED
    with pytest.raises(RefusedError, match="switched off"):
        world.house.drains.prove("n1", "ann", world.clock.now_ns())


def test_with_reboot_a_proof_begins_only_once_the_node_was_rebooted() -> None:
    world = World(PASSING.model_copy(update={"when": "reboot"}))
    case = world.drained()
    world.cycle()
    assert world.state(case) is State.DRAINED
    world.slurm.change("n1", lambda n: replace(n, boot_time_ns=world.clock.now_ns()))
    for _ in range(5):
        world.cycle()
    assert world.state(case) is State.RETURNED


def test_a_person_may_ask_for_a_proof_and_is_recorded() -> None:
    world = World(PASSING.model_copy(update={"when": "asked", "returns": "person"}))
    case = world.drained()
    world.cycle()
    world.house.drains.prove("n1", "ann", world.clock.now_ns())
    for _ in range(4):
        world.cycle()
    assert world.state(case) is State.DRAINED
    assert "; proof passed 2 of 2; " in world.slurm.nodes()["n1"].reason
    said = {e.verb: e.user for e in world.house.ledger.audit(subject=case)}
    assert said["proof_begins"] == "ann"


def test_a_new_fault_during_the_clean_window_keeps_the_node_out() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    world.house.facts.append(lost("n1", 5, world.clock.pass_seconds(1)))
    for _ in range(4):
        world.cycle()
    assert world.state(case) is State.DRAINED
    assert "x79 gpu5 came meanwhile" in world.slurm.nodes()["n1"].reason


def test_a_person_who_drains_it_meanwhile_keeps_it_and_our_reservation_goes() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    world.slurm.set("n1", state="drain", reason="ann: mine")
    world.cycle()
    assert world.state(case) is State.FOREIGN
    assert world.slurm.nodes()["n1"].reason == "ann: mine"
    assert world.tools.reservations == {}


def test_a_reservation_that_is_gone_ends_the_proof_with_a_drain() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    assert not world.slurm.nodes()["n1"].drain
    world.tools.reservations.clear()
    world.house.cycle()
    assert world.slurm.nodes()["n1"].drain
    assert world.state(case) is State.DRAINED


def test_a_node_that_dies_in_its_proof_stays_reserved_and_is_drained_when_it_is_back() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    world.slurm.set("n1", user="slurm", state="down", reason="Not responding")
    world.cycle()
    assert world.tools.reservations != {}
    assert world.slurm.nodes()["n1"].reason == "Not responding"
    world.slurm.set("n1", user="slurm", state="resume")
    world.cycle()
    assert world.state(case) is State.DRAINED
    assert world.slurm.nodes()["n1"].drain


def test_a_persons_resume_frees_a_node_under_proof() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    world.house.drains.resume("n1", "ann", world.clock.now_ns())
    assert world.state(case) is State.RETURNED
    assert world.tools.reservations == {}
    assert not world.slurm.nodes()["n1"].drain


def test_a_flapping_node_is_never_returned_by_a_proof() -> None:
    world = World()
    world.limits = world.limits.model_copy(update={"flap_drains": 1})
    world.restart()
    case = world.drained()
    for _ in range(5):
        world.cycle()
    assert world.state(case) is State.DRAINED


def test_a_node_that_a_person_locked_is_neither_tested_nor_returned_by_itself() -> None:
    world = World()
    case = world.drained()
    world.house.drains.lock("n1", "ann", world.clock.now_ns())
    for _ in range(5):
        world.cycle()
    assert world.state(case) is State.DRAINED, "tocsin keeps its hands off a locked node"
    assert world.tools.jobs_run_on == []
    world.house.drains.unlock("n1", "ann", world.clock.now_ns())
    world.cycle()
    world.house.drains.lock("n1", "ann", world.clock.now_ns())
    for _ in range(5):
        world.cycle()
    assert world.state(case) is State.DRAINED, "locked while it was tested: a person returns it"
    assert "proof passed 2 of 2" in world.slurm.nodes()["n1"].reason


def test_a_lock_in_the_clean_window_keeps_the_node_out_unless_a_person_wants_it_back() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    world.cycle()
    assert ProofRecords(world.house.database).open()[0].step == "releasing"
    world.house.drains.lock("n1", "ann", world.clock.now_ns())
    for _ in range(5):
        world.cycle()
    assert world.state(case) is State.DRAINED
    world.house.drains.resume("n1", "ann", world.clock.now_ns())
    assert world.state(case) is State.RETURNED, "her own word goes"


def test_so_many_nodes_at_once_and_no_more() -> None:
    world = World()
    for name in ("n1", "n2", "n3"):
        world.house.facts.append(lost(name, onset_ns=world.clock.pass_seconds(1)))
    for _ in range(3):
        world.cycle(1)
        assert len(world.tools.reservations) <= 1
    for _ in range(12):
        world.cycle()
    assert world.house.ledger.held() == []


# ---- figures ---------------------------------------------------------------------------------


def test_figures_below_the_minimum_or_the_peers_fail() -> None:
    probes = {"gemm": Probe(command=("x",), minimum={"gemm_flops": 10.0})}
    ok = Result(True, {"gemm_flops": 20.0})
    assert judge(ok, probes, {}, 0.7) == ""
    assert "at least 10" in judge(Result(True, {"gemm_flops": 5.0}), probes, {}, 0.7)
    assert "gave no gemm_flops" in judge(Result(True), probes, {}, 0.7)
    assert "3 peers have 40" in judge(ok, probes, {"gemm_flops": [40.0] * 3}, 0.7)
    assert judge(ok, probes, {"gemm_flops": [40.0] * 2}, 0.7) == "", "two are no peers yet"


@pytest.mark.parametrize("text", ["", "tocsin", "tocsin=okay", "x;tocsin=ok", "tocsin=failed"])
def test_what_is_no_result_is_no_pass(text: str) -> None:
    assert parse_result(text) is None


def test_a_result_keeps_only_figures() -> None:
    found = parse_result("tocsin=ok;a_watts=1.5;b=x;Reason=2;c_total=-3e-2")
    assert found is not None
    assert found.figures == {"a_watts": 1.5, "c_total": -0.03}


def test_in_approve_mode_only_what_a_person_asks_for_is_tested_and_a_person_returns_it() -> None:
    world = World(PASSING.model_copy(update={"when": "asked"}))
    case = world.drained()
    world.limits = Limits(**{**GENEROUS.model_dump(), "proof": PASSING})
    world.mode = Mode.APPROVE
    world.restart()
    for _ in range(5):
        world.cycle()
    assert world.tools.jobs == {}
    world.house.drains.prove("n1", "ann", world.clock.now_ns())
    for _ in range(5):
        world.cycle()
    assert world.state(case) is State.DRAINED
    assert "; proof passed 2 of 2; " in world.slurm.nodes()["n1"].reason


def test_what_a_proof_came_to_is_told_in_words_and_kept_as_readings() -> None:
    world = World(PASSING.model_copy(update={"passes": 1}))
    world.tools.result = "tocsin=failed:disk:exit1;gemm_flops=1e9"
    case = world.drained()
    for _ in range(5):
        world.cycle()
    (reading,) = world.house.drains.take_news()
    assert (reading.measurement, reading.tag("code")) == ("slurm_event", "proof_failed")
    assert "disk:exit1 failed" in reading.text("text")
    assert world.house.drains.take_news() == []
    ledger = world.house.ledger
    found = ledger.find(case)
    told = of_case(found, ledger.decisions(case=case), ledger.audit(subject=case), (), ())
    told = with_proofs(told, found, ProofRecords(world.house.database), world.limits.proof)
    words = " ".join(told.sentences)
    assert "proof failed: disk:exit1 failed, ended" in words
    assert "For a ticket: node n1; drained for: tocsin:x79 gpu3" in words
    assert ("proof gemm_flops", 1e9) in {(one.name, one.value) for one in told.signals}


@pytest.mark.parametrize("end", ["passes", "drained by ann", "asked for"])
def test_a_reservation_that_somebody_changed_is_theirs_and_is_never_deleted(end: str) -> None:
    world = World()
    case = world.drained()
    world.cycle()
    (name,) = world.tools.reservations
    # scontrol update ReservationName=... Users+=ann Nodes+=n2: it no longer is what we made.
    world.tools.reservations[name] = "n1,n2"
    if end == "drained by ann":
        world.slurm.set("n1", state="drain", reason="ann: mine")
    if end == "asked for":
        world.house.drains.resume("n1", "bob", world.clock.now_ns())
    for _ in range(4):
        world.clock.pass_seconds(15)
        world.house.cycle()
    assert world.tools.reservations == {name: "n1,n2"}
    wanted = {"passes": State.DRAINED, "drained by ann": State.FOREIGN, "asked for": State.RETURNED}
    assert world.state(case) is wanted[end]
    assert world.slurm.nodes()["n1"].drain == (end != "asked for")
    assert any("theirs to delete" in one.text for one in world.house.ledger.audit(subject=case))


def test_a_node_that_was_given_back_days_ago_is_not_drained_by_an_old_ledger() -> None:
    """What a head sees whose ledger was restored from a backup of a moment within a proof."""
    world = World()
    submit = world.tools.submit

    def goes_on(*arguments: Any) -> None:
        submit(*arguments)
        for name, job in world.tools.jobs.items():
            world.tools.jobs[name] = replace(job, state="RUNNING", comment="")

    world.tools.submit = goes_on  # type: ignore[method-assign]
    case = world.drained()
    world.cycle()
    assert world.state(case) is State.TESTING
    # The reservation was deleted and jobs run there; this head looks again only now.
    world.tools.reservations.clear()
    world.tools.jobs.clear()
    world.clock.pass_seconds(3 * 86_400)
    for _ in range(3):
        world.clock.pass_seconds(15)
        world.house.cycle()
    assert world.state(case) is State.RETURNED
    assert not world.slurm.nodes()["n1"].drain
    told = [one.text for one in world.house.ledger.audit(subject=case)]
    assert any("somebody gave it back" in text for text in told)


def test_a_name_that_somebody_else_uses_is_not_deleted_when_no_reservation_can_be_had() -> None:
    world = World()
    case = world.drained()
    world.tools.reservations[f"tocsin_{case[:8]}"] = "n9"
    for _ in range(400):
        world.clock.pass_seconds(60)
        world.house.cycle()
    assert world.tools.reservations == {f"tocsin_{case[:8]}": "n9"}
    assert world.state(case) is State.DRAINED
    assert world.slurm.nodes()["n1"].drain


def test_a_node_that_slurmctld_drained_again_while_a_person_freed_it_is_held_and_can_be_freed() -> (
    None
):
    world = World()
    case = world.drained()
    world.cycle()
    before = world.house.ledger.find(case).reason
    proof = world.house.drains._proofs
    assert proof is not None
    proof.free(world.house.ledger.find(case), "ann", world.clock.now_ns())
    # A crash of slurmctld goes back to what it had saved: our drain, and the reservation.
    world.slurm.set("n1", user="tocsin", state="drain", reason=before)
    world.cycle()
    world.cycle()
    assert world.state(case) is State.DRAINED
    world.house.drains.resume("n1", "ann", world.clock.now_ns())
    assert world.state(case) is State.RETURNED


def test_a_proof_that_shadow_mode_left_standing_is_told_with_the_way_out() -> None:
    world = World()
    case = world.drained()
    world.cycle()
    (name,) = world.tools.reservations
    world.house = House(world.slurm, database=world.house.database, mode=Mode.SHADOW)
    with pytest.raises(RefusedError, match=f"scontrol delete ReservationName={name}"):
        world.house.drains.resume("n1", "ann", world.clock.now_ns())
    assert world.state(case) is State.TESTING


def test_a_figure_without_end_is_no_figure() -> None:
    found = parse_result("tocsin=ok;gemm_flops=1e999;loopback_bytes_per_second=-1e999;x=2e3")
    assert found == Result(True, {"x": 2000.0})
