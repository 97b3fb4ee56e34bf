"""The adapter that uses pyslurm, in a worker process of its own with deadlines.

The order of a write, and how a reason that a person sets in the window is seen and put back, are
those of the commands (writing.py). What it does better: no process a call, and a reason with any
quotes in it can be put back. What it cannot: clear a Comment, tell the topology, or speak to a
slurmctld of another release than pyslurm was built for.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from collectors.sample import SourceUnavailable
from collectors.slurm.faults import GARBAGE, HUNG, MISSING, VERSION, SlurmTrouble, trouble_of_text
from collectors.slurm.nodes import SECOND_NS, Nodes, parse_nodes
from collectors.slurm.reader import Tools
from collectors.slurm.source import Options
from collectors.worker import Worker, WorkerEnded, WorkerError, WorkerHung, WorkerLimits
from daemon.slurm.adapter import Check, Outcome, SlurmError, SlurmUnavailable, plain_text
from daemon.slurm.controller_log import ControllerLog
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

MODULE = "daemon.slurm.pyslurm_worker"


def installed(options: Options) -> bool:
    """Whether there is a pyslurm to import, without importing it: that can end a process."""
    if options.pyslurm_folder is not None:
        return (options.pyslurm_folder / "pyslurm").is_dir()
    return importlib.util.find_spec("pyslurm") is not None


class PyslurmAdapter:
    """See the module. ``window`` is called between look and write; tests act there."""

    name = "pyslurm"

    def __init__(
        self,
        options: Options | None = None,
        *,
        limits: WorkerLimits | None = None,
        window: Callable[[], None] = no_window,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        options = options or Options()
        self._tools = Tools(options.conf, options.binaries)
        environment = self._tools.environment()
        if options.pyslurm_folder is not None:
            environment["PYTHONPATH"] = str(options.pyslurm_folder)
        self._worker = Worker("pyslurm", MODULE, limits, env=environment, monotonic=monotonic)
        self._deadline_seconds = options.deadline_seconds
        self._window = window
        self._monotonic = monotonic
        self._log: ControllerLog | None = None

    @property
    def worker(self) -> Worker:
        """The process that pyslurm runs in."""
        return self._worker

    # ---- reading -------------------------------------------------------------------------

    def nodes(self, names: Iterable[str] | None = None) -> Nodes:
        """See adapter.SlurmAdapter. One read of all nodes, whatever is asked for."""
        wanted = None if names is None else sorted(set(names))
        if wanted is not None:
            checked_names(wanted)
            if not wanted:
                return {}
        return self._nodes(wanted)

    def controller_start_ns(self) -> int:
        """See adapter.SlurmAdapter."""
        return int(self._about()["start_seconds"]) * SECOND_NS

    def topology(self) -> str:
        """pyslurm does not tell it; ``[cluster]`` in the configuration names the switches."""
        return ""

    def describe(self) -> list[str]:
        """See adapter.SlurmAdapter."""
        try:
            about = self._about()
            log = self._controller_log()
        except SlurmError as error:
            return [f"Slurm by pyslurm: {error}"]
        lines = [
            f"Slurm by pyslurm {about['pyslurm']} in a process of its own: "
            f"slurmctld {about['slurm']}"
        ]
        if not log.readable():
            lines.append(
                f"slurmctld's log cannot be read ({log.why}): a reason that a person sets in the "
                "millisecond between look and write would not be noticed"
            )
        else:
            lines.append(f"slurmctld's log is read at each write: {log.path}")
        return lines

    def close(self) -> None:
        """Ends the worker. May be called twice."""
        self._worker.close()

    # ---- writing -------------------------------------------------------------------------

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter. Nodes with one reason go in one request."""
        return self._write(DRAIN, checked_reasons(reasons), check)

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        return self._write(UNDRAIN, dict.fromkeys(names, ""), check)

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter. pyslurm sends no empty Comment: those are skipped."""
        clean = {name: plain_text(text) for name, text in comments.items()}
        empty = {name for name, text in clean.items() if not text}
        rest = {name: text for name, text in clean.items() if name not in empty}
        outcome = self._write(COMMENT, rest, check)
        words = dict.fromkeys(empty, "pyslurm cannot clear a Comment")
        return Outcome(
            outcome.done,
            {**outcome.skipped, **words},
            outcome.unknown,
            window_seconds=outcome.window_seconds,
        )

    def _write(self, write: Write, values: Mapping[str, str], check: Check) -> Outcome:
        checked_names(values)
        if not values:
            return Outcome()
        log = self._controller_log()
        writer = Writer(_Channel(self), log, self._window, self._monotonic)
        outcome = writer.write(write, values, check)
        if outcome.unwatched:
            self._log = None  # a backup that took over may log elsewhere: it is asked anew
        return outcome

    # ---- plumbing ------------------------------------------------------------------------

    def _nodes(self, names: list[str] | None) -> Nodes:
        records: list[Any] = []

        def keep(part: Any) -> None:
            records.extend(part if isinstance(part, list) else [part])

        self._asked("nodes", {"names": names}, keep)
        if not records and names is None:
            raise SlurmUnavailable("pyslurm gives no nodes", GARBAGE)
        found, _ = parse_nodes(json.dumps({"nodes": records}))
        return found

    def _about(self) -> Mapping[str, Any]:
        about = self._asked("about", {})
        if not isinstance(about, dict) or not isinstance(about.get("start_seconds"), int):
            raise SlurmUnavailable("pyslurm's process spoke nonsense", GARBAGE)
        return about

    def _asked(
        self, call: str, arguments: Mapping[str, Any], on_part: Callable[[Any], None] | None = None
    ) -> Any:
        """A reading call. Whatever goes wrong, nothing was written."""
        try:
            return self._called(call, arguments, on_part)
        except WorkerError as error:
            raise _unavailable(error) from error
        except WorkerHung as error:
            raise SlurmUnavailable(f"slurmctld does not answer: {error}", HUNG) from error
        except SourceUnavailable as error:
            raise SlurmUnavailable(str(error), GARBAGE) from error

    def _called(
        self, call: str, arguments: Mapping[str, Any], on_part: Callable[[Any], None] | None = None
    ) -> Any:
        try:
            self._tools.check()  # without one, libslurm waits 60 s and ends its process
        except SlurmTrouble as error:
            raise SlurmUnavailable(str(error), error.kind) from error
        return self._worker.call(
            call, arguments, deadline_seconds=self._deadline_seconds, on_part=on_part
        )

    def _controller_log(self) -> ControllerLog:
        """slurmctld's log by its configuration, asked for once. Raises SlurmUnavailable."""
        if self._log is None:
            path = str(self._about().get("log", ""))
            why = "" if path.startswith("/") else "slurmctld logs to syslog"
            self._log = ControllerLog(None if why else Path(path), why)
        return self._log

    # What the channel of one write does, in one place with the rest that talks to the worker.

    def changed(self, names: list[str], change: Change) -> str:
        """One request. Answers and raises as writing.Channel says."""
        values = {"state": change.state, "reason": change.reason, "comment": change.comment or ""}
        arguments = {
            "names": names,
            "values": {key: value for key, value in values.items() if value},
        }
        try:
            self._called("change", arguments)
        except WorkerError as error:
            if error.kind != "slurm":
                raise _unavailable(error) from error
            raise_if_not_written(str(error), "pyslurm")
            return str(error)
        except WorkerEnded as error:
            raise ChannelBroken(str(error)) from error
        except SourceUnavailable as error:
            raise ChannelBroken(f"slurmctld does not answer: {error}") from error
        return ""


class _Channel:
    """See writing.Channel."""

    def __init__(self, adapter: PyslurmAdapter) -> None:
        self._adapter = adapter

    def look(self, names: list[str]) -> Nodes:
        """See writing.Channel."""
        return self._adapter.nodes(names)

    def change(self, names: list[str], change: Change) -> str:
        """See writing.Channel."""
        return self._adapter.changed(names, change)


def _unavailable(error: WorkerError) -> SlurmUnavailable:
    if error.kind == "slurm":
        trouble = trouble_of_text(str(error), "pyslurm")
        return SlurmUnavailable(str(trouble), trouble.kind)
    if error.kind == "missing":
        return SlurmUnavailable(f"{error}: see docs/slurm.md for how to build it", MISSING)
    if error.kind == "unusable":
        return SlurmUnavailable(f"{error}: was it built for the Slurm of this host?", VERSION)
    return SlurmUnavailable(f"pyslurm's process: {error}", GARBAGE)
