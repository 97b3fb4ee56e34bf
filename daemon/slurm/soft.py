"""What a step softer than a drain needs of Slurm: a node's weight, its features, a reservation.

Measured on 22.05: what ``scontrol update`` sets of Weight and Features is gone after
``scontrol reconfigure`` and after a restart of slurmctld, which read slurm.conf again (not with
``-R``); AvailableFeatures set alone changes ActiveFeatures too, or is refused, so both are set.
A reservation survives both. Slurm's own commands are used whichever adapter writes the drains.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from collectors.command import Runner
from collectors.slurm.source import Options
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable
from daemon.slurm.commands import Commands, error_of, node_name, open_fence
from daemon.slurm.proving import Reservation, no_such_reservation, parse_reservation

# How the names of our reservations begin; those of proofs are tocsin_<case> without "soft".
RESERVATION_BEGIN = "tocsin_soft_"
_RESERVATION = re.compile(r"tocsin_soft_[0-9a-f]{8}")
# What a site calls a feature is its own business: all but quotes, a backslash, blank and comma.
_FEATURE = re.compile(r"[!#-&(-+\--\[\]-~]{1,128}")
# Above it stand Slurm's words for "no value" and "infinite".
WEIGHT_MAX = 2**32 - 3
FLAGS = frozenset({"IGNORE_JOBS"})


@dataclass(frozen=True, slots=True)
class Shown:
    """What Slurm shows of one node: its weight, and its features, active ones too."""

    weight: int
    available: tuple[str, ...] = ()
    active: tuple[str, ...] = ()


class SoftTools(Protocol):
    """Calls block and end by a deadline. SlurmUnavailable: no answer (a write may have happened);
    SlurmRefused: Slurm said no.
    """

    def shown(self, node: str) -> Shown | None:
        """The node as slurmctld shows it now; None where it has none."""
        ...

    def set_weight(self, node: str, weight: int) -> None:
        """Sets the node's Weight. Slurm takes nodes of the lowest weight first."""
        ...

    def set_features(self, node: str, shown: Shown) -> None:
        """Sets both lists of features."""
        ...

    def reservation(self, name: str) -> Reservation | None:
        """One of our reservations; None where there is no such one."""
        ...

    def reserve(self, name: str, node: str, minutes: int) -> None:
        """Makes one: this user alone, running jobs go on, an end of its own."""
        ...

    def release(self, name: str) -> None:
        """Deletes it; nothing happens where it is gone."""
        ...

    @property
    def user(self) -> str:
        """Whom our reservations are for."""
        ...


class SoftSlurm:
    """``SoftTools`` through Slurm's own commands. ``fence``: why nothing may be written now."""

    def __init__(
        self,
        options: Options | None = None,
        runner: Runner | None = None,
        fence: Callable[[], str] = open_fence,
    ) -> None:
        self._commands = Commands("slurm-soft", options, runner, fence)
        self._user = pwd.getpwuid(os.geteuid()).pw_name

    @property
    def user(self) -> str:
        """See SoftTools."""
        return self._user

    def shown(self, node: str) -> Shown | None:
        """See SoftTools."""
        result = self._commands.run(
            "scontrol", "--all", "--oneliner", "show", "node", node_name(node)
        )
        said = result.text() + result.stderr.decode("utf-8", "replace")
        if not result.ok or f"NodeName={node} " not in said:
            if result.status == "ended" and "not found" in said:
                return None
            raise error_of(result)
        return parse_shown(said)

    def set_weight(self, node: str, weight: int) -> None:
        """See SoftTools."""
        if not 0 <= weight <= WEIGHT_MAX:
            raise SlurmRefused(f"no weight: {weight}", "refused")
        self._commands.must("scontrol", "update", f"NodeName={node_name(node)}", f"Weight={weight}")

    def set_features(self, node: str, shown: Shown) -> None:
        """See SoftTools."""
        bad = [one for one in (*shown.available, *shown.active) if not _FEATURE.fullmatch(one)]
        if bad:
            raise SlurmRefused(f"a feature that cannot be written back: {bad[0]!r}", "refused")
        self._commands.must(
            "scontrol", "update", f"NodeName={node_name(node)}",
            f"AvailableFeatures={','.join(shown.available)}",
            f"ActiveFeatures={','.join(shown.active)}",
        )  # fmt: skip

    def reservation(self, name: str) -> Reservation | None:
        """See SoftTools."""
        result = self._commands.run("scontrol", "--oneliner", "show", "reservation", _named(name))
        said = result.text() + result.stderr.decode("utf-8", "replace")
        if not result.ok:
            if result.status == "ended" and "not found" in said:
                return None
            raise error_of(result)
        found = parse_reservation(said)
        if found is None or found.name != name:
            raise SlurmUnavailable(f"no reservation in the answer: {said[:200]}", "garbage")
        return found

    def reserve(self, name: str, node: str, minutes: int) -> None:
        """See SoftTools."""
        self._commands.must(
            "scontrol", "create", "reservation", f"ReservationName={_named(name)}",
            "StartTime=now", f"Duration={max(1, minutes)}", f"Users={self._user}",
            f"Nodes={node_name(node)}", f"Flags={','.join(sorted(FLAGS))}",
        )  # fmt: skip

    def release(self, name: str) -> None:
        """See SoftTools."""
        result = self._commands.write("scontrol", "delete", f"ReservationName={_named(name)}")
        said = result.stderr.decode("utf-8", "replace")
        if not result.ok and not no_such_reservation(said):
            raise error_of(result)


def parse_shown(text: str) -> Shown:
    """Weight and features of one line of ``scontrol -o show node``.

    >>> parse_shown("NodeName=n1 AvailableFeatures=h200,ib ActiveFeatures=h200 Weight=7 ")
    Shown(weight=7, available=('h200', 'ib'), active=('h200',))
    """

    def words(name: str) -> tuple[str, ...]:
        match = re.search(rf"(?:^|\s){name}=(\S*)", text)
        listed = match[1].split(",") if match and match[1] != "(null)" else []
        return tuple(one for one in listed if one)

    weight = re.search(r"\sWeight=(\d{1,10})(?:\s|\Z)", text)
    if weight is None:
        raise SlurmUnavailable(f"no weight in the answer: {text[:200]}", "garbage")
    return Shown(int(weight[1]), words("AvailableFeatures"), words("ActiveFeatures"))


def _named(name: str) -> str:
    if not _RESERVATION.fullmatch(name):
        raise ValueError(f"no soft reservation of ours: {name!r}")
    return name
