"""The one place that acts: writes drains to Slurm, lifts them, and keeps ledger and Slurm agreed.

The order of a drain survives a kill at any moment: the intent is durable in the ledger, then
Slurm is written, then read back, then acknowledged. What a crash left in between is settled by
``reconcile`` from what Slurm shows. A node is ours only while Slurm shows exactly the reason that
the ledger says we wrote; the moment it shows another, it is somebody else's, for good.

Not for use from two threads at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from collectors.sample import Sample
from collectors.slurm.nodes import NodeState
from daemon.drains.flaps import Flaps
from daemon.drains.hand import NOTE_BEGIN, NOTE_VERB, SELF, Hand
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.drains.reconcile import Reconciler, Returned
from daemon.policy.cases import Case, State, person_of
from daemon.policy.decide import breaker_reason
from daemon.policy.decisions import Action, Decision, Guard, Mode
from daemon.policy.guards import SETTLED, only_watched
from daemon.policy.limits import Limits
from daemon.proofs.runs import Proofs
from daemon.slurm.adapter import Outcome, SlurmAdapter, SlurmError, SlurmUnavailable
from daemon.slurm.proving import Proving
from daemon.stages import Stages

# An hour by the steady clock, less what two clocks may differ by where nobody sets one.
HOUR_SECONDS = 3540.0


class RefusedError(Exception):
    """What an operator asked for will not be done. The text says why, and what can be done."""


def _note_of(decision: Decision) -> str:
    words = "; ".join(part for part in decision.reason.split("; ")[1:-1] if part)
    part = f" {decision.device}" if decision.device else ""
    return f"{NOTE_BEGIN}{decision.short_id}: {decision.code}{part} {words}"


class Drains:
    """Carries decisions out, reconciles, and takes operators' words."""

    def __init__(
        self,
        adapter: SlurmAdapter,
        ledger: Ledger,
        limits: Limits,
        mode: Mode = Mode.SHADOW,
        monotonic: Callable[[], float] | None = None,
        *,
        prover: Proving | None = None,
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages or Stages()
        self._came_back: list[Returned] = []
        self.reconciled = False
        # When this head made drains, by a clock that nobody sets; the ledger's is the wall's.
        self._monotonic = monotonic
        self._made_seconds: deque[float] = deque()
        self._hand = Hand(adapter, ledger)
        self._reconciler = Reconciler(self._hand, ledger, limits, mode, self._stages)
        self._flaps = Flaps(ledger, limits)
        self._ledger = ledger
        self._limits = limits
        self._mode = mode
        self._proofs = (
            Proofs(
                self._hand, prover, ledger.database, ledger, limits.proof, mode,
                lambda node: node in ledger.locks(), self._stages,
            )
            if prover is not None
            else None
        )  # fmt: skip

    # ---- decisions -----------------------------------------------------------------------

    def carry_out(self, decisions: Sequence[Decision], now_ns: int) -> list[Decision]:
        """Records all decisions, drains those that passed every guard, and answers what became
        of each: a drain that could not be written comes back as a refusal that says why.
        """
        if self._mode is Mode.SHADOW:
            decisions = [_in_shadow(one) for one in decisions]
        self._trip(decisions, now_ns)
        run = self._stages.run
        if self._proofs is not None:
            run("proofs", self._proofs.observe, decisions)
        decisions = self._within_hour(decisions)
        drains = [one for one in decisions if one.action is Action.DRAIN and one.guard is None]
        proposals = [one for one in decisions if one.guard is Guard.APPROVAL]
        # "It is out of service for this already" is no news: recording it would bury the drain.
        news = [one for one in decisions if one not in drains and one.guard is not Guard.OURS]
        fresh = self._ledger.record(news, now_ns)
        became = self._drain(drains, now_ns) if drains else {}
        for one in proposals:
            run(f"the proposal for {one.node}", self._propose, one, now_ns)
        run("proposals that expire", self._expire, now_ns)
        run("notes", self._note, [one for one in fresh if one.guard is Guard.FOREIGN], now_ns)
        return [became.get(one.id, one) for one in decisions]

    def _within_hour(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Refuses what goes over the hour's cap by the steady clock: where the wall's was set
        forward, the drains of a moment ago look like those of hours before.
        """
        if self._monotonic is None:
            return list(decisions)
        made, allowed = self._made_seconds, self._limits.drains_per_hour
        while made and self._monotonic() - made[0] >= HOUR_SECONDS:
            made.popleft()
        text = (
            f"{len(made)} drains in the last hour, in which the clock was set forward; at most "
            f"{allowed} are allowed"
        )
        left = allowed - len(made)
        found: list[Decision] = []
        for one in decisions:
            if one.action is Action.DRAIN and one.guard is None:
                left -= 1
                one = _held(one, Guard.CAP_HOUR, text) if left < 0 else one
            found.append(one)
        return found

    def _note(self, foreign: Sequence[Decision], now_ns: int) -> None:
        """Tells whoever holds a node that it has a fault too, in its Comment: never its reason."""
        if self._mode is not Mode.ACT or not self._limits.note_foreign or not foreign:
            return
        # A rule in shadow writes nothing, and a locked node is left alone altogether.
        locked = self._ledger.view(now_ns).locked
        foreign = [one for one in foreign if one.mode is Mode.ACT and one.node not in locked]
        if not foreign:
            return
        notes = {one.node: _note_of(one) for one in foreign}
        try:
            outcome = self._hand.adapter.comment(notes, self._hand.may_note)
        except SlurmError:
            return  # a note is a courtesy: the alert says the same
        for one in foreign:
            if one.node in outcome.done:
                self._ledger.say(
                    now_ns, user=SELF, verb=NOTE_VERB, node=one.node, subject=one.id,
                    text=notes[one.node],
                )  # fmt: skip

    def _trip(self, decisions: Sequence[Decision], now_ns: int) -> None:
        """Opens the breaker, durably, where this moment's decisions say so."""
        view = self._ledger.view(now_ns)
        if view.breaker or self._mode is Mode.SHADOW:
            return
        wanted = {
            one.node
            for one in decisions
            if one.action in (Action.DRAIN, Action.HOLD)
            and one.guard not in SETTLED
            and one.node not in view.held
            and not only_watched(one.mode, self._mode)
        }
        why = breaker_reason(len(wanted), self._limits, view, now_ns)
        if why:
            self._ledger.open_breaker(why, now_ns)

    def _propose(self, decision: Decision, now_ns: int) -> None:
        case = self._ledger.find(decision.id)
        if case.state in (State.WATCH, State.ABANDONED):
            expires_ns = now_ns + int(self._limits.approval_seconds * SECOND_NS)
            self._ledger.move(
                case, State.PROPOSED, now_ns, user=SELF, verb="propose", text=decision.reason,
                expires_ns=expires_ns, reason=decision.reason,
            )  # fmt: skip

    def _expire(self, now_ns: int) -> None:
        for case in self._ledger.expired(now_ns):
            said = case.state is State.APPROVED
            text = "the yes was not used: its cause was gone" if said else "nobody answered"
            self._ledger.move(case, State.WATCH, now_ns, user=SELF, verb="expire", text=text)

    def _drain(self, drains: Sequence[Decision], now_ns: int) -> dict[str, Decision]:
        view = self._ledger.view(now_ns)
        approved = {
            one.id for one in drains
            if one.id in view.cases and view.cases[one.id].state is State.APPROVED
        }  # fmt: skip
        with self._ledger.together():
            cases = {one.node: self._ledger.intend(one, now_ns) for one in drains}
        outcome = self._hand.write(cases, now_ns)
        became: dict[str, Decision] = {}
        with self._ledger.together():
            for one in drains:
                before = State.APPROVED if one.id in approved else State.WATCH
                became[one.id] = self._settle(one, cases[one.node], before, outcome, now_ns)
                if self._monotonic is not None and became[one.id].guard is None:
                    self._made_seconds.append(self._monotonic())
                self._ledger.settle(became[one.id], now_ns)
        return became

    def _settle(
        self,
        decision: Decision,
        case: Case,
        before: State,
        outcome: Outcome | SlurmError,
        now_ns: int,
    ) -> Decision:
        """What one drain became, in the ledger and as a decision."""
        if isinstance(outcome, SlurmError):
            self._hand.take_back(case, before, f"not written: {outcome}", now_ns)
            return _held(decision, Guard.SLURM_AWAY, str(outcome))
        node = case.node
        if node in outcome.done:
            self._hand.acknowledge(case, outcome.done[node], now_ns)
            return decision
        if node in outcome.restored or node in outcome.lost:
            return _held(decision, Guard.FOREIGN, self._hand.collided(case, outcome, now_ns))
        if node in outcome.unknown:
            self._ledger.say(
                now_ns, user=SELF, verb="unknown_outcome", node=node, subject=case.id,
                text=outcome.unknown[node],
            )  # fmt: skip
            return decision
        why = outcome.skipped.get(node, "it was not written")
        self._hand.take_back(case, before, why, now_ns)
        return _held(decision, Guard.FOREIGN, f"looked at right before the write: {why}")

    # ---- operators' words --------------------------------------------------------------------

    def not_read(self) -> None:
        """Slurm could not be read in this cycle."""
        self._reconciler.not_read()

    def reconcile(self, nodes: Mapping[str, NodeState], now_ns: int) -> list[Returned]:
        """Holds the ledger against a reading of Slurm; answers the nodes that came back.

        ``reconciled`` tells whether that went well: only then may it be judged by this reading.
        """
        run = self._stages.run
        # What a word freed beside the node that it was about is told with the next reading.
        returned, self._came_back = self._came_back, []
        came = run("drains", self._reconciler.reconcile, nodes, now_ns)
        self.reconciled = came is not None and self._reconciler.saw_returns
        returned += came or []
        run("flap locks", self._flaps.watch, now_ns)
        if self._proofs is not None:
            returned += run("proofs", self._proofs.step, now_ns) or []
        self._stages.note("look into slurmctld's log", self._hand.blind(now_ns))
        self._hand.shown = {}  # nobody takes it now, and later it would be old
        return returned

    def take_shown(self) -> dict[str, NodeState]:
        """The nodes as Slurm showed them after they were written, since this was last asked."""
        shown, self._hand.shown = self._hand.shown, {}
        return shown

    def take_news(self) -> list[Sample]:
        """What proofs came to since the last call, for the store."""
        if self._proofs is None:
            return []
        news, self._proofs.news = self._proofs.news, []
        return news

    def prove(self, node: str, user: str, now_ns: int) -> None:
        """A person asks for a proof of a node that we hold. Raises RefusedError."""
        case = self._ledger.case_of(node)
        if case is None:
            raise RefusedError(
                f"tocsin does not hold {node}: only a node that it drained is tested "
                f"(tocsin explain {node} says how it stands)"
            )
        if self._proofs is None:
            raise RefusedError("this head makes no proofs: it is in shadow mode")
        why = self._proofs.ask(case, user, now_ns)
        if why:
            raise RefusedError(why)

    def resume(self, node: str, user: str, now_ns: int) -> Returned:
        """Lifts our own drain of ``node``. Raises RefusedError for anybody else's."""
        came = self.resume_all({node: user}, now_ns)[node]
        if isinstance(came, RefusedError):
            raise came
        return came

    def resume_all(
        self, asked: Mapping[str, str], now_ns: int
    ) -> dict[str, Returned | RefusedError]:
        """Lifts our own drains of several nodes in one write. ``asked``: node to who wants it."""
        found: dict[str, Returned | RefusedError] = {}
        cases: dict[str, Case] = {}
        for node, user in asked.items():
            try:
                case = self._may_resume(node, now_ns)
                if case.state is State.TESTING:
                    found[node] = self._free(case, user, now_ns)
                else:
                    cases[node] = self._ledger.move(
                        case, case.state, now_ns, user=user, verb="resume", return_by=user
                    )
            except RefusedError as error:
                found[node] = error
        outcome = self._hand.lift(cases, now_ns)
        for node, case in cases.items():
            found[node] = self._lifted(case, outcome, now_ns)
        return found

    def _may_resume(self, node: str, now_ns: int) -> Case:
        """The case that holds ``node``. Raises RefusedError where no word can lift it."""
        case = self._ledger.case_of(node)
        if case is None:
            raise RefusedError(self._not_ours(node))
        if self._flaps.locked(node):
            raise RefusedError(
                f"{node} was {self._flaps.why(node, now_ns) or 'drained too often'}; replace the "
                f"part, or say tocsin unlock {node} first, if you mean it"
            )
        return case

    def _lifted(
        self, case: Case, outcome: Outcome | SlurmError, now_ns: int
    ) -> Returned | RefusedError:
        """What became of one return."""
        node = case.node
        if isinstance(outcome, SlurmError):
            # Certainly not written: the word is not kept for later behind the person's back.
            self._ledger.move(
                case, case.state, now_ns, user=SELF, verb="not_written", text=str(outcome),
                return_by="",
            )  # fmt: skip
            return RefusedError(f"{node} stays drained: {outcome}")
        if node in outcome.done:
            return Returned(node, now_ns)
        if node in outcome.unknown:
            return RefusedError(
                f"{node}: not known yet: {outcome.unknown[node]}; it is looked at again"
            )
        return RefusedError(f"{node} stays as it is: {self._why_not_lifted(node, outcome)}")

    def _free(self, case: Case, user: str, now_ns: int) -> Returned:
        """A person wants a node back that is being tested: its reservation goes."""
        if self._proofs is None:
            name = f"tocsin_{case.id[:8]}"
            raise RefusedError(
                f"{case.node} stands undrained in the reservation {name} of a proof, and in shadow "
                f"mode none goes on: scontrol delete ReservationName={name} gives the node to users"
            )
        self._proofs.free(case, user, now_ns)
        self._came_back.extend(self._proofs.step(now_ns))
        for one in self._came_back:
            if one.node == case.node:
                self._came_back.remove(one)
                return one
        raise RefusedError(f"{case.node} is being tested, and not free yet: try again")

    def _why_not_lifted(self, node: str, outcome: Outcome) -> str:
        if node in outcome.restored:
            return f"{outcome.restored[node]!r} was set at the same moment; it is theirs now"
        if node in outcome.lost:
            return f"{outcome.lost[node]!r} was set at the same moment and is lost: tell its owner"
        return outcome.skipped.get(node, "nothing was written")

    def _not_ours(self, node: str) -> str:
        try:
            shown = self._hand.adapter.nodes([node]).get(node)
        except SlurmUnavailable as error:
            return f"{node} is not held by tocsin, and Slurm does not answer: {error}"
        if shown is None:
            return f"Slurm has no node {node}"
        if shown.drain or shown.down or shown.failed:
            who = f", set by {shown.reason_user}" if shown.reason_user else ""
            return (
                f"{node} is {shown.words} for {shown.reason!r}{who}, which is not tocsin's to "
                "lift: scontrol update does, if you mean it"
            )
        return f"{node} is {shown.words}: nothing to lift"

    def approve(self, case_id: str, user: str, now_ns: int) -> Case:
        """A person's yes to a proposal. The guards are asked again before it is written.

        The case that is answered is still ``proposed`` where more people are needed.
        """
        case = self._ledger.find(case_id)
        if case.state is State.APPROVED:
            raise RefusedError(f"{case.id[:4]} on {case.node} was approved by {case.user} already")
        if case.state not in (State.PROPOSED, State.DENIED):
            raise RefusedError(
                f"{case.id[:4]} on {case.node} is {case.state.value}: it waits for nobody"
            )
        needed = self._limits.approvals_needed
        said = self._said_yes(case)
        if needed > 1 and not person_of(user):
            raise RefusedError(
                f"{needed} people are needed, and the kernel does not say who {user} is: it may be "
                "somebody who said yes already. Speak as yourself, without sudo, or at the page"
            )
        if len(said | {person_of(user)}) < needed:
            if person_of(user) in said:
                who = person_of(user)
                raise RefusedError(f"{who} said yes already; {needed} people are needed")
            self._ledger.say(
                now_ns, user=user, verb="approve", node=case.node, subject=case.id,
                text=f"{len(said) + 1} of {needed}",
            )  # fmt: skip
            return case
        # A yes after a no has a time of its own: that of the proposal may be over.
        until_ns = now_ns + int(self._limits.approval_seconds * SECOND_NS)
        return self._ledger.move(
            case, State.APPROVED, now_ns, user=user, verb="approve",
            expires_ns=until_ns if case.state is State.DENIED else case.expires_ns,
        )  # fmt: skip

    def _said_yes(self, case: Case) -> set[str]:
        """Who said yes to this proposal: a yes to one that expired or was denied is spent."""
        said: set[str] = set()
        for entry in self._ledger.audit(subject=case.id):  # newest first
            if entry.verb in ("propose", "expire", "deny"):
                break
            if entry.verb == "approve":
                said.add(person_of(entry.user))
        return said - {""}

    def deny(self, case_id: str, user: str, now_ns: int) -> Case:
        """A person's no: this very case never drains, until somebody approves it after all."""
        case = self._ledger.find(case_id)
        if case.held:
            raise RefusedError(
                f"{case.node} is {case.state.value} already: tocsin resume {case.node} lifts it"
            )
        if case.state not in (State.PROPOSED, State.APPROVED, State.WATCH):
            raise RefusedError(f"{case.id[:4]} on {case.node} is {case.state.value}")
        return self._ledger.move(case, State.DENIED, now_ns, user=user, verb="deny")

    def lock(self, node: str, user: str, now_ns: int, text: str = "") -> None:
        """Locks ``node`` against tocsin."""
        self._ledger.lock(node, user, now_ns, text)

    def unlock(self, node: str, user: str, now_ns: int) -> None:
        """Lifts the lock. Raises RefusedError where there is none."""
        if not self._ledger.unlock(node, user, now_ns):
            raise RefusedError(f"{node} is not locked")

    def close_breaker(self, user: str, now_ns: int) -> None:
        """Lets drains through again. Raises RefusedError where the breaker is closed."""
        if not self._ledger.close_breaker(user, now_ns):
            raise RefusedError("the breaker is closed already")

    def verdict(self, case_id: str, right: bool, user: str, now_ns: int) -> Case:
        """Whether a decision was right: a label for training, and food for the breaker."""
        case = self._ledger.find(case_id)
        return self._ledger.move(
            case, case.state, now_ns, user=user, verb="verdict",
            text="right" if right else "wrong", verdict=right, ended_ns=case.ended_ns,
        )  # fmt: skip


def _in_shadow(decision: Decision) -> Decision:
    """Policy never lets a drain pass in shadow; should it, nothing is written all the same."""
    if decision.action is Action.DRAIN and decision.guard is None:
        return _held(decision, Guard.SHADOW, "shadow: recorded, and nothing is done")
    return decision


def _held(decision: Decision, guard: Guard, text: str) -> Decision:
    return replace(decision, action=Action.HOLD, guard=guard, guard_text=text)


__all__ = ["Drains", "RefusedError", "Returned"]
