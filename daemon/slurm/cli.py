"""The adapter that uses Slurm's own commands: ``scontrol`` in one session, ``sinfo`` to read.

Works with every Slurm from 22.05 on. The window between look and write is one round of a
pipe, about a millisecond on an idle controller, plus the time slurmctld needs to send its
node table. What a person does in that window is seen in slurmctld's log, where this user may
read it, and put back. Where the log cannot be read, ``describe`` says so.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from collectors.command import Runner
from collectors.sample import clip
from collectors.slurm.faults import HUNG, SlurmTrouble, trouble_of_text
from collectors.slurm.hostlist import compress
from collectors.slurm.nodes import Nodes, local_ns, parse_nodes
from collectors.slurm.reader import SlurmReader, Tools
from collectors.slurm.source import Options
from collectors.slurm.text_nodes import clear_of_some, first_record
from daemon.slurm.adapter import Check, Outcome, SlurmError, SlurmUnavailable, plain_text
from daemon.slurm.controller_log import ControllerLog
from daemon.slurm.session import OneByOne, Session, SessionError, Talks
from daemon.slurm.writing import (
    COMMENT,
    DRAIN,
    UNDRAIN,
    Change,
    ChannelBroken,
    Write,
    Writer,
    checked_names,
    checked_reasons,
    no_window,
    raise_if_not_written,
)

# How long scontrol may take to start; it asks slurmctld nothing to do so.
READY_SECONDS = 5.0
# So often in a row it may take no command over a pipe before that is not tried any more: once may
# be a busy machine, and a process a command leaves more time between look and write.
REFUSALS_MOST = 3
# What scontrol's own parser, or readline, takes for something else over a pipe.
_NOT_OVER_A_PIPE = re.compile(r"[\"'\\]|[^ -~]")


class CliAdapter:
    """See the module. ``window`` is called between look and write; tests act there."""

    name = "cli"

    def __init__(
        self,
        options: Options | None = None,
        runner: Runner | None = None,
        *,
        log: Path | None = None,
        window: Callable[[], None] = no_window,
        interactive: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        options = options or Options()
        self._tools = Tools(options.conf, options.binaries)
        self._runner = runner or Runner()
        self._deadline_seconds = options.deadline_seconds
        self._window = window
        self._refusals = 0 if interactive else REFUSALS_MOST
        self._monotonic = monotonic
        self.reader = SlurmReader(self._tools, self._runner, monotonic)
        self._named_log = ControllerLog(log) if log else None
        self._log = self._named_log

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
        # Newer ones tell not even their version where they find no slurm.conf.
        version = self._runner.run(
            self._tools.command("scontrol", "--version"),
            deadline_seconds=5.0,
            env=self._tools.environment(),
        )
        lines = [f"Slurm by its own commands: {version.text().strip() or version.fault}"]
        with contextlib.suppress(SlurmError):
            self.nodes()
        if self.reader.without_json:
            lines.append(
                "Slurm's JSON plugin is not here (serializer_json.so; Debian and Ubuntu: "
                "slurm-wlm-basic-plugins): nodes are read as text, and not at all where "
                "somebody's reason or comment can be taken for something else"
            )
        if version.ok:
            with contextlib.suppress(SessionError):
                self._talk().close()
        if self._refusals:
            lines.append(
                "scontrol takes no commands over a pipe (it was built without readline, or is "
                "slow): look and write are 10 ms apart, not 1"
            )
        log = self._controller_log()
        if not log.readable():
            lines.append(
                f"slurmctld's log cannot be read ({log.why}): a reason that a person sets in the "
                "millisecond between look and write would not be noticed"
            )
        else:
            lines.append(f"slurmctld's log is read at each write: {log.path}")
            with contextlib.suppress(SlurmError):
                lines.extend(_log_may_be_anothers(self._config(), log.path))
        return lines

    def close(self) -> None:
        """Nothing is held open between calls."""

    # ---- writing -------------------------------------------------------------------------

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter. Nodes with one reason go in one request."""
        return self._write(DRAIN, checked_reasons(reasons), check)

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        return self._write(UNDRAIN, dict.fromkeys(names, ""), check)

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter. An empty text clears the Comment."""
        clean = {name: plain_text(text) for name, text in comments.items()}
        return self._write(COMMENT, clean, check)

    def _write(self, write: Write, values: Mapping[str, str], check: Check) -> Outcome:
        checked_names(values)
        if not values:
            return Outcome()
        self._check_conf()
        log = self._controller_log()
        try:
            talks = self._talk()
        except SessionError as error:
            raise SlurmUnavailable(f"scontrol: {error}", HUNG) from error
        with contextlib.closing(talks):
            channel = _Scontrol(talks, self._apart, self._deadline_seconds)
            writer = Writer(channel, log, self._window, self._monotonic)
            outcome = writer.write(write, values, check)
        if outcome.unwatched:
            self._log = self._named_log  # a backup that took over may log elsewhere: asked anew
        return outcome

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

    # ---- plumbing ----------------------------------------------------------------------------

    def _talk(self) -> Talks:
        """A session over one pipe; where scontrol does not take to that, a process a command."""
        argv = self._tools.command("scontrol", "--oneliner", "--detail", "--all", "--local")
        environment = self._tools.environment()
        if self._refusals < REFUSALS_MOST:
            session = Session(argv, environment, self._monotonic)
            try:
                session.ready(READY_SECONDS)
            except SessionError:
                session.close()
                self._refusals += 1
            else:
                self._refusals = 0
                return session
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


class _Scontrol:
    """The channel of one write: a scontrol that has started, and one apart for Comments."""

    def __init__(
        self, talks: Talks, apart: Callable[[list[str]], str], deadline_seconds: float
    ) -> None:
        self._talks = talks
        self._apart = apart
        self._deadline_seconds = deadline_seconds

    def look(self, names: list[str]) -> Nodes:
        """See writing.Channel."""
        said = self._shown(names)
        if clear_of_some(said):
            return _read(said, names)
        # Words in one node's Comment or Extra may look like another node.
        found: Nodes = {}
        for name in names:
            found.update(_read(first_record(self._shown([name])), [name]))
        return found

    def _shown(self, names: list[str]) -> str:
        try:
            return self._talks.ask(f"show node {compress(names)}", self._deadline_seconds)
        except SessionError as error:
            raise SlurmUnavailable(f"slurmctld does not answer: {error}", HUNG) from error

    def change(self, names: list[str], change: Change) -> str:
        """See writing.Channel."""
        whom = f"NodeName={compress(names)}"
        try:
            words = ["update", whom]
            if change.state:
                words.append(f"State={change.state}")
            if change.comment is not None:
                # Over a pipe scontrol keeps the quotes of a Comment: it goes as an argument.
                said = self._apart([*words, f"Comment={change.comment}"])
            elif _NOT_OVER_A_PIPE.search(change.reason):
                # readline takes other letters for keys (Meta), and quotes and backslashes mean
                # something there. Of an argument scontrol takes one quote off at either end, and
                # nothing else. A reason of ours has none of these.
                said = self._apart([*words, f'Reason="{change.reason}"'])
            else:
                if change.reason:
                    words.append(f'Reason="{change.reason}"')
                said = self._talks.ask(" ".join(words), self._deadline_seconds)
        except SessionError as error:
            raise ChannelBroken(f"scontrol: {error}") from error
        if said:
            raise_if_not_written(said, "scontrol")
        return clip(said, 200)


def _read(said: str, names: list[str]) -> Nodes:
    """Those of ``names`` in scontrol's answer. Raises SlurmUnavailable where it is none."""
    nodes, _ = parse_nodes(said)
    nodes = {name: node for name, node in nodes.items() if name in set(names)}
    if not nodes and "not found" not in said:
        error_words = trouble_of_text(said, "scontrol")
        raise SlurmUnavailable(str(error_words), error_words.kind)
    return nodes


def _log_may_be_anothers(config: str, path: Path | None) -> list[str]:
    """What to know where slurmctld logs too little to be a witness, or perhaps elsewhere."""
    lines: list[str] = []
    level = re.search(r"^SlurmctldDebug\s*=\s*(\S+)", config, re.MULTILINE)
    if level and level[1] in ("quiet", "fatal", "error"):
        lines.append(
            f"SlurmctldDebug is {level[1]}: no change of a node is logged, and a reason "
            "that a person sets between look and write would not be noticed; info is enough"
        )
    hosts = re.findall(r"^SlurmctldHost\[\d+\]\s*=\s*([^\s(]+)", config, re.MULTILINE)
    here = socket.gethostname().partition(".")[0]
    others = [host for host in hosts if host.partition(".")[0] not in (here, "localhost")]
    if others:
        lines.append(
            f"slurmctld may run on {', '.join(others)}, and this is {here}: {path} must be its log "
            "there too (a shared file system); else a reason that a person sets between look and "
            "write is not noticed, and an alert says so once a drain was written"
        )
    return lines
