"""The stages of one cycle, each run by itself: one that fails holds up no other."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar, TypeVarTuple

import structlog

log = structlog.get_logger("tocsin.stages")

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class Stages:
    """Runs stages and keeps what failed, cycle by cycle.

    A fault that nobody thought of (an odd name in Slurm, a bug of ours) must not keep reboots
    from being watched because a soft step met it, nor one node's case from being settled because
    of another's. ``end`` closes a cycle; ``faults`` are those of the last one that ended.
    ``run`` may be called from any thread.
    """

    def __init__(self) -> None:
        self.faults: Mapping[str, str] = {}
        self._now: dict[str, str] = {}

    def end(self) -> Mapping[str, str]:
        """A cycle is over: what failed in it is what is told."""
        # What went well again stays for one more cycle without words, so that it is taken back.
        over = {name: "" for name, words in self.faults.items() if words}
        self.faults, self._now = {**over, **self._now}, {}
        return self.faults

    def run(
        self, name: str, function: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result | None:
        """What ``function`` answers, or None where it failed: then the log has where."""
        try:
            return function(*arguments)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            if words not in (self.faults.get(name), self._now.get(name)):  # once, not each 15 s
                where = traceback.format_exc(limit=-8)
                log.error("stage_failed", stage=name, why=words, traceback=where)
            self._now[name] = words
            return None

    def note(self, name: str, words: str) -> None:
        """A fault of this cycle that nothing raised; nothing where ``words`` is empty."""
        if words:
            self._now[name] = words
