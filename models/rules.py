"""Facts: what is certain about a node, from events and readings, one node after the other.

Events latch: an Xid stays a fact until the node restarts or comes back into service. States hold
as long as fresh readings say so; a reading that is stale is no evidence. The same event told
twice is one fact with one onset, so that a head that starts again names the same case.

What is *not* concluded: nothing from a source that is down or hung (a fault of the tool), nothing
from a node that is still emptying its spool (what it told of may be over), nothing from events
before the last restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from collectors.sample import Sample
from models import rulebook
from models.gpu_count import GPU_SOURCES, count_gpus
from models.rule_state import (
    SECOND_NS,
    Active,
    Gpu,
    GpuSource,
    Node,
    dump_node,
    fact_of,
    load_node,
    paced,
)
from models.rulebook import RULES, Answer, Finding, Thresholds
from models.rules_chassis import ChassisRules
from models.rules_links import LINK_MEASUREMENTS, LinkRules
from models.voices import Entity, Fact, Remedy

# Clock steps move the boot time that a node reports by some seconds; a restart by more.
_BOOT_SLACK_NS = 60 * SECOND_NS
_KEYS_LIMIT = 256
# Thousands of BMCs are read in turn: their readings count for some minutes.
_BMC_INTERVAL_NS = 300 * SECOND_NS
_DISK_INTERVAL_NS = 300 * SECOND_NS
_PCIE_INTERVAL_NS = 60 * SECOND_NS
_FORCE = {Remedy.NONE: 0, Remedy.ALERT: 1, Remedy.DRAIN: 2}

Key = tuple[str, str, str]


class Rules:
    """Takes samples as they arrive and tells the facts that hold. Not safe for many threads."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._nodes: dict[str, Node] = {}
        self.links = LinkRules()
        self.chassis = ChassisRules()

    # ---- in ---------------------------------------------------------------------------------

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Takes in one sample that reached the head at ``arrival_ns``."""
        measurement = sample.measurement
        if measurement in LINK_MEASUREMENTS:
            self.links.observe(sample, arrival_ns)
            return
        if measurement not in _OBSERVED:
            return
        name = sample.tag("node")
        if not name:
            return
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node()
        if measurement == "bmc":  # read by the head: no word of the node's own
            self._bmc(name, node, sample)
            self.chassis.observe(sample, arrival_ns)
            return
        if measurement == "event":
            node.arrival_ns = max(node.arrival_ns, arrival_ns)
            self._event(name, node, sample, arrival_ns)
            return
        node.heard(sample.time_ns, arrival_ns)
        if measurement == "gpu":
            self._gpu(name, node, sample)
        elif measurement == "source":
            self._source(node, sample)
        elif measurement == "host":
            self._host(name, node, sample)
        elif measurement == "pcie":
            self._pcie(name, node, sample)
        else:
            self._disk(name, node, sample)

    def clear(self, node: str, at_ns: int) -> None:
        """The node came back into service at ``at_ns``: facts with onset <= ``at_ns`` are spent.

        A state that still lasts stays hidden until it has gone and come again: a person who
        returned the node knew of it.
        """
        self.links.clear(node, at_ns)
        self.chassis.clear(node, at_ns)
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = Node()
        known.spent_ns = max(known.spent_ns, at_ns - known.skew_ns)
        for key, one in list(known.active.items()):
            if min(known.head_time(one.fact.onset_ns), one.seen_ns) > at_ns:
                continue
            if one.latched:
                known.over[key] = max(known.over.get(key, 0), one.fact.onset_ns)
                _trim(known.over)
                del known.active[key]
            else:
                one.spent = True

    # ---- out --------------------------------------------------------------------------------

    def facts(self, now_ns: int, expected_gpus: Mapping[str, int]) -> list[Fact]:
        """Every fact that holds at ``now_ns``, by node, oldest first.

        ``expected_gpus`` is how many GPUs Slurm gives to jobs on each node.
        """
        found: list[Fact] = []
        for name, expected in expected_gpus.items():
            node = self._nodes.get(name)
            # Counting again is of use only when something new was heard.
            if node is not None and expected > 0 and node.newest_ns != node.counted_ns:
                node.counted_ns = node.newest_ns
                self._count(name, node, expected, now_ns)
        for _, node in sorted(self._nodes.items()):
            if not node.active or node.catching_up(now_ns, self.thresholds):
                continue
            held = [one.fact for one in node.active.values() if self._holds(node, one, now_ns)]
            found.extend(sorted(held, key=lambda fact: (fact.onset_ns, fact.rule, fact.entity)))
        for fact in self.links.facts(now_ns, self._nodes):
            heard = self._nodes.get(fact.entity.node)
            if heard is None or not heard.catching_up(now_ns, self.thresholds):
                found.append(fact)
        found.extend(self.chassis.facts(now_ns))
        return found

    def _holds(self, node: Node, one: Active, now_ns: int) -> bool:
        if one.spent:
            return False
        if one.latched:
            return True
        age_ns = now_ns - node.head_time(one.seen_ns)
        return age_ns <= self.thresholds.fresh_ns(one.interval_ns)

    # ---- events -------------------------------------------------------------------------------

    def _event(self, name: str, node: Node, sample: Sample, arrival_ns: int) -> None:
        kind = sample.tag("kind")
        if kind == "inventory":
            if sample.tag("code") == "link":
                self.links.observe(sample, arrival_ns)
            else:
                self._inventory(node, sample)
            return
        if kind == "reboot":
            self._reboot(node, sample.time_ns)
            return
        if sample.time_ns < node.boot_ns or sample.time_ns <= node.spent_ns:
            return
        device = sample.text("device")
        finding = rulebook.event_finding(sample)
        if finding is None:
            if kind == "xid" and sample.tag("code") == "154":
                self._taken_back(node, ("xid", "x154", node.gpu_of(device)), sample.time_ns)
            elif kind == "sel":  # the BMC says that it is over
                key = ("sel", sample.tag("code")[:20], device)
                self._taken_back(node, key, sample.time_ns)
            return
        where = node.gpu_of(device)
        key = (finding.rule, finding.code, where)
        if sample.time_ns <= node.over.get(key, 0):
            return
        if finding.code == "lost" and ("xid", "x79", where) in node.active:
            # The driver says the same twice; one fault is one fact.
            node.active[("xid", "x79", where)].add_evidence(sample.text("text"))
            return
        if finding.remedy is Remedy.DRAIN and node.before_watch(
            sample.time_ns, arrival_ns, self.thresholds
        ):
            words = f"{finding.text}, before this node was watched"
            finding = replace(finding, remedy=Remedy.ALERT, text=words)
        entity = _entity(name, node, finding, device)
        evidence = (sample.text("text"),)
        self._latch(node, key, finding, entity, sample.time_ns, arrival_ns, evidence)

    def _latch(
        self,
        node: Node,
        key: Key,
        finding: Finding,
        entity: Entity,
        onset_ns: int,
        arrival_ns: int,
        evidence: tuple[str, ...],
    ) -> None:
        one = node.active.get(key)
        if one is not None and _FORCE[one.fact.remedy] >= _FORCE[finding.remedy]:
            one.latched = True
            for text in evidence:
                one.add_evidence(text)
            return
        fact = fact_of(finding, entity, onset_ns, evidence)
        if one is None and len(node.active) >= _KEYS_LIMIT:
            return
        node.active[key] = Active(fact, True, arrival_ns)

    def _taken_back(self, node: Node, key: Key, time_ns: int) -> None:
        one = node.active.get(key)
        if one is not None and time_ns >= one.fact.onset_ns:
            node.over[key] = max(node.over.get(key, 0), time_ns)
            _trim(node.over)
            del node.active[key]

    def _inventory(self, node: Node, sample: Sample) -> None:
        pci = sample.text("device")
        words = dict(part.split("=", 1) for part in sample.text("text").split() if "=" in part)
        index = words.get("gpu", "")
        if not pci or not index.isdigit():
            return
        label = f"gpu{int(index)}"
        if node.inventory.get(pci, ("", 0))[0] == label:
            node.inventory[pci] = (label, max(node.inventory[pci][1], sample.time_ns))
            return
        # An index names one GPU: what stood there before has moved or gone.
        for other, (known, at_ns) in list(node.inventory.items()):
            if known == label and at_ns <= sample.time_ns:
                del node.inventory[other]
        node.inventory[pci] = (label, sample.time_ns)
        _trim(node.inventory)
        # Facts that knew only the address keep their name (their case is known by it) and
        # are found by the index from now on.
        for key in [key for key in node.active if key[2] == pci]:
            node.active.setdefault((key[0], key[1], label), node.active[key])
            del node.active[key]

    def _reboot(self, node: Node, boot_ns: int) -> None:
        """The node started at ``boot_ns``: what was before is over."""
        if boot_ns <= node.boot_ns:
            return
        node.boot_ns = boot_ns
        node.gpu_since_ns = 0
        for key in [key for key, one in node.active.items() if one.fact.onset_ns < boot_ns]:
            del node.active[key]
        node.gpus = {
            name: Gpu(uuid=gpu.uuid, interval_ns=gpu.interval_ns, had=gpu.had)
            for name, gpu in node.gpus.items()
            if gpu.time_ns < boot_ns
        } | {name: gpu for name, gpu in node.gpus.items() if gpu.time_ns >= boot_ns}
        for source in node.sources.values():
            if source.time_ns < boot_ns:
                source.since_ns = 0

    # ---- readings -----------------------------------------------------------------------------

    def _source(self, node: Node, sample: Sample) -> None:
        name = sample.tag("source")
        if name not in GPU_SOURCES:
            return
        up = sample.number("up") == 1.0
        one = node.sources.get(name)
        if one is None:
            since_ns = sample.time_ns if up else 0
            node.sources[name] = GpuSource(up, sample.time_ns, 0, since_ns)
            return
        if sample.time_ns < one.time_ns:
            return
        one.interval_ns = paced(one.interval_ns, sample.time_ns - one.time_ns)
        if up and (not one.up or not one.since_ns):
            one.since_ns = sample.time_ns
        one.up, one.time_ns = up, sample.time_ns

    def _gpu(self, name: str, node: Node, sample: Sample) -> None:
        index = sample.tag("gpu")
        if not index:
            return
        gpu = node.gpus.get(index)
        uuid = sample.tag("uuid")
        if gpu is None or (uuid and gpu.uuid and uuid != gpu.uuid):
            gpu = node.gpus[index] = Gpu(uuid=uuid)
            _trim(node.gpus)
        if sample.time_ns < gpu.time_ns or sample.time_ns < node.boot_ns:
            return
        fields = sample.fields
        gpu.take(sample.time_ns)
        node.gpu_since_ns = node.gpu_since_ns or sample.time_ns
        gpu.uuid = uuid or gpu.uuid
        if "mig_enabled" in fields:
            gpu.mig = fields["mig_enabled"] == 1.0
        entity = Entity("gpu", name, f"gpu{index}")
        for rule, state in _GPU_STATES:
            self._state(node, rule, entity, state(fields), sample.time_ns, gpu.interval_ns)
        frozen = gpu.look_frozen(fields, sample.time_ns, self.thresholds)
        if frozen is not None:
            answer: Answer = rulebook.VANISHED if frozen else False
            onset_ns = gpu.frozen_since_ns or sample.time_ns
            self._state(
                node, "gpu_vanished", entity, answer, sample.time_ns, gpu.interval_ns, onset_ns
            )
        total = fields.get("ecc_uncorrected_total")
        if isinstance(total, float):
            day_count, newest_ns = gpu.ecc_day(total, sample.time_ns)
            answer = rulebook.ecc_count(day_count, self.thresholds)
            self._state(
                node, "ecc_uncorrected", entity, answer, sample.time_ns, gpu.interval_ns, newest_ns
            )
        if node.active and "temperature_celsius" in fields and fields.get("lost") != 1.0:
            self._read_again(node, entity, sample.time_ns, fields.get("recovery_action") == 0.0)

    def _read_again(self, node: Node, entity: Entity, time_ns: int, recovered: bool) -> None:
        """NVML reads this GPU: a fact that it could not be started is over.

        So is an Xid 154 once NVML says that no recovery action is needed any more.
        """
        before_ns = time_ns - int(self.thresholds.gpu_count_hold_seconds * SECOND_NS)
        for key, one in list(node.active.items()):
            ends = key[0] in rulebook.ENDED_BY_READING or (recovered and key[1] == "x154")
            if ends and key[2] == entity.device and one.fact.onset_ns < before_ns:
                del node.active[key]

    def _host(self, name: str, node: Node, sample: Sample) -> None:
        boot_seconds = sample.number("boot_time_seconds")
        if boot_seconds is not None and 0 < boot_seconds < 1e11:
            self._booted(node, int(boot_seconds * SECOND_NS), sample.time_ns)
        if sample.time_ns < node.host_time_ns:
            return
        step_ns = sample.time_ns - node.host_time_ns if node.host_time_ns else 0
        node.host_interval_ns = paced(node.host_interval_ns, step_ns)
        node.host_time_ns = sample.time_ns
        interval_ns = node.host_interval_ns
        answer = rulebook.readonly(sample.fields)
        entity = Entity("disk", name)
        self._state(node, "filesystem_readonly", entity, answer, sample.time_ns, interval_ns)
        answer = rulebook.clock(sample.fields, self.thresholds)
        self._state(node, "clock", Entity("node", name), answer, sample.time_ns, interval_ns)
        self._edac(name, node, sample)

    def _edac(self, name: str, node: Node, sample: Sample) -> None:
        """EDAC's own count of uncorrectable errors, for kernels whose line was missed."""
        total = sample.number("edac_uncorrected_total")
        if total is None:
            return
        before, node.edac_total = node.edac_total, total
        if before is None or total <= before:
            return
        finding = rulebook.of_event("edac", "uncorrected", 3.0, "")
        same_rule = any(key[0] == "memory_uncorrected" for key in node.active)
        if finding is not None and not same_rule:
            evidence = (f"edac_uncorrected_total {before:g} -> {total:g}",)
            key = (finding.rule, finding.code, "")
            entity = Entity("memory", name)
            self._latch(node, key, finding, entity, sample.time_ns, node.arrival_ns, evidence)

    def _booted(self, node: Node, boot_ns: int, time_ns: int) -> None:
        """A boot time that a node reports: a new one is a restart, unless it can't be.

        A step of the clock moves the boot time too; then readings from after the new "boot"
        have been seen before it.
        """
        if not node.boot_ns:
            self._reboot(node, boot_ns)
            return
        if boot_ns <= node.boot_ns + _BOOT_SLACK_NS or boot_ns > time_ns:
            return
        if node.host_time_ns and node.host_time_ns > boot_ns + _BOOT_SLACK_NS:
            return
        self._reboot(node, boot_ns)

    def _disk(self, name: str, node: Node, sample: Sample) -> None:
        device = sample.tag("device")
        entity = Entity("disk", name, device)
        answer = rulebook.disk_warning(sample.fields)
        self._state(node, "disk", entity, answer, sample.time_ns, _DISK_INTERVAL_NS)

    def _pcie(self, name: str, node: Node, sample: Sample) -> None:
        where = sample.tag("address")
        label = node.gpu_of(where)
        present = sample.number("present")
        gone: Answer = None
        if present is not None:
            gone = rulebook.pcie_gone(label != where) if present < 1 else False
        entity = Entity("gpu" if label != where else "chassis", name, label)
        for rule, answer in (
            ("pcie_gone", gone),
            ("pcie_width", rulebook.pcie_width(sample.fields)),
        ):
            answer = self._in_a_row(node, f"{rule} {where}", answer)
            self._state(node, rule, entity, answer, sample.time_ns, _PCIE_INTERVAL_NS)

    def _in_a_row(self, node: Node, what: str, answer: Answer) -> Answer:
        """``answer``, but a finding only once it was made several times in a row."""
        if not isinstance(answer, Finding):
            if answer is False:
                node.critical.pop(what, None)
            return answer
        count = node.critical.get(what, 0) + 1
        node.critical[what] = count
        _trim(node.critical)
        return answer if count >= self.thresholds.pcie_readings else None

    def _bmc(self, name: str, node: Node, sample: Sample) -> None:
        critical = sample.number("critical")
        if critical is None:
            return
        sensor = sample.tag("sensor")
        if critical < 1:
            if node.critical.pop(sensor, 0):
                entity = Entity("chassis", name, sensor)
                self._state(node, "bmc_critical", entity, False, sample.time_ns, 0)
            return
        count = node.critical.get(sensor, 0) + 1
        node.critical[sensor] = count
        _trim(node.critical)
        if count >= self.thresholds.bmc_readings:
            entity = Entity("chassis", name, sensor)
            answer = rulebook.bmc_critical(sensor)
            interval_ns = _BMC_INTERVAL_NS
            self._state(node, "bmc_critical", entity, answer, sample.time_ns, interval_ns)

    def _state(
        self,
        node: Node,
        rule: str,
        entity: Entity,
        answer: Answer,
        time_ns: int,
        interval_ns: int,
        onset_ns: int = 0,
    ) -> None:
        """Brings a state fact up to date with what one reading said."""
        if answer is None or (answer is False and not node.active):
            return
        code = _CODES[rule]
        key = (rule, code, entity.device)
        one = node.active.get(key)
        if answer is False:
            if one is not None and not one.latched:
                del node.active[key]
            return
        assert isinstance(answer, Finding)
        if one is not None and one.fact.remedy is answer.remedy:
            one.seen_ns, one.interval_ns = time_ns, interval_ns
            return
        if one is None and len(node.active) >= _KEYS_LIMIT:
            return
        fact = fact_of(answer, entity, onset_ns or time_ns)
        node.active[key] = Active(fact, False, time_ns, interval_ns)

    def _count(self, name: str, node: Node, expected: int, now_ns: int) -> None:
        """Compares the GPUs that are seen with those that Slurm gives to jobs."""
        count = count_gpus(node, now_ns, self.thresholds)
        if count is None:
            return  # no evidence: an older fact of this rule becomes stale by itself
        answer = rulebook.gpu_count(count.seen, expected)
        hold_ns = int(self.thresholds.gpu_count_hold_seconds * SECOND_NS)
        if isinstance(answer, Finding) and count.time_ns - count.full_ns < hold_ns:
            return
        one = node.active.get(("gpu_count", _CODES["gpu_count"], ""))
        if isinstance(answer, Finding) and one is not None and one.fact.text != answer.text:
            # One more is gone (or one is back): the same case goes on, in new words.
            one.fact = fact_of(answer, one.fact.entity, one.fact.onset_ns, one.fact.evidence)
        self._state(
            node,
            "gpu_count",
            Entity("gpu", name),
            answer,
            count.time_ns,
            count.interval_ns,
            count.full_ns,
        )

    # ---- to JSON and back ------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """All that is remembered, as JSON data."""
        return {
            "nodes": {name: dump_node(node) for name, node in self._nodes.items()},
            "links": self.links.dump(),
            "chassis": self.chassis.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave."""
        self._nodes = {name: load_node(node) for name, node in state["nodes"].items()}
        if "links" in state:
            self.links.load(state["links"])
        if "chassis" in state:
            self.chassis.load(state["chassis"])


_OBSERVED = frozenset({"event", "gpu", "source", "host", "disk", "bmc", "pcie"})
_GPU_STATES = tuple(zip(rulebook.GPU_STATE_RULES, rulebook.GPU_STATES, strict=True))
_CODES = {
    "gpu_lost": "lost",
    "recovery_action": "recov",
    "row_remap_failed": "remap",
    "row_remap_pending": "pending",
    "ecc_sram_threshold": "sram",
    "ecc_uncorrected": "ecc",
    "gpu_count": "count",
    "gpu_vanished": "vanish",
    "filesystem_readonly": "fs",
    "bmc_critical": "bmc",
    "pcie_gone": "gone",
    "pcie_width": "lanes",
    "disk": "smart",
    "clock": "clock",
}


def _entity(name: str, node: Node, finding: Finding, device: str) -> Entity:
    """What an event is about: a GPU by its index where the address is known as one."""
    component = RULES[finding.rule].component
    where = node.gpu_of(device)
    if component == "gpu" and where == device and finding.rule == "pcie":
        component = "chassis"  # a port or another device, not a GPU
    if where != device:
        component = "gpu"
    return Entity(component, name, where)


def _trim(table: dict[Any, Any]) -> None:
    """Bounds what a node that sends nonsense can make us keep: the oldest entry goes."""
    while len(table) > _KEYS_LIMIT:
        del table[next(iter(table))]
