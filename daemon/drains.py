"""The one place that acts: writes drains to Slurm, lifts them, and keeps ledger and Slurm agreed.

The order of a drain survives a kill at any moment: the intent is durable in the ledger, then
Slurm is written, then read back, then acknowledged. What a crash left in between is settled by
``reconcile`` from what Slurm shows. A node is ours only while Slurm shows exactly the reason that
the ledger says we wrote; the moment it shows another, it is somebody else's, for good.

Not for use from two threads at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from collectors.slurm_nodes import NodeState
from daemon.cases import Case, State
from daemon.decisions import Action, Decision, Guard, Mode
from daemon.ledger import SECOND_NS, Ledger
from daemon.limits import Limits
from daemon.policy import breaker_reason
from daemon.slurm.adapter import (
    Outcome,
    SlurmAdapter,
    SlurmError,
    SlurmUnavailable,
    same_reason,
)

SELF = "tocsin"
# How our line in a Comment begins.
NOTE_BEGIN = "tocsin "
# A reading of Slurm is asked for at most so long before it is reconciled.
STALE_READING_NS = 120 * SECOND_NS


class RefusedError(Exception):
    """What an operator asked for will not be done. The text says why, and what can be done."""


class Returned(NamedTuple):
    """A node came back into service at ``at_ns``: what was certain before is spent."""

    node: str
    at_ns: int


def may_drain(node: NodeState) -> str:
    """The last check before a drain is written: why not, or empty.

    Nobody else's word may stand at the node, and it must work: a DOWN or unregistered node has
    nothing to drain, and its reason is somebody's.
    """
    if node.drain or node.failed:
        return f"it is {node.words} with the reason {node.reason!r} by now"
    if node.reason:
        return f"it has the reason {node.reason!r} by now"
    if not node.registered:
        return f"it is {node.words} by now"
    if node.maintenance or node.rebooting:
        return f"it is {node.words} by now"
    return ""


def may_note(node: NodeState) -> str:
    """Only an empty Comment, or one of ours, is written."""
    if node.comment and not node.comment.startswith(NOTE_BEGIN):
        return "its Comment is somebody's"
    return ""


def _note_of(decision: Decision) -> str:
    words = "; ".join(part for part in decision.reason.split("; ")[1:-1] if part)
    part = f" {decision.device}" if decision.device else ""
    return f"{NOTE_BEGIN}{decision.short_id}: {decision.code}{part} {words}"


class Drains:
    """Carries decisions out, reconciles, and takes operators' words."""

    def __init__(
        self, adapter: SlurmAdapter, ledger: Ledger, limits: Limits, mode: Mode = Mode.SHADOW
    ) -> None:
        self._adapter = adapter
        self._ledger = ledger
        self._limits = limits
        self._mode = mode

    # ---- decisions -----------------------------------------------------------------------

    def carry_out(self, decisions: Sequence[Decision], now_ns: int) -> list[Decision]:
        """Records all decisions, drains those that passed every guard, and answers what became
        of each: a drain that could not be written comes back as a refusal that says why.
        """
        if self._mode is Mode.SHADOW:
            decisions = [_in_shadow(one) for one in decisions]
        self._trip(decisions, now_ns)
        drains = [one for one in decisions if one.action is Action.DRAIN and one.guard is None]
        proposals = [one for one in decisions if one.guard is Guard.APPROVAL]
        # "It is out of service for this already" is no news: recording it would bury the drain.
        news = [one for one in decisions if one not in drains and one.guard is not Guard.OURS]
        fresh = self._ledger.record(news, now_ns)
        self._note([one for one in fresh if one.guard is Guard.FOREIGN], now_ns)
        for one in proposals:
            self._propose(one, now_ns)
        self._expire(now_ns)
        if not drains:
            return list(decisions)
        became = self._drain(drains, now_ns)
        return [became.get(one.id, one) for one in decisions]

    def _note(self, foreign: Sequence[Decision], now_ns: int) -> None:
        """Tells whoever holds a node that it has a fault too, in its Comment: never its reason."""
        if self._mode is not Mode.ACT or not self._limits.note_foreign or not foreign:
            return
        notes = {one.node: _note_of(one) for one in foreign}
        try:
            outcome = self._adapter.comment(notes, may_note)
        except SlurmError:
            return  # a note is a courtesy: the alert says the same
        for one in foreign:
            if one.node in outcome.done:
                self._ledger.say(
                    now_ns, user=SELF, verb="note", node=one.node, subject=one.id,
                    text=notes[one.node],
                )  # fmt: skip

    def _unnote(self, names: Sequence[str], nodes: Mapping[str, NodeState]) -> None:
        """Takes our line out of the Comment of nodes that came back."""
        ours = [name for name in names if nodes[name].comment.startswith(NOTE_BEGIN)]
        if self._mode is Mode.ACT and ours:
            with contextlib.suppress(SlurmError):
                self._adapter.comment(dict.fromkeys(ours, ""), may_note)

    def _trip(self, decisions: Sequence[Decision], now_ns: int) -> None:
        """Opens the breaker, durably, where this moment's decisions say so."""
        view = self._ledger.view(now_ns)
        if view.breaker or self._mode is Mode.SHADOW:
            return
        wanted = {
            one.node
            for one in decisions
            if one.action in (Action.DRAIN, Action.HOLD) and one.node not in view.held
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
        for case in self._ledger.waiting():
            if case.expires_ns and case.expires_ns <= now_ns:
                self._ledger.move(
                    case, State.WATCH, now_ns, user=SELF, verb="expire", text="nobody answered"
                )

    def _drain(self, drains: Sequence[Decision], now_ns: int) -> dict[str, Decision]:
        view = self._ledger.view(now_ns)
        approved = {
            one.id for one in drains
            if one.id in view.cases and view.cases[one.id].state is State.APPROVED
        }  # fmt: skip
        with self._ledger.together():
            cases = {one.node: self._ledger.intend(one, now_ns) for one in drains}
        outcome = self._write(cases)
        became: dict[str, Decision] = {}
        with self._ledger.together():
            for one in drains:
                before = State.APPROVED if one.id in approved else State.WATCH
                became[one.id] = self._settle(one, cases[one.node], before, outcome, now_ns)
                self._ledger.settle(became[one.id], now_ns)
        return became

    def _write(self, cases: Mapping[str, Case]) -> Outcome | SlurmError:
        try:
            return self._adapter.drain(
                {node: case.reason for node, case in cases.items()}, may_drain
            )
        except SlurmError as error:
            return error

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
            self._take_back(case, before, f"not written: {outcome}", now_ns)
            return _held(decision, Guard.SLURM_AWAY, str(outcome))
        node = case.node
        if node in outcome.done:
            self._acknowledge(case, outcome.done[node], now_ns)
            return decision
        if node in outcome.restored or node in outcome.lost:
            return _held(decision, Guard.FOREIGN, self._collided(case, outcome, now_ns))
        if node in outcome.unknown:
            self._ledger.say(
                now_ns, user=SELF, verb="unknown_outcome", node=node, subject=case.id,
                text=outcome.unknown[node],
            )  # fmt: skip
            return decision
        why = outcome.skipped.get(node, "it was not written")
        self._take_back(case, before, why, now_ns)
        return _held(decision, Guard.FOREIGN, f"looked at right before the write: {why}")

    def _acknowledge(self, case: Case, node: NodeState, now_ns: int) -> Case:
        state = State.DRAINED if node.drained else State.DRAINING
        return self._ledger.move(
            case, state, now_ns, user=SELF, verb="drained", text=f"Slurm shows {node.words}",
            acknowledged_ns=case.acknowledged_ns or now_ns, seen_ns=now_ns,
            boot_time_ns=case.boot_time_ns or node.boot_time_ns,
            detail={"jobs": list(node.jobs), "gpus_allocated": node.gpus_allocated},
        )  # fmt: skip

    def _take_back(self, case: Case, before: State, why: str, now_ns: int) -> None:
        """An intent that was certainly not written: as if it had never been."""
        self._ledger.move(
            case, before, now_ns, user=SELF, verb="not_written", text=why, intent_ns=0
        )

    def _collided(self, case: Case, outcome: Outcome, now_ns: int) -> str:
        """Somebody set a reason between our look and our write."""
        node = case.node
        if node in outcome.restored:
            theirs = outcome.restored[node]
            text = f"{theirs!r} was set at the same moment; it was put back, the node is theirs"
        else:
            theirs = outcome.lost[node]
            text = f"{theirs!r} was set at the same moment and was overwritten: tell its owner"
        self._ledger.move(
            case, State.FOREIGN, now_ns, user=SELF, verb="collision", text=text,
            detail={"reason": theirs}, intent_ns=0,
        )  # fmt: skip
        return text

    # ---- reconciling -----------------------------------------------------------------------

    def reconcile(self, nodes: Mapping[str, NodeState], now_ns: int) -> list[Returned]:
        """Holds the ledger against a reading of Slurm; answers the nodes that came back.

        Where they differ the nodes are read again, for the reading may be older than our last
        write; nothing is concluded from a reading that fails.
        """
        returned = self._watch_others(nodes, now_ns)
        agreed: list[Case] = []
        doubtful: list[Case] = []
        for case in self._ledger.held():
            node = nodes.get(case.node)
            if node is not None and _ours(node, case) and not case.return_by:
                agreed.append(self._agree(case, node, now_ns))
            else:
                doubtful.append(case)
        self._ledger.seen(agreed, now_ns)
        if not doubtful:
            return returned
        try:
            fresh = self._adapter.nodes([case.node for case in doubtful])
        except SlurmError:
            return returned
        for case in doubtful:
            came = self._differ(case, fresh.get(case.node), now_ns)
            if came is not None:
                returned.append(came)
        return returned

    def _watch_others(self, nodes: Mapping[str, NodeState], now_ns: int) -> list[Returned]:
        """Keeps who is drained by others. A node that they give back has come back, too."""
        known = self._ledger.others()
        ours = {case.node for case in self._ledger.held()}
        # This reading may be older than a return of a moment ago.
        lifted = self._ledger.lifted_since(now_ns - STALE_READING_NS)
        drained = {
            name: (node.reason, node.reason_user)
            for name, node in nodes.items()
            if node.drain and name not in ours and known.get(name) != node.reason
        }
        back = [
            name
            for name in known
            if name in nodes
            and name not in ours
            and not nodes[name].drain
            and nodes[name].registered
        ]
        for name in list(drained):
            stale = same_reason(nodes[name].reason, lifted.get(name, ""))
            if self._revived(name, nodes[name], now_ns) or stale:
                del drained[name]
        if drained or back:
            self._ledger.others_changed(drained, back, now_ns)
        self._unnote(back, nodes)
        return [Returned(name, now_ns) for name in back]

    def _revived(self, name: str, node: NodeState, now_ns: int) -> bool:
        """Whether this drain is one of ours that had ended and that a crashed slurmctld, gone
        back to what it had saved, shows again: then it is held, and can be lifted, again.
        """
        case = self._ledger.ended_case(name, node.reason)
        if case is None:
            return False
        try:
            revived = self._adapter.controller_start_ns() + SECOND_NS > case.ended_ns
        except SlurmError:
            return True  # not known yet: the next cycle asks again
        if revived:
            text = "slurmctld went back to a state from before its return: it is drained again"
            self._ledger.move(
                case, State.DRAINING, now_ns, user=SELF, verb="revived", text=text, ended_ns=0,
                return_by="", seen_ns=now_ns,
            )  # fmt: skip
        return revived

    def _agree(self, case: Case, node: NodeState, now_ns: int) -> Case:
        if case.state is State.INTENT:
            self._ledger.recover(case, now_ns)
            return self._acknowledge(case, node, now_ns)
        if case.state is State.DRAINING and node.drained:
            return self._ledger.move(
                case, State.DRAINED, now_ns, user=SELF, verb="empty", text="its last job has ended"
            )
        return case

    def _differ(self, case: Case, node: NodeState | None, now_ns: int) -> Returned | None:
        if node is None:
            self._taken(case, "Slurm no longer knows the node", "", now_ns)
            return None
        if _ours(node, case):
            case = self._agree(case, node, now_ns)
            if case.return_by and self._mode is not Mode.SHADOW:
                # A return that a person asked for and that was not written, by a kill between.
                outcome = self._lift(case, case.return_by, now_ns)
                if not isinstance(outcome, SlurmError) and case.node in outcome.done:
                    return Returned(case.node, now_ns)
            return None
        if node.drain or node.failed or (node.down and not same_reason(node.reason, case.reason)):
            by = node.reason_user
            self._taken(case, f"{node.words}, reason {node.reason!r}", by, now_ns)
            return None
        if case.state is State.INTENT:
            self._again(case, now_ns)
            return None
        if self._forgotten(case, now_ns):
            self._ledger.say(
                now_ns, user=SELF, verb="forgotten", node=case.node, subject=case.id,
                text="slurmctld was restarted and no longer has the drain: it is written again",
            )  # fmt: skip
            self._again(case, now_ns)
            return None
        return self._came_back(case, node, now_ns)

    def _taken(self, case: Case, shows: str, by: str, now_ns: int) -> None:
        text = f"Slurm shows {shows}: it is theirs from now on"
        self._ledger.move(
            case, State.FOREIGN, now_ns, user=by or SELF, verb="taken_over", text=text
        )

    def _came_back(self, case: Case, node: NodeState, now_ns: int) -> Returned:
        booted = node.boot_time_ns > case.boot_time_ns > 0
        by = case.return_by or "Slurm"
        text = "the drain was lifted" + (", and the node was rebooted" if booted else "")
        if not case.return_by:
            text += " by somebody in Slurm"
        self._ledger.move(case, State.RETURNED, now_ns, user=by, verb="returned", text=text)
        return Returned(case.node, now_ns)

    def _again(self, case: Case, now_ns: int) -> None:
        """Writes an unsettled drain again, as long as its intent is young."""
        begin_ns = max(case.intent_ns, case.seen_ns)
        if self._mode is Mode.SHADOW or now_ns - begin_ns > self._limits.intent_seconds * SECOND_NS:
            self._ledger.move(
                case, State.ABANDONED, now_ns, user=SELF, verb="abandon", intent_ns=0,
                text="not written any more: it is judged anew",
            )  # fmt: skip
            return
        outcome = self._write({case.node: case})
        if isinstance(outcome, SlurmError):
            return
        if case.node in outcome.done:
            self._ledger.recover(case, now_ns)
            self._acknowledge(case, outcome.done[case.node], now_ns)
        elif case.node in outcome.restored or case.node in outcome.lost:
            self._collided(case, outcome, now_ns)
        elif case.node in outcome.skipped:
            why = outcome.skipped[case.node]
            if case.acknowledged_ns:
                # It was ours and slurmctld forgot it; now somebody's word stands there, or the
                # node does not work. The next cycle sees which.
                return
            self._take_back(case, State.WATCH, why, now_ns)

    def _forgotten(self, case: Case, now_ns: int) -> bool:
        """Whether slurmctld lost the drain in a crash, rather than a person lifting it."""
        if case.return_by or now_ns - case.seen_ns > self._limits.forgotten_seconds * SECOND_NS:
            return False
        try:
            start_ns = self._adapter.controller_start_ns()
        except SlurmError:
            return False
        # Slurm tells its start in whole seconds.
        return start_ns + SECOND_NS > case.seen_ns

    # ---- operators' words --------------------------------------------------------------------

    def resume(self, node: str, user: str, now_ns: int) -> Returned:
        """Lifts our own drain of ``node``. Raises RefusedError for anybody else's."""
        case = self._ledger.case_of(node)
        if case is None:
            raise RefusedError(self._not_ours(node))
        asked = self._ledger.move(
            case, case.state, now_ns, user=user, verb="resume", text="", return_by=user
        )
        outcome = self._lift(asked, user, now_ns)
        if isinstance(outcome, SlurmError):
            # Certainly not written: the word is not kept for later behind the person's back.
            self._ledger.move(
                asked, case.state, now_ns, user=SELF, verb="not_written", text=str(outcome),
                return_by="",
            )  # fmt: skip
            raise RefusedError(f"{node} stays drained: {outcome}") from outcome
        if node in outcome.done:
            return Returned(node, now_ns)
        if node in outcome.unknown:
            raise RefusedError(
                f"{node}: not known yet: {outcome.unknown[node]}; it is looked at again"
            )
        raise RefusedError(f"{node} stays as it is: {self._why_not_lifted(node, outcome)}")

    def _lift(self, case: Case, user: str, now_ns: int) -> Outcome | SlurmError:
        def check(node: NodeState) -> str:
            if _ours(node, case):
                return ""
            return f"Slurm shows {node.words}, reason {node.reason!r}, which is not tocsin's"

        try:
            outcome = self._adapter.undrain([case.node], check)
        except SlurmError as error:
            return error
        name = case.node
        if name in outcome.done:
            text = "the drain was lifted"
            self._ledger.move(case, State.RETURNED, now_ns, user=user, verb="returned", text=text)
        elif name in outcome.restored or name in outcome.lost:
            self._collided(case, outcome, now_ns)
        elif name in outcome.skipped:
            self._ledger.move(
                case, case.state, now_ns, user=SELF, verb="not_lifted",
                text=outcome.skipped[name], return_by="",
            )  # fmt: skip
        return outcome

    def _why_not_lifted(self, node: str, outcome: Outcome) -> str:
        if node in outcome.restored:
            return f"{outcome.restored[node]!r} was set at the same moment; it is theirs now"
        if node in outcome.lost:
            return f"{outcome.lost[node]!r} was set at the same moment and is lost: tell its owner"
        return outcome.skipped.get(node, "nothing was written")

    def _not_ours(self, node: str) -> str:
        try:
            shown = self._adapter.nodes([node]).get(node)
        except SlurmUnavailable as error:
            return f"{node} is not held by tocsin, and Slurm does not answer: {error}"
        if shown is None:
            return f"Slurm has no node {node}"
        if shown.drain or shown.down or shown.reason:
            who = f", set by {shown.reason_user}" if shown.reason_user else ""
            return (
                f"{node} is {shown.words} for {shown.reason!r}{who}, which is not tocsin's to "
                "lift: scontrol update does, if you mean it"
            )
        return f"{node} is {shown.words}: nothing to lift"

    def approve(self, case_id: str, user: str, now_ns: int) -> Case:
        """A person's yes to a proposal. The guards are asked again before it is written."""
        case = self._ledger.find(case_id)
        if case.state is State.APPROVED:
            raise RefusedError(f"{case.id[:4]} on {case.node} was approved by {case.user} already")
        if case.state not in (State.PROPOSED, State.DENIED):
            raise RefusedError(
                f"{case.id[:4]} on {case.node} is {case.state.value}: it waits for nobody"
            )
        return self._ledger.move(case, State.APPROVED, now_ns, user=user, verb="approve")

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


def _ours(node: NodeState, case: Case) -> bool:
    return node.drain and same_reason(node.reason, case.reason)


def _in_shadow(decision: Decision) -> Decision:
    """Policy never lets a drain pass in shadow; should it, nothing is written all the same."""
    if decision.action is Action.DRAIN and decision.guard is None:
        return _held(decision, Guard.SHADOW, "shadow: recorded, and nothing is done")
    return decision


def _held(decision: Decision, guard: Guard, text: str) -> Decision:
    return replace(decision, action=Action.HOLD, guard=guard, guard_text=text)
