"""Random interleavings of tocsin, people, node deaths, kills and slurmctld crashes.

The model knows whose word stands at each node. Whatever the order, tocsin never changes or
lifts a person's drain, never holds more than its cap, never writes two drains, and ends in
agreement with Slurm, every drain explained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from collectors.slurm.nodes import NodeState
from daemon.drains.drains import RefusedError
from daemon.policy.cases import State
from daemon.policy.decisions import Action
from daemon.policy.limits import Limits
from daemon.proofs.proof import ProofOptions
from daemon.slurm.adapter import Check, Outcome
from daemon.slurm.simulated import SimulatedSlurm
from daemon.store.database import Database
from tests.daemon.proving import SimulatedProving
from tests.daemon.worlds import Clock, House, cluster, idle, lost

NODES = st.sampled_from(["n1", "n2", "n3", "n4", "n5"])
CAP = 2
LIMITS = Limits(
    drains_per_hour=1000,
    drained_nodes_max=CAP,
    drained_share_max=1.0,
    partition_share_max=1.0,
    breaker_drains=100_000,
    flap_drains=4,
    proof=ProofOptions(when="drained", returns="passed", passes=1, clean_seconds=100),
)


class Killed(BaseException):
    """The head was killed."""


class Crashy(SimulatedSlurm):
    """A Slurm whose writes can be cut off: the head dies, or the answer is lost."""

    trouble = ""
    log: list[tuple[str, str, str]]  # node, what stood there before, what tocsin wrote

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        trouble, self.trouble = self.trouble, ""
        if trouble == "killed before":
            raise Killed
        if trouble == "lost before":
            return Outcome(unknown=dict.fromkeys(reasons, "no answer"))
        before = self.nodes(list(reasons))
        outcome = super().drain(reasons, check)
        for name in outcome.done:
            self.log.append((name, before[name].words + before[name].reason, reasons[name]))
        if trouble == "killed after":
            raise Killed
        if trouble == "lost after":
            return Outcome(unknown=dict.fromkeys(reasons, "no answer"))
        return outcome

    def undrain(self, names, check: Check) -> Outcome:  # type: ignore[no-untyped-def]
        trouble, self.trouble = self.trouble, ""
        if trouble == "killed before":
            raise Killed
        outcome = super().undrain(names, check)
        if trouble == "killed after":
            raise Killed
        return outcome


class Interleavings(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.slurm = Crashy(cluster(5).values(), self.clock.now_ns, lambda: self.window())
        self.slurm.log = []
        self.tools = SimulatedProving(self.slurm, self.proof_write)
        self.die_at = ""
        self.window_word: tuple[str, str] | None = None
        self.database = Database(":memory:")
        self.theirs: dict[str, str] = {}
        self.saved = self.picture()
        self.stale: dict[str, NodeState] | None = None
        self.words = 0
        self.house = self.head()

    def head(self) -> House:
        made = House(self.slurm, database=self.database, limits=LIMITS, prover=self.tools)
        made.clock = self.clock
        made.now_ns = self.clock.now_ns
        return made

    def picture(self) -> tuple[dict[str, NodeState], dict[str, str], dict[str, str]]:
        return self.slurm.nodes(), dict(self.theirs), dict(self.tools.reservations)

    def proof_write(self, what: str) -> None:
        if what == self.die_at:
            self.die_at = ""
            raise Killed

    def window(self) -> None:
        """What a person does between tocsin's look and its write."""
        if self.window_word is not None:
            node, reason = self.window_word
            self.window_word = None
            self.person(node, "drain", reason)

    def person(self, node: str, state: str, reason: str = "") -> None:
        self.slurm.set(node, state=state, reason=reason)
        shown = self.slurm.nodes()[node]
        if shown.drain or shown.down:
            if reason:
                self.theirs[node] = reason
        else:
            self.theirs.pop(node, None)

    def word(self) -> str:
        self.words += 1
        return f"ann: word {self.words}"

    # ---- tocsin ----------------------------------------------------------------------------

    @rule(node=NODES, gpu=st.integers(0, 3))
    def a_gpu_is_lost(self, node: str, gpu: int) -> None:
        self.house.facts.append(lost(node, gpu, self.clock.pass_seconds(1)))

    @rule(nodes=st.sets(NODES, min_size=2))
    def several_gpus_are_lost_and_seen(self, nodes: set[str]) -> None:
        for node in sorted(nodes):
            self.a_gpu_is_lost(node, 0)
        self.a_cycle(1)

    @rule(node=NODES, theirs=st.sampled_from(["drain", "down"]))
    def a_person_comes_between_reading_and_cycle(self, node: str, theirs: str) -> None:
        self.stale = self.slurm.nodes()
        self.a_gpu_is_lost(node, 1)
        self.person(node, theirs, self.word())
        self.a_cycle_over_an_old_reading()

    @rule(node=NODES)
    def a_person_comes_between_look_and_write(self, node: str) -> None:
        self.window_word = (node, self.word())
        self.a_gpu_is_lost(node, 2)
        self.a_cycle(1)

    @rule(seconds=st.sampled_from([1, 15, 120, 900]))
    def a_cycle(self, seconds: int) -> None:
        self.clock.pass_seconds(seconds)
        try:
            self.house.cycle()
        except Killed:
            self.restart()

    @rule()
    def a_reading_is_taken_and_used_later(self) -> None:
        self.stale = self.slurm.nodes()

    @precondition(lambda self: self.stale is not None)
    @rule()
    def a_cycle_over_an_old_reading(self) -> None:
        self.clock.pass_seconds(1)
        stale, self.stale = self.stale, None
        try:
            self.house.cycle(stale)
        except Killed:
            self.restart()

    @rule(trouble=st.sampled_from(["killed before", "killed after", "lost before", "lost after"]))
    def the_next_write_is_cut_off(self, trouble: str) -> None:
        self.slurm.trouble = trouble

    @rule(
        what=st.sampled_from(
            [
                f"{when} {act}"
                for when in ("before", "after")
                for act in ("reserve", "submit", "release")
            ]
        )
    )
    def the_head_dies_in_a_proof(self, what: str) -> None:
        self.die_at = what

    @rule(passes=st.booleans())
    def proofs_pass_or_fail_from_now_on(self, passes: bool) -> None:
        self.tools.result = "tocsin=ok" if passes else "tocsin=failed:gemm:exit1"

    @rule()
    def somebody_deletes_our_reservations(self) -> None:
        self.tools.reservations.clear()

    @rule()
    def restart(self) -> None:
        facts = self.house.facts
        self.house = self.head()
        self.house.facts = facts

    @rule(node=NODES)
    def an_operator_resumes_through_tocsin(self, node: str) -> None:
        self.clock.pass_seconds(1)
        try:
            self.house.drains.resume(node, "bob", self.clock.now_ns())
        except RefusedError:
            pass
        except Killed:
            self.restart()

    @rule(node=NODES)
    def a_person_unlocks(self, node: str) -> None:
        try:
            self.house.drains.unlock(node, "bob", self.clock.pass_seconds(1))
        except RefusedError:
            return

    # ---- people ----------------------------------------------------------------------------

    @rule(node=NODES)
    def a_person_drains(self, node: str) -> None:
        self.person(node, "drain", self.word())

    @rule(node=NODES)
    def a_person_will_drain_in_the_window(self, node: str) -> None:
        self.window_word = (node, self.word())

    @rule(node=NODES)
    def a_person_relabels(self, node: str) -> None:
        if self.slurm.nodes()[node].drain:
            self.person(node, "", self.word())

    @rule(node=NODES)
    def a_person_resumes(self, node: str) -> None:
        self.person(node, "resume")

    @rule(node=NODES)
    def a_person_takes_down(self, node: str) -> None:
        self.person(node, "down", self.word())

    # ---- machines --------------------------------------------------------------------------

    @rule(node=NODES)
    def a_node_stops_answering(self, node: str) -> None:
        state = self.slurm.nodes()[node]
        self.slurm.put(replace(state, flags=state.flags | {"NOT_RESPONDING"}))

    @rule(node=NODES)
    def a_node_boots_and_answers(self, node: str) -> None:
        state = self.slurm.nodes()[node]
        self.slurm.put(
            replace(
                state,
                flags=state.flags - {"NOT_RESPONDING"},
                boot_time_ns=self.clock.now_ns(),
            )
        )

    @rule(node=NODES)
    def a_job_comes_or_goes(self, node: str) -> None:
        state = self.slurm.nodes()[node]
        if state.base == "idle" and not state.drain:
            self.slurm.put(replace(state, base="mixed", jobs=("1",)))
        elif state.base == "mixed":
            self.slurm.put(replace(state, base="idle", jobs=()))

    @rule()
    def slurmctld_saves(self) -> None:
        self.saved = self.picture()

    @rule()
    def slurmctld_crashes_back_to_what_it_saved(self) -> None:
        nodes, theirs, self.tools.reservations = self.saved
        self.tools.reservations = dict(self.tools.reservations)
        for node in nodes.values():
            self.slurm.put(node)
        self.theirs = dict(theirs)
        self.clock.pass_seconds(2)
        self.slurm.restart()
        self.slurm.log.clear()
        self.stale = None

    @rule(away=st.booleans())
    def slurmctld_is_away_for_a_while(self, away: bool) -> None:
        nodes = self.slurm.nodes()
        self.slurm.away = "stopped"
        self.clock.pass_seconds(30)
        try:
            if away:
                self.house.cycle(nodes)
        except Killed:
            self.restart()
        finally:
            self.slurm.away = ""

    # ---- what must always hold ---------------------------------------------------------------

    @invariant()
    def a_persons_word_stands_as_it_was_set(self) -> None:
        for name, reason in getattr(self, "theirs", {}).items():
            shown = self.slurm.nodes()[name]
            assert shown.reason == reason, f"{name}: {reason!r} became {shown.reason!r}"
            assert shown.drain or shown.down

    @invariant()
    def tocsin_wrote_only_where_nothing_stood(self) -> None:
        for name, before, _ in getattr(self, "slurm", Empty).log:
            assert "DRAIN" not in before, (name, before)
            assert "ann:" not in before, (name, before)

    @invariant()
    def no_more_nodes_are_held_than_the_cap_allows(self) -> None:
        if hasattr(self, "house"):
            assert len(self.house.ledger.held()) <= CAP + self.revived()

    @invariant()
    def no_node_is_returned_without_a_passed_proof_or_a_persons_word(self) -> None:
        if not hasattr(self, "house"):
            return
        for entry in self.house.ledger.audit(limit=10_000):
            if entry.verb == "returned" and entry.user == "tocsin":
                told = [e.verb for e in self.house.ledger.audit(subject=entry.subject)]
                assert "proof_releasing" in told, entry

    def revived(self) -> int:
        """A crash of slurmctld brings back drains that had ended: held again, and not new."""
        return sum(e.verb == "revived" for e in self.house.ledger.audit(limit=10_000))

    def teardown(self) -> None:
        """The world calms down: then ledger and Slurm agree, and every drain is explained."""
        if not hasattr(self, "house"):
            return
        self.slurm.trouble = ""
        self.window_word = None
        for name, node in self.slurm.nodes().items():
            self.slurm.put(
                replace(
                    node,
                    flags=node.flags - {"NOT_RESPONDING"},
                    base=("down" if node.down else idle(name).base),
                )
            )
        self.die_at = ""
        for _ in range(8):
            self.clock.pass_seconds(200)
            self.house.cycle()
        held = {
            case.node: case.reason
            for case in self.house.ledger.held()
            if case.state is not State.TESTING
        }
        for case in self.house.ledger.held():
            # What waits in its proof (DOWN, say) is reserved.
            reserved = case.node in self.tools.reservations.values()
            assert case.state is not State.TESTING or reserved, case
        shown = {
            name: node.reason
            for name, node in self.slurm.nodes().items()
            if node.drain and node.reason.startswith("tocsin:")
        }
        assert held == {name: reason for name, reason in shown.items() if name in held}
        for name, reason in shown.items():
            if name not in held:
                # A person's DOWN over our drain, then lifted in part, is theirs.
                assert name in self.theirs or self.house.ledger.find(
                    reason.rsplit(" ", 1)[1]
                ).state in ("foreign", "returned", "abandoned"), name
        for name in held:
            case = self.house.ledger.case_of(name)
            assert case is not None
            recorded = self.house.ledger.decisions(case=case.id)
            assert any(one.action is Action.DRAIN for one in recorded), name
        self.a_persons_word_stands_as_it_was_set()


class Empty:
    log: tuple[tuple[str, str, str], ...] = ()


TestInterleavings = Interleavings.TestCase
# 6,000 steps take half a minute of CPU: minutes, where all tests run side by side.
TestInterleavings.pytestmark = [pytest.mark.timeout(900)]
TestInterleavings.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
