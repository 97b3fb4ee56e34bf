"""The adapter that uses Slurm's own commands: ``scontrol`` in one session, ``sinfo`` to read.

Works with every Slurm from 22.05 on. The window between look and write is one round of a
pipe, about a millisecond on an idle controller, plus the time slurmctld needs to send its
node table. What a person does in that window is seen in slurmctld's log, where this user may
read it, and put back. Where the log cannot be read, ``describe`` says so.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collectors.command import Runner
from collectors.hostlist import compress, valid_name
from collectors.slurm import Options
from collectors.slurm_nodes import Nodes, NodeState, local_ns, parse_nodes
from collectors.slurm_reader import (
    AUTHENTICATION,
    HUNG,
    REFUSED,
    SlurmReader,
    SlurmTrouble,
    Tools,
    trouble_of_text,
)
from daemon.slurm.adapter import (
    Check,
    Outcome,
    SlurmError,
    SlurmRefused,
    SlurmUnavailable,
    groups_of,
    plain_text,
    same_reason,
)
from daemon.slurm.controller_log import ControllerLog, Foreign, Position, overwritten
from daemon.slurm.session import OneByOne, Session, SessionError, Talks

# A node named in one command; scontrol takes lines far longer, slurmctld too.
NAMES_PER_WRITE = 2000
# How long scontrol may take to start; it asks slurmctld nothing to do so.
READY_SECONDS = 5.0
# Groups that are looked at together at most.
ROUND_LIMIT = 50

# A value (a reason) and the nodes that get it.
_Group = tuple[str, list[str]]


def _no_window() -> None:
    """What happens between look and write: nothing, outside of tests."""


@dataclass
class _Tally:
    done: dict[str, NodeState] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    restored: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    window_seconds: float = 0.0

    def rest(self, names: Iterable[str], why: str) -> None:
        """Every name not told of yet: written if it stands in ``unknown``, else not."""
        for name in names:
            if not any(
                name in told
                for told in (self.done, self.skipped, self.unknown, self.restored, self.lost)
            ):
                self.skipped[name] = why

    def outcome(self) -> Outcome:
        return Outcome(
            self.done, self.skipped, self.unknown, self.restored, self.lost, self.window_seconds
        )


@dataclass(frozen=True, slots=True)
class _Write:
    """One kind of write: what scontrol is told, and when a node counts as written."""

    verb: str
    command: Callable[[str, str], str]
    wanted: Callable[[NodeState, str], bool]


_DRAIN = _Write(
    "drain",
    lambda names, reason: f'update NodeName={names} State=DRAIN Reason="{reason}"',
    lambda node, reason: node.drain and same_reason(node.reason, reason),
)
_UNDRAIN = _Write(
    "undrain",
    lambda names, reason: f"update NodeName={names} State=UNDRAIN",
    lambda node, reason: not node.drain,
)
_COMMENT = _Write(
    "comment",
    # Over a pipe scontrol keeps the quotes of a Comment: this one goes as an argument.
    lambda names, text: f"Comment={text}",
    lambda node, text: node.comment == text,
)


class CliAdapter:
    """See the module. ``window`` is called between look and write; tests act there."""

    name = "cli"

    def __init__(
        self,
        options: Options | None = None,
        runner: Runner | None = None,
        *,
        log: Path | None = None,
        window: Callable[[], None] = _no_window,
        interactive: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        options = options or Options()
        self._tools = Tools(options.conf, options.binaries)
        self._runner = runner or Runner()
        self._deadline_seconds = options.deadline_seconds
        self._window = window
        self._interactive = interactive
        self._monotonic = monotonic
        self.reader = SlurmReader(self._tools, self._runner, monotonic)
        self._log = ControllerLog(log) if log else None

    # ---- reading -------------------------------------------------------------------------

    def nodes(self, names: Iterable[str] | None = None) -> Nodes:
        """All nodes, or those of ``names`` that exist."""
        try:
            return self.reader.nodes(names, self._deadline_seconds)[0]
        except SlurmTrouble as error:
            raise SlurmUnavailable(str(error), error.kind) from error

    def controller_start_ns(self) -> int:
        """BOOT_TIME of ``scontrol show config``."""
        match = re.search(r"^BOOT_TIME\s*=\s*(\S+)", self._config(), re.MULTILINE)
        return local_ns(match[1]) if match else 0

    def topology(self) -> str:
        """``scontrol show topology``; empty where the cluster has none. Raises SlurmUnavailable."""
        self._check_conf()
        result = self._runner.run(
            self._tools.command("scontrol", "show", "topology"),
            deadline_seconds=self._deadline_seconds,
            kind="slurm-scontrol",
            env=self._tools.environment(),
        )
        if result.status != "ended":
            raise SlurmUnavailable(result.fault, HUNG)
        return result.text() if result.ok else ""

    def describe(self) -> list[str]:
        """What is used, and whether an overwritten reason would be noticed."""
        version = self._runner.run(
            self._tools.command("scontrol", "--version"), deadline_seconds=5.0
        )
        lines = [f"Slurm by its own commands: {version.text().strip() or version.fault}"]
        if not self._interactive:
            lines.append("scontrol takes no commands over a pipe: look and write are 10 ms apart")
        log = self._controller_log()
        if log.position() is None:
            lines.append(
                f"slurmctld's log cannot be read ({log.why}): a reason that a person sets in the "
                "millisecond between look and write would not be noticed"
            )
        else:
            lines.append(f"slurmctld's log is read at each write: {log.path}")
        return lines

    def close(self) -> None:
        """Nothing is held open between calls."""

    # ---- writing -------------------------------------------------------------------------

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter. Nodes with one reason go in one request."""
        clean = {name: plain_text(reason) for name, reason in reasons.items()}
        empty = [name for name, reason in clean.items() if not reason]
        if empty:
            raise ValueError(f"no reason for {empty[0]}")
        return self._write(_DRAIN, clean, check)

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        return self._write(_UNDRAIN, dict.fromkeys(names, ""), check)

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter. An empty text clears the Comment."""
        clean = {name: plain_text(text) for name, text in comments.items()}
        return self._write(_COMMENT, clean, check)

    def _write(self, write: _Write, values: Mapping[str, str], check: Check) -> Outcome:
        for name in values:
            if not valid_name(name):
                raise ValueError(f"no node name: {name!r}")
        tally = _Tally()
        if not values:
            return tally.outcome()
        self._check_conf()
        log = self._controller_log()
        try:
            with contextlib.closing(self._talk()) as session:
                written = self._rounds(session, write, _split(values), check, log, tally)
                if written:
                    self._read_back(session, write, written, tally)
        except SessionError as error:
            if not (tally.unknown or tally.skipped or tally.restored):
                raise SlurmUnavailable(f"scontrol: {error}", HUNG) from error
            tally.rest(values, f"the session with scontrol broke: {error}")
        except (SlurmUnavailable, SlurmRefused) as error:
            # What was looked at or written before is told; nothing of the rest was written.
            if not (tally.unknown or tally.restored or tally.lost):
                raise
            tally.rest(values, str(error))
        return tally.outcome()

    def _rounds(
        self,
        session: Talks,
        write: _Write,
        groups: list[_Group],
        check: Check,
        log: ControllerLog,
        tally: _Tally,
    ) -> dict[str, str]:
        """Looks and writes, round after round. Answers what was written, perhaps.

        A look costs slurmctld its whole node table, whatever is asked for. On a large cluster
        that is a hundred times a write, so a round takes as many groups as can be written in
        the time that the look took: the window at most doubles. On a small one it is one.
        """
        written: dict[str, str] = {}
        at = 0
        size = 1
        while at < len(groups):
            some = groups[at : at + size]
            at += size
            started = self._monotonic()
            begin = log.position()
            allowed = self._allowed(session, some, check, tally)
            looked = self._monotonic()
            if allowed:
                self._window()
            for value, names in allowed:
                self._send(session, write, value, names, tally)
                tally.window_seconds = max(tally.window_seconds, self._monotonic() - started)
                written.update(dict.fromkeys(names, value))
            if allowed:
                write_seconds = max(1e-4, (self._monotonic() - looked) / len(allowed))
                size = min(ROUND_LIMIT, max(1, int((looked - started) / write_seconds)))
            if write is not _COMMENT:
                for value, names in allowed:
                    self._mend(session, log, begin, value, names, tally)
        return written

    def _allowed(
        self, session: Talks, groups: list[_Group], check: Check, tally: _Tally
    ) -> list[_Group]:
        """Looks, and leaves what the caller's check lets pass."""
        nodes = self._look(session, [name for _, names in groups for name in names])
        allowed: list[_Group] = []
        for value, names in groups:
            passed: list[str] = []
            for name in names:
                node = nodes.get(name)
                why = "Slurm does not know this node" if node is None else check(node)
                if why:
                    tally.skipped[name] = why
                else:
                    passed.append(name)
            if passed:
                allowed.append((value, passed))
        return allowed

    def _send(
        self, session: Talks, write: _Write, value: str, names: list[str], tally: _Tally
    ) -> None:
        """Sends one request. From here on it may have happened, until we know better."""
        command = write.command(compress(names), value)
        tally.unknown.update(dict.fromkeys(names, f"the {write.verb} was sent, no answer came"))
        if write is _COMMENT:
            said = self._apart(["update", f"NodeName={compress(names)}", command])
        else:
            said = session.ask(command, self._deadline_seconds)
        if said and _certainly_not_written(said):
            for name in names:
                del tally.unknown[name]
            raise _refusal(said)

    def _apart(self, arguments: list[str]) -> str:
        """One command in a process of its own; answers what it said when it failed."""
        result = self._runner.run(
            self._tools.command("scontrol", *arguments),
            deadline_seconds=self._deadline_seconds,
            kind="slurm-scontrol",
            env=self._tools.environment(),
        )
        if result.status != "ended":
            raise SessionError(result.fault, True)
        return "" if result.ok else result.stderr.decode("utf-8", "replace")

    def _look(self, session: Talks, names: list[str]) -> Nodes:
        try:
            said = session.ask(f"show node {compress(names)}", self._deadline_seconds)
        except SessionError as error:
            raise SlurmUnavailable(f"slurmctld does not answer: {error}", "hung") from error
        nodes, _ = parse_nodes(said)
        nodes = {name: node for name, node in nodes.items() if name in set(names)}
        if not nodes and "not found" not in said:
            error_words = trouble_of_text(said, "scontrol")
            raise SlurmUnavailable(str(error_words), error_words.kind)
        return nodes

    def _read_back(
        self, session: Talks, write: _Write, written: Mapping[str, str], tally: _Tally
    ) -> None:
        nodes: Nodes | None
        try:
            nodes = self._look(session, sorted(written))
        except SlurmError as error:
            for name in written:
                tally.unknown[name] = f"written, and not read back: {error}"
            nodes = None
        for name, value in written.items():
            if name in tally.restored or name in tally.lost:
                tally.unknown.pop(name, None)
                continue
            if nodes is None:
                continue
            node = nodes.get(name)
            if node is not None and write.wanted(node, value):
                del tally.unknown[name]
                tally.done[name] = node
            else:
                shown = f"{node.words}, reason {node.reason!r}" if node else "no such node"
                tally.unknown[name] = f"{write.verb} was written, and Slurm shows {shown}"

    # ---- what happened in the window --------------------------------------------------------

    def _mend(
        self,
        session: Talks,
        log: ControllerLog,
        begin: Position | None,
        ours: str,
        names: list[str],
        tally: _Tally,
    ) -> None:
        """Puts back the reasons that our write replaced, as slurmctld's log tells them."""
        updates = log.since(begin)
        if updates is None:
            return
        for name in names:
            foreign = overwritten(updates, name, ours)
            if foreign is None:
                continue
            if self._put_back(session, name, ours, foreign):
                tally.restored[name] = foreign.reason
            else:
                tally.lost[name] = foreign.reason

    def _put_back(self, session: Talks, name: str, ours: str, foreign: Foreign) -> bool:
        """Gives ``name`` back to whoever set ``foreign``, unless it has changed again since."""
        try:
            node = self._look(session, [name]).get(name)
            if node is None:
                return False
            if ours and not same_reason(node.reason, ours):
                return True  # relabelled again: it is theirs as it stands
            reason = _quotable(foreign.reason)
            if reason is None:
                return False
            if ours and foreign.down and not foreign.drained:
                session.ask(f"update NodeName={name} State=UNDRAIN", self._deadline_seconds)
            state = "" if ours else "State=DRAIN "
            session.ask(f"update NodeName={name} {state}Reason={reason}", self._deadline_seconds)
            node = self._look(session, [name]).get(name)
        except (SessionError, SlurmError):
            return False
        return node is not None and node.reason == foreign.reason

    # ---- plumbing ----------------------------------------------------------------------------

    def _talk(self) -> Talks:
        """A session over one pipe; where scontrol does not take to that, a process a command."""
        argv = self._tools.command("scontrol", "--oneliner", "--detail", "--all")
        environment = self._tools.environment()
        if self._interactive:
            session = Session(argv, environment, self._monotonic)
            try:
                session.ready(READY_SECONDS)
                return session
            except SessionError:
                session.close()
                self._interactive = False
        return OneByOne(argv, environment, self._runner)

    def _check_conf(self) -> None:
        try:
            self._tools.check()
        except SlurmTrouble as error:
            raise SlurmUnavailable(str(error), error.kind) from error

    def _config(self) -> str:
        self._check_conf()
        result = self._runner.run(
            self._tools.command("scontrol", "show", "config"),
            deadline_seconds=self._deadline_seconds,
            kind="slurm-scontrol",
            env=self._tools.environment(),
        )
        if not result.ok:
            raise SlurmUnavailable(result.fault)
        return result.text()

    def _controller_log(self) -> ControllerLog:
        """slurmctld's log by its configuration, asked for once."""
        if self._log is None:
            try:
                match = re.search(r"^SlurmctldLogFile\s*=\s*(/\S+)", self._config(), re.MULTILINE)
            except SlurmError as error:
                return ControllerLog(None, str(error))
            why = "" if match else "slurmctld logs to syslog"
            self._log = ControllerLog(Path(match[1]) if match else None, why)
        return self._log


def _split(values: Mapping[str, str]) -> list[_Group]:
    """One group a value, none longer than one command may be."""
    return [
        (value, names[begin : begin + NAMES_PER_WRITE])
        for value, names in groups_of(values)
        for begin in range(0, len(names), NAMES_PER_WRITE)
    ]


_NOT_SENT = re.compile(r"connect failure|connection failure|Munge encode failed", re.IGNORECASE)


def _certainly_not_written(said: str) -> bool:
    """Whether what scontrol said rules out that slurmctld applied the request.

    "receive failure" and "timed out" do not: the request was sent.
    """
    kind = trouble_of_text(said, "scontrol").kind
    return bool(_NOT_SENT.search(said)) or kind in (REFUSED, AUTHENTICATION)


def _refusal(said: str) -> SlurmError:
    error = trouble_of_text(said, "scontrol")
    kind = SlurmRefused if error.kind == REFUSED else SlurmUnavailable
    return kind(str(error), error.kind)


def _quotable(reason: str) -> str | None:
    """A person's reason as one word of scontrol's command line; None where it cannot be one."""
    if "\\" in reason:
        return None
    if '"' not in reason:
        return f'"{reason}"'
    if "'" not in reason:
        return f"'{reason}'"
    return None
