"""``tocsin replay``: a history through the real pipeline under a simulated clock.

The same watch, policy, ledger and drains as live; only the clock, the readings and Slurm
(in memory) are handed in. One JSON line per decision, in order of time, deterministic.

Slurm is as the history tells it: nodes appear when they are first heard; a drain, a
failure or a return that a person or slurmctld made then is made here as well, unless our own
drain already stands there. A node of ours comes back when the history shows it back (a
return in Slurm, else a reboot), for the history cannot know what our drain would have changed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TextIO

from collectors.sample import Sample
from collectors.slurm.nodes import NodeState
from daemon.drains.drains import Drains, RefusedError
from daemon.drains.ledger import Ledger
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Decision, Guard, Mode, decision_id
from daemon.policy.limits import Limits
from daemon.slurm.simulated import SimulatedSlurm
from daemon.store.database import Database
from models.features import FeatureEngine
from models.risk import RiskModel
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.telemetry import Telemetry
from models.telemetry.truth import iso
from models.voices import Risk
from models.watch import Judgement, Watch

SECOND_NS = 1_000_000_000
WINDOW_NS = 60 * SECOND_NS
# Judged at least so often in history that brings nothing: silence is heard, too.
QUIET_NS = 600 * SECOND_NS
# A node that the history no longer speaks of is not a silent node.
FORGET_NS = 26 * 3600 * SECOND_NS
# From this probability of a failure within a day on, people are told: 4 to 5 times the usual
# rate of a node (2.34 of 1000 a day). It falls silent again below half of it.
RISK_ALERT = 0.01
USER = "history"


@dataclass
class Summary:
    """What a replay did."""

    samples: int = 0
    windows: int = 0
    judgements: int = 0
    lines: int = 0
    drains: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Replay:
    """One replay. ``models`` None takes the rival; ``limits`` and ``mode`` are the policy's."""

    def __init__(
        self,
        telemetry: Telemetry,
        out: TextIO,
        *,
        limits: Limits | None = None,
        mode: Mode = Mode.ACT,
        models: Sequence[RiskModel] | None = None,
        risk_alert: float = RISK_ALERT,
        window_ns: int = WINDOW_NS,
    ) -> None:
        self.telemetry = telemetry
        self.out = out
        self.limits = limits or Limits()
        self.mode = mode
        self.risk_alert = risk_alert
        self.window_ns = window_ns
        self.now_ns = 0
        self.watch = Watch(
            Rules(),
            SilenceTracker(),
            FeatureEngine(),
            [Rival()] if models is None else models,
        )
        self.slurm = SimulatedSlurm([], lambda: self.now_ns)
        self.database = Database(":memory:")
        self.ledger = Ledger(self.database)
        self.drains = Drains(self.slurm, self.ledger, self.limits, mode)
        self.heard_ns: dict[str, int] = {}
        self.gpus: dict[str, set[str]] = {}
        self.boots: dict[str, float] = {}
        self.told: dict[str, tuple[Action, Guard | None]] = {}
        self.risky: dict[str, str] = {}  # node -> id of its open risk alert
        self.has_slurm = "slurm_event" in telemetry.measurements
        self.summary = Summary()

    def run(self) -> Summary:
        """Replays everything; the summary also tells how much there was."""
        judged_ns = 0
        for end_ns, chunks in self.telemetry.windows(self.window_ns):
            if not self.summary.begin_ns:
                self.summary.begin_ns = end_ns
            samples = sorted(
                (one for chunk in chunks for one in chunk.samples()), key=lambda one: one.time_ns
            )
            self.now_ns = end_ns
            self.summary.windows += 1
            if samples:
                self._take(samples)
            if samples or end_ns - judged_ns >= QUIET_NS:
                self._judge()
                judged_ns = end_ns
        self.summary.end_ns = self.now_ns
        self.database.close()
        return self.summary

    # ---- readings ---------------------------------------------------------------------

    def _take(self, samples: list[Sample]) -> None:
        for one in samples:
            node = one.tag("node")
            if not node:
                continue
            if one.measurement == "gpu":
                self.gpus.setdefault(node, set()).add(one.tag("gpu"))
            if one.measurement != "slurm_event":
                self.heard_ns[node] = self.now_ns
        self._meet()
        self.summary.samples += len(samples)
        self.watch.ingest(samples, self.now_ns)
        for one in samples:
            if one.measurement == "slurm_event":
                self._slurm_event(one)
            elif one.measurement == "host" and not self.has_slurm:
                self._host(one)

    def _meet(self) -> None:
        """Makes nodes that are heard for the first time known to Slurm."""
        known = self.slurm.nodes()
        for name in self.heard_ns:
            gpus = len(self.gpus.get(name, ()))
            node = known.get(name)
            if node is None:
                boot_ns = self.now_ns - 3600 * SECOND_NS
                self.slurm.put(
                    NodeState(
                        name,
                        base="idle",
                        partitions=("gpu",),
                        gpus_configured=gpus,
                        boot_time_ns=boot_ns,
                        slurmd_start_time_ns=boot_ns,
                    )
                )
            elif node.gpus_configured < gpus:
                self.slurm.change(name, partial(_with_gpus, gpus=gpus))

    def _slurm_event(self, one: Sample) -> None:
        """What people and slurmctld did in history is done here, too."""
        node, code, reason = one.tag("node"), one.tag("code"), one.text("reason")
        if node not in self.slurm.nodes([node]):
            return
        ours = self.ledger.case_of(node) is not None
        if code in ("drain_end", "down_end"):
            if ours:
                self._resume(node)
            else:
                self.slurm.set(node, user=USER, state="resume")
                self.watch.clear(node, self.now_ns)
        elif ours:
            return  # our drain stands already; history's own came too late to matter
        elif code == "drain":
            self.slurm.set(node, user=one.text("user") or USER, state="drain", reason=reason)
        elif code in ("down", "fail"):
            self.slurm.set(node, user=USER, state="down", reason=reason)

    def _host(self, one: Sample) -> None:
        """Without Slurm's history, a reboot brings a node of ours back."""
        boot = one.number("boot_time_seconds")
        if boot is None:
            return
        node = one.tag("node")
        before = self.boots.get(node, boot)
        self.boots[node] = boot
        if boot - before > 60 and self.ledger.case_of(node) is not None:
            self._resume(node)

    def _resume(self, node: str) -> None:
        case = self.ledger.case_of(node)
        assert case is not None
        # The history shows it back in service: whoever did that meant it, repeats or not.
        with contextlib.suppress(RefusedError):
            self.drains.unlock(node, USER, self.now_ns)
        try:
            self.drains.resume(node, USER, self.now_ns)
        except RefusedError:
            return
        self.watch.clear(node, self.now_ns)
        self._line(
            node=node,
            device=case.device,
            component="gpu" if case.device.startswith("gpu") else "node",
            action=Action.RESUME.value,
            reason=f"tocsin: {node} came back in the history",
            guard="",
            probability=1.0,
            voice=case.voice,
            id=case.id,
        )

    # ---- judgement --------------------------------------------------------------------

    def _judge(self) -> None:
        now_ns = self.now_ns
        alive = {name for name, at_ns in self.heard_ns.items() if now_ns - at_ns <= FORGET_NS}
        nodes = {name: node for name, node in self.slurm.nodes().items() if name in alive}
        expected = {name: node.gpus_configured for name, node in nodes.items()}
        judgement = self.watch.judge(now_ns, expected)
        for came in self.drains.reconcile(self.slurm.nodes(), now_ns):
            self.watch.clear(came.node, came.at_ns)
        situation = Situation(
            nodes=nodes,
            slurm_age_seconds=0.0,
            facts=judgement.facts,
            silences=judgement.silences,
            risks=judgement.risks,
            coverage=judgement.coverage,
        )
        decisions = decide(situation, self.limits, self.ledger.view(now_ns), self.mode, now_ns)
        self.summary.judgements += 1
        for one in self.drains.carry_out(decisions, now_ns):
            self._tell(one)
        self._risks(judgement)

    def _tell(self, one: Decision) -> None:
        """A decision is told when it is new or has changed; "it is drained already" is neither."""
        if one.guard is Guard.OURS or self.told.get(one.id) == (one.action, one.guard):
            return
        self.told[one.id] = (one.action, one.guard)
        self._line(
            node=one.node,
            device=one.device,
            component=one.component,
            action=one.action.value,
            reason=one.reason,
            guard=one.guard.value if one.guard else "",
            probability=round(one.probability, 6),
            voice=one.voice,
            id=one.id,
        )

    def _risks(self, judgement: Judgement) -> None:
        """Alerts for nodes whose risk stands out, on change only."""
        for node, risks in _by_node(judgement.risks):
            whole = 1.0
            for one in risks:
                whole *= 1.0 - one.probability
            whole = 1.0 - whole
            if node in self.risky:
                if whole < self.risk_alert / 2:
                    del self.risky[node]
                continue
            if whole < self.risk_alert or self.ledger.case_of(node) is not None:
                continue
            top = max(risks, key=lambda one: one.probability)
            rule = f"risk:{top.model}"
            self.risky[node] = decision_id(node, rule, top.entity.device, judgement.now_ns)
            words = "; ".join(signal.text for signal in top.signals[:2]) or "likely to fail"
            self._line(
                node=node,
                device=top.entity.device,
                component=top.entity.kind,
                action=Action.ALERT.value,
                reason=words[:200],
                guard="",
                probability=round(whole, 6),
                voice=top.voice,
                id=self.risky[node],
            )

    def _line(self, **fields: Any) -> None:
        line = {"time": iso(self.now_ns), **fields}
        self.out.write(json.dumps(line, ensure_ascii=True) + "\n")
        self.summary.lines += 1
        self.summary.drains += fields["action"] == "drain"
        key = f"{fields['voice']} {fields['action']} {fields['guard']}".rstrip()
        self.summary.counts[key] = self.summary.counts.get(key, 0) + 1


def _with_gpus(node: NodeState, gpus: int) -> NodeState:
    return replace(node, gpus_configured=gpus)


def _by_node(risks: Sequence[Risk]) -> Iterator[tuple[str, list[Risk]]]:
    found: dict[str, list[Risk]] = {}
    for one in risks:
        found.setdefault(one.entity.node, []).append(one)
    yield from found.items()


def run_replay(
    telemetry: Telemetry,
    out: TextIO,
    *,
    limits: Limits | None = None,
    mode: Mode = Mode.ACT,
    models: Sequence[RiskModel] | None = None,
) -> Summary:
    """Replays a directory into ``out``; see the module's words."""
    return Replay(telemetry, out, limits=limits, mode=mode, models=models).run()


def speed(summary: Summary, wall_seconds: float, window_ns: int = WINDOW_NS) -> dict[str, float]:
    """How fast a replay was: samples a second, and times faster than the history.

    Only time that was gone through counts: days without any reading are passed over.
    """
    wall = max(wall_seconds, 1e-9)
    return {
        "samples_per_second": summary.samples / wall,
        "times_real_time": summary.windows * window_ns / 1e9 / wall,
    }
