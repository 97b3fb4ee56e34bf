"""Holds the ledger against what Slurm shows, and settles where they differ."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from collectors.slurm.nodes import NodeState
from daemon.drains.controller import Controller
from daemon.drains.hand import SELF, Hand, is_ours
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.drains.setback import nothing_later
from daemon.policy.cases import Case, State
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.slurm.adapter import Outcome, SlurmError, same_reason
from daemon.stages import Stages

# A reading of Slurm is asked for at most so long before it is reconciled.
STALE_READING_NS = 120 * SECOND_NS


class Returned(NamedTuple):
    """A node came back into service at ``at_ns``: what was certain before is spent."""

    node: str
    at_ns: int


class Reconciler:
    """Settles what a kill, a hang, a crash of slurmctld or a person left behind."""

    def __init__(
        self, hand: Hand, ledger: Ledger, limits: Limits, mode: Mode, stages: Stages | None = None
    ) -> None:
        self._stages = stages or Stages()
        self._hand = hand
        self._ledger = ledger
        self._limits = limits
        self._mode = mode
        # When a reading last showed each held drain: the ledger is stamped more rarely.
        self._shown_ns: dict[str, int] = {}
        self._controller = Controller(lambda: hand.adapter.controller_start_ns())
        # Whether the last reading was looked through for nodes that others gave back: what was
        # certain of these before is spent, and until then nobody knows it.
        self.saw_returns = False

    def not_read(self) -> None:
        """Slurm could not be read in this cycle: nothing is concluded."""
        self._controller.not_read()

    def reconcile(self, nodes: Mapping[str, NodeState], now_ns: int) -> list[Returned]:
        """Holds the ledger against a reading of Slurm; answers the nodes that came back.

        Where they differ the nodes are read again, for the reading may be older than our last
        write; nothing is concluded from a reading that fails.
        """
        run = self._stages.run
        run("a clock that was set back", nothing_later, self._ledger, now_ns)
        self._controller.begin()
        given_back = run("others' drains", self._watch_others, nodes, now_ns)
        self.saw_returns = given_back is not None
        returned = given_back or []
        agreed: list[Case] = []
        doubtful: list[Case] = []
        for case in self._ledger.held():
            if case.state is State.TESTING:
                continue  # undrained on purpose, in a reservation: daemon/proofs/runs.py has it
            node = nodes.get(case.node)
            if node is not None and is_ours(node, case) and not case.return_by:
                same = run(f"the drain of {case.node}", self._agree, case, node, now_ns)
                agreed.append(case if same is None else same)
            else:
                doubtful.append(case)
        self._ledger.seen(agreed, now_ns)
        held = {case.id for case in (*agreed, *doubtful)}
        self._shown_ns = {one: at_ns for one, at_ns in self._shown_ns.items() if one in held}
        self._shown_ns.update((case.id, now_ns) for case in agreed)
        if not doubtful:
            run("slurmctld's start", self._controller.settled, now_ns, bool(agreed))
            return returned
        try:
            fresh = self._hand.adapter.nodes([case.node for case in doubtful])
        except SlurmError:
            return returned
        undecided = False
        asked: list[Case] = []
        lost: list[Case] = []
        for case in doubtful:
            node = fresh.get(case.node)
            name = f"the drain of {case.node}"
            if node is None and case.node in nodes:
                undecided = True
                continue  # the two readings contradict each other: the next cycle tells
            if node is not None and is_ours(node, case):
                same = run(name, self._agree, case, node, now_ns)
                if same is not None and same.return_by and self._mode is not Mode.SHADOW:
                    asked.append(same)
                continue
            came = run(name, self._differ, case, node, lost, now_ns)
            if came is not None:
                returned.append(came)
        run("drains written again", self._again, lost, now_ns)
        # Returns that people asked for and that were not written, by a kill between: in one write.
        returned.extend(run("returns asked for", self._lift, asked, now_ns) or [])
        if not undecided:
            self._controller.settled(now_ns, all_stand=False)
        return returned

    def _lift(self, cases: Sequence[Case], now_ns: int) -> list[Returned]:
        outcome = self._hand.lift({case.node: case for case in cases}, now_ns)
        if isinstance(outcome, SlurmError):
            return []
        return [Returned(case.node, now_ns) for case in cases if case.node in outcome.done]

    def _watch_others(self, nodes: Mapping[str, NodeState], now_ns: int) -> list[Returned]:
        """Keeps who is drained by others. A node that they give back has come back, too."""
        known = self._ledger.others()
        ours = {case.node for case in self._ledger.held()}
        # This reading may be older than a return of a moment ago.
        lifted = self._ledger.lifted_since(now_ns - STALE_READING_NS)
        drained = {
            name: (node.reason, node.reason_user)
            for name, node in nodes.items()
            if (node.drain or _taken_down(node))
            and name not in ours
            and known.get(name) != node.reason
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
        if case.state is not State.RETURNED:
            return node.drain and self._landed(case, node, now_ns)
        try:
            started_ns = self._controller.started_ns()
        except SlurmError:
            return True  # not known yet: the next cycle asks again
        # What it went back to was set before it was started; our words that were set since are
        # those of a person who took them up. Both times are slurmctld's own.
        set_since = node.reason_time_ns >= started_ns
        revived = started_ns + SECOND_NS > case.ended_ns and not set_since
        if revived:
            text = "slurmctld went back to a state from before its return: it is drained again"
            self._ledger.move(
                case, State.DRAINING, now_ns, user=SELF, verb="revived", text=text, ended_ns=0,
                return_by="", seen_ns=now_ns,
            )  # fmt: skip
        return revived

    def _landed(self, case: Case, node: NodeState, now_ns: int) -> bool:
        """A drain that was given up without a known outcome stands there after all: slurmctld hung,
        and worked off what it had been asked when it came back. It is ours, and counts.
        """
        text = "the write whose outcome was not known was made after all"
        case = self._ledger.move(
            case, State.INTENT, now_ns, user=SELF, verb="late", text=text, intent_ns=now_ns,
            ended_ns=0, return_by="",
        )  # fmt: skip
        self._agree(case, node, now_ns)
        return True

    def _agree(self, case: Case, node: NodeState, now_ns: int) -> Case:
        if case.state is State.INTENT:
            self._ledger.recover(case, now_ns)
            return self._hand.acknowledge(case, node, now_ns)
        if case.state is State.DRAINING and node.drained:
            return self._ledger.move(
                case, State.DRAINED, now_ns, user=SELF, verb="empty", text="its last job has ended"
            )
        return case

    def _differ(
        self, case: Case, node: NodeState | None, lost: list[Case], now_ns: int
    ) -> Returned | None:
        """What follows where Slurm no longer shows our drain. ``lost`` gets what to write again."""
        if node is None:
            self._taken(case, "Slurm no longer knows the node", "", now_ns)
            return None
        if node.drain or node.failed or (node.down and not same_reason(node.reason, case.reason)):
            by = node.reason_user
            self._taken(case, f"{node.words}, reason {node.reason!r}", by, now_ns)
            return None
        if case.state is State.INTENT:
            lost.append(case)
            return None
        forgotten = self._forgotten(case, now_ns)
        if forgotten is None:
            return None  # slurmctld did not say when it was started: the next cycle asks again
        if forgotten:
            # An intent again: what is found out now must not be forgotten where the write fails.
            lost.append(
                self._ledger.move(
                    case, State.INTENT, now_ns, user=SELF, verb="forgotten",
                    text="slurmctld was restarted, or another took over, and no longer has the "
                    "drain: it is written again",
                )
            )  # fmt: skip
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

    def _again(self, cases: Sequence[Case], now_ns: int) -> None:
        """Writes unsettled drains again, all at once, those whose intent is young."""
        young: dict[str, Case] = {}
        for case in cases:
            old_ns = now_ns - max(case.intent_ns, case.seen_ns)
            if self._mode is Mode.SHADOW or old_ns > self._limits.intent_seconds * SECOND_NS:
                self._ledger.move(
                    case, State.ABANDONED, now_ns, user=SELF, verb="abandon", intent_ns=0,
                    text="not written any more: it is judged anew",
                )  # fmt: skip
            else:
                young[case.node] = case
        outcome = self._hand.write(young, now_ns)
        if isinstance(outcome, SlurmError):
            return
        for case in young.values():
            self._written_again(case, outcome, now_ns)

    def _written_again(self, case: Case, outcome: Outcome, now_ns: int) -> None:
        if case.node in outcome.done:
            self._ledger.recover(case, now_ns)
            self._hand.acknowledge(case, outcome.done[case.node], now_ns)
        elif case.node in outcome.restored or case.node in outcome.lost:
            self._hand.collided(case, outcome, now_ns)
        elif case.node in outcome.skipped:
            why = outcome.skipped[case.node]
            if case.acknowledged_ns:
                # It was ours and slurmctld forgot it; now somebody's word stands there, or the
                # node does not work. The next cycle sees which.
                return
            self._hand.take_back(case, State.WATCH, why, now_ns)

    def _forgotten(self, case: Case, now_ns: int) -> bool | None:
        """Whether slurmctld lost the drain, in a crash or in a takeover by one without its state,
        rather than a person lifting it; None where that cannot be known yet.
        """
        seen_ns = max(case.seen_ns, self._shown_ns.get(case.id, 0))
        if case.return_by or now_ns - seen_ns > self._limits.forgotten_seconds * SECOND_NS:
            return False
        return self._controller.is_another(seen_ns)

    def _unnote(self, names: Sequence[str], nodes: Mapping[str, NodeState]) -> None:
        """Takes our line out of the Comment of nodes that came back."""
        ours = [name for name in names if self._hand.is_our_note(nodes[name])]
        if self._mode is Mode.ACT and ours:
            with contextlib.suppress(SlurmError):
                self._hand.adapter.comment(dict.fromkeys(ours, ""), self._hand.may_note)


# What slurmctld and slurmd write themselves when they give a node up (slurm.conf(5), sinfo(1) and
# the reasons seen on 22.05 to 26.05). Where SlurmUser is root, the user does not tell them apart.
_SLURMS_OWN = re.compile(
    r"(?i)not responding|node unexpectedly rebooted|gres/|low |batch job complete failure|"
    r"kill task failed|prolog |epilog |reboot|resumetimeout|suspend|power|invalid|duplicate jobid|"
    r"job credential|no network address|slurmdspooldir"
)


def _taken_down(node: NodeState) -> bool:
    """Whether a person, and not Slurm itself, set the node DOWN or FAIL."""
    return (node.down or node.failed) and bool(node.reason) and not _SLURMS_OWN.match(node.reason)
