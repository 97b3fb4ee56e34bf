"""Makes nodes less wanted, and wanted again: the one place that writes weight and features.

The order survives a kill, as that of a drain: what stood there and what ours will be is durable
first, then Slurm is written, then read back. The way back looks first: only what still is ours
is undone. Not for use from two threads at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVarTuple

from collectors.slurm.nodes import NodeState
from daemon.drains.hand import SELF
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.drains.soft import SoftOptions, Wish, back_of, ours_of, plain_shown, shown_from, stands
from daemon.policy.decisions import Mode
from daemon.slurm.adapter import SlurmError, SlurmRefused
from daemon.slurm.proving import Reservation
from daemon.slurm.soft import FLAGS, RESERVATION_BEGIN, Shown, SoftTools
from daemon.stages import Stages

SCHEMA = """
CREATE TABLE IF NOT EXISTS soft_steps (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL, step TEXT NOT NULL,
    state TEXT NOT NULL, before TEXT NOT NULL, ours TEXT NOT NULL, risk REAL NOT NULL,
    begun_ns INTEGER NOT NULL, written_ns INTEGER NOT NULL DEFAULT 0,
    over_ns INTEGER NOT NULL DEFAULT 0
);
-- One step a node at a time.
CREATE UNIQUE INDEX IF NOT EXISTS soft_steps_open ON soft_steps (node) WHERE over_ns = 0;
"""
# So many nodes are written in one cycle: each costs slurmctld three requests.
NODES_PER_CYCLE = 8
Arguments = TypeVarTuple("Arguments")
# Slurm gives no answer: the rest waits for the next cycle.
_AWAY = -1


class SoftState(StrEnum):
    """Where a step stands."""

    SHADOW = "shadow"  # recorded; nothing was written
    INTENT = "intent"  # about to be written, or written and not yet read back
    STANDING = "standing"  # Slurm shows it
    LEFT = "left"  # somebody changed it: theirs, until the risk is over
    UNDOING = "undoing"  # about to be taken back
    OVER = "over"


@dataclass(frozen=True, slots=True)
class SoftStep:
    """One row. ``before`` is what Slurm showed, ``ours`` what it shows with the step."""

    seq: int
    node: str
    step: str
    state: SoftState
    before: Shown
    ours: Shown
    risk: float
    begun_ns: int
    written_ns: int

    @property
    def reservation(self) -> str:
        """The name of its reservation, where it is one."""
        return f"{RESERVATION_BEGIN}{self.seq:08x}"

    @property
    def words(self) -> str:
        """What the step is, in words."""
        if self.step == "weight":
            return f"weight {self.before.weight} -> {self.ours.weight}"
        if self.step == "feature":
            added = [one for one in self.ours.available if one not in self.before.available]
            return f"feature {', '.join(added) or '(there already)'} added"
        return f"reservation {self.reservation}"


class Softener:
    """See the module. ``controller_start_ns`` is asked only where a step is gone."""

    def __init__(
        self,
        tools: SoftTools | None,
        ledger: Ledger,
        options: SoftOptions,
        mode: Mode,
        controller_start_ns: Callable[[], int],
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages or Stages()
        self._tools = tools
        self._ledger = ledger
        self._options = options
        self._mode = mode if tools is not None else Mode.SHADOW
        self._start_ns = controller_start_ns
        self._told_refused: set[int] = set()
        self._troubled: set[int] = set()
        self._left = 0
        ledger.database.define(SCHEMA)

    def open(self) -> list[SoftStep]:
        """The steps that are not over."""
        rows = self._ledger.database.query("SELECT * FROM soft_steps WHERE over_ns = 0")
        return [
            SoftStep(
                row["seq"], row["node"], row["step"], SoftState(row["state"]),
                shown_from(json.loads(row["before"])), shown_from(json.loads(row["ours"])),
                row["risk"], row["begun_ns"], row["written_ns"],
            )
            for row in rows
        ]  # fmt: skip

    def reserved(self) -> frozenset[str]:
        """The nodes that a reservation of ours keeps new jobs from, or is about to."""
        keeps = (SoftState.INTENT, SoftState.STANDING, SoftState.UNDOING)
        return frozenset(
            one.node for one in self.open() if one.step == "reservation" and one.state in keeps
        )

    def step(
        self,
        wishes: Sequence[Wish],
        chances: Mapping[str, float],
        nodes: Mapping[str, NodeState],
        now_ns: int,
        crowded: frozenset[str] = frozenset(),
    ) -> None:
        """One cycle: ends what is over, settles what a kill left, begins what is wished.

        ``crowded``: nodes whose reservation must make room for drains.
        """
        self._left = NODES_PER_CYCLE
        opened = self.open()
        stuck = frozenset(one.seq for one in opened if one.seq in self._troubled)
        self._troubled = set(stuck)

        def look_after(steps: Iterable[SoftStep]) -> bool:
            for one in steps:
                why = self._over(one, chances, nodes, now_ns)
                if one.node in crowded and one.step == "reservation":
                    why = why or "drains need the room that the caps leave"
                if not self._spend(one.node, self._look_after, one, why, nodes, now_ns):
                    return False
            return True

        # What cannot be taken back comes last, or many such would hold up all others.
        if (
            look_after(one for one in opened if one.seq not in stuck)
            and self._begin_all(wishes, len(nodes), now_ns)
        ):  # fmt: skip
            look_after(one for one in opened if one.seq in stuck)

    def _begin_all(self, wishes: Sequence[Wish], nodes: int, now_ns: int) -> bool:
        busy = {one.node for one in self.open()}
        allowed = self._allowed(nodes)
        for wish in wishes:
            if wish.node in busy:
                continue
            if len(busy) >= allowed:
                break
            busy.add(wish.node)
            if not self._spend(wish.node, self._begins, wish, now_ns):
                return False
        return True

    def _spend(self, node: str, act: Callable[[*Arguments], int], *arguments: *Arguments) -> bool:
        """Does one thing within the cycle's budget; False where the rest must wait: the budget
        is spent, or Slurm gives no answer and nothing is concluded. A fault costs its node alone.
        """
        if self._left <= 0:
            return False
        cost = self._stages.run(f"soft step on {node}", act, *arguments)
        self._left -= 1 if cost is None else max(0, cost)
        return cost != _AWAY

    def _allowed(self, nodes: int) -> int:
        share = max(1, int(nodes * self._options.share_max)) if self._options.share_max else 0
        return min(self._options.nodes_max, share)

    def _begins(self, wish: Wish, now_ns: int) -> int:
        try:
            self._begin(wish, now_ns)
        except SlurmError:
            return _AWAY
        return 1

    # ---- the way there -----------------------------------------------------------------------

    def _begin(self, wish: Wish, now_ns: int) -> None:
        kind = self._options.step
        if self._mode is not Mode.ACT or self._tools is None:
            self._insert(wish, kind, SoftState.SHADOW, Shown(0), Shown(0), now_ns)
            self._say(wish.node, now_ns, f"soft_{kind}", f"shadow: {self._why(wish)}")
            return
        before = self._tools.shown(wish.node)
        if before is None:
            return
        ours = ours_of(kind, before, self._options)
        with self._ledger.together():
            seq = self._insert(wish, kind, SoftState.INTENT, before, ours, now_ns)
            one = SoftStep(
                seq, wish.node, kind, SoftState.INTENT, before, ours, wish.probability, now_ns, 0
            )
            self._say(wish.node, now_ns, f"soft_{kind}", f"{one.words}: {self._why(wish)}")
        self._write(one, now_ns)

    def _why(self, wish: Wish) -> str:
        return f"risk {wish.probability:.2f}, {wish.text}"

    def _write(self, one: SoftStep, now_ns: int) -> None:
        assert self._tools is not None
        try:
            if one.step == "weight":
                self._tools.set_weight(one.node, one.ours.weight)
            elif one.step == "feature":
                self._tools.set_features(one.node, one.ours)
            else:
                minutes = int(self._options.hours * 60)
                self._tools.reserve(one.reservation, one.node, minutes)
        except SlurmRefused as error:
            # Asked again it would be refused again.
            self._say(one.node, now_ns, "soft_refused", str(error))
            self._to(one, SoftState.LEFT)
            return
        if self._is_there(one):
            self._to(one, SoftState.STANDING, written_ns=now_ns)

    def _is_there(self, one: SoftStep) -> bool:
        assert self._tools is not None
        if one.step == "reservation":
            found = self._tools.reservation(one.reservation)
            return found is not None and self._is_ours(one, found)
        shown = self._tools.shown(one.node)
        return shown is not None and stands(
            one.step, one.ours, shown.weight, shown.active, one.before
        )

    def _is_ours(self, one: SoftStep, found: Reservation) -> bool:
        assert self._tools is not None
        return (
            found.nodes == (one.node,)
            and found.users == (self._tools.user,)
            and found.flags >= FLAGS
        )

    # ---- what becomes of it ------------------------------------------------------------------

    def _look_after(
        self, one: SoftStep, why: str, nodes: Mapping[str, NodeState], now_ns: int
    ) -> int:
        """Looks after one open step; answers how many nodes that cost, or _AWAY."""
        try:
            return self._tend(one, why, nodes, now_ns)
        except SlurmRefused as error:
            # Slurm's no concerns this node alone: the others are looked after all the same.
            self._refused(one, error, now_ns)
            return 1
        except SlurmError:
            return _AWAY
        except Exception:
            self._troubled.add(one.seq)
            raise

    def _tend(self, one: SoftStep, why: str, nodes: Mapping[str, NodeState], now_ns: int) -> int:
        """``why`` it is over, or empty."""
        if one.state in (SoftState.SHADOW, SoftState.LEFT):
            if why or (one.state is SoftState.SHADOW and self._mode is Mode.ACT):
                self._to(one, SoftState.OVER, over_ns=now_ns)
            return 0
        if self._mode is not Mode.ACT or self._tools is None:
            return 0  # in shadow nothing is written, the way back neither
        if why or one.state is SoftState.UNDOING:
            self._undo(one, why or "the head was ended in between", now_ns)
            return 1
        if one.state is SoftState.INTENT:
            return self._settle(one, now_ns)
        node = nodes.get(one.node)
        if node is None or stands(one.step, one.ours, node.weight, node.features, one.before):
            return 0
        return self._gone(one, now_ns)

    def _over(
        self,
        one: SoftStep,
        chances: Mapping[str, float],
        nodes: Mapping[str, NodeState],
        now_ns: int,
    ) -> str:
        """Why the step ends, or empty. A risk that is not heard of is not over."""
        node = nodes.get(one.node)
        if node is not None and (node.drain or node.failed):
            return "the node is drained"
        if one.step != self._options.step and one.state is not SoftState.SHADOW:
            return f"policy.soft.step is {self._options.step} by now"
        chance = chances.get(one.node)
        if chance is not None and chance < self._options.threshold * self._options.ends_share:
            return f"its risk is {chance:.2f} by now"
        if now_ns - one.begun_ns > self._options.hours * 3600 * SECOND_NS:
            return f"it has stood for {self._options.hours:g} h: look at the node"
        return ""

    def _settle(self, one: SoftStep, now_ns: int) -> int:
        """A kill, or a time-out, came between intent and read-back."""
        if self._is_there(one):
            self._to(one, SoftState.STANDING, written_ns=now_ns)
            return 1
        assert self._tools is not None
        if one.step != "reservation":
            shown = self._tools.shown(one.node)
            if shown is not None and shown != one.before:
                self._leave(one, shown, now_ns)
                return 1
        self._write(one, now_ns)
        return 1

    def _gone(self, one: SoftStep, now_ns: int) -> int:
        """A reading no longer shows the step: slurmctld forgot it, or somebody set another."""
        assert self._tools is not None
        shown = self._tools.shown(one.node)
        if shown is None or stands(one.step, one.ours, shown.weight, shown.active, one.before):
            return 1  # the reading was older than our write
        if shown == one.before and self._start_ns() + SECOND_NS > one.written_ns:
            self._say(one.node, now_ns, "soft_forgotten", "slurmctld was restarted: written again")
            self._to(one, SoftState.INTENT)
            self._write(one, now_ns)
        else:
            self._leave(one, shown, now_ns)
        return 1

    def _leave(self, one: SoftStep, shown: Shown, now_ns: int) -> None:
        text = (
            f"Slurm shows weight {shown.weight}, features {','.join(shown.active)}: somebody's "
            "word, or scontrol reconfigure; nothing more is written while the risk lasts"
        )
        with self._ledger.together():
            self._say(one.node, now_ns, "soft_left", text)
            self._to(one, SoftState.LEFT)

    # ---- the way back ------------------------------------------------------------------------

    def _undo(self, one: SoftStep, why: str, now_ns: int) -> None:
        assert self._tools is not None
        if one.state is not SoftState.UNDOING:
            self._to(one, SoftState.UNDOING)
        if one.step == "reservation":
            found = self._tools.reservation(one.reservation)
            if found is not None and not self._is_ours(one, found):
                self._end(one, f"{why}; {one.reservation} was changed: it is theirs", now_ns)
                return
            if found is not None:
                self._tools.release(one.reservation)
            self._end(one, f"{why}; {one.reservation} is deleted", now_ns)
            return
        shown = self._tools.shown(one.node)
        back = back_of(one.step, one.before, one.ours, shown) if shown is not None else None
        if shown is None or back is None:
            what = f"weight {shown.weight}" if shown is not None else "no such node"
            self._end(one, f"{why}; Slurm shows {what}, which is not ours: left so", now_ns)
            return
        if one.step == "weight":
            self._tools.set_weight(one.node, back.weight)
        else:
            self._tools.set_features(one.node, back)
        if self._tools.shown(one.node) == back:
            words = f"weight {back.weight}" if one.step == "weight" else ",".join(back.active)
            self._end(one, f"{why}; put back: {words}", now_ns)

    def _refused(self, one: SoftStep, error: SlurmRefused, now_ns: int) -> None:
        """Tells a person once; it is asked again each cycle."""
        self._troubled.add(one.seq)
        if one.seq not in self._told_refused:
            self._told_refused.add(one.seq)
            text = f"{one.words} could not be put back: {error}; look at it by hand"
            self._say(one.node, now_ns, "soft_refused", text)

    def _end(self, one: SoftStep, text: str, now_ns: int) -> None:
        with self._ledger.together():
            self._say(one.node, now_ns, "soft_undone", text)
            self._to(one, SoftState.OVER, over_ns=now_ns)

    # ---- the table ---------------------------------------------------------------------------

    def _insert(
        self, wish: Wish, kind: str, state: SoftState, before: Shown, ours: Shown, now_ns: int
    ) -> int:
        with self._ledger.database.transaction() as connection:
            made = connection.execute(
                "INSERT INTO soft_steps (node, step, state, before, ours, risk, begun_ns) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    wish.node, kind, state.value, json.dumps(plain_shown(before)),
                    json.dumps(plain_shown(ours)), wish.probability, now_ns,
                ),
            )  # fmt: skip
        return int(made.lastrowid or 0)

    def _to(
        self, one: SoftStep, state: SoftState, *, written_ns: int = 0, over_ns: int = 0
    ) -> None:
        self._ledger.database.execute(
            "UPDATE soft_steps SET state = ?, written_ns = ?, over_ns = ? WHERE seq = ?",
            (state.value, written_ns or one.written_ns, over_ns, one.seq),
        )

    def _say(self, node: str, now_ns: int, verb: str, text: str) -> None:
        self._ledger.say(now_ns, user=SELF, verb=verb, node=node, text=text)
