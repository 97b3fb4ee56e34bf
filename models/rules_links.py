"""Facts about InfiniBand and RoCE links: down, not configured, narrow or slow, flapping.

What a host says of its port (``ib_port``) makes the fact; what the fabric says of the other end
(``fabric_port``, and ``event`` inventory/link for who hangs where) places it. A link counts only
once it was seen in use: ports that nobody plugged in say nothing. Where the cause is a switch or
the subnet manager, the fact asks for a person, not for a drain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.ib.units import ACTIVE, DOWN
from collectors.sample import Sample
from models.link_state import (
    DAY_NS,
    DOWNS,
    FLAP_LIMIT,
    NOT_READ,
    PORT_LIMIT,
    Cable,
    Flap,
    HostPort,
    Key,
    LinkThresholds,
    Place,
    PortKey,
    Track,
    dump_port,
    load_port,
)
from models.links import End, LinkView, Part, Placement, place, switch_at_fault, whole_switch
from models.rule_state import SECOND_NS, Node
from models.voices import Entity, Fact, Remedy

# Codes of inventory events: which cable hangs where, and which GUID a port has.
LINK_INVENTORY = frozenset({"link", "port"})
# More ports than any fabric has: what one agent makes up pushes out the oldest, no more.
NAMED_LIMIT = 200_000
LINK_MEASUREMENTS = frozenset({"ib_port", "fabric_port", "fabric", "slurm_node"})


class LinkRules:
    """Takes samples as they arrive and tells the facts about links. Not for many threads.

    The ``nodes`` of ``facts`` are what :class:`models.rules.Rules` remembers: a node's clock, its
    last restart, when its ``host`` source was last heard.
    """

    def __init__(self, thresholds: LinkThresholds | None = None) -> None:
        self.thresholds = thresholds or LinkThresholds()
        self._hosts: dict[str, dict[Place, HostPort]] = {}
        self._fabric: dict[PortKey, Track] = {}
        self._cables: dict[Key, Cable] = {}
        self._owner: dict[PortKey, Key] = {}
        self._place: dict[str, PortKey] = {}
        self._named: dict[str, Key] = {}
        self._described: dict[str, str] = {}  # GUID -> the node that its description names
        self._hosts_on: dict[str, Counter[str]] = {}
        self._jobs: dict[str, tuple[bool, int]] = {}
        self._managers: dict[str, bool] = {}
        self._manager_lost_ns = 0  # when one was last seen not to answer
        self._sick: set[Key] = set()

    # ---- in ---------------------------------------------------------------------------------

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Takes in one sample of LINK_MEASUREMENTS, or an ``event`` of kind inventory."""
        measurement = sample.measurement
        if measurement == "ib_port":
            key = (sample.tag("node"), sample.tag("device"), sample.tag("port"))
            if all(key):
                self._host_port(key, sample, arrival_ns, from_fabric=False)
        elif measurement == "fabric_port":
            self._fabric_port(sample, arrival_ns)
        elif measurement == "slurm_node":
            jobs = sample.number("jobs")
            if jobs is not None:
                self._jobs[sample.tag("node")] = (jobs > 0, sample.time_ns)
        elif measurement == "fabric":
            up = sample.number("manager_up")
            if up is not None:
                self._managers[sample.tag("subnet")] = up == 1.0
                if up != 1.0:
                    self._manager_lost_ns = max(self._manager_lost_ns, sample.time_ns)
        elif sample.tag("code") == "link":
            self._cable(sample, arrival_ns)
        elif sample.tag("code") == "port":
            self._port(sample, arrival_ns)

    def _cable(self, sample: Sample, arrival_ns: int) -> None:
        head, _, name = sample.text("text").partition(" name=")
        words = dict(part.split("=", 1) for part in head.split() if "=" in part)
        device, _, port = sample.text("device").partition("/")
        switch = (words.get("switch", ""), words.get("switch_port", ""))
        adapter = (words.get("adapter", ""), words.get("adapter_port", ""))
        node = sample.tag("node")
        if all((*switch, *adapter, device, port, node)):
            # A node knows its ports better than a node description does ("HCA-1").
            self._described[adapter[0]] = node
            key = self._named.get(adapter[0], (node, device, port))
            if self._is_anothers(adapter[0], key[0], arrival_ns):
                key = (node, device, port)
            self._plug(key, Cable(switch, adapter, name))

    def _port(self, sample: Sample, arrival_ns: int) -> None:
        device, _, port = sample.text("device").partition("/")
        guid = sample.text("text").removeprefix("guid=")
        key = (sample.tag("node"), device, port)
        if not all((guid, *key)) or len(self._hosts.get(key[0], ())) > PORT_LIMIT:
            return
        if self._is_anothers(guid, key[0], arrival_ns):
            return
        self._named[guid] = key
        while len(self._named) > NAMED_LIMIT:
            del self._named[next(iter(self._named))]
        where = self._place.get(guid)
        owner = self._owner.get(where) if where is not None else None
        if owner is not None and owner != key:
            cable = self._unplug(owner)
            self._hosts.get(owner[0], {}).pop(owner[1:], None)
            self._sick.discard(owner)
            if cable is not None:
                self._plug(key, cable)

    def _is_anothers(self, guid: str, name: str, arrival_ns: int) -> bool:
        """Whether the sweep says that ``guid`` is in another node, which is heard with its ports.

        One node's agent could else take another's cable, and its faults with it. A card that
        moved on is described by its new node.
        """
        node = self._described.get(guid, name)
        quiet_ns = int(self.thresholds.quiet_seconds * SECOND_NS)
        return node != name and any(
            not port.from_fabric and arrival_ns - port.track.arrival_ns <= quiet_ns
            for port in self._hosts.get(node, {}).values()
        )

    def _unplug(self, key: Key) -> Cable | None:
        cable = self._cables.pop(key, None)
        if cable is not None:
            hosts = self._hosts_on[cable.switch[0]]
            hosts[key[0]] -= 1
            if hosts[key[0]] <= 0:
                del hosts[key[0]]
        return cable

    def _plug(self, key: Key, cable: Cable) -> None:
        self._unplug(key)
        self._cables[key] = cable
        self._owner[cable.adapter] = key
        self._place[cable.adapter[0]] = cable.adapter
        self._hosts_on.setdefault(cable.switch[0], Counter())[key[0]] += 1

    def _fabric_port(self, sample: Sample, arrival_ns: int) -> None:
        where = (sample.tag("guid"), sample.tag("port"))
        track = self._fabric.setdefault(where, Track())
        if sample.time_ns <= track.time_ns:
            return
        window_ns = int(self.thresholds.window_seconds * SECOND_NS)
        track.take(sample.fields, sample.time_ns, arrival_ns, window_ns)
        key = self._owner.get(where)
        if key is None:
            return
        known = self._hosts.get(key[0], {}).get(key[1:])
        quiet_ns = int(self.thresholds.quiet_seconds * SECOND_NS)
        if known is None or known.from_fabric or arrival_ns - known.track.arrival_ns > quiet_ns:
            # No agent tells of this port: its counters, read over the fabric, still count.
            self._host_port(key, sample, arrival_ns, from_fabric=True)

    def _host_port(self, key: Key, sample: Sample, arrival_ns: int, *, from_fabric: bool) -> None:
        ports = self._hosts.setdefault(key[0], {})
        port = ports.get(key[1:])
        if port is None:
            if len(ports) >= PORT_LIMIT:
                return
            port = ports[key[1:]] = HostPort()
        if port.from_fabric != from_fabric:
            # Another reader: its counters may have other widths, so comparison starts anew.
            port.track = Track()
            port.from_fabric = from_fabric
        track = port.track
        if sample.time_ns <= track.time_ns:
            return
        before_ns = track.time_ns
        downs = track.counters[DOWNS] if track.counters else NOT_READ
        window_ns = int(self.thresholds.window_seconds * SECOND_NS)
        track.take(sample.fields, sample.time_ns, arrival_ns, window_ns)
        if not from_fabric:
            self._states(port)
        if before_ns and downs != NOT_READ and track.counters[DOWNS] > downs:
            self._went_down(key[0], port, track.counters[DOWNS] - downs, before_ns)
        if port.sick():
            self._sick.add(key)
        else:
            self._sick.discard(key)

    def _states(self, port: HostPort) -> None:
        track, time_ns = port.track, port.track.time_ns
        if track.state == ACTIVE:
            port.active_since_ns = port.active_since_ns or time_ns
            learnt_ns = int(self.thresholds.learn_seconds * SECOND_NS)
            if time_ns - port.active_since_ns >= learnt_ns:
                port.expected = True
                # A rate counts as the link's own once it was held, not while it trains.
                port.best_rate = max(port.best_rate, track.rate)
            port.down_since_ns = port.init_since_ns = 0
            port.spent -= {"ibdown", "ibinit"}
            slow = track.rate != NOT_READ and (
                track.rate < self.thresholds.rate_ratio * port.best_rate
            )
            port.narrow_since_ns = (port.narrow_since_ns or time_ns) if slow else 0
            if not slow:
                port.spent.discard("ibrate")
            return
        if track.state == NOT_READ:
            return
        port.active_since_ns = port.narrow_since_ns = 0
        if track.state <= DOWN:
            port.down_since_ns, port.init_since_ns = port.down_since_ns or time_ns, 0
        else:
            port.init_since_ns, port.down_since_ns = port.init_since_ns or time_ns, 0

    def _went_down(self, name: str, port: HostPort, count: float, before_ns: int) -> None:
        time_ns = port.track.time_ns
        job, told_ns = self._jobs.get(name, (False, 0))
        fresh = abs(time_ns - told_ns) <= int(self.thresholds.recent_seconds * SECOND_NS)
        port.flaps.append(Flap(before_ns, time_ns, count, job and fresh))
        del port.flaps[:-FLAP_LIMIT]

    def clear(self, name: str, at_ns: int) -> None:
        """The node came back into service: what was wrong up to ``at_ns`` is known and spent."""
        for port in self._hosts.get(name, {}).values():
            port.flaps = [flap for flap in port.flaps if flap.time_ns > at_ns]
            for code, since_ns in (
                ("ibdown", port.down_since_ns),
                ("ibinit", port.init_since_ns),
                ("ibrate", port.narrow_since_ns),
            ):
                if 0 < since_ns <= at_ns:
                    port.spent.add(code)

    # ---- out --------------------------------------------------------------------------------

    def facts(self, now_ns: int, nodes: Mapping[str, Node]) -> Iterator[Fact]:
        """Every fact about a link that holds at ``now_ns``, by node and port."""
        troubled = self._troubled(now_ns)
        # A manager that is back configures one port after the other: the last is no worse.
        recent_ns = int(self.thresholds.recent_seconds * SECOND_NS)
        managed = now_ns - self._manager_lost_ns >= recent_ns
        for key in sorted(self._sick):
            port = self._hosts[key[0]][key[1:]]
            node = nodes.get(key[0])
            self._forget(port, now_ns, node)
            for code, onset_ns, words in self._states_held(port, now_ns, node):
                sure = managed or code != "ibinit"
                yield self._fact(key, port, code, onset_ns, words, troubled, sure=sure)
            if self._unsettled(key, port, now_ns):
                continue
            for code, onset_ns, words, sure in self._flapped(port, now_ns, node):
                yield self._fact(key, port, code, onset_ns, words, troubled, sure=sure)

    def _unsettled(self, key: Key, port: HostPort, now_ns: int) -> bool:
        """Whether other hosts of the switch, heard of late, were not yet read since the drop."""
        cable = self._cables.get(key)
        if cable is None or not port.flaps:
            return False
        dropped_ns, guid = port.flaps[-1].time_ns, cable.switch[0]
        if now_ns - dropped_ns >= int(self.thresholds.settle_seconds * SECOND_NS):
            return False
        oldest_ns = now_ns - int(self.thresholds.quiet_seconds * SECOND_NS)
        for name in self._hosts_on.get(guid, ()):
            for where, other in self._hosts.get(name, {}).items():
                if other.from_fabric or other.track.arrival_ns < oldest_ns:
                    continue
                beside = self._cables.get((name, *where))
                if beside and beside.switch[0] == guid and other.track.time_ns < dropped_ns:
                    return True
        return False

    def _forget(self, port: HostPort, now_ns: int, node: Node | None) -> None:
        """Drops what is a day old, and drops that the node's restart explains."""
        boot_ns = node.boot_ns if node is not None else 0
        grace_ns = int(self.thresholds.restart_grace_seconds * SECOND_NS)
        port.flaps = [
            flap
            for flap in port.flaps
            if now_ns - flap.time_ns < DAY_NS
            and not (boot_ns and flap.before_ns < boot_ns + grace_ns)
        ]

    def _states_held(
        self, port: HostPort, now_ns: int, node: Node | None
    ) -> Iterator[tuple[str, int, str]]:
        """(code, onset, words) of the states that are wrong, for long enough and still told."""
        limits, track = self.thresholds, port.track
        seconds = limits.fresh_intervals * track.interval_ns / SECOND_NS
        seconds = min(max(seconds, limits.fresh_low_seconds), limits.fresh_high_seconds)
        newest_ns = node.head_time(track.time_ns) if node is not None else track.arrival_ns
        if not port.expected or now_ns - newest_ns > int(seconds * SECOND_NS):
            return
        for code, since_ns, hold_seconds, words in (
            ("ibdown", port.down_since_ns, limits.down_hold_seconds, "link down"),
            ("ibinit", port.init_since_ns, limits.init_hold_seconds, "link not configured"),
            ("ibrate", port.narrow_since_ns, limits.narrow_hold_seconds, _rate_words(port)),
        ):
            held = track.time_ns - since_ns >= int(hold_seconds * SECOND_NS)
            if since_ns and held and code not in port.spent:
                yield code, since_ns, words

    def _flapped(
        self, port: HostPort, now_ns: int, node: Node | None
    ) -> Iterator[tuple[str, int, str, bool]]:
        """(code, onset, words, whether a restart is ruled out) of a link that went down.

        A restart takes the link down, too. It is ruled out once the node's ``host`` source was
        heard after the drop; where none is, the drop is told later, and for a person only.
        """
        flaps = port.flaps
        if not flaps:
            return
        told_ns = node.host_time_ns if node is not None else 0
        sure = told_ns >= flaps[-1].time_ns
        quiet_ns = int(self.thresholds.quiet_seconds * SECOND_NS)
        if not sure and now_ns - flaps[-1].time_ns < quiet_ns:
            return
        count = sum(flap.count for flap in flaps)
        under_job = sum(flap.count for flap in flaps if flap.job)
        if count >= self.thresholds.flaps_day_count:
            onset_ns = _reached(flaps, self.thresholds.flaps_day_count)
            yield "ibflap", onset_ns, f"link went down {count:g} times in 24 h", sure
        elif under_job >= self.thresholds.flaps_job_count:
            onset_ns = next(flap.time_ns for flap in flaps if flap.job)
            yield "ibflap", onset_ns, "link went down under a job", sure

    def _fact(
        self,
        key: Key,
        port: HostPort,
        code: str,
        onset_ns: int,
        words: str,
        troubled: Mapping[str, set[str]],
        *,
        sure: bool,
    ) -> Fact:
        view = self.view(key, troubled)
        placement = place(view)
        if placement.part is Part.NONE and whole_switch(view):
            placement = switch_at_fault(view)
        shared = whole_switch(view) or placement.part in (Part.SWITCH, Part.ELSEWHERE)
        if code == "ibinit":
            shared = shared or view.manager_up is False or view.switch_sick_hosts > 1
        return Fact(
            Entity("link", key[0], f"{key[1]}/{key[2]}"),
            _RULE_OF[code],
            code,
            2,
            Remedy.DRAIN if sure and not shared else Remedy.ALERT,
            onset_ns,
            words + _part_words(placement),
            placement.advice or "look at the cable and at both of its ends",
            (f"{key[1]}/{key[2]}: {placement.text}", *placement.reasons)[:3],
        )

    def view(self, key: Key, troubled: Mapping[str, set[str]]) -> LinkView:
        """Both ends of the host's port ``key``, and its neighbours."""
        port = self._hosts[key[0]][key[1:]]
        cable = self._cables.get(key)
        switch = self._fabric.get(cable.switch) if cable else None
        guid = cable.switch[0] if cable else ""
        ports = self._hosts[key[0]].values()
        number = cable.switch[1] if cable else ""
        return LinkView(
            port.track.end(),
            switch.end() if switch else End(),
            (cable.name or guid) if cable else "",
            int(number) if number.isdecimal() else 0,
            len(self._hosts_on.get(guid, ())),
            len(troubled.get(guid, ())),
            sum(1 for one in ports if one.expected) or 1,
            sum(1 for one in ports if one.expected and one.sick()) or 1,
            all(self._managers.values()) if self._managers else None,
            False,
            port.best_rate,
        )

    def _troubled(self, now_ns: int) -> dict[str, set[str]]:
        """Switch GUID -> the hosts on it that have trouble now, or had a moment ago."""
        found: dict[str, set[str]] = {}
        recent_ns = int(self.thresholds.recent_seconds * SECOND_NS)
        for key in self._sick:
            cable = self._cables.get(key)
            port = self._hosts[key[0]][key[1:]]
            state = port.down_since_ns or port.init_since_ns or port.narrow_since_ns
            flapped = port.flaps and now_ns - port.flaps[-1].time_ns <= recent_ns
            if cable and ((state and port.expected) or flapped):
                found.setdefault(cable.switch[0], set()).add(key[0])
        return found

    # ---- to JSON and back ------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """What must outlive a restart: what is expected, what went wrong, who hangs where.

        The counters of the last hour are learned anew.
        """
        return {
            "ports": [
                [name, *place_, *dump_port(port)]
                for name, ports in self._hosts.items()
                for place_, port in ports.items()
            ],
            "cables": [
                [list(key), list(cable.switch), list(cable.adapter), cable.name]
                for key, cable in self._cables.items()
            ],
            "managers": dict(self._managers),
            "manager_lost_ns": self._manager_lost_ns,
            "described": dict(self._described),
            "named": [[guid, *key] for guid, key in self._named.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave."""
        self._hosts, self._fabric, self._sick = {}, {}, set()
        self._cables, self._owner, self._place, self._hosts_on = {}, {}, {}, {}
        self._named = {
            guid: (node, device, number) for guid, node, device, number in state.get("named", ())
        }
        self._described = dict(state.get("described", {}))
        for name, device, number, *row in state["ports"]:
            port = load_port(row)
            self._hosts.setdefault(name, {})[device, number] = port
            if port.sick():
                self._sick.add((name, device, number))
        for (node, device, number), switch, adapter, name in state["cables"]:
            self._plug(
                (node, device, number),
                Cable((switch[0], switch[1]), (adapter[0], adapter[1]), name),
            )
        self._managers = dict(state["managers"])
        self._manager_lost_ns = state.get("manager_lost_ns", 0)


_RULE_OF = {
    "ibdown": "link_down",
    "ibinit": "link_not_configured",
    "ibrate": "link_degraded",
    "ibflap": "link_flaps",
}
_CERTAINTY = {"sure": "", "likely": "likely ", "open": "maybe "}


def _part_words(placement: Placement) -> str:
    if placement.part in (Part.NONE, Part.UNKNOWN):
        return ""
    return f"; {_CERTAINTY[placement.certainty]}the {placement.part}"


def _rate_words(port: HostPort) -> str:
    return f"link at {port.track.rate / 1e9:g} of {port.best_rate / 1e9:g} Gb/s"


def _reached(flaps: list[Flap], count: float) -> int:
    """When the ``count``-th time down was told."""
    total = 0.0
    for flap in flaps:
        total += flap.count
        if total >= count:
            return flap.time_ns
    return flaps[-1].time_ns
