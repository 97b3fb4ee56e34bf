"""Facts: what is certain about a node, from events and readings, one node after the other.

Events latch: an Xid stays a fact until the node restarts or comes back into service. States hold
as long as fresh readings say so; a reading that is stale is no evidence. The same event told
twice is one fact with one onset, so that a head that starts again names the same case.

What is *not* concluded: nothing from a source that is down or hung (a fault of the tool), nothing
from a node that is still emptying its spool (what it told of may be over), nothing from events
before the last restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from collectors.sample import Sample
from models import rulebook
from models.rule_latch import begun_again, inventory, latch, reboot, taken_back, trim
from models.rule_state import (
    Active,
    Node,
    dump_node,
    load_node,
)
from models.rule_tools import over_key
from models.rulebook import RULES, Finding, Thresholds
from models.rules_chassis import ChassisRules
from models.rules_links import LINK_INVENTORY, LINK_MEASUREMENTS, LinkRules
from models.rules_states import States
from models.runs import Run
from models.silence import HEAD_SOURCES
from models.turns import Turn, below, put_together, some_at_once
from models.voices import Entity, Fact, Remedy


class Rules:
    """Takes samples as they arrive and tells the facts that hold. Not safe for many threads."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._nodes: dict[str, Node] = {}
        self._started_ns = 0  # when the first facts were asked for
        self._states = States(self.thresholds)
        self.links = LinkRules()
        self.chassis = ChassisRules()

    # ---- in ---------------------------------------------------------------------------------

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Takes in one sample that reached the head at ``arrival_ns``."""
        measurement = sample.measurement
        if measurement in LINK_MEASUREMENTS:
            self.links.observe(sample, arrival_ns)
            return
        if measurement not in RULE_MEASUREMENTS:
            return
        name = sample.tag("node")
        if not name:
            return
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node()
        if measurement == "bmc":  # read by the head: no word of the node's own
            self._states.bmc(name, node, sample)
            self.chassis.observe(sample, arrival_ns)
            return
        if measurement == "event":
            node.arrival_ns = max(node.arrival_ns, arrival_ns)
            self._event(name, node, sample, arrival_ns)
            return
        if measurement != "source" or sample.tag("source") not in HEAD_SOURCES:
            node.set_back(sample.time_ns, arrival_ns)
            node.heard(sample.time_ns, arrival_ns)
        if measurement == "gpu":
            self._states.gpu(name, node, sample)
        elif measurement == "source":
            self._states.source(node, sample)
        elif measurement == "host":
            self._states.host(name, node, sample)
        elif measurement == "pcie":
            self._states.pcie(name, node, sample)
        else:
            self._states.disk(name, node, sample)

    def observe_run(self, run: Run, arrival_ns: int) -> None:
        """:meth:`observe` of each sample of a run; GPUs, of which there are most, together."""
        if run.measurement != "gpu" or not run.node:
            for sample in run.samples:
                self.observe(sample, arrival_ns)
            return
        node = self._nodes.get(run.node)
        if node is None:
            node = self._nodes[run.node] = Node()
        heard_ns = None
        for sample in run.samples:
            if sample.time_ns != heard_ns:  # the same moment again would change nothing
                heard_ns = sample.time_ns
                node.set_back(heard_ns, arrival_ns)
                node.heard(heard_ns, arrival_ns)
            self._states.gpu(run.node, node, sample)

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
                trim(known.over)
                if not begun_again(known, one, at_ns):
                    del known.active[key]
            else:
                one.spent = True

    def nothing_later(self, now_ns: int) -> None:
        """No return was later than ``now_ns``: where the head's clock ran ahead when a node came
        back, all its faults until then would count as known.
        """
        for node in self._nodes.values():
            node.spent_ns = min(node.spent_ns, now_ns - min(node.skew_ns, 0))
        self.chassis.nothing_later(now_ns)

    # ---- out --------------------------------------------------------------------------------

    def facts(self, now_ns: int, expected_gpus: Mapping[str, int]) -> list[Fact]:
        """Every fact that holds at ``now_ns``, by node, oldest first.

        ``expected_gpus`` is how many GPUs Slurm gives to jobs on each node.
        """
        self._started_ns = self._started_ns or now_ns
        found: list[Fact] = []
        for name, expected in expected_gpus.items():
            node = self._nodes.get(name)
            # Counting again is of use only when something new was heard.
            if node is not None and expected > 0 and node.newest_ns != node.counted_ns:
                node.counted_ns = node.newest_ns
                self._states.count(name, node, expected, now_ns)
        for _, node in sorted(self._nodes.items()):
            if not node.active or node.catching_up(now_ns, self._started_ns, self.thresholds):
                continue
            held = [
                self._told(node, one)
                for one in node.active.values()
                if self._holds(node, one, now_ns)
            ]
            found.extend(sorted(held, key=lambda fact: (fact.onset_ns, fact.rule, fact.entity)))
        for fact in self.links.facts(now_ns, self._nodes):
            heard = self._nodes.get(fact.entity.node)
            if heard is None or not heard.catching_up(now_ns, self._started_ns, self.thresholds):
                found.append(fact)
        found.extend(self.chassis.facts(now_ns))
        return found

    def _told(self, node: Node, one: Active) -> Fact:
        """The fact as it is told: what was over before we watched asks for a person only."""
        fact = one.fact
        if not one.latched or fact.remedy is not Remedy.DRAIN:
            return fact
        if not node.before_watch(fact.onset_ns, one.seen_ns, self.thresholds):
            return fact
        words = f"{fact.text}, before this node was watched"
        return replace(fact, remedy=Remedy.ALERT, text=words)

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
        if kind == "reboot":
            reboot(node, sample.time_ns)
            return
        if kind == "inventory" and self._inventory(node, sample, arrival_ns):
            return
        if sample.time_ns < node.boot_ns or sample.time_ns <= node.spent_ns:
            return
        device = sample.text("device")
        finding = rulebook.event_finding(sample)
        if finding is None:
            over = over_key(sample, node.gpu_of(device))
            if over is not None:
                taken_back(node, over, sample.time_ns)
            return
        # Its index may pass to another GPU, so one that is gone keeps its address for a name.
        where = device if finding.rule == "gpu_unlisted" else node.gpu_of(device)
        key = (finding.rule, finding.code, where)
        if sample.time_ns <= node.over.get(key, 0):
            return
        if finding.code == "lost" and ("xid", "x79", where) in node.active:
            # The driver says the same twice; one fault is one fact.
            node.active[("xid", "x79", where)].add_evidence(sample.text("text"))
            return
        known = node.active.get(key)
        if (
            known is not None
            and node.before_watch(known.fact.onset_ns, known.seen_ns, self.thresholds)
            and not node.before_watch(sample.time_ns, arrival_ns, self.thresholds)
        ):
            del node.active[key]  # it happens again, under our eyes: a case of its own
        entity = _entity(name, node, finding, device)
        if finding.rule == "gpu_unlisted":
            entity = Entity("gpu", name, device)
        evidence = (sample.text("text"),)
        latch(node, key, finding, entity, sample.time_ns, arrival_ns, evidence)

    def _inventory(self, node: Node, sample: Sample, arrival_ns: int) -> bool:
        """Learns from an inventory event; False for one that tells of a GPU that is gone."""
        code = sample.tag("code")
        if code in LINK_INVENTORY:
            self.links.observe(sample, arrival_ns)
            return True
        if code == "gone":
            return False
        if code == "gpu":  # listed again: what said that it is not is over
            key = ("gpu_unlisted", "unlisted", sample.text("device"))
            taken_back(node, key, sample.time_ns)
        inventory(node, sample)
        return True

    # ---- to JSON and back ------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """All that is remembered, as JSON data."""
        return put_together(self.dump_turns())

    def dump_turns(self) -> Iterator[Turn]:
        """The same a few nodes at a time, each as it is in its turn: readings may come between.

        A node that is first heard meanwhile may be missing.
        """
        yield from some_at_once(("nodes",), self._nodes, dump_node)
        yield from below("links", self.links.dump_turns())
        yield from below("chassis", self.chassis.dump_turns())

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave."""
        self._nodes = {name: load_node(node) for name, node in state["nodes"].items()}
        if "links" in state:
            self.links.load(state["links"])
        if "chassis" in state:
            self.chassis.load(state["chassis"])


RULE_MEASUREMENTS = frozenset({"event", "gpu", "source", "host", "disk", "bmc", "pcie"})


def _entity(name: str, node: Node, finding: Finding, device: str) -> Entity:
    """What an event is about: a GPU by its index where the address is known as one."""
    component = RULES[finding.rule].component
    where = node.gpu_of(device)
    if component == "gpu" and where == device and finding.rule == "pcie":
        component = "chassis"  # a port or another device, not a GPU
    if where != device:
        component = "gpu"
    return Entity(component, name, where)
