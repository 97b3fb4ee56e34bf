"""Reboots one node through Slurm: ``scontrol reboot``, and nothing beside it.

Measured on 22.05 with a node that is drained and empty:

- ``scontrol reboot NODE``: it goes down at once, and comes back drained, with its reason (and
  ``: reboot issued`` behind it). This is what is used.
- ``scontrol reboot ASAP NODE``: the drain is *gone* when it comes back. ASAP stands for "drain it
  until it is empty"; on a node that is drained it makes nothing sooner. Never used.
- ``nextstate=RESUME``: back in service after the boot, without a proof.
- ``nextstate=DOWN``: DOWN without DRAIN afterwards, with our words and nobody's drain. Not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from collectors.command import Runner
from collectors.slurm.hostlist import valid_name
from collectors.slurm.reader import Tools, trouble
from collectors.slurm.source import Options
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable

_AWAY = ("stopped", "hung", "authentication", "unconfigured", "missing", "version")


class RebootTools(Protocol):
    """SlurmUnavailable: no answer came, it may happen all the same; SlurmRefused: Slurm said no."""

    def reboot(self, node: str, resume: bool) -> None:
        """Asks for a reboot as soon as the node is empty. ``resume``: into service after it."""
        ...

    def cancel(self, node: str) -> None:
        """Takes back a reboot that waits for the node's jobs. Refused where it has begun."""
        ...


def _free() -> str:
    return ""


class RebootSlurm:
    """``RebootTools`` through Slurm's own command. ``fence``: why nothing may be written now."""

    def __init__(
        self,
        options: Options | None = None,
        runner: Runner | None = None,
        fence: Callable[[], str] = _free,
    ) -> None:
        options = options or Options()
        self._tools = Tools(options.conf, options.binaries)
        self._runner = runner or Runner()
        self._deadline_seconds = options.deadline_seconds
        self._fence = fence

    def reboot(self, node: str, resume: bool) -> None:
        """See RebootTools."""
        self._run("reboot", *(["nextstate=RESUME"] if resume else []), node)

    def cancel(self, node: str) -> None:
        """See RebootTools."""
        self._run("cancel_reboot", node)

    def _run(self, *words: str) -> None:
        if not valid_name(words[-1]):
            raise ValueError(f"no node name: {words[-1]!r}")
        why = self._fence()
        if why:
            raise SlurmUnavailable(f"this head does not act: {why}", "standby")
        result = self._runner.run(
            self._tools.command("scontrol", *words),
            deadline_seconds=self._deadline_seconds,
            kind="slurm-reboot",
            env=self._tools.environment(),
        )
        if not result.ok:
            error = trouble(result)
            kind = SlurmUnavailable if error.kind in _AWAY else SlurmRefused
            raise kind(str(error), error.kind)
