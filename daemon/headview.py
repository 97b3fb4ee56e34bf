"""What a head shows and does for its page, its API and the command line: ``HeadView``.

``fleet`` and ``nodes`` answer from memory. The rest may read the store and does so in threads;
operators' words go through the same one thread as every other write to ledger and Slurm.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, TypeVarTuple

from collectors.slurm.nodes import NodeState
from collectors.slurm.state import left_over
from daemon import __version__
from daemon.clock import NANOSECONDS
from daemon.drains.ledger import UnknownCaseError
from daemon.drains.ticket import COUNTERS, newest_counters, with_ticket
from daemon.explain import by_horizon, decision_view, of_case, of_node, timeline
from daemon.head import Head
from daemon.latest import GpuNow, NodeNow
from daemon.nodeview import node_view
from daemon.operators import OperatorWords
from daemon.page.view import (
    ACTS,
    STANDS_BY,
    DecisionView,
    Explanation,
    FleetView,
    GpuView,
    NodeDetail,
    NodeView,
    SeriesView,
    SlurmView,
    SourceView,
    UnknownSubject,
    iso,
)
from daemon.points import HEAD_NODE
from daemon.policy.cases import CASE_KEEP_NS, Case
from daemon.policy.decide import explain_node
from daemon.policy.decisions import Action, Decision, Guard
from daemon.proofs.records import ProofRecords
from daemon.proofs.story import with_proofs
from daemon.schema import metric_of
from daemon.series import series_of
from daemon.slurm.history import in_words, of_ledger
from daemon.store.merge import ROLLUP_NS
from models.horizons import by_label
from models.voices import Fact, Risk

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

# How much of the past a timeline shows, and how much of it at most.
TIMELINE_NS = 30 * 86_400 * NANOSECONDS
TIMELINE_LIMIT = 200
SIMILAR_TOLD_LIMIT = 5
PAST_NS = 365 * 86_400 * NANOSECONDS
_CASE_BEFORE_NS = 3_600 * NANOSECONDS


class HeadEyes(OperatorWords):
    """``HeadView`` over a Head."""

    def __init__(self, head: Head, *, demo: bool = False) -> None:
        super().__init__(head)
        self._demo = demo
        self._proofs = ProofRecords(head.store.database)

    # ---- at a glance --------------------------------------------------------------------

    async def fleet(self) -> FleetView:
        """The head and the fleet at a glance."""
        head = self._head
        rows = await self.nodes()
        view = head.view
        now_ns = head.clock.now_ns()
        hour_ns = now_ns - 3_600 * NANOSECONDS
        limits = head.config.policy
        total = len(head.nodes)
        states = Counter(row.state for row in rows)
        heard_since_ns = now_ns - int(120 * NANOSECONDS)
        heard = sum(1 for name in head.nodes if _heard_ns(head, name) >= heard_since_ns)
        coverage = head.judgement.coverage
        out = ("draining", "drained", "down")
        why = await asyncio.to_thread(head.fence) if head.fence is not None else ""
        return FleetView(
            time_ns=now_ns,
            cluster=head.config.slurm.cluster,
            version=__version__,
            mode=head.config.mode.value,
            speed=head.speed,
            uptime_seconds=head.clock.monotonic() - head.started_seconds,
            nodes=total,
            gpus=sum(node.gpus_configured for node in head.nodes.values()),
            gpus_allocated=sum(node.gpus_allocated for node in head.nodes.values()),
            gpus_out_of_service=sum(row.gpus for row in rows if row.state in out),
            states=dict(states),
            drains_ours=len(view.held),
            drains_last_hour=sum(1 for at_ns in view.drains_ns if at_ns >= hour_ns),
            drains_per_hour_cap=limits.drains_per_hour,
            drains_cap=min(limits.drained_nodes_max, limits.share(total, limits.drained_share_max)),
            approvals_waiting=sum(1 for case in view.cases.values() if case.state == "proposed"),
            breaker_open=bool(view.breaker),
            breaker_text=view.breaker,
            coverage_ratio=sum(coverage.values()) / len(coverage) if coverage else 0.0,
            agents_heard=heard,
            values_per_second=head.intake.flow.values_per_second,
            store=head.store_words(),
            model=head.learning.words,
            learning=head.learning.score_words,
            horizon_seconds=max(
                (model.horizon_seconds for model in head.watch.models), default=0.0
            ),
            slurm=self._slurm(),
            sources=_fleet_sources(head),
            alerts=head.alerts.active(),
            demo=self._demo,
            role=STANDS_BY if why else ACTS,
            role_text=why or ("holds the lease" if head.fence is not None else ""),
        )

    def _slurm(self) -> SlurmView:
        head = self._head
        age = head.desk.age_seconds
        return SlurmView(
            adapter=head.adapter.name,
            up=not head.desk.fault,
            age_seconds=age if math.isfinite(age) else None,
            text=head.desk.fault,
        )

    async def nodes(self) -> Sequence[NodeView]:
        """Every node that Slurm knows, in the order of the grid."""
        head = self._head
        facts: dict[str, list[Fact]] = {}
        for fact in head.judgement.facts:
            facts.setdefault(fact.entity.node, []).append(fact)
        silent = {one.node for one in head.judgement.silences if one.cause == "agent"}
        decisions: dict[str, Decision] = {}
        for one in head.decisions:
            known = decisions.get(one.node)
            if known is None or known.action is Action.ALERT:
                decisions[one.node] = one
        now_ns = head.clock.now_ns()
        silent_ns = int(head.config.silence.low_seconds * NANOSECONDS)
        return [
            node_view(
                node,
                head.intake.latest.nodes.get(name),
                facts.get(name, ()),
                head.risk_of.get(name, {}),
                decisions.get(name),
                head.view.held.get(name),
                silent=name in silent,
                now_ns=now_ns,
                silent_ns=silent_ns,
            )
            for name, node in sorted(head.nodes.items(), key=_grid_order)
        ]

    # ---- one node, one case -------------------------------------------------------------

    async def node(self, name: str) -> NodeDetail:
        """One node in full."""
        state = self._known(name)
        head = self._head
        rows = [row for row in await self.nodes() if row.name == name]
        now = head.intake.latest.nodes.get(name) or NodeNow()
        facts = [fact for fact in head.judgement.facts if fact.entity.node == name]
        risks = head.risk_of.get(name, {})
        explanation = await self.explain(name)
        return NodeDetail(
            node=rows[0],
            gpus=tuple(
                _gpu_view(index, gpu, now, rows[0], facts, risks)
                for index, gpu in sorted(now.gpus.items())
            ),
            sources=tuple(
                SourceView(
                    source,
                    int(one.up),
                    int(not one.up),
                    one.age_seconds,
                    one.fault,
                )
                for source, one in sorted(now.sources.items())
            ),
            verdict=self._verdict(name, explanation),
            timeline=explanation.timeline
            if explanation.decision is None
            else await self._hand(self._timeline, name),
            locked=name in head.view.locked,
            partitions=state.partitions,
            jobs=state.jobs,
        )

    def _verdict(self, name: str, explanation: Explanation) -> str:
        """One sentence: why it is, or is not, drained."""
        head = self._head
        held = head.view.held.get(name)
        if held is None:
            told = explanation.decision
            if told is not None and told.guard:
                return f"Not drained: guard {told.guard} said no: {told.guard_text}."
            return explanation.sentences[0] if explanation.sentences else explanation.title
        text = explanation.inputs.get("text") or held.code
        jobs = head.nodes[name].jobs
        run = "1 job runs" if len(jobs) == 1 else f"{len(jobs)} jobs run"
        rest = f" {run} on to the end." if jobs else ""
        since = iso(held.intent_ns or held.created_ns)[11:19]
        return f"Drained by tocsin since {since}: {held.device} {text} ({held.code}).{rest}"

    async def decisions(self, limit: int, node: str = "") -> Sequence[DecisionView]:
        """The newest decisions, newest first."""
        head = self._head

        def read() -> list[DecisionView]:
            found = head.ledger.decisions(node=node, limit=limit)
            cases = head.ledger.of_ids(one.id for one in found)
            return [decision_view(one, cases.get(one.id)) for one in found]

        return await self._hand(read)

    async def series(
        self, node: str, measurement: str, fields: Sequence[str], minutes: float, points: int
    ) -> Sequence[SeriesView]:
        """The last ``minutes`` of ``fields``, thinned to ``points`` times each."""
        self._known(node)
        head = self._head
        end_ns = head.clock.now_ns() + NANOSECONDS
        start_ns = end_ns - int(minutes * 60 * NANOSECONDS)

        def read() -> list[SeriesView]:
            # A chart whose steps are longer than a roll-up's needs no single readings.
            coarse = end_ns - start_ns >= points * ROLLUP_NS
            look = head.store.read_coarse if coarse else head.store.read
            table = look(measurement, start_ns, end_ns, {"node": node}, list(fields))
            return [
                series_of(
                    table, node, measurement, name, metric_of(measurement, name),
                    start_ns, end_ns, points,
                )
                for name in fields
            ]  # fmt: skip

        return await asyncio.to_thread(read)

    async def explain(self, subject: str) -> Explanation:
        """A node by name, or a case by id."""
        if subject in self._head.nodes:
            return await self._hand(self._explain_node, subject)
        try:
            told = await self._hand(self._explain_case, subject)
            return await asyncio.to_thread(self._with_ticket, told)
        except UnknownCaseError as error:
            raise UnknownSubject(
                f"no node and no case is called {subject}: {error} (tocsin nodes lists the nodes)"
            ) from error

    def _with_ticket(self, told: Explanation) -> Explanation:
        """Reads the store, so not in the hand's thread."""
        device = told.decision.device if told.decision is not None else ""
        if told.decision is None or told.decision.voice != "fact" or not device:
            return told
        store, now_ns = self._head.store, self._head.clock.now_ns()
        events = store.events(told.node, since_ns=now_ns - TIMELINE_NS)
        end_ns = told.decision.time_ns + _CASE_BEFORE_NS
        tags = {"node": told.node, "gpu": device.removeprefix("gpu")}
        table = store.read("gpu", end_ns - 2 * _CASE_BEFORE_NS, end_ns, tags, list(COUNTERS))
        entries = self._head.ledger.audit(node=told.node)
        return with_ticket(told, device, events, newest_counters(table), entries)

    def _explain_case(self, subject: str) -> Explanation:
        head = self._head
        case = head.ledger.find(subject)
        decisions = head.ledger.decisions(case=case.id, limit=50)
        entries = head.ledger.audit(subject=case.id)
        events = head.store.events(
            case.node or None,
            since_ns=case.onset_ns - _CASE_BEFORE_NS,
            until_ns=max(case.updated_ns, case.onset_ns) + _CASE_BEFORE_NS,
            limit=TIMELINE_LIMIT,
        )
        told = of_case(case, decisions, entries, events, self._similar(case))
        told = with_proofs(told, case, self._proofs, head.config.policy.proof)
        return replace(told, sentences=(*told.sentences, *self._past(case.node)))

    def _past(self, name: str) -> list[str]:
        """What others took the node out for in the last year, as far as the ledger saw it."""
        since_ns = self._head.clock.now_ns() - PAST_NS
        words = in_words(of_ledger(self._head.store.database, since_ns, name)) if name else ""
        return [words] if words else []

    def _similar(self, case: Case) -> list[str]:
        """Other nodes with the same cause of late, and what became of them."""
        words = []
        since_ns = self._head.clock.now_ns() - CASE_KEEP_NS
        for other in self._head.ledger.like(case, since_ns, SIMILAR_TOLD_LIMIT):
            last = self._head.ledger.decisions(case=other.id, limit=1)
            guard = last[0].guard if last else None
            why = f"not drained, guard {guard.value}: {last[0].guard_text}" if guard else ""
            words.append(f"{other.node} {other.device} (case {other.id[:4]}): {why or other.state}")
        return words

    def _explain_node(self, name: str) -> Explanation:
        head = self._head
        # "It is out of service already" is no case of its own, and wrong once the node is back.
        own = [
            one
            for one in head.decisions
            if one.node == name and one.action is not Action.ALERT and one.guard is not Guard.OURS
        ]
        held = head.view.held.get(name)
        if held is not None:
            return self._explain_case(held.id)
        if own:
            return self._explain_case(own[0].id)
        situation = head.situation()
        verdicts, risk = explain_node(
            name, situation, head.config.policy, head.view, head.config.mode, head.clock.now_ns()
        )
        since_ns = head.clock.now_ns() - TIMELINE_NS
        return of_node(
            name,
            verdicts,
            self._why_not(name, head.nodes[name], risk),
            risk,
            head.config.policy.risk_threshold,
            head.ledger.audit(node=name),
            head.store.events(name, since_ns=since_ns, limit=TIMELINE_LIMIT),
            head.ledger.decisions(node=name),
        )

    def _why_not(self, name: str, node: NodeState, risk: float | None) -> list[str]:
        """Sentences on a node that no case holds and no drain is wanted for."""
        head = self._head
        facts = [one for one in head.judgement.facts if one.entity.node == name]
        silences = [one for one in head.judgement.silences if one.node == name]
        limit = head.config.policy.risk_threshold
        words = []
        if not facts and not silences:
            words.append(f"{name} is not drained by tocsin: nothing stands against it.")
        else:
            words.append(f"{name} is not drained by tocsin: what stands against it is no cause.")
        words.extend(
            f"Fact {one.rule} {one.code} {one.entity.device}: {one.text}; "
            f"its remedy is {one.remedy.value}, not drain."
            for one in facts
        )
        words.extend(
            f"Silence: {one.text} for {one.age_seconds:.0f} s. "
            "Silence says that we do not hear, not that the node is broken: it never drains."
            for one in silences
        )
        if risk is not None:
            words.append(
                f"Its risk is {risk:.4f}{self._within(name)}; "
                f"a drain is proposed from {limit:g} on, "
                f"in {head.config.policy.risk_mode.value} mode."
            )
        heard_ns = _heard_ns(head, name)
        if heard_ns:
            age = max(0.0, (head.clock.now_ns() - heard_ns) / NANOSECONDS)
            words.append(f"It was last heard {age:.0f} s ago.")
        else:
            words.append("Nothing was ever heard from it: is its agent running?")
        words.extend(self._past(name))
        if left_over(node, head.ledger.returned_reasons().get(name, "")):
            words.append(
                f"Slurm still shows the reason {node.reason!r} of the drain that it came back from."
            )
        elif node.drain or node.reason:
            words.append(f"Slurm shows {node.words}, reason {node.reason!r}: not tocsin's word.")
        return words

    def _within(self, name: str) -> str:
        whole = self._head.risk_of.get(name, {}).get("")
        told = by_horizon(by_label(whole.outlook)) if whole is not None else ""
        return f" ({told})" if told else ""

    def _timeline(self, name: str) -> Any:
        head = self._head
        since_ns = head.clock.now_ns() - TIMELINE_NS
        return tuple(
            timeline(
                head.ledger.decisions(node=name),
                head.ledger.audit(node=name),
                head.store.events(name, since_ns=since_ns, limit=TIMELINE_LIMIT),
            )
        )


def _grid_order(item: tuple[str, NodeState]) -> tuple[object, ...]:
    """By partition, then by name with its numbers in order: n2 before n10."""
    name, node = item
    digits = "".join(c if c.isdigit() else " " for c in name).split()
    stem = "".join(c for c in name if not c.isdigit())
    return (node.partitions[:1], stem, tuple(map(int, digits)), name)


def _heard_ns(head: Head, name: str) -> int:
    now = head.intake.latest.nodes.get(name)
    return now.heard_ns if now is not None else 0


def _fleet_sources(head: Head) -> tuple[SourceView, ...]:
    """Each kind of source over the fleet, the head's own first."""
    up: Counter[str] = Counter()
    down: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    faults: dict[str, Counter[str]] = {}
    for name, now in list(head.intake.latest.nodes.items()):
        if name != HEAD_NODE and name not in head.nodes:
            continue
        for source, one in list(now.sources.items()):
            (up if one.up else down)[source] += 1
            oldest[source] = max(oldest.get(source, 0.0), one.age_seconds)
            if not one.up:
                faults.setdefault(source, Counter())[one.fault] += 1
    return tuple(
        SourceView(
            name,
            up[name],
            down[name],
            oldest[name],
            faults[name].most_common(1)[0][0] if name in faults else "",
        )
        for name in sorted(oldest)
    )


def _gpu_view(
    index: int,
    gpu: GpuNow,
    now: NodeNow,
    row: NodeView,
    facts: Sequence[Fact],
    risks: Mapping[str, Risk],
) -> GpuView:
    device = f"gpu{index}"
    words = [f"{fact.code}: {fact.text}" for fact in facts if fact.entity.device == device]
    risk = risks.get(device)
    if risk is not None:
        words.extend(signal.text for signal in risk.signals[:3])
    return GpuView(
        index=index,
        uuid=gpu.uuid,
        model=now.models.get(index, ""),
        mark=row.gpu_marks[index] if index < len(row.gpu_marks) else "?",
        risk=risk.probability if risk is not None else None,
        temperature_celsius=gpu.value("temperature_celsius"),
        memory_temperature_celsius=gpu.value("memory_temperature_celsius"),
        power_watts=gpu.value("power_watts"),
        utilization_ratio=gpu.value("utilization_ratio"),
        memory_used_bytes=gpu.value("memory_used_bytes"),
        ecc_corrected_total=gpu.value("ecc_corrected_total"),
        ecc_uncorrected_total=gpu.value("ecc_uncorrected_total"),
        words=tuple(words),
    )
