"""The node's own BMC through the kernel's IPMI driver, for an agent where the network is no option.

``ipmitool -I open`` does the talking: it knows every interface that a kernel offers. New entries of
the log are told by their record ids and times; the log is never cleared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from collectors.bmc import points as bmc
from collectors.bmc.cursors import CursorFile
from collectors.bmc.ipmi_faults import session_words
from collectors.bmc.ipmi_sel import parse_ipmitool
from collectors.bmc.ipmi_sensors import parse
from collectors.command import Runner
from collectors.options import Options as BaseOptions
from collectors.sample import Batch, Context, Problem, Sample, SourceUnavailable

NAME = "ipmi_inband"
METRICS = bmc.METRICS
STATE_FILE = "ipmi-inband-sel.json"
# How many entries at the end of the log are looked at; more when all of them are new.
TAIL_ENTRIES = 64
TAIL_LIMIT_ENTRIES = 4_096


class Options(BaseOptions):
    """Options of the source ``ipmi_inband``. A BMC behind a slow bus takes many seconds to read.

    ``arguments`` stand before every command of ipmitool.
    """

    period_seconds: float = Field(default=300.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=120.0, gt=0, le=3_600)
    ipmitool: str = "ipmitool"
    arguments: tuple[str, ...] = ("-I", "open")
    log_backlog: int = Field(default=50, ge=0, le=4_096)


class IpmiInband:
    """The source. Holds the entries of the log's end that were read, by a short hash each."""

    name = NAME

    def __init__(self, options: Options, context: Context, runner: Runner) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._runner = runner
        self._file = CursorFile(context.state_dir / STATE_FILE)
        self._seen: list[str] | None = None

    def collect(self, now_ns: int) -> Batch:
        """One reading of all sensors and of what is new in the log."""
        if self._seen is None:
            held: Any = self._file.load().get(self._context.node)
            self._seen = [str(one) for one in held] if isinstance(held, list) else []
        # What the last reading handed over has been taken: only now is it not read again.
        self._file.save()
        node = self._context.node
        samples, problems = parse(self._run("sdr", "elist", "all"), node, now_ns)
        events, more = self._log(node, now_ns)
        if not samples:
            said = problems[0].problem if problems else "ipmitool printed nothing"
            # No reason to lose what the log had: it counts as read from here on.
            fault = f"no sensor could be read: {said}"
            return Batch(NAME, tuple(events), (*problems, *more), False, fault)
        return Batch(NAME, (*samples, *events), (*problems, *more))

    def close(self) -> None:
        """Writes where the log stands. May be called twice."""
        if self._seen is not None:
            self._file.save()

    def _log(self, node: str, now_ns: int) -> tuple[Sequence[Sample], Sequence[Problem]]:
        seen = self._seen or []
        known = set(seen)
        tail = TAIL_ENTRIES
        while True:
            text = self._run("sel", "elist", "last", str(tail), empty="SEL has no entries")
            lines = [line for line in text.splitlines() if line.strip()]
            new = [line for line in lines if _name(line) not in known]
            enough = len(new) < len(lines) or len(lines) < tail or not seen
            if enough or tail >= TAIL_LIMIT_ENTRIES:
                break
            tail *= 4
        if not seen:
            new = new[-self._options.log_backlog :] if self._options.log_backlog else []
        self._seen = ([*seen, *(_name(line) for line in lines if _name(line) not in known)])[
            -2 * TAIL_LIMIT_ENTRIES :
        ]
        self._file.pending = {node: self._seen}
        if not new:
            return (), ()
        return parse_ipmitool("\n".join(new) + "\n", node, now_ns)

    def _run(self, *command: str, empty: str = "") -> str:
        """Output of one command; SourceUnavailable, in our words, where it failed."""
        argv = [self._options.ipmitool, *self._options.arguments, *command]
        result = self._runner.run(
            argv,
            deadline_seconds=self.deadline_seconds / 2,
            kind=NAME,
            env={"TZ": "UTC"},
        )
        if result.ok:
            return result.text()
        if result.status != "ended":
            raise SourceUnavailable(result.fault)
        said = result.stderr.decode("utf-8", "replace")
        if empty and empty in said:
            return ""
        if result.stdout and command[0] == "sdr":
            return result.text()  # what was read before the BMC gave up
        raise SourceUnavailable(session_words(said, result.duration_seconds))


def _name(line: str) -> str:
    """A short name of one entry: record ids come again after a log was cleared."""
    return hashlib.blake2s(" ".join(line.split()).encode(), digest_size=6).hexdigest()


def make(options: Options, context: Context) -> IpmiInband:
    """The source ``ipmi_inband`` for an agent."""
    return IpmiInband(options, context, Runner())
