"""The simulated fleet: nodes, jobs, faults and look-alikes, read at any cadence.

``tick`` gives Samples, as agents would send them; ``tables`` gives the same as columns.
Everything follows from the seed: the same calls give the same readings, bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from collectors.events import event, spaced
from collectors.sample import Sample, Tags, sample
from models.simulate import kernel_text
from models.simulate.benign import BURSTS, BenignSchedule, Happening
from models.simulate.bursts import Bursts
from models.simulate.effects import Effects
from models.simulate.faults import CLASSES, DAY_NS, HOUR_NS, Fault, Schedule, Truth, draw_fault
from models.simulate.hardware import PROFILES, Hardware
from models.simulate.readings import Readings, Table
from models.simulate.scenario import Scenario, load
from models.simulate.state import State
from models.simulate.workload import Job, Jobs

SECOND_NS = 1_000_000_000
REBOOT_SECONDS = 420.0


class Fleet:
    """``nodes`` simulated nodes of ``gpus`` GPUs each, from ``start_ns`` on (UTC ns).

    ``scenario`` None takes the default scenario. ``operator`` True lets simulated people
    notice, drain and mend; False leaves draining to the caller (the demo), who says with
    :meth:`set_drained` which nodes take no jobs; a struck node that is drained and empty is
    mended and rebooted, and then stands in :attr:`mended` until the caller takes it out.
    ``background`` False switches off faults and look-alikes that nobody asked for.
    """

    def __init__(
        self,
        nodes: int,
        gpus: int | None = None,
        seed: int = 0,
        start_ns: int = 0,
        *,
        scenario: Scenario | None = None,
        prefix: str = "n",
        operator: bool = False,
        background: bool = True,
    ) -> None:
        self.scenario = scenario or load()
        self.hardware: Hardware = PROFILES[self.scenario.hardware]
        self.gpus = gpus or self.hardware.gpus
        self.nodes = nodes
        self.seed = seed
        self.operator = operator
        self.background = background
        self.start_ns = start_ns
        self.now_ns = start_ns
        width = max(1, len(str(nodes)))
        self.names = [f"{prefix}{i + 1:0{width}d}" for i in range(nodes)]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.rng = np.random.default_rng([seed, 1])
        self.state = State(self.scenario, self.hardware, nodes, self.gpus, seed)
        self.state.boot_seconds[:] = start_ns / 1e9 - self.rng.uniform(1, 60, nodes) * 86400
        self.jobs = Jobs(self.scenario.workload, nodes, self.gpus, seed)
        self.effects = Effects(self.state, lambda node: self.names[node], self.rng)
        self.bursts = Bursts(self.state, self.scenario.faults, self.rng)
        self.uuids = [
            _uuid(f"{seed}/{name}/{gpu}") for name in self.names for gpu in range(self.gpus)
        ]
        self.readings = Readings(self.state, self._gpu_tags(), self.names)
        self.schedule = Schedule(self.scenario, nodes, self.gpus, seed)
        self.benign = BenignSchedule(self.scenario.benign, nodes, self.gpus, seed)
        self.faults: list[Fault] = []
        self.done: list[Fault] = []
        self.happenings: list[Happening] = []
        self.drained: set[int] = set()
        self.mended: set[str] = set()
        self.back_ns: dict[int, int] = {}  # node index -> when its reboot ends
        self.deaf_until_ns = np.zeros(nodes, np.int64)  # agent gives nothing
        self.blind_until_ns = np.zeros(nodes, np.int64)  # nvml source gives nothing
        self.next_day = 0
        self.inventory_ns = -1

    # What callers may ask and do -------------------------------------------------------

    def tick(self, now_ns: int) -> list[Sample]:
        """Moves on to ``now_ns`` and returns everything read there, events included."""
        tables, events = self.tables(now_ns)
        return [*(one for table in tables for one in table.samples()), *events]

    def sicken(
        self,
        node: str,
        gpu: int | None,
        fault_class: str,
        *,
        lead_seconds: float = 0.0,
        at_ns: int | None = None,
        strength: float = 1.0,
    ) -> Fault:
        """Schedules a fault: precursor from ``at_ns`` (default now), strike after the lead.

        ``strength`` multiplies the scenario's strength of the precursor (2 is easily seen).

        ``fault_class`` is a key of ``CLASSES``; ``gpu`` an index, None for a node's fault.
        """
        kind = CLASSES[fault_class]
        index = -1 if kind.per == "node" else int(gpu or 0)
        begin_ns = self.now_ns if at_ns is None else at_ns
        rates = self.scenario.faults[fault_class]
        drawn = draw_fault(
            fault_class, self.index[node], index, begin_ns, rates, self.scenario.repair, self.rng
        )
        onset_ns = begin_ns + int(lead_seconds * SECOND_NS)
        fault = replace(
            drawn,
            onset_ns=onset_ns,
            notice_ns=onset_ns + (drawn.notice_ns - drawn.onset_ns),
            predictable=lead_seconds > 0,
            strength=strength * rates.strength.value,
            relapse_hours=0.0,
        )
        self.faults.append(fault)
        return fault

    def set_drained(self, names: Iterable[str]) -> None:
        """The nodes that take no new jobs: exactly these (unknown names are ignored)."""
        self.drained = {self.index[name] for name in names if name in self.index}

    def reboot(self, node: str) -> None:
        """Reboots a node now; its jobs are lost, its volatile state starts anew."""
        self._reboot(self.index[node], self.now_ns, REBOOT_SECONDS)

    def repair(self, node: str) -> None:
        """Mends everything that is wrong with a node and reboots it."""
        self._mend(self.index[node], self.now_ns)

    def jobs_on(self, node: str) -> tuple[Job, ...]:
        """The jobs that run on a node."""
        index = self.index[node]
        rows = self.jobs.holder[index * self.gpus : (index + 1) * self.gpus]
        return tuple(self.jobs.running[number] for number in sorted(set(rows.tolist()) - {0}))

    def gpus_allocated(self, node: str) -> int:
        """How many GPUs of the node are held by jobs."""
        index = self.index[node]
        return int((self.jobs.holder[index * self.gpus : (index + 1) * self.gpus] > 0).sum())

    @property
    def down(self) -> frozenset[str]:
        """Names of nodes that do not run now (crashed or rebooting)."""
        return frozenset(self.names[i] for i in np.flatnonzero(self.state.down))

    @property
    def sick(self) -> frozenset[str]:
        """Names of nodes with a fault that has struck and is not mended."""
        return frozenset(self.names[fault.node] for fault in self.faults if fault.struck)

    def truth(self) -> list[Truth]:
        """Every fault that has struck so far, by onset."""
        struck = [fault for fault in [*self.done, *self.faults] if fault.struck]
        return [self._truth(one) for one in sorted(struck, key=lambda one: one.onset_ns)]

    # How time passes -------------------------------------------------------------------

    def tables(self, now_ns: int, *, slow: bool = True) -> tuple[list[Table], list[Sample]]:
        """Moves on to ``now_ns``; returns the tables and the events since the last call.

        ``slow`` False leaves out ib_port, disk and bmc, which are read less often.
        """
        dt_seconds = max(0.0, (now_ns - self.now_ns) / 1e9)
        events = self._advance(now_ns, dt_seconds)
        state = self.state
        heard = (self.deaf_until_ns <= now_ns) & ~state.down
        nvml = self.blind_until_ns <= now_ns
        load = self.jobs.utilization(now_ns)
        per_node = load.reshape(self.nodes, self.gpus).mean(axis=1)
        tables = [
            self.readings.gpu(now_ns, self.jobs.memory_ratio, heard & nvml),
            self.readings.host(now_ns, 2 + 60 * per_node, heard),
            *self.readings.sources(now_ns, heard, nvml),
        ]
        if slow:
            traffic = per_node * 2e10 * dt_seconds
            tables.append(self.readings.ports(now_ns, traffic, heard))
            tables.append(self.readings.disk(now_ns, heard))
            tables += self.readings.bmc(now_ns, self.rng)
        # A history is read from its start; who listens to the demo may have come later.
        every_ns = DAY_NS if self.operator else HOUR_NS
        if self.inventory_ns < 0 or now_ns - self.inventory_ns >= every_ns:
            self.inventory_ns = now_ns
            events += self._inventory(now_ns, np.flatnonzero(heard & nvml).tolist())
        return tables, spaced(events)

    def _advance(self, now_ns: int, dt_seconds: float) -> list[Sample]:
        state = self.state
        self._plan(now_ns)
        events: list[Sample] = []
        closed = np.zeros(self.nodes, bool)
        closed[list(self.drained)] = True
        for node, back_ns in list(self.back_ns.items()):
            if back_ns <= now_ns:
                del self.back_ns[node]
                state.reboot(node, back_ns)
                text = "Linux version 5.15.0 booting"
                events.append(
                    event(self.names[node], "reboot", "boot", back_ns, text=text, severity=0.0)
                )
        events += self._benign(now_ns)
        state.heat_factor[:] = 1.0
        state.fan_loss[:] = 0.0
        self.bursts.step(now_ns, dt_seconds)
        for fault in list(self.faults):
            events += self.effects.grow(fault, now_ns, dt_seconds)
            if not fault.struck and fault.onset_ns <= now_ns:
                events += self.effects.strike(fault)
                if state.down[fault.node]:
                    events += self._slurm(fault.node, fault.onset_ns, "down", "Not responding")
            elif fault.struck:
                events += self._care(fault, now_ns)
        self.jobs.step(now_ns, closed, state.down)
        state.step(now_ns, dt_seconds, self.jobs.utilization(now_ns), self.rng)
        self.now_ns = now_ns
        return events

    def _plan(self, now_ns: int) -> None:
        """Draws the days that have begun."""
        while self.background and self.start_ns + self.next_day * DAY_NS <= now_ns:
            day_start_ns = self.start_ns + self.next_day * DAY_NS
            self.faults += self.schedule.day(self.next_day, day_start_ns)
            self.happenings += self.benign.day(self.next_day, day_start_ns)
            self.next_day += 1

    def _care(self, fault: Fault, now_ns: int) -> list[Sample]:
        """People and the head take care of a struck fault: notice, then mend."""
        node = fault.node
        noticed = fault.noticed_ns > 0
        if not noticed and (node in self.drained or fault.notice_ns <= now_ns):
            if node not in self.drained and not self.operator and not self.state.down[node]:
                return []  # nobody drains it: the head has to
            fault.noticed_ns = min(now_ns, fault.notice_ns)
            if self.operator:
                self.drained.add(node)
                if not self.state.down[node]:
                    reason = _OPERATOR_WORDS[int(self.rng.integers(len(_OPERATOR_WORDS)))]
                    return self._slurm(node, now_ns, "drain", reason)
        if noticed:
            due_ns = fault.noticed_ns + int(fault.repair_seconds * SECOND_NS)
            rows = self.jobs.holder[node * self.gpus : (node + 1) * self.gpus]
            if due_ns <= now_ns and (not rows.any() or self.operator):
                return self._mend(node, now_ns)
        return []

    def _mend(self, node: int, now_ns: int) -> list[Sample]:
        for fault in [fault for fault in self.faults if fault.node == node and fault.struck]:
            fault.repaired_ns = now_ns
            self.faults.remove(fault)
            self.done.append(fault)
            if fault.relapse_hours > 0:
                lead_ns = int(fault.relapse_hours * HOUR_NS)
                self.faults.append(
                    replace(
                        fault,
                        start_ns=now_ns,
                        onset_ns=now_ns + lead_ns,
                        notice_ns=now_ns + lead_ns + (fault.notice_ns - fault.onset_ns),
                        struck=False,
                        noticed_ns=0,
                        repaired_ns=0,
                        carry=0.0,
                        relapse_hours=0.0,
                    )
                )
        rows = slice(node * self.gpus, (node + 1) * self.gpus)
        self.state.remap_failed[rows] = 0.0  # a card with a failed remap is replaced
        self.state.fan_stopped[node] = False
        self.state.supply_failed[node] = False
        self.state.disk_media_errors[node] = 0.0  # a disk or a supply that failed is replaced
        self.state.disk_spare[node] = 1.0
        self._reboot(node, now_ns, REBOOT_SECONDS)
        self.mended.add(self.names[node])
        if self.operator:
            self.drained.discard(node)
            return self._slurm(node, now_ns, "drain_end", "")
        return []

    def _reboot(self, node: int, now_ns: int, seconds: float) -> None:
        self.state.down[node] = True
        self.back_ns[node] = now_ns + int(seconds * SECOND_NS)

    def _benign(self, now_ns: int) -> list[Sample]:
        events: list[Sample] = []
        while self.happenings and self.happenings[0].time_ns <= now_ns:
            one = self.happenings.pop(0)
            node = one.node
            if self.state.down[node]:
                continue
            row = node * self.gpus + one.gpu
            if one.what == "gap":
                until_ns = one.time_ns + int(one.seconds * SECOND_NS)
                target = self.deaf_until_ns if one.whole_agent else self.blind_until_ns
                target[node] = max(int(target[node]), until_ns)
            elif one.what in BURSTS:
                self.bursts.begin(one)
            elif one.what == "supply_warning":
                events.append(self.effects.supply_warning(node, one.time_ns))
            elif one.what in ("reboot", "rollout"):
                reason = "planned: reboot" if one.what == "reboot" else "planned: driver roll-out"
                events += self._slurm(node, one.time_ns, "reboot", reason)
                self._reboot(node, one.time_ns, one.seconds)
            elif one.what == "harmless_remap" or self.jobs.holder[row]:
                if one.what == "harmless_remap":
                    self.state.remapped_correctable[row] += 1
                address = self.hardware.address(one.gpu)
                pid = int(self.rng.integers(2000, 60000))
                events.append(
                    kernel_text.xid(
                        self.names[node], address, one.code, one.time_ns, pid, "python3"
                    )
                )
        return events

    def _slurm(self, node: int, time_ns: int, code: str, reason: str) -> list[Sample]:
        """A transition as collectors/slurm/source.py writes it."""
        before, after, user = _TRANSITIONS[code]
        fields: dict[str, float | str] = {
            "severity": 1.0,
            "text": f"{self.names[node]} {before} to {after}",
            "before": before,
            "after": after,
        }
        if reason:
            fields |= {"reason": reason, "user": user}
        return [
            sample("slurm_event", time_ns, fields, node=self.names[node], kind="state", code=code)
        ]

    def _inventory(self, now_ns: int, nodes: Collection[int]) -> list[Sample]:
        return [
            kernel_text.inventory(
                self.names[node],
                gpu,
                self.uuids[node * self.gpus + gpu],
                self.hardware.model,
                self.hardware.address(gpu),
                now_ns,
            )
            for node in nodes
            for gpu in range(self.gpus)
        ]

    def _gpu_tags(self) -> tuple[Tags, ...]:
        return tuple(
            (("gpu", str(gpu)), ("node", name), ("uuid", self.uuids[i * self.gpus + gpu]))
            for i, name in enumerate(self.names)
            for gpu in range(self.gpus)
        )

    def _truth(self, fault: Fault) -> Truth:
        kind = CLASSES[fault.name]
        device = f"gpu{fault.gpu}" if kind.per == "gpu" else ""
        return Truth(
            self.names[fault.node],
            device,
            kind.component,
            fault.name,
            fault.onset_ns,
            fault.noticed_ns,
            fault.repaired_ns,
            fault.predictable,
        )


# code: (state before, state after, who sets the reason)
_TRANSITIONS = {
    "down": ("MIXED", "DOWN+NOT_RESPONDING", "slurm"),
    "drain": ("MIXED", "MIXED+DRAIN", "root"),
    "reboot": ("IDLE", "IDLE+DRAIN+REBOOT_ISSUED", "root"),
    "drain_end": ("IDLE+DRAIN", "IDLE", ""),
}
_OPERATOR_WORDS = ("gpu problem", "gpu error", "node check", "hardware", "see ticket")


def _uuid(text: str) -> str:
    digest = hashlib.blake2s(text.encode(), digest_size=16).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"
