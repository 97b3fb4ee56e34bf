"""Proof before return: the steps, each durable in the ledger before it is made in Slurm.

Slurm starts no job on a drained node. So the node is put into a reservation of our own, undrained
inside it, tested by a job of ours, and then either the reservation is deleted (it is back in
service) or the node is drained again and the reservation deleted after that. At every moment one
of drain and reservation stands, whatever is killed: the node is never open without a passed proof.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collectors.sample import Sample
from collectors.slurm.nodes import NodeState
from daemon.drains.hand import SELF, Hand, is_ours
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.drains.reconcile import Returned
from daemon.policy.cases import Case, State
from daemon.policy.decisions import Action, Decision, Mode
from daemon.proofs.proof import Probe, ProofOptions, judge, parse_result
from daemon.proofs.records import Proof, ProofRecords, Step
from daemon.proofs.story import proof_sample
from daemon.slurm.adapter import (
    SlurmError,
    SlurmRefused,
    plain_text,
    same_reason,
)
from daemon.slurm.proving import ProofJob, Proving
from daemon.stages import Stages
from daemon.store.database import Database

# A submission whose answer never came shows its job within so long, or never.
SUBMIT_NS = 30 * SECOND_NS
# So long after a proof was due, a reservation that is gone was not deleted a moment ago.
LOOKED_AWAY_NS = 86_400 * SECOND_NS
# In these steps the node may be without its drain, in our reservation.
_UNDRAINED = frozenset({Step.OPENING, Step.RUNNING, Step.RELEASING})
# Steps made in one cycle at most.
STEPS_MAX = 8


def may_close(node: NodeState, before: str) -> str:
    """The last check before our drain is written again over an undrained node.

    ``before``: the reason that it had until the proof; some releases of Slurm still show it.
    """
    if node.drain or node.failed or (node.reason and not same_reason(node.reason, before)):
        return f"it is {node.words} with the reason {node.reason!r} by now"
    return "" if node.base in ("idle", "mixed", "allocated") else f"it is {node.words}"


class Proofs:
    """Not for use from two threads at once. ``step`` is called once a cycle.

    ``locked``: whether a node waits for a person, by their lock or ours: it is returned by nobody
    else, and tested only where a person asks for it.
    """

    def __init__(
        self,
        hand: Hand,
        tools: Proving,
        database: Database,
        ledger: Ledger,
        options: ProofOptions,
        mode: Mode,
        locked: Callable[[str], bool],
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages or Stages()
        self._hand = hand
        self._tools = tools
        self._ledger = ledger
        self._options = options
        self._mode = mode
        self._locked = locked
        self.records = ProofRecords(database)
        # What proofs came to since it was last taken away, for the store.
        self.news: list[Sample] = []

    # ---- words from outside --------------------------------------------------------------------

    def ask(self, case: Case, user: str, now_ns: int) -> str:
        """A person asks for a proof of ``case``'s node; answers why not, or empty."""
        if self._mode is Mode.SHADOW:
            return "proofs are switched off in shadow mode: nothing is written to Slurm"
        if self._options.when == "never":
            return "proofs are switched off: policy.proof.when is never (asked allows them)"
        if case.state is not State.DRAINED:
            return f"{case.node} is {case.state.value}: it must be drained and empty"
        return self._begin(case, user, now_ns)

    def free(self, case: Case, user: str, now_ns: int) -> None:
        """A person wants the node back, whatever the proof says."""
        for proof in self.records.open():
            if proof.case_id == case.id and proof.step in (Step.RUNNING, Step.RELEASING):
                with self._ledger.together():
                    self.records.change(proof, step=Step.RELEASING, user=user, passed_ns=1)
                    self._say(proof, now_ns, "resume", "returned without waiting for it", user)

    def observe(self, decisions: Sequence[Decision]) -> None:
        """What newly stands against a node under proof ends the proof."""
        for proof in self.records.open():
            for one in decisions:
                if (
                    one.node == proof.node
                    and one.voice == "fact"
                    and one.action in (Action.DRAIN, Action.HOLD)
                    and int(one.inputs.get("newest_onset_ns") or 0) > proof.begun_ns
                    and not proof.worry
                ):
                    words = one.inputs.get("newest") or f"{one.code} {one.device}"
                    self.records.change(proof, worry=plain_text(str(words), 80))
                    break

    # ---- the cycle -----------------------------------------------------------------------------

    def step(self, now_ns: int) -> list[Returned]:
        """Begins what is to begin, and takes every proof as far as it goes now.

        In approve mode only what a person asked for begins, and a person gives the node back.
        """
        if self._mode is Mode.SHADOW:
            return []
        if self._mode is Mode.ACT:
            self._stages.run("proofs that are due", self._begin_due, now_ns)
        run = self._stages.run
        return [
            Returned(proof.node, now_ns)
            for proof in self.records.open()
            if run(f"the proof of {proof.node}", self._advance, proof, now_ns)
        ]

    def _advance(self, proof: Proof, now_ns: int) -> bool:
        """Whether the node came back."""
        try:
            return self._steps(proof, now_ns)
        except SlurmError:
            return False  # nothing is concluded; the next cycle asks again

    def _steps(self, proof: Proof, now_ns: int) -> bool:
        for _ in range(STEPS_MAX):
            case = self._ledger.find(proof.case_id)
            node = self._hand.adapter.nodes([proof.node]).get(proof.node)
            if self._given_back(proof, node, now_ns):
                text = "its reservation is gone and it is in service, long after the proof was due"
                self._end(proof, case, State.RETURNED, f"{text}: somebody gave it back", now_ns)
                return True
            new = _STEPS[proof.step](self, proof, case, node, now_ns)
            if new.step is Step.OVER:
                return self._ledger.find(proof.case_id).state is State.RETURNED
            if new == proof:
                return False
            proof = new
        return False

    def _given_back(self, proof: Proof, node: NodeState | None, now_ns: int) -> bool:
        """Whether a node under proof was given back by others while nobody looked for a day: the
        head was away, or its ledger was restored from a backup. People's jobs run there now.
        """
        if proof.step not in _UNDRAINED or now_ns - proof.due_ns < LOOKED_AWAY_NS:
            return False
        if node is None or node.drain or not node.registered:
            return False
        return self._tools.reserved_for_us(proof.reservation, proof.node) is None

    def _begin_due(self, now_ns: int) -> None:
        if self._options.when not in ("reboot", "drained"):
            return
        for case in self._ledger.held():
            if case.state is not State.DRAINED or self._locked(case.node) or case.return_by:
                continue
            node = self._hand_node(case)
            if node is None or not node.registered or node.maintenance:
                continue
            rebooted = node.boot_time_ns > case.boot_time_ns > 0
            if self._options.when == "reboot" and not rebooted:
                continue
            before = self.records.of_case(case.id)
            if before and before[-1].boot_time_ns >= node.boot_time_ns:
                continue  # once a boot
            self._begin(case, "", now_ns)

    def _hand_node(self, case: Case) -> NodeState | None:
        try:
            node = self._hand.adapter.nodes([case.node]).get(case.node)
        except SlurmError:
            return None
        return node if node is not None and is_ours(node, case) and node.drained else None

    def _begin(self, case: Case, user: str, now_ns: int) -> str:
        if len(self.records.open()) >= self._options.nodes_at_once:
            return f"{self._options.nodes_at_once} node(s) are being tested: try again later"
        node = self._hand_node(case)
        if node is None:
            return f"{case.node} is not drained by tocsin and empty in Slurm"
        if not node.registered or node.maintenance or node.rebooting:
            return f"{case.node} is {node.words}: nothing can run there"
        probes = self._options.probes_for(node.features)
        if not probes:
            return f"no probe is configured for a node with the features {node.features}"
        seconds = self._options.job_seconds * self._options.passes + self._options.clean_seconds
        with self._ledger.together():
            self.records.begin(
                case_id=case.id, node=case.node, step=Step.RESERVING.value,
                reservation=f"tocsin_{case.id[:8]}", begun_ns=now_ns,
                due_ns=now_ns + int(seconds * SECOND_NS), boot_time_ns=node.boot_time_ns,
                before=case.reason, features=",".join(sorted(node.features)), user=user,
            )  # fmt: skip
            self._ledger.move(
                case, State.TESTING, now_ns, user=user or SELF, verb="proof_begins",
                text=f"{', '.join(probes)}: {self._options.passes} time(s)",
            )  # fmt: skip
        return ""

    # ---- the steps: each answers the proof as it is afterwards ---------------------------------

    def _reserving(self, proof: Proof, case: Case, node: NodeState | None, now_ns: int) -> Proof:
        if node is None or not is_ours(node, case):
            kept = self._unreserve(proof)
            text = f"Slurm no longer shows our drain{kept}"
            return self._end(proof, case, State.DRAINED, text, now_ns)
        held = self._tools.reserved_for_us(proof.reservation, proof.node)
        if held is None:
            try:
                self._tools.reserve(proof.reservation, proof.node)
            except SlurmRefused as error:
                return self._end(proof, case, State.DRAINED, f"no reservation: {error}", now_ns)
            held = self._tools.reserved_for_us(proof.reservation, proof.node)
        if held:
            return self._to(proof, Step.OPENING, now_ns, f"in reservation {proof.reservation}")
        if now_ns > proof.due_ns:
            kept = self._unreserve(proof)
            return self._end(proof, case, State.DRAINED, f"no reservation in time{kept}", now_ns)
        return proof

    def _opening(self, proof: Proof, case: Case, node: NodeState | None, now_ns: int) -> Proof:
        if node is None or (node.drain and not is_ours(node, case)) or node.failed:
            return self._foreign(proof, node, now_ns)
        if not self._tools.reserved_for_us(proof.reservation, proof.node):
            return self._close(proof, case, "its reservation is gone", now_ns)
        if not node.drain:
            return self._to(proof, Step.RUNNING, now_ns, "undrained inside it")
        if not node.registered:
            if now_ns > proof.due_ns:
                return self._close(proof, case, f"it is {node.words}: no proof", now_ns)
            return proof
        outcome = self._hand.adapter.undrain(
            [proof.node], lambda shown: "" if is_ours(shown, case) else "not ours"
        )
        self._hand.say_unwatched({proof.node: case}, outcome, now_ns)
        if proof.node in outcome.done:
            return self._to(proof, Step.RUNNING, now_ns, "undrained inside it")
        if proof.node in outcome.restored or proof.node in outcome.lost:
            return self._foreign(proof, None, now_ns)
        return proof

    def _running(self, proof: Proof, case: Case, node: NodeState | None, now_ns: int) -> Proof:
        why = self._unfit(proof, case, node)
        if why == "foreign":
            return self._foreign(proof, node, now_ns)
        if why:
            return self._close(proof, case, why, now_ns)
        assert node is not None
        probes = self._options.probes_for(node.features)
        job = self._tools.find_job(proof.job_name)
        if job is None:
            if now_ns > proof.due_ns:
                return self._close(proof, case, "proof failed: its job did not run in time", now_ns)
            if proof.submitted_ns and now_ns - proof.submitted_ns > SUBMIT_NS:
                return self.records.change(proof, round=proof.round + 1, submitted_ns=0)
            if proof.submitted_ns:
                return proof
            proof = self.records.change(proof, submitted_ns=now_ns)
            partition = node.partitions[0] if node.partitions else ""
            try:
                self._tools.submit(proof.job_name, proof.reservation, proof.node, partition, probes)
            except SlurmRefused as error:
                return self._close(proof, case, f"proof failed: Slurm took no job: {error}", now_ns)
            return proof
        if not job.ended:
            if now_ns <= proof.due_ns:
                return proof
            self._tools.cancel(job.id)
            return self._close(proof, case, "proof failed: its job did not end in time", now_ns)
        return self._judged(proof, case, job, probes, now_ns)

    def _judged(
        self, proof: Proof, case: Case, job: ProofJob, probes: Mapping[str, Probe], now_ns: int
    ) -> Proof:
        """A job has ended: what follows from what it said."""
        result = parse_result(job.comment)
        if result is None:
            words = f"proof failed: job {job.id} ended {job.state} without a result"
            return self._close(proof, case, words, now_ns)
        peers = self.records.peers(proof, result.figures)
        why = judge(result, probes, peers, self._options.peers_share)
        if not why and job.state != "COMPLETED":
            why = f"its job ended {job.state}"
        figures = " ".join(f"{name}={value:.4g}" for name, value in result.figures.items())
        with self._ledger.together():
            self.records.keep_figures(proof, result.figures, now_ns)
            self._say(proof, now_ns, "proof_job", f"job {job.id}: {why or 'passed'}; {figures}")
        self.news.append(proof_sample(proof, job.id, why, figures, now_ns))
        if why:
            return self._close(proof, case, f"proof failed: {why}", now_ns)
        passes = proof.passes + 1
        if passes < self._options.passes:
            return self.records.change(proof, passes=passes, round=proof.round + 1, submitted_ns=0)
        by_person = self._options.returns != "passed" or self._mode is not Mode.ACT
        if by_person or self._locked(proof.node):
            proof = self.records.change(proof, passes=passes, passed_ns=now_ns)
            return self._close(proof, case, f"proof passed {passes} of {passes}", now_ns)
        with self._ledger.together():
            proof = self.records.change(proof, passes=passes, passed_ns=now_ns)
            return self._to(proof, Step.RELEASING, now_ns, f"passed {passes} of {passes}")

    def _releasing(self, proof: Proof, case: Case, node: NodeState | None, now_ns: int) -> Proof:
        held = self._tools.reserved_for_us(proof.reservation, proof.node)
        asked = bool(proof.user) and proof.passed_ns == 1
        clean_ns = proof.passed_ns + int(self._options.clean_seconds * SECOND_NS)
        clean = asked or now_ns >= clean_ns
        # Gone after the clean window: we deleted it, and a kill came before that was noted.
        gone = held is None and clean
        why = self._unfit(proof, case, node, reserved=bool(held) or gone)
        if why == "foreign":
            return self._foreign(proof, node, now_ns)
        if gone and node is not None and not node.drain:
            return self._end(proof, case, State.RETURNED, "it is back in service", now_ns)
        assert node is not None
        # A node that shows our drain again was not freed, whoever asked.
        if why and (not asked or node.drain):
            return self._close(proof, case, why, now_ns)
        if not asked and not node.registered and now_ns > proof.due_ns:
            return self._close(proof, case, f"it is {node.words} after its proof", now_ns)
        if not asked and self._locked(proof.node):
            words = f"proof passed {proof.passes} of {proof.passes}"
            return self._close(proof, case, words, now_ns)
        if not clean or (not asked and not node.registered):
            return proof
        self._cancel(proof)
        if held is False:
            text = f"it is back in service{_kept(proof)}"
            return self._end(proof, case, State.RETURNED, text, now_ns)
        self._tools.release(proof.reservation)
        return proof if held is None else self.records.change(proof, text="unreserved")

    def _closing(self, proof: Proof, case: Case, node: NodeState | None, now_ns: int) -> Proof:
        if node is None:
            return self._foreign(proof, node, now_ns)
        if node.drain and same_reason(node.reason, proof.before):
            # It was never lifted, or slurmctld went back to before that.
            case = self._ledger.move(
                case, case.state, now_ns, user=SELF, verb="drained", text="our drain stands",
                reason=proof.before,
            ) if case.reason != proof.before else case  # fmt: skip
        elif (node.drain and not is_ours(node, case)) or node.failed:
            return self._foreign(proof, node, now_ns)
        self._cancel(proof)
        if not is_ours(node, case):
            # Best with the reservation in place, but the drain comes with or without it.
            with contextlib.suppress(SlurmError):
                if self._tools.reserved_for_us(proof.reservation, proof.node) is None:
                    self._tools.reserve(proof.reservation, proof.node)
            outcome = self._hand.adapter.drain(
                {proof.node: case.reason}, lambda shown: may_close(shown, proof.before)
            )
            self._hand.say_unwatched({proof.node: case}, outcome, now_ns)
            if proof.node in outcome.restored or proof.node in outcome.lost:
                return self._foreign(proof, None, now_ns)
            if proof.node not in outcome.done:
                return proof  # DOWN, say: the reservation stands, and it is tried again
        kept = self._unreserve(proof)
        if not kept and self._tools.reserved_for_us(proof.reservation, proof.node) is not None:
            return proof
        return self._end(proof, case, State.DRAINED, f"{proof.text}{kept}", now_ns)

    def _leaving(self, proof: Proof, case: Case, node: NodeState | None, now_ns: int) -> Proof:
        self._cancel(proof)
        kept = self._unreserve(proof)
        shown = f"{node.words}, reason {node.reason!r}" if node else "no such node"
        text = f"Slurm shows {shown}: it is theirs from now on{kept}"
        return self._end(proof, case, State.FOREIGN, text, now_ns)

    # ---- helpers -------------------------------------------------------------------------------

    def _unfit(
        self, proof: Proof, case: Case, node: NodeState | None, reserved: bool | None = None
    ) -> str:
        """Why the proof cannot go on: ``foreign``, other words, or empty."""
        if node is None or node.failed:
            return "foreign"
        if node.drain:
            ours = is_ours(node, case) or same_reason(node.reason, proof.before)
            return "slurmctld went back to a drained node" if ours else "foreign"
        if reserved is None:
            reserved = bool(self._tools.reserved_for_us(proof.reservation, proof.node))
        if not reserved:
            return "its reservation is gone"
        if node.down:
            return f"proof failed: it is {node.words}"
        return f"proof failed: {proof.worry} came meanwhile" if proof.worry else ""

    def _unreserve(self, proof: Proof) -> str:
        """Deletes our reservation; answers words where somebody changed it: then it is theirs."""
        held = self._tools.reserved_for_us(proof.reservation, proof.node)
        if held is False:
            return _kept(proof)
        if held:
            self._tools.release(proof.reservation)
        return ""

    def _cancel(self, proof: Proof) -> None:
        if not proof.submitted_ns:
            return
        job = self._tools.find_job(proof.job_name)
        if job is not None and not job.ended:
            self._tools.cancel(job.id)

    def _close(self, proof: Proof, case: Case, why: str, now_ns: int) -> Proof:
        reason = closing_reason(proof.before, why)
        with self._ledger.together():
            self._ledger.move(
                case, case.state, now_ns, user=SELF, verb="proof_closes", text=why, reason=reason
            )
            return self.records.change(proof, step=Step.CLOSING, text=why)

    def _foreign(self, proof: Proof, node: NodeState | None, now_ns: int) -> Proof:
        shown = f"{node.words}, reason {node.reason!r}" if node else "somebody else's word"
        return self._to(proof, Step.LEAVING, now_ns, f"Slurm shows {shown}")

    def _to(self, proof: Proof, step: Step, now_ns: int, text: str) -> Proof:
        with self._ledger.together():
            self._say(proof, now_ns, f"proof_{step.value}", text)
            return self.records.change(proof, step=step)

    def _end(self, proof: Proof, case: Case, state: State, text: str, now_ns: int) -> Proof:
        verb = {State.RETURNED: "returned", State.FOREIGN: "taken_over"}.get(state, "proof_ends")
        by = proof.user if proof.passed_ns == 1 and proof.user else SELF
        with self._ledger.together():
            seen: dict[str, Any] = {"seen_ns": now_ns} if state is State.DRAINED else {}
            self._ledger.move(case, state, now_ns, user=by, verb=verb, text=text, **seen)
            return self.records.change(proof, step=Step.OVER, ended_ns=now_ns, text=text)

    def _say(self, proof: Proof, now_ns: int, verb: str, text: str, user: str = SELF) -> None:
        self._ledger.say(
            now_ns, user=user, verb=verb, node=proof.node, subject=proof.case_id, text=text
        )


_STEPS: dict[Step, Callable[[Proofs, Proof, Case, NodeState | None, int], Proof]] = {
    Step.RESERVING: Proofs._reserving,
    Step.OPENING: Proofs._opening,
    Step.RUNNING: Proofs._running,
    Step.RELEASING: Proofs._releasing,
    Step.CLOSING: Proofs._closing,
    Step.LEAVING: Proofs._leaving,
}


def _kept(proof: Proof) -> str:
    """What is said of a reservation that somebody changed."""
    return f"; the reservation {proof.reservation} was changed by somebody: theirs to delete"


def closing_reason(before: str, why: str) -> str:
    """The reason of the node when it is drained again: its first words, the result, the advice.

    >>> closing_reason("tocsin:x79 gpu3 9f2c; fell off; tocsin explain 9f2c", "proof failed: gemm")
    'tocsin:x79 gpu3 9f2c; proof failed: gemm; tocsin explain 9f2c'
    """
    first, *rest = before.split("; ")
    last = rest[-1] if rest else ""
    room = 196 - len(first) - len(last)
    parts = [first, plain_text(why.replace(";", ","), max(10, room)), last]
    return plain_text("; ".join(part for part in parts if part))


__all__ = ["Proofs", "closing_reason", "may_close"]
