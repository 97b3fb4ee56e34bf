"""What a head does in Slurm beside drains: soft steps, reboots, probes of idle nodes. Opt-in.

Steps and reboots in mode act only; probes, which change no node, in mode approve too.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectors.sample import Sample
from daemon.drains.ledger import Ledger
from daemon.drains.reboots import Rebooter
from daemon.drains.softener import Softener
from daemon.policy.decide import Situation
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.policy.soft_wishes import chances, soft_mode, too_many, wishes
from daemon.proofs.idle import RULE
from daemon.proofs.idle_prober import IdleProber
from daemon.slurm.adapter import SlurmAdapter
from daemon.slurm.idling import IdleTools
from daemon.slurm.reboot import RebootTools
from daemon.slurm.soft import SoftTools
from daemon.stages import Stages
from models.voices import Fact


@dataclass(frozen=True, slots=True)
class BesideTools:
    """What is needed of Slurm for it. None of it exists in shadow mode."""

    soft: SoftTools
    reboot: RebootTools
    idle: IdleTools | None = None


class Beside:
    """``step`` once a cycle, in the one thread that may write to ledger and Slurm."""

    def __init__(
        self,
        tools: BesideTools | None,
        adapter: SlurmAdapter,
        ledger: Ledger,
        limits: Limits,
        mode: Mode,
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages or Stages()
        self._ledger = ledger
        self._limits = limits
        self._mode = mode
        self.softener = Softener(
            tools.soft if tools is not None else None, ledger, limits.soft,
            soft_mode(limits, mode), adapter.controller_start_ns, self._stages,
        )  # fmt: skip
        self.rebooter = Rebooter(
            tools.reboot if tools is not None else None, adapter, ledger, limits.reboot, mode,
            lambda node: node in ledger.locks(), self._stages,
        )  # fmt: skip
        self.prober = IdleProber(
            tools.idle if tools is not None else None, ledger, limits.idle, limits.proof, mode,
            self._stages,
        )  # fmt: skip

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What probes of idle nodes have to tell people."""
        return self.prober.facts

    def take_news(self) -> list[Sample]:
        """What came of it since this was last asked, for the store."""
        news, self.prober.news = self.prober.news, []
        return news

    def step(self, situation: Situation, now_ns: int) -> None:
        """Makes likely nodes less wanted, reboots what waits for it, probes what is idle.

        Each by itself: what fails in one holds up none of the others.
        """
        self._stages.run("soft steps", self._soften, situation, now_ns)
        self._stages.run("reboots", self.rebooter.step, now_ns)
        self._stages.run("idle probes", self._probe, situation, now_ns)

    def _soften(self, situation: Situation, now_ns: int) -> None:
        if self._limits.soft.step == "none" and not self.softener.open():
            return
        view, reserved = self._ledger.view(now_ns), self.softener.reserved()
        wanted = wishes(situation, self._limits, view, self._mode, now_ns, reserved)
        crowded = too_many(situation, self._limits, view, self._mode, now_ns, reserved)
        self.softener.step(wanted, chances(situation), situation.nodes, now_ns, crowded)

    def _probe(self, situation: Situation, now_ns: int) -> None:
        if self._limits.idle.every_hours or self.prober.records.open():
            view = self._ledger.view(now_ns)
            spoken = {one.entity.node for one in situation.facts if one.rule != RULE}
            out = frozenset({*view.held, *view.locked, *spoken})
            self.prober.step(situation.nodes, out, now_ns)
