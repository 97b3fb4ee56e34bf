"""Reboots nodes that we hold, where that is the step to take: opt-in, budgeted, once a case.

Section ``[policy.reboot]``. Only a node that our own drain holds and that is empty, only through
Slurm, only in mode ``act``. It stays drained after the boot, for the proof or a person, unless the
site says otherwise. What is asked of Slurm is written down first: a kill in between asks for no
second reboot. A look follows it: a node that somebody took in that moment is theirs, and a reboot
that waits there is taken back. Resets, power cycles and replacements are advised, never made.

Not for use from two threads at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from collectors.slurm.nodes import NodeState
from daemon.drains.escalation import Step
from daemon.drains.hand import SELF, is_ours
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.policy.cases import Case, State
from daemon.policy.decisions import Mode
from daemon.settings import Section
from daemon.slurm.adapter import SlurmAdapter, SlurmError, SlurmRefused
from daemon.slurm.reboot import RebootTools
from daemon.stages import Stages

DAY_NS = 86_400 * SECOND_NS
SCHEMA = """
CREATE TABLE IF NOT EXISTS reboots (
    case_id TEXT PRIMARY KEY, node TEXT NOT NULL, asked_ns INTEGER NOT NULL,
    boot_time_ns INTEGER NOT NULL, state TEXT NOT NULL, text TEXT NOT NULL DEFAULT ''
);
"""


class RebootOptions(Section):
    """Whether a drained, empty node is rebooted where that is the step to take: off by default.

    ``when = "advised"`` runs ``scontrol reboot`` where the escalation says reboot (an Xid whose
    published action is a restart, a lost GPU, a reset that did not help), in mode ``act`` only.
    ``after = "drained"`` leaves it drained for the proof (``policy.proof.when = "reboot"``) or a
    person; ``"resume"`` puts it into service without one.
    """

    when: Literal["never", "advised"] = "never"
    after: Literal["drained", "resume"] = "drained"
    # In the whole cluster within a day, and under way at once.
    per_day: int = Field(default=4, ge=0, le=10_000)
    at_once: int = Field(default=1, ge=1, le=1000)
    # A node that is not back within so long is told of, and holds up no other.
    back_seconds: float = Field(default=1800.0, gt=0, le=86_400)


@dataclass(frozen=True, slots=True)
class Reboot:
    """One reboot that was asked for. ``state``: asked, done, late or refused."""

    case_id: str
    node: str
    asked_ns: int
    boot_time_ns: int
    state: str


class Rebooter:
    """See the module. ``locked``: whether a node waits for a person."""

    def __init__(
        self,
        tools: RebootTools | None,
        adapter: SlurmAdapter,
        ledger: Ledger,
        options: RebootOptions,
        mode: Mode,
        locked: Callable[[str], bool],
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages or Stages()
        self._tools = tools
        self._adapter = adapter
        self._ledger = ledger
        self._options = options
        self._mode = mode
        self._locked = locked
        ledger.database.define(SCHEMA)

    def step(self, now_ns: int) -> None:
        """One cycle: sees who came back, and asks for what is due."""
        if self._options.when == "never" or self._mode is not Mode.ACT or self._tools is None:
            return
        # Slurm is asked only where there is something to reboot, or to wait for.
        due = [
            case
            for case in self._ledger.held()
            if case.state is State.DRAINED and not self._of_case(case.id) and self._is_advised(case)
        ]
        open_ = self._open()
        if not due and not open_:
            return
        try:
            nodes = self._adapter.nodes([one.node for one in due] + [one.node for one in open_])
        except SlurmError:
            return  # nothing is concluded
        run = self._stages.run
        for one in open_:
            run(f"reboot of {one.node}", self._watch, one, nodes.get(one.node), now_ns)
        for case in due:
            run(f"reboot of {case.node}", self._consider, case, nodes.get(case.node), now_ns)

    def _consider(self, case: Case, node: NodeState | None, now_ns: int) -> None:
        if node is not None and not self._why_not(case, node, now_ns):
            self._ask(case, node, now_ns)

    def _why_not(self, case: Case, node: NodeState, now_ns: int) -> str:
        if self._locked(case.node) or case.return_by:
            return "it waits for a person"
        if not is_ours(node, case) or not node.drained or node.jobs:
            return "it is not drained by tocsin and empty"
        if not node.registered or node.maintenance or node.rebooting:
            return f"it is {node.words}"
        if node.boot_time_ns > case.boot_time_ns > 0:
            return "somebody rebooted it since"
        if len(self._open()) >= self._options.at_once:
            return f"{self._options.at_once} reboot(s) are under way"
        made = self._ledger.database.query(
            "SELECT COUNT(*) AS made FROM reboots WHERE asked_ns > ?", (now_ns - DAY_NS,)
        )
        if made[0]["made"] >= self._options.per_day:
            return f"{self._options.per_day} reboots a day are allowed"
        return ""

    def _is_advised(self, case: Case) -> bool:
        for one in self._ledger.decisions(case=case.id, limit=5):
            told = one.inputs.get("escalation")
            if isinstance(told, dict):
                return told.get("step") == Step.REBOOT.value and one.mode is Mode.ACT
        return False

    def _ask(self, case: Case, node: NodeState, now_ns: int) -> None:
        assert self._tools is not None
        with self._ledger.together() as connection:
            connection.execute(
                "INSERT INTO reboots (case_id, node, asked_ns, boot_time_ns, state) "
                "VALUES (?, ?, ?, ?, 'asked')",
                (case.id, case.node, now_ns, node.boot_time_ns),
            )
            text = f"scontrol reboot; {self._options.after} after it"
            self._say(case.id, case.node, now_ns, "reboot", text)
        try:
            self._tools.reboot(case.node, self._options.after == "resume")
        except SlurmRefused as error:
            self._end(case.id, case.node, "refused", f"Slurm refused it: {error}", now_ns)
        except SlurmError as error:
            if error.not_sent:
                self._ledger.database.execute("DELETE FROM reboots WHERE case_id = ?", (case.id,))
                return
            # It may have been taken: never asked again; the boot time will tell.
            self._say(case.id, case.node, now_ns, "unknown_outcome", str(error))
        else:
            self._look_back(case, now_ns)

    def _look_back(self, case: Case, now_ns: int) -> None:
        """Somebody may have taken the node between our look and our word: then Slurm would reboot
        it when the jobs of its users have ended. What waits like that is taken back at once.
        """
        assert self._tools is not None
        with contextlib.suppress(SlurmError):
            node = self._adapter.nodes([case.node]).get(case.node)
            if node is None or is_ours(node, case):
                return
            taken = f"Slurm shows {node.words}, reason {node.reason!r}: it was taken meanwhile"
            if "REBOOT_REQUESTED" not in node.flags:
                # It was empty: the boot has begun, and nobody can take it back.
                text = f"{taken}, and its reboot has begun: tell its owner"
                self._end(case.id, case.node, "late", text, now_ns)
                return
            try:
                self._tools.cancel(case.node)
            except SlurmError as error:
                text = f"{taken}, and the reboot could not be taken back: {error}"
                self._end(case.id, case.node, "late", text, now_ns)
                raise
            self._end(case.id, case.node, "refused", f"{taken}; taken back", now_ns)

    def _watch(self, one: Reboot, node: NodeState | None, now_ns: int) -> None:
        if node is not None and node.boot_time_ns > one.boot_time_ns and node.registered:
            took = (now_ns - one.asked_ns) // SECOND_NS
            text = f"it is back, {node.words}, after {took} s"
            self._end(one.case_id, one.node, "done", text, now_ns)
        elif now_ns - one.asked_ns > self._options.back_seconds * SECOND_NS:
            shown = node.words if node is not None else "no such node"
            text = f"not back after {self._options.back_seconds:g} s: Slurm shows {shown}"
            self._end(one.case_id, one.node, "late", f"{text}; look at its console", now_ns)

    # ---- the table ---------------------------------------------------------------------------

    def _open(self) -> list[Reboot]:
        return self._rows("state = 'asked'", ())

    def _of_case(self, case_id: str) -> list[Reboot]:
        return self._rows("case_id = ?", (case_id,))

    def _rows(self, where: str, parameters: tuple[str, ...]) -> list[Reboot]:
        rows = self._ledger.database.query(f"SELECT * FROM reboots WHERE {where}", parameters)  # noqa: S608
        return [
            Reboot(
                row["case_id"], row["node"], row["asked_ns"], row["boot_time_ns"], row["state"]
            )
            for row in rows
        ]  # fmt: skip

    def _end(self, case_id: str, node: str, state: str, text: str, now_ns: int) -> None:
        with self._ledger.together() as connection:
            connection.execute(
                "UPDATE reboots SET state = ?, text = ? WHERE case_id = ?", (state, text, case_id)
            )
            self._say(case_id, node, now_ns, f"reboot_{state}", text)

    def _say(self, case_id: str, node: str, now_ns: int, verb: str, text: str) -> None:
        self._ledger.say(now_ns, user=SELF, verb=verb, node=node, subject=case_id, text=text)
