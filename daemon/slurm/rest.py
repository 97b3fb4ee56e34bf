"""The adapter that uses slurmrestd: for a head without Slurm's own commands.

Nodes are read from every version; written from v0.0.42 on (Slurm 24.11: ``POST /nodes/`` takes
many nodes in one request). v0.0.38 to v0.0.41 are for reading: a write is refused by name.
slurmctld's log is out of reach here, so a reason that somebody sets between look and write is
not noticed; ``describe`` says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from collectors.slurm.faults import GARBAGE, MISSING, VERSION
from collectors.slurm.hostlist import valid_name
from collectors.slurm.nodes import Nodes, NodeState, parse_nodes
from collectors.slurm.source import Options
from collectors.slurm.state import dict_of, time_ns_of
from daemon.slurm.adapter import (
    Check,
    Outcome,
    SlurmError,
    SlurmRefused,
    SlurmUnavailable,
    SlurmUnknownOutcome,
    groups_of,
    plain_text,
    same_reason,
)
from daemon.slurm.rest_http import RestClient, RestError

# The newest first: the first that answers is used.
VERSIONS = tuple(f"v0.0.{number}" for number in range(45, 37, -1))
WRITE_FROM = "v0.0.42"
CONFIGURATION_FROM = "v0.0.45"
Wanted = Callable[[NodeState, str], bool]


def _no_window() -> None:
    """What happens between look and write: nothing, outside of tests."""


class RestAdapter:
    """See the module. Not for use from two threads at once."""

    name = "rest"

    def __init__(
        self,
        options: Options,
        *,
        window: Callable[[], None] = _no_window,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        token: Path | None = options.rest_token_file
        self._url = options.rest_url
        self._client = RestClient(
            options.rest_url, options.rest_user, token, options.deadline_seconds, monotonic
        )
        self._window = window
        self._monotonic = monotonic
        self._version = ""

    @property
    def version(self) -> str:
        """The version that is spoken. Raises SlurmUnavailable."""
        if not self._version:
            last = ""
            for version in VERSIONS:
                try:
                    self._client.get(f"/slurm/{version}/ping/")
                except RestError as error:
                    last = str(error)
                    if version != VERSIONS[-1]:
                        continue
                    # v0.0.38 knows no slash at the end.
                    try:
                        self._client.get(f"/slurm/{version}/ping")
                    except RestError as again:
                        raise SlurmUnavailable(str(again), again.kind) from again
                self._version = version
                break
            else:
                raise SlurmUnavailable(last, VERSION)
        return self._version

    @property
    def writes(self) -> bool:
        """Whether nodes can be written in the version that is spoken. Raises SlurmUnavailable."""
        return self.version >= WRITE_FROM

    # ---- reading -------------------------------------------------------------------------

    def nodes(self, names: Iterable[str] | None = None) -> Nodes:
        """See adapter.SlurmAdapter. One request, whatever is asked for."""
        wanted = None if names is None else set(names)
        if wanted is not None and not wanted:
            return {}
        slash = "" if self.version < "v0.0.40" else "/"
        try:
            answer = self._client.get(f"/slurm/{self.version}/nodes{slash}")
        except RestError as error:
            self._version = ""  # Slurm may have been upgraded in place: asked anew
            raise SlurmUnavailable(str(error), error.kind) from error
        if not isinstance(answer.get("nodes"), list) or not answer["nodes"]:
            raise SlurmUnavailable("slurmrestd gives no nodes", GARBAGE)
        nodes, _ = parse_nodes(json.dumps(answer))
        if wanted is None:
            return nodes
        return {name: node for name, node in nodes.items() if name in wanted}

    def controller_start_ns(self) -> int:
        """When slurmctld was started, which slurmrestd tells from v0.0.45 (Slurm 26.05) on.

        Raises SlurmUnavailable where it does not: a drain that is gone is then taken for lifted
        by a person.
        """
        if self.version < CONFIGURATION_FROM:
            raise SlurmUnavailable(
                f"slurmrestd's {self.version} does not tell when slurmctld was started", MISSING
            )
        try:
            answer = self._client.get(f"/slurm/{self.version}/conf")
        except RestError as error:
            raise SlurmUnavailable(str(error), error.kind) from error
        start_ns = time_ns_of(dict_of(answer.get("slurm_conf_meta")).get("BOOT_TIME"))
        if not start_ns:
            raise SlurmUnavailable("slurmrestd's configuration holds no BOOT_TIME", GARBAGE)
        return start_ns

    def topology(self) -> str:
        """slurmrestd does not tell it."""
        return ""

    def describe(self) -> list[str]:
        """See adapter.SlurmAdapter."""
        try:
            version = self.version
        except SlurmError as error:
            return [f"slurmrestd at {self._url}: {error}"]
        lines = [f"slurmrestd at {self._url}, {version}"]
        if not self.writes:
            lines.append(f"{version} writes no nodes: nothing can be drained this way")
        lines.append(
            "slurmctld's log is not read this way: a reason that a person sets in the moment "
            "between look and write would not be noticed"
        )
        return lines

    def close(self) -> None:
        """Nothing is held open between calls."""

    # ---- writing -------------------------------------------------------------------------

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        clean = {name: plain_text(reason) for name, reason in reasons.items()}
        empty = [name for name, reason in clean.items() if not reason]
        if empty:
            raise ValueError(f"no reason for {empty[0]}")
        return self._write(
            clean,
            check,
            lambda reason: {"state": ["DRAIN"], "reason": reason},
            lambda node, reason: node.drain and same_reason(node.reason, reason),
        )

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        return self._write(
            dict.fromkeys(names, ""),
            check,
            lambda _: {"state": ["UNDRAIN"]},
            lambda node, _: not node.drain,
        )

    def comment(self, comments: Mapping[str, str], check: Check) -> Outcome:
        """See adapter.SlurmAdapter."""
        clean = {name: plain_text(text) for name, text in comments.items()}
        return self._write(
            clean, check, lambda text: {"comment": text}, lambda node, text: node.comment == text
        )

    def _write(
        self,
        values: Mapping[str, str],
        check: Check,
        body: Callable[[str], dict[str, Any]],
        wanted: Wanted,
    ) -> Outcome:
        for name in values:
            if not valid_name(name):
                raise ValueError(f"no node name: {name!r}")
        if not values:
            return Outcome()
        if not self.writes:
            raise SlurmRefused(
                f"slurmrestd speaks {self.version}, which writes no nodes ({WRITE_FROM} does)",
                VERSION,
            )
        begin = self._monotonic()
        looked = self.nodes(values)
        skipped: dict[str, str] = {}
        for name in values:
            why = check(looked[name]) if name in looked else "Slurm does not know this node"
            if why:
                skipped[name] = why
        allowed = {name: value for name, value in values.items() if name not in skipped}
        if not allowed:
            return Outcome(skipped=skipped)
        self._window()
        said = self._send(allowed, body)
        window_seconds = self._monotonic() - begin
        return self._read_back(allowed, said, wanted, skipped, window_seconds)

    def _read_back(
        self,
        allowed: Mapping[str, str],
        said: Mapping[str, SlurmError | None],
        wanted: Wanted,
        skipped: dict[str, str],
        window_seconds: float,
    ) -> Outcome:
        done: dict[str, NodeState] = {}
        unknown: dict[str, str] = {}
        words: dict[str, str] = {}
        try:
            shown = self.nodes(allowed)
        except SlurmError as error:
            unknown = dict.fromkeys(allowed, f"written, and not read back: {error}")
            return Outcome(skipped=skipped, unknown=unknown, window_seconds=window_seconds)
        for name, value in allowed.items():
            node = shown.get(name)
            answer = said[name]
            if node is not None and wanted(node, value):
                done[name] = node
                if isinstance(answer, RestError):
                    words[name] = str(answer)
            elif isinstance(answer, SlurmRefused | SlurmUnavailable):
                skipped[name] = str(answer)  # certainly not written
            else:
                state = f"{node.words}, reason {node.reason!r}" if node else "no such node"
                unknown[name] = f"{answer or 'written'}; Slurm shows {state}"
        failed = [one for one in said.values() if isinstance(one, SlurmRefused | SlurmUnavailable)]
        if failed and not done and not unknown:
            raise failed[0]
        return Outcome(done, skipped, unknown, window_seconds=window_seconds, said=words)

    def _send(
        self, allowed: Mapping[str, str], body: Callable[[str], dict[str, Any]]
    ) -> dict[str, SlurmError | None]:
        """One request a group; what came of it, for each node."""
        said: dict[str, SlurmError | None] = {}
        for value, names in groups_of(allowed):
            answer: SlurmError | None = None
            try:
                self._client.post(f"/slurm/{self.version}/nodes/", {"name": names, **body(value)})
            except (SlurmRefused, SlurmUnavailable, SlurmUnknownOutcome, RestError) as error:
                answer = error
            said.update(dict.fromkeys(names, answer))
        return said
