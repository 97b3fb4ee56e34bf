"""What the rules remember of a node and its GPUs, and how old a reading is.

All times are UTC nanoseconds. A node's clock may be off, and its readings may come late from
a spool; the two are told apart by their constancy: a wrong clock makes every reading late by
the same amount, a spool that is being emptied does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.sample import Value, numbers_of
from models.rulebook import Finding, Thresholds
from models.voices import Entity, Fact, Remedy

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS

# Families that a lost GPU no longer answers, and gauges that keep their last value
# (14 of 14 lost A100 in the GWDG data, arXiv 2603.28781).
VANISHING = (
    "memory_used_bytes",
    "energy_joules_total",
    "pcie_replays_total",
    "remapped_rows_corrected_total",
    "remapped_rows_uncorrected_total",
)
GAUGES = ("temperature_celsius", "power_watts", "utilization_ratio", "sm_clock_hertz")
_VANISHING_BITS = tuple((1 << place, name) for place, name in enumerate(VANISHING))
_ALL_HAD = (1 << len(VANISHING)) - 1
_LOAD = GAUGES.index("utilization_ratio")
# A pause longer than this many intervals shows nothing: whoever reads may have stood still.
_PAUSE_INTERVALS = 3
_EVIDENCE_LIMIT = 3
_STEPS_LIMIT = 16
# A delay that stays within this much for this long is the clock's, not the network's.
_SKEW_NS = 5 * SECOND_NS
_SKEW_SETTLED_NS = 60 * SECOND_NS
# A node's clock that is so far ahead of the head's may still be set right.
_STEP_NS = 60 * SECOND_NS


@dataclass(slots=True)
class Active:
    """A fact that holds now, and what keeps it: a latch, or readings that still say so.

    ``spent`` hides it: the node came back into service since, and only when the state has
    gone and come again, it is a new fact. ``again_ns``: when it was told last, on the head's clock.
    """

    fact: Fact
    latched: bool
    seen_ns: int
    interval_ns: int = 0
    spent: bool = False
    again_ns: int = 0

    def add_evidence(self, text: str) -> None:
        """Keeps the first evidence and the newest ones, a few in all."""
        evidence = self.fact.evidence
        if not text or text in evidence:
            return
        kept = (*evidence[:1], *evidence[1:][-(_EVIDENCE_LIMIT - 2) :], text)
        self.fact = _with_evidence(self.fact, kept[:_EVIDENCE_LIMIT])


def _with_evidence(fact: Fact, evidence: tuple[str, ...]) -> Fact:
    return Fact(
        fact.entity,
        fact.rule,
        fact.code,
        fact.severity,
        fact.remedy,
        fact.onset_ns,
        fact.text,
        fact.advice,
        evidence,
    )


@dataclass(slots=True)
class Gpu:
    """The last reading of one GPU, as far as rules need it."""

    uuid: str = ""
    time_ns: int = 0
    interval_ns: int = 0
    mig: bool = False
    had: int = 0  # bit mask over VANISHING: families that it once answered
    gauges: tuple[float | None, ...] = ()
    gone: int = 0  # readings without any of them since
    frozen: int = 0  # of these, how many in a row are the same
    frozen_since_ns: int = 0
    ecc_total: float | None = None
    ecc_steps: list[tuple[int, float]] = field(default_factory=list)
    ecc_fell_from: float | None = None

    def take(self, time_ns: int) -> None:
        """Notes that a reading of ``time_ns`` came, and learns how often they come."""
        if self.time_ns:
            self.interval_ns = paced(self.interval_ns, time_ns - self.time_ns)
        self.time_ns = time_ns

    def look_frozen(
        self, fields: Mapping[str, Value], time_ns: int, thresholds: Thresholds, again: bool
    ) -> bool | None:
        """Whether this GPU has frozen and vanished; None if the reading can't tell.

        ``again``: of a time that was told before. A sender that got no answer says all once more,
        and of course in the same words.

        It has when every family that it once answered (two at least) is gone and its gauges
        are the same to the last digit, reading after reading. An idle GPU is granted one
        reading more, for its gauges may stand still by themselves.
        """
        if self.had == _ALL_HAD and VANISHING[0] in fields:  # as a rule; more would tell no more
            self.gauges = _gauges(fields)
            self.gone = self.frozen = self.frozen_since_ns = 0
            return False
        present = 0
        for bit, name in _VANISHING_BITS:
            if name in fields:
                present |= bit
        if again and not present:
            return None
        gauges = _gauges(fields)
        before, self.gauges = self.gauges, gauges
        if self.had.bit_count() < 2 or present & self.had:
            self.had |= present
            self.gone = self.frozen = self.frozen_since_ns = 0
            return False if present else None
        read_count = sum(one is not None for one in gauges)
        self.gone += read_count > 0
        if read_count < 3:
            return None
        if self.frozen and gauges == before:
            self.frozen += 1
        else:
            self.frozen, self.frozen_since_ns = 1, time_ns
        return self.frozen >= thresholds.freeze_readings + (not self.load_ratio)

    @property
    def load_ratio(self) -> float:
        """Its utilization by the last reading; 0 where none was read."""
        return (self.gauges[_LOAD] or 0.0) if self.gauges else 0.0

    def frozen_at_work(self, thresholds: Thresholds) -> bool:
        """Whether it stands still for longer than a GPU at this load would.

        All gauges must have been read: whole degrees and percents may well stay the same, only
        watts are fine enough.
        """
        if not self.frozen or not self.load_ratio or None in self.gauges:
            return False
        part = self.load_ratio < 1.0
        still = thresholds.freeze_part_load_seconds if part else thresholds.freeze_full_load_seconds
        return self.frozen_for(still)

    def frozen_for(self, seconds: float) -> bool:
        """Whether it was read as frozen for so long, without a long pause between the readings."""
        span_ns = self.time_ns - self.frozen_since_ns
        shown_ns = (self.frozen - 1) * _PAUSE_INTERVALS * self.interval_ns
        return seconds * SECOND_NS <= span_ns <= shown_ns

    def ecc_day(self, total: float, time_ns: int) -> tuple[float, int]:
        """(uncorrectable errors of the last day, when the newest came) at a new reading."""
        before, self.ecc_total = self.ecc_total, total
        growth, self.ecc_fell_from = grown(before, total, self.ecc_fell_from)
        if growth:
            self.ecc_steps.append((time_ns, growth))
            del self.ecc_steps[:-_STEPS_LIMIT]
        if not self.ecc_steps:
            return 0.0, 0
        self.ecc_steps = [step for step in self.ecc_steps if time_ns - step[0] < DAY_NS]
        newest_ns = self.ecc_steps[-1][0] if self.ecc_steps else 0
        return sum(step[1] for step in self.ecc_steps), newest_ns


def grown(
    before: float | None, total: float, fell_from: float | None
) -> tuple[float, float | None]:
    """(by how much a counter has grown, what it fell from before), given what it fell from so far.

    A counter that went back was reset, and counts from there on; unless its next move is back to
    where it was or beyond: then the low reading was false, and no error came of it.
    """
    if before is None or total == before:
        return 0.0, fell_from
    if total < before:
        return 0.0, max(before, fell_from or 0.0)
    if fell_from is not None and total >= fell_from:
        before = fell_from
    return total - before, None


_gauges = numbers_of(*GAUGES)


def paced(interval_ns: int, step_ns: int) -> int:
    """The learned interval after one more step; a pause does not make a source slow."""
    if step_ns <= 0:
        return interval_ns
    if interval_ns <= 0:
        return step_ns
    step_ns = min(step_ns, 4 * interval_ns)
    return interval_ns + (step_ns - interval_ns) // 4


def stepped_back(newest_ns: int, time_ns: int, arrival_ns: int) -> bool:
    """Whether a clock that had told ``newest_ns`` was set right: that lies ahead of the head's
    clock, and the reading of ``time_ns`` that arrives now agrees with it.
    """
    return newest_ns > arrival_ns + _STEP_NS and abs(arrival_ns - time_ns) < _STEP_NS


@dataclass(slots=True)
class GpuSource:
    """The last ``source`` reading of something that reads GPUs."""

    up: bool
    time_ns: int
    interval_ns: int = 0
    since_ns: int = 0  # up without a break since


@dataclass(slots=True)
class Node:
    """All that the rules remember of one node."""

    boot_ns: int = 0
    spent_ns: int = 0
    newest_ns: int = 0  # newest reading, by the node's clock
    arrival_ns: int = 0  # when the head last heard anything
    watched_ns: int = 0  # the first reading ever, by the node's clock
    pace_ns: int = 0  # how often readings come, all sources together
    skew_ns: int = 0  # how late readings are by the node's clock alone
    steady_delay_ns: int = 0
    steady_since_ns: int = 0
    host_interval_ns: int = 0
    host_time_ns: int = 0
    edac_total: float | None = None
    gpu_since_ns: int = 0  # first GPU reading since the last restart
    counted_ns: int = 0  # newest reading when the GPUs were last counted
    edac_fell_from: float | None = None
    asked: int = 0  # the most GPUs that Slurm asked for and that were all seen
    seen_most: int = 0  # the most GPUs that were ever seen
    listed: int | None = None  # how many GPUs the driver itself said to have, when last asked
    gpus: dict[str, Gpu] = field(default_factory=dict)
    sources: dict[str, GpuSource] = field(default_factory=dict)
    # What must be read several times in a row (BMC sensor, PCIe device) -> how often it was,
    # and the newest time that it was told of.
    critical: dict[str, int] = field(default_factory=dict)
    critical_ns: dict[str, int] = field(default_factory=dict)
    inventory: dict[str, tuple[str, int]] = field(default_factory=dict)  # PCI -> (gpu, time)
    active: dict[tuple[str, str, str], Active] = field(default_factory=dict)
    over: dict[tuple[str, str, str], int] = field(default_factory=dict)  # spent: newest onset

    def heard(self, time_ns: int, arrival_ns: int) -> None:
        """Notes a reading's time and arrival, and learns how far the node's clock is off."""
        self.arrival_ns = max(self.arrival_ns, arrival_ns)
        if time_ns <= self.newest_ns:
            return
        if self.newest_ns:
            self.pace_ns = paced(self.pace_ns, time_ns - self.newest_ns)
        self.watched_ns = self.watched_ns or time_ns
        self.newest_ns = time_ns
        delay_ns = arrival_ns - time_ns
        if abs(delay_ns - self.steady_delay_ns) > _SKEW_NS or not self.steady_since_ns:
            self.steady_delay_ns, self.steady_since_ns = delay_ns, arrival_ns
        elif arrival_ns - self.steady_since_ns >= _SKEW_SETTLED_NS:
            self.skew_ns = self.steady_delay_ns

    def set_back(self, time_ns: int, arrival_ns: int) -> None:
        """Takes back what a clock that ran ahead had told, once a reading of ``time_ns`` shows that
        it was set right: else nothing would be heard until the old time is reached.
        """
        if not stepped_back(self.newest_ns, time_ns, arrival_ns):
            return
        step_ns, last_ns = self.newest_ns - time_ns, time_ns - 1
        if self.boot_ns > last_ns:
            self.boot_ns -= step_ns
        self.newest_ns = self.skew_ns = self.steady_since_ns = 0
        self.spent_ns = min(self.spent_ns, last_ns)
        self.watched_ns = min(self.watched_ns, last_ns)
        self.host_time_ns = min(self.host_time_ns, last_ns)
        self.gpu_since_ns = min(self.gpu_since_ns, last_ns)
        self.over = {key: min(at_ns, last_ns) for key, at_ns in self.over.items()}
        self.critical_ns.clear()
        self.gpus = {
            name: Gpu(uuid=gpu.uuid, interval_ns=gpu.interval_ns, had=gpu.had, mig=gpu.mig)
            if gpu.time_ns > last_ns
            else gpu
            for name, gpu in self.gpus.items()
        }
        for source in self.sources.values():
            source.time_ns = min(source.time_ns, last_ns)
            source.since_ns = min(source.since_ns, last_ns)
        for one in self.active.values():
            one.seen_ns = min(one.seen_ns, last_ns)

    def head_time(self, time_ns: int) -> int:
        """A time of this node on the head's clock."""
        return time_ns + self.skew_ns

    def catching_up(self, now_ns: int, started_ns: int, thresholds: Thresholds) -> bool:
        """Whether the node is emptying its spool: things come in, but none of now.

        Urgent events come first then, and whether the node restarted since is told later. A
        node from which nothing comes any more is not catching up, it is silent, and what was
        certain stays so; but a while after ``started_ns``, when the head began to judge, it may
        have something to say yet.
        """
        behind_ns = max(int(thresholds.behind_seconds * SECOND_NS), 3 * self.pace_ns)
        return (
            self.newest_ns > 0
            and now_ns - self.head_time(self.newest_ns) > behind_ns
            and now_ns - max(self.arrival_ns, started_ns) < behind_ns
        )

    def before_watch(self, time_ns: int, arrival_ns: int, thresholds: Thresholds) -> bool:
        """Whether something of ``time_ns`` is from before we ever heard of this node.

        A kernel log holds weeks; a first look at it must not act on what was dealt with long
        ago. What still is wrong shows in the node's state.
        """
        slack_ns = int(thresholds.watch_slack_seconds * SECOND_NS)
        if self.watched_ns:
            return time_ns < self.watched_ns - slack_ns
        return time_ns < arrival_ns - slack_ns

    def gpu_of(self, pci: str) -> str:
        """``gpu3`` for a PCI address in the inventory, else the address itself."""
        known = self.inventory.get(pci)
        return known[0] if known else pci


def fact_of(
    finding: Finding, entity: Entity, onset_ns: int, evidence: tuple[str, ...] = ()
) -> Fact:
    """``finding`` as a Fact about ``entity`` from ``onset_ns`` on."""
    return Fact(
        entity,
        finding.rule,
        finding.code,
        finding.severity,
        finding.remedy,
        onset_ns,
        finding.text,
        finding.advice,
        evidence,
    )


# ---- to JSON and back -----------------------------------------------------------------------


def dump_node(node: Node) -> dict[str, Any]:
    """``node`` as JSON data."""
    return {
        "boot": node.boot_ns,
        "spent": node.spent_ns,
        "newest": node.newest_ns,
        "arrival": node.arrival_ns,
        "watched": node.watched_ns,
        "pace": node.pace_ns,
        "skew": node.skew_ns,
        "steady": [node.steady_delay_ns, node.steady_since_ns],
        "host": [node.host_interval_ns, node.host_time_ns, node.edac_total, node.gpu_since_ns],
        "gpus": {name: _dump_gpu(gpu) for name, gpu in node.gpus.items()},
        "sources": {
            name: [one.up, one.time_ns, one.interval_ns, one.since_ns]
            for name, one in node.sources.items()
        },
        "critical": dict(node.critical),
        "critical_at": dict(node.critical_ns),
        "listed": node.listed,
        "most": [node.asked, node.seen_most, node.edac_fell_from],
        "inventory": {pci: list(known) for pci, known in node.inventory.items()},
        "active": [[*key, _dump_active(one)] for key, one in node.active.items()],
        "over": [[*key, onset_ns] for key, onset_ns in node.over.items()],
    }


def load_node(state: Mapping[str, Any]) -> Node:
    """The node that ``dump_node`` gave."""
    node = Node(
        state["boot"],
        state["spent"],
        state["newest"],
        state["arrival"],
        state["watched"],
        state["pace"],
        state["skew"],
        *state["steady"],
        *state["host"],
    )
    node.gpus = {name: _load_gpu(gpu) for name, gpu in state["gpus"].items()}
    node.sources = {name: GpuSource(*parts) for name, parts in state["sources"].items()}
    node.critical = dict(state.get("critical", {}))
    node.critical_ns = dict(state.get("critical_at", {}))
    node.listed = state.get("listed")
    node.asked, node.seen_most, node.edac_fell_from = state.get("most", (0, 0, None))
    node.inventory = {pci: (known[0], known[1]) for pci, known in state["inventory"].items()}
    node.active = {(a, b, c): _load_active(one) for a, b, c, one in state["active"]}
    node.over = {(a, b, c): onset_ns for a, b, c, onset_ns in state["over"]}
    return node


def _dump_gpu(gpu: Gpu) -> list[Any]:
    return [
        gpu.uuid,
        gpu.time_ns,
        gpu.interval_ns,
        gpu.mig,
        gpu.had,
        gpu.gauges,
        gpu.frozen,
        gpu.frozen_since_ns,
        gpu.ecc_total,
        list(gpu.ecc_steps),
        gpu.ecc_fell_from,
        gpu.gone,
    ]


def _load_gpu(parts: list[Any]) -> Gpu:
    uuid, time_ns, interval_ns, mig, had, gauges, frozen, since_ns, ecc_total, steps, *more = parts
    fell_from, gone = [*more, None, None][:2]  # a state of before has none
    pairs = [(step[0], step[1]) for step in steps]
    return Gpu(
        uuid,
        time_ns,
        interval_ns,
        mig,
        had,
        tuple(gauges),
        gone if gone is not None else frozen,
        frozen,
        since_ns,
        ecc_total,
        pairs,
        fell_from,
    )


def _dump_active(one: Active) -> dict[str, Any]:
    fact = one.fact
    return {
        "entity": [fact.entity.kind, fact.entity.node, fact.entity.device],
        "rule": fact.rule,
        "code": fact.code,
        "severity": fact.severity,
        "remedy": fact.remedy.value,
        "onset": fact.onset_ns,
        "text": fact.text,
        "advice": fact.advice,
        "evidence": list(fact.evidence),
        "latched": one.latched,
        "seen": one.seen_ns,
        "interval": one.interval_ns,
        "spent": one.spent,
        "again": one.again_ns,
    }


def _load_active(state: Mapping[str, Any]) -> Active:
    fact = Fact(
        Entity(*state["entity"]),
        state["rule"],
        state["code"],
        state["severity"],
        Remedy(state["remedy"]),
        state["onset"],
        state["text"],
        state["advice"],
        tuple(state["evidence"]),
    )
    again_ns = state.get("again", 0)
    return Active(
        fact, state["latched"], state["seen"], state["interval"], state["spent"], again_ns
    )
