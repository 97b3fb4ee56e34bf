"""What readings say of a node: states that hold as long as fresh readings say so.

One method for each measurement. A reading that says nothing (a field that was not read) changes
nothing; one that is older than what is known is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.sample import Sample, Value
from models import rulebook
from models.gpu_count import GPU_SOURCES, NARROWED_SOURCES, count_gpus
from models.rule_latch import KEYS_LIMIT, latch, reboot, trim
from models.rule_state import SECOND_NS, Active, Gpu, GpuSource, Node, fact_of, grown, paced
from models.rulebook import Answer, Finding, Thresholds
from models.voices import Entity

# Clock steps move the boot time that a node reports by some seconds; a restart by more.
_BOOT_SLACK_NS = 60 * SECOND_NS
# Thousands of BMCs are read in turn: their readings count for some minutes.
_BMC_INTERVAL_NS = 300 * SECOND_NS
_DISK_INTERVAL_NS = 300 * SECOND_NS
_PCIE_INTERVAL_NS = 60 * SECOND_NS
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
    "pcie_speed": "pciegen",
    "disk": "smart",
    "clock": "clock",
}


class States:
    """Brings the state facts of a node up to date with each reading."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds

    def source(self, node: Node, sample: Sample) -> None:
        """A ``source`` reading: whether what counts GPUs counts all of them.

        One that is up and tells a fault left something out by itself (a GPU on which the driver
        hung is not read for a while): what is missing in it is not missing in the node.
        """
        name = sample.tag("source")
        if name not in GPU_SOURCES:
            return
        up = sample.number("up") == 1.0 and not sample.text("fault")
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

    def gpu(self, name: str, node: Node, sample: Sample) -> None:
        """A reading of one GPU."""
        index = uuid = ""
        for key, value in sample.tags:
            if key == "gpu":
                index = value
            elif key == "uuid":
                uuid = value
        if not index:
            return
        gpu = node.gpus.get(index)
        if gpu is None or (uuid and gpu.uuid and uuid != gpu.uuid):
            gpu = node.gpus[index] = Gpu(uuid=uuid)
            trim(node.gpus)
        time_ns, before_ns, fields = sample.time_ns, gpu.time_ns, sample.fields
        if time_ns < before_ns or time_ns < node.boot_ns:
            return
        if time_ns != before_ns:
            gpu.take(time_ns)
        if not node.gpu_since_ns:
            node.gpu_since_ns = time_ns
        if uuid:
            gpu.uuid = uuid
        if "mig_enabled" in fields:
            gpu.mig = fields["mig_enabled"] == 1.0
        self._gpu_states(name, node, gpu, index, fields, time_ns == before_ns)
        if node.active and "temperature_celsius" in fields and fields.get("lost") != 1.0:
            recovered = fields.get("recovery_action") == 0.0
            self._read_again(node, Entity("gpu", name, f"gpu{index}"), time_ns, recovered)

    def _gpu_states(
        self,
        name: str,
        node: Node,
        gpu: Gpu,
        index: str,
        fields: Mapping[str, Value],
        again: bool,
    ) -> None:
        """The states that the newest reading of a GPU tells of; ``again`` if it came before."""
        # Of a node that is well nothing is to be looked up: that is nearly every reading.
        if node.active or rulebook.may_tell(fields):
            for rule, state in _GPU_STATES:
                self._gpu_state(name, node, gpu, index, rule, state(fields))
        answer: Answer
        most = fields.get("pcie_link_generation_max")  # once in many readings
        # Of a link at its best nothing is to be told, and where nothing was, nothing taken back.
        if most is not None and (
            node.active or node.critical or fields.get("pcie_link_generation") != most
        ):
            answer = rulebook.pcie_speed(fields)
            if answer or node.critical or node.active:
                answer = self._in_a_row(node, f"pcie_speed {index}", answer, gpu.time_ns)
                self._gpu_state(name, node, gpu, index, "pcie_speed", answer, 0, _PCIE_INTERVAL_NS)
        frozen = gpu.look_frozen(fields, gpu.time_ns, self.thresholds, again)
        if frozen is not None and (gpu.gone or node.active):
            answer = False
            if gpu.gone:
                answer = self._vanished(node, gpu, frozen)
                _reword(node, ("gpu_vanished", _CODES["gpu_vanished"], f"gpu{index}"), answer)
            onset_ns = gpu.frozen_since_ns or gpu.time_ns
            self._gpu_state(name, node, gpu, index, "gpu_vanished", answer, onset_ns)
        total = fields.get("ecc_uncorrected_total")
        # A count that stands where it stood, with none of the last day, says nothing new.
        if node.active or gpu.ecc_steps or total != gpu.ecc_total:
            self._ecc(name, node, gpu, index, total)

    def _ecc(self, name: str, node: Node, gpu: Gpu, index: str, total: Value | None) -> None:
        """The uncorrectable errors of a GPU within a day, by its own count."""
        if isinstance(total, float):
            day_count, newest_ns = gpu.ecc_day(total, gpu.time_ns)
            answer = rulebook.ecc_count(day_count, self.thresholds)
            self._gpu_state(name, node, gpu, index, "ecc_uncorrected", answer, newest_ns)

    def _gpu_state(
        self,
        name: str,
        node: Node,
        gpu: Gpu,
        index: str,
        rule: str,
        answer: Answer,
        onset_ns: int = 0,
        interval_ns: int = 0,
    ) -> None:
        """:meth:`_state` of a GPU by its newest reading; its name is made only where it is told."""
        if answer or (answer is False and node.active):
            entity = Entity("gpu", name, f"gpu{index}")
            interval_ns = interval_ns or gpu.interval_ns
            self._state(node, rule, entity, answer, gpu.time_ns, interval_ns, onset_ns)

    def _vanished(self, node: Node, gpu: Gpu, frozen: bool) -> Answer:
        """What a GPU that no longer answers most families means, by its neighbours."""
        if not frozen:
            seldom = gpu.interval_ns >= self.thresholds.seldom_seconds * SECOND_NS
            return rulebook.VANISHED_ONCE if gpu.gone == 1 and seldom else False
        if self._others_answer(node, gpu):
            # An exporter tells what it read once several times: each of them is no reading more.
            cached = not NARROWED_SOURCES.isdisjoint(node.sources)
            shown = not cached or gpu.frozen_for(self.thresholds.freeze_cached_seconds)
            return rulebook.VANISHED if shown else None
        all_still = self._all_stand_still(node, gpu)
        return rulebook.VANISHED_AT_WORK if all_still else rulebook.VANISHED_ALL

    def _all_stand_still(self, node: Node, gpu: Gpu) -> bool:
        """Whether all GPUs of the node are frozen, and one for longer than its load allows.

        Those that are no longer read say nothing. An only GPU has no other to speak for it: it
        must have stood still once more.
        """
        oldest_ns = _lately_ns(gpu)
        gpus = [one for one in node.gpus.values() if one.time_ns >= oldest_ns]
        least = self.thresholds.freeze_readings + (len(gpus) == 1)
        return any(one.frozen_at_work(self.thresholds) for one in gpus) and all(
            one.frozen >= least for one in gpus
        )

    def _others_answer(self, node: Node, gpu: Gpu) -> bool:
        """Whether another GPU of the node, read of late, still has what this one has no more."""
        oldest_ns = _lately_ns(gpu)
        return any(
            not other.gone and other.had & gpu.had and other.time_ns >= oldest_ns
            for other in node.gpus.values()
            if other is not gpu
        )

    def _read_again(self, node: Node, entity: Entity, time_ns: int, recovered: bool) -> None:
        """NVML reads this GPU: a fact that it could not be started is over.

        So is an Xid 154 once NVML says that no recovery action is needed any more.
        """
        before_ns = time_ns - int(self.thresholds.gpu_count_hold_seconds * SECOND_NS)
        for key, one in list(node.active.items()):
            ends = key[0] in rulebook.ENDED_BY_READING or (recovered and key[1] == "x154")
            if ends and key[2] == entity.device and one.fact.onset_ns < before_ns:
                del node.active[key]

    def host(self, name: str, node: Node, sample: Sample) -> None:
        """A reading of the host: its restarts, filesystems, clock and memory."""
        boot_seconds = sample.number("boot_time_seconds")
        if boot_seconds is not None and 0 < boot_seconds < 1e11:
            self._booted(node, int(boot_seconds * SECOND_NS), sample.time_ns)
        if sample.time_ns < node.host_time_ns:
            return
        step_ns = sample.time_ns - node.host_time_ns if node.host_time_ns else 0
        node.host_interval_ns = paced(node.host_interval_ns, step_ns)
        node.host_time_ns = sample.time_ns
        interval_ns = node.host_interval_ns
        for rule, component, answer in (
            ("filesystem_readonly", "disk", rulebook.readonly(sample.fields)),
            (
                "clock",
                "node",
                rulebook.clock(sample.fields, node.skew_ns / SECOND_NS, self.thresholds),
            ),
        ):
            if answer or node.active:  # else there is nothing to tell, and nothing to take back
                entity = Entity(component, name)
                self._state(node, rule, entity, answer, sample.time_ns, interval_ns)
        self._edac(name, node, sample)

    def _edac(self, name: str, node: Node, sample: Sample) -> None:
        """EDAC's own count of uncorrectable errors, for kernels whose line was missed."""
        total = sample.number("edac_uncorrected_total")
        if total is None:
            return
        before, node.edac_total = node.edac_total, total
        growth, node.edac_fell_from = grown(before, total, node.edac_fell_from)
        if not growth:
            return
        finding = rulebook.of_event("edac", "uncorrected", 3.0, "")
        same_rule = any(key[0] == "memory_uncorrected" for key in node.active)
        if finding is not None and not same_rule:
            evidence = (f"edac_uncorrected_total {total - growth:g} -> {total:g}",)
            key = (finding.rule, finding.code, "")
            entity = Entity("memory", name)
            latch(node, key, finding, entity, sample.time_ns, node.arrival_ns, evidence)

    def _booted(self, node: Node, boot_ns: int, time_ns: int) -> None:
        """A boot time that a node reports: a new one is a restart, unless it can't be.

        A step of the clock moves the boot time too; then readings from after the new "boot"
        have been seen before it.
        """
        if not node.boot_ns:
            reboot(node, boot_ns)
            return
        if boot_ns <= node.boot_ns + _BOOT_SLACK_NS or boot_ns > time_ns:
            return
        if node.host_time_ns and node.host_time_ns > boot_ns + _BOOT_SLACK_NS:
            return
        reboot(node, boot_ns)

    def disk(self, name: str, node: Node, sample: Sample) -> None:
        """A reading of one disk."""
        device = sample.tag("device")
        entity = Entity("disk", name, device)
        answer = rulebook.disk_warning(sample.fields)
        self._state(node, "disk", entity, answer, sample.time_ns, _DISK_INTERVAL_NS)

    def pcie(self, name: str, node: Node, sample: Sample) -> None:
        """A reading of one PCIe device: is it there, and on all its lanes?"""
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
            answer = self._in_a_row(node, f"{rule} {where}", answer, sample.time_ns)
            self._state(node, rule, entity, answer, sample.time_ns, _PCIE_INTERVAL_NS)

    def _in_a_row(self, node: Node, what: str, answer: Answer, time_ns: int) -> Answer:
        """``answer``, but a finding only once it was made several times in a row."""
        if not isinstance(answer, Finding):
            if answer is False:
                node.critical.pop(what, None)
            return answer
        count = _counted(node, what, time_ns)
        return answer if count >= self.thresholds.pcie_readings else None

    def bmc(self, name: str, node: Node, sample: Sample) -> None:
        """A reading of one sensor of the BMC."""
        critical = sample.number("critical")
        if critical is None:
            return
        sensor = sample.tag("sensor")
        if critical < 1:
            if node.critical.pop(sensor, 0):
                entity = Entity("chassis", name, sensor)
                self._state(node, "bmc_critical", entity, False, sample.time_ns, 0)
            return
        if _counted(node, sensor, sample.time_ns) >= self.thresholds.bmc_readings:
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
        if one is None and len(node.active) >= KEYS_LIMIT:
            return
        fact = fact_of(answer, entity, onset_ns or time_ns)
        node.active[key] = Active(fact, False, time_ns, interval_ns)

    def count(self, name: str, node: Node, expected: int, now_ns: int) -> None:
        """Compares the GPUs that are seen with those that Slurm gives to jobs."""
        count = count_gpus(node, now_ns, self.thresholds)
        if count is None:
            return  # no evidence: an older fact of this rule becomes stale by itself
        node.seen_most = max(node.seen_most, count.seen)
        # More is asked for than before, and nothing that was there is missing.
        newly_asked = 0 < node.asked < expected and count.seen >= node.seen_most
        never_more = count.narrowed and count.seen >= node.seen_most
        answer = rulebook.gpu_count(count.seen, expected, newly_asked, never_more)
        if answer is False:
            node.asked = expected
        hold_ns = int(self.thresholds.gpu_count_hold_seconds * SECOND_NS)
        if isinstance(answer, Finding) and count.time_ns - count.full_ns < hold_ns:
            return
        # One more is gone (or one is back).
        _reword(node, ("gpu_count", _CODES["gpu_count"], ""), answer)
        self._state(
            node,
            "gpu_count",
            Entity("gpu", name),
            answer,
            count.time_ns,
            count.interval_ns,
            count.full_ns,
        )
        one = node.active.get(("gpu_count", _CODES["gpu_count"], ""))
        if isinstance(answer, Finding) and one is not None and node.listed is not None:
            one.add_evidence(f"the driver lists {node.listed} GPUs")


def _lately_ns(gpu: Gpu) -> int:
    """A reading of another GPU that is older than this says nothing beside this one's newest."""
    return gpu.time_ns - 3 * max(gpu.interval_ns, SECOND_NS)


def _counted(node: Node, what: str, time_ns: int) -> int:
    """How often in a row something was read, this time among them unless it was told before."""
    count = node.critical.get(what, 0)
    if not count or time_ns > node.critical_ns.get(what, 0):
        count += 1
        node.critical[what], node.critical_ns[what] = count, time_ns
        trim(node.critical)
        trim(node.critical_ns)
    return count


def _reword(node: Node, key: tuple[str, str, str], answer: Answer) -> None:
    """The same case goes on, in new words."""
    one = node.active.get(key)
    if one is None or not isinstance(answer, Finding) or one.fact.remedy is not answer.remedy:
        return
    if one.fact.text != answer.text:
        one.fact = fact_of(answer, one.fact.entity, one.fact.onset_ns, one.fact.evidence)
