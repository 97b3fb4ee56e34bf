"""The hand that writes: one drain or return at a time, in the ledger and in Slurm.

A node is ours only while Slurm shows exactly the reason that the ledger says we wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from collectors.slurm.nodes import NodeState
from collectors.slurm.state import left_over
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.drains.ledger import SELF as SELF
from daemon.policy.cases import Case, State
from daemon.slurm.adapter import Outcome, SlurmAdapter, SlurmError, plain_text, same_reason

# How our line in a Comment begins.
NOTE_BEGIN = "tocsin "
NOTE_VERB = "note"
# So long people are alerted that slurmctld's log did not tell what happened at a write.
BLIND_TOLD_NS = 3600 * SECOND_NS


def may_drain(node: NodeState, returned_reason: str = "") -> str:
    """The last check before a drain is written: why not, or empty.

    Nobody else's word may stand at the node, and it must work: a DOWN or unregistered node has
    nothing to drain, and its reason is somebody's. ``returned_reason``: that of the drain which
    it last came back from; some releases of Slurm still show it.
    """
    if node.drain or node.failed:
        return f"it is {node.words} with the reason {node.reason!r} by now"
    if node.reason and not left_over(node, returned_reason):
        return f"it has the reason {node.reason!r} by now"
    if not node.registered:
        return f"it is {node.words} by now"
    if node.maintenance or node.rebooting:
        return f"it is {node.words} by now"
    return ""


def is_ours(node: NodeState, case: Case) -> bool:
    """Whether Slurm shows the drain that the ledger says we wrote."""
    return node.drain and same_reason(node.reason, case.reason)


class Hand:
    """Writes to Slurm and to the ledger, in the order that survives a kill."""

    def __init__(self, adapter: SlurmAdapter, ledger: Ledger) -> None:
        self.adapter = adapter
        self._ledger = ledger
        # Nodes as they were read back after a write, for whoever shows them: no second look.
        self.shown: dict[str, NodeState] = {}
        # Why a write could not see what people had set in between, and when that was.
        self._blind, self._blind_ns = "", 0

    def write(self, cases: Mapping[str, Case], now_ns: int) -> Outcome | SlurmError:
        """Drains each case's node for its reason; a failure is an answer too.

        A node that shows the very drain already is done: an earlier write, whose answer never
        came, was made after all, and nobody else writes our words.
        """
        if not cases:
            return Outcome()
        mine: dict[str, NodeState] = {}
        returned = self._ledger.returned_reasons()

        def check(node: NodeState) -> str:
            if is_ours(node, cases[node.name]):
                mine[node.name] = node
                return "it is drained by tocsin already"
            return may_drain(node, returned.get(node.name, ""))

        try:
            outcome = self.adapter.drain({node: case.reason for node, case in cases.items()}, check)
        except SlurmError as error:
            if not mine:
                return error
            outcome = Outcome(skipped=dict.fromkeys(cases, str(error)))
        if mine:
            skipped = {node: why for node, why in outcome.skipped.items() if node not in mine}
            outcome = replace(outcome, done={**outcome.done, **mine}, skipped=skipped)
        self.shown.update(outcome.done)
        if outcome.done:
            self._blind = ""
        self.say_unwatched(cases, outcome, now_ns)
        return outcome

    def blind(self, now_ns: int) -> str:
        """Why the last drain, within the hour, could not see what people set meanwhile; or ""."""
        return self._blind if 0 <= now_ns - self._blind_ns < BLIND_TOLD_NS else ""

    def say_unwatched(self, cases: Mapping[str, Case], outcome: Outcome, now_ns: int) -> None:
        """A reason that a person set at the same moment may be gone: that is to be read."""
        if not outcome.unwatched:
            return
        with self._ledger.together():
            for node, why in outcome.unwatched.items():
                self._blind, self._blind_ns = why, now_ns
                self._ledger.say(
                    now_ns, user=SELF, verb="unwatched", node=node, subject=cases[node].id,
                    text=f"{why}: a reason that was set at the same moment would be lost",
                )  # fmt: skip

    def is_our_note(self, node: NodeState) -> bool:
        """Whether its Comment is word for word what we wrote there last."""
        ours = self._ledger.last_said(node.name, NOTE_VERB)
        return bool(ours) and node.comment == plain_text(ours)

    def may_note(self, node: NodeState) -> str:
        """Only an empty Comment, or one of ours that nobody has changed, is written."""
        return "" if not node.comment or self.is_our_note(node) else "its Comment is somebody's"

    def acknowledge(self, case: Case, node: NodeState, now_ns: int) -> Case:
        """Slurm shows the drain: the case holds its node."""
        state = State.DRAINED if node.drained else State.DRAINING
        return self._ledger.move(
            case, state, now_ns, user=SELF, verb="drained", text=f"Slurm shows {node.words}",
            acknowledged_ns=case.acknowledged_ns or now_ns, seen_ns=now_ns,
            boot_time_ns=case.boot_time_ns or node.boot_time_ns,
            detail={"jobs": list(node.jobs), "gpus_allocated": node.gpus_allocated},
        )  # fmt: skip

    def take_back(self, case: Case, before: State, why: str, now_ns: int) -> None:
        """An intent that was certainly not written: as if it had never been."""
        self._ledger.move(
            case, before, now_ns, user=SELF, verb="not_written", text=why, intent_ns=0
        )

    def collided(self, case: Case, outcome: Outcome, now_ns: int) -> str:
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

    def lift(self, cases: Mapping[str, Case], now_ns: int) -> Outcome | SlurmError:
        """Lifts the drain of each node's case where Slurm still shows it as ours: one write for
        all. ``return_by`` of a case says who asked for it.
        """
        if not cases:
            return Outcome()

        def check(node: NodeState) -> str:
            if is_ours(node, cases[node.name]):
                return ""
            return f"Slurm shows {node.words}, reason {node.reason!r}, which is not tocsin's"

        try:
            outcome = self.adapter.undrain(list(cases), check)
        except SlurmError as error:
            return error
        self.shown.update(outcome.done)
        with self._ledger.together():
            for case in cases.values():
                self._lifted(case, outcome, now_ns)
        self.say_unwatched(cases, outcome, now_ns)
        return outcome

    def _lifted(self, case: Case, outcome: Outcome, now_ns: int) -> None:
        """What became of one return, in the ledger."""
        name = case.node
        if name in outcome.done:
            shown = outcome.done[name]
            said = outcome.said.get(name, "")
            text = "the drain was lifted"
            if said:
                text += f", though slurmctld answered {said!r}"
            if not shown.registered:
                text += f"; it is {shown.words}"
            self._ledger.move(
                case, State.RETURNED, now_ns, user=case.return_by or SELF, verb="returned",
                text=text,
            )  # fmt: skip
        elif name in outcome.restored or name in outcome.lost:
            self.collided(case, outcome, now_ns)
        elif name in outcome.skipped:
            self._ledger.move(
                case, case.state, now_ns, user=SELF, verb="not_lifted",
                text=outcome.skipped[name], return_by="",
            )  # fmt: skip
