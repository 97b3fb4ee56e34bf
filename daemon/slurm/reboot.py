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
from collectors.slurm.source import Options
from daemon.slurm.commands import Commands, node_name, open_fence


class RebootTools(Protocol):
    """SlurmUnavailable: no answer came, it may happen all the same; SlurmRefused: Slurm said no."""

    def reboot(self, node: str, resume: bool) -> None:
        """Asks for a reboot as soon as the node is empty. ``resume``: into service after it."""
        ...

    def cancel(self, node: str) -> None:
        """Takes back a reboot that waits for the node's jobs. Refused where it has begun."""
        ...


class RebootSlurm:
    """``RebootTools`` through Slurm's own command. ``fence``: why nothing may be written now."""

    def __init__(
        self,
        options: Options | None = None,
        runner: Runner | None = None,
        fence: Callable[[], str] = open_fence,
    ) -> None:
        self._commands = Commands("slurm-reboot", options, runner, fence)

    def reboot(self, node: str, resume: bool) -> None:
        """See RebootTools."""
        after = ["nextstate=RESUME"] if resume else []
        self._commands.must("scontrol", "reboot", *after, node_name(node))

    def cancel(self, node: str) -> None:
        """See RebootTools."""
        self._commands.must("scontrol", "cancel_reboot", node_name(node))
