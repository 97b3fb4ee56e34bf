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
from models.link_crowd import Crowd
from models.link_held import flapped, forget, other_end_says_no, states_held
from models.link_planes import (
    SickPlane,
    is_plane,
    link_of,
    plane_key,
    plane_words,
    same_plane,
    sick_plane,
)
from models.link_state import (
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
    dump_cable,
    dump_ports,
    load_port,
)
from models.links import End, LinkView, Part, Placement, place, switch_at_fault, whole_switch
from models.rule_state import SECOND_NS, Node, stepped_back
from models.turns import Turn, put_together, rows_at_once, some_of
from models.voices import Entity, Fact, Remedy

# Codes of inventory events: which cable hangs where, and which GUID a port has.
LINK_INVENTORY = frozenset({"link", "port"})
# More ports than any fabric has: what one agent makes up pushes out the oldest, no more.
NAMED_LIMIT = 200_000
LINK_MEASUREMENTS = frozenset({"ib_port", "ib_plane", "fabric_port", "fabric", "slurm_node"})


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
        self._place: dict[str, dict[PortKey, None]] = {}
        self._planes: dict[Key, dict[Key, None]] = {}  # link -> its planes that have a cable
        self._named: dict[str, Key] = {}
        self._described: dict[str, str] = {}  # GUID -> the node that its description names
        self._hosts_on: dict[str, Counter[str]] = {}
        self._jobs: dict[str, tuple[bool, int]] = {}
        self._managers: dict[str, bool] = {}
        self._manager_lost_ns = 0  # when one was last seen not to answer
        self._sick: set[Key] = set()
        self._crowds = self._crowds_now(0, {})

    # ---- in ---------------------------------------------------------------------------------

    def observe(self, sample: Sample, arrival_ns: int) -> None:
        """Takes in one sample of LINK_MEASUREMENTS, or an ``event`` of kind inventory."""
        measurement = sample.measurement
        if measurement in ("ib_port", "ib_plane"):
            key = (sample.tag("node"), sample.tag("device"), sample.tag("port"))
            plane = sample.tag("plane")
            if all(key) and (plane or measurement == "ib_port"):
                key = plane_key(key, plane) if plane else key
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
            mine = (node, device, port)
            key = self._named.get(adapter[0], link_of(mine))
            if self._is_anothers(adapter[0], key[0], arrival_ns):
                key = link_of(mine)
            self._plug(same_plane(key, mine), Cable(switch, adapter, name))

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
        for where in list(self._place.get(guid, ())):
            owner = self._owner.get(where)
            if owner is None or owner == same_plane(key, owner):
                continue
            cable = self._unplug(owner)
            self._hosts.get(owner[0], {}).pop(owner[1:], None)
            self._sick.discard(owner)
            if cable is not None:
                self._plug(same_plane(key, owner), cable)

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
            self._planes.get(link_of(key), {}).pop(key, None)
        return cable

    def _plug(self, key: Key, cable: Cable) -> None:
        self._unplug(key)
        self._cables[key] = cable
        self._owner[cable.adapter] = key
        self._place.setdefault(cable.adapter[0], {})[cable.adapter] = None
        if is_plane(key):
            self._planes.setdefault(link_of(key), {})[key] = None
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
            port.begin_anew()
            port.from_fabric = from_fabric
        track = port.track
        if stepped_back(track.time_ns, sample.time_ns, arrival_ns):
            port.begin_anew()
            track = port.track
            port.active_since_ns = port.down_since_ns = port.rate_since_ns = 0
            port.init_since_ns = port.narrow_since_ns = 0
        if sample.time_ns <= track.time_ns:
            return
        window_ns = int(self.thresholds.window_seconds * SECOND_NS)
        track.take(sample.fields, sample.time_ns, arrival_ns, window_ns)
        if not from_fabric:
            self._states(port)
        downs, before_ns = port.new_downs(self.thresholds.down_low_seconds)
        if downs:
            self._went_down(key[0], port, downs, before_ns)
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
            port.learn_rate(learnt_ns)
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
        self._crowds = self._crowds_now(now_ns, nodes)
        planes = self._sick_planes(now_ns, nodes)
        # A manager that is back configures one port after the other: the last is no worse.
        recent_ns = int(self.thresholds.recent_seconds * SECOND_NS)
        managed = now_ns - self._manager_lost_ns >= recent_ns
        for key in sorted(self._sick):
            port = self._hosts[key[0]][key[1:]]
            node = nodes.get(key[0])
            forget(port, now_ns, node, self.thresholds)
            if is_plane(key):
                continue
            lost = any(one.lost_ns for one in planes.get(key, ()))
            for code, onset_ns, words in states_held(port, now_ns, node, self.thresholds):
                if code == "ibrate" and lost:
                    continue  # it is slower for want of a plane, which is told below
                cable = self._cable_of(key)
                sure = managed or code != "ibinit"
                if other_end_says_no(code, port, cable, self._fabric, self.thresholds):
                    sure, words = False, f"{words}, but not at the switch's end"
                yield self._fact(key, port, code, onset_ns, words, troubled, sure=sure)
            if self._unsettled(key, port, now_ns):
                continue
            for code, onset_ns, words, sure in flapped(port, now_ns, node, self.thresholds):
                yield self._fact(key, port, code, onset_ns, words, troubled, sure=sure)
        for link in sorted(planes):
            yield from self._of_planes(link, planes[link], troubled)

    def _sick_planes(self, now_ns: int, nodes: Mapping[str, Node]) -> dict[Key, list[SickPlane]]:
        """Link -> those of its planes that are lost, slow or flapping."""
        found: dict[Key, list[SickPlane]] = {}
        for key in sorted(self._sick):
            if is_plane(key):
                port = self._hosts[key[0]][key[1:]]
                sick = sick_plane(key, port, now_ns, nodes.get(key[0]), self.thresholds)
                if sick is not None:
                    found.setdefault(link_of(key), []).append(sick)
        return found

    def _of_planes(
        self, link: Key, sick: list[SickPlane], troubled: Mapping[str, set[str]]
    ) -> Iterator[Fact]:
        """What the planes of a link say, as one fact, unless the link says it as a whole."""
        whole = self._hosts.get(link[0], {}).get(link[1:])
        known = [
            port
            for place_, port in self._hosts[link[0]].items()
            if is_plane((link[0], *place_)) and link_of((link[0], *place_)) == link
        ]
        told = plane_words(whole, known, sick)
        if told is None:
            return
        code, onset_ns, words, sure = told
        facts = [
            self._fact(one.key, one.port, code, onset_ns, words, troubled, sure=sure)
            for one in sick
            if one.has(code)
        ]
        # Where one plane's trouble is the node's own, that of a whole switch excuses it not.
        yield max(facts, key=lambda fact: fact.remedy is Remedy.DRAIN)

    def _cable_of(self, key: Key) -> Cable | None:
        """The cable of a port; of a link with planes, that of its first plane."""
        cable = self._cables.get(key)
        planes = self._planes.get(key) if cable is None else None
        return self._cables.get(min(planes)) if planes else cable

    def _unsettled(self, key: Key, port: HostPort, now_ns: int) -> bool:
        """Whether other hosts of the switch, heard of late, were not yet read since the drop."""
        cable = self._cable_of(key)
        if not port.flaps:
            return False
        dropped_ns = port.flaps[-1].time_ns
        if now_ns - dropped_ns >= int(self.thresholds.settle_seconds * SECOND_NS):
            return False
        if cable is None:
            return len(self._hosts) > 1  # any of them may hang on the same switch
        guid = cable.switch[0]
        oldest_ns = now_ns - int(self.thresholds.quiet_seconds * SECOND_NS)
        for name in self._hosts_on.get(guid, ()):
            for where, other in self._hosts.get(name, {}).items():
                if other.from_fabric or other.track.arrival_ns < oldest_ns:
                    continue
                beside = self._cable_of((name, *where))
                if beside and beside.switch[0] == guid and other.track.time_ns < dropped_ns:
                    return True
        return False

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
        if self._cable_of(key) is None and self._crowds[code == "ibflap"].has(key, port):
            shared, words = True, f"{words}, as at other hosts at once"
        if code == "ibinit":
            shared = shared or view.manager_up is False or view.switch_sick_hosts > 1
        return Fact(
            Entity("link", key[0], "/".join(link_of(key)[1:])),
            _RULE_OF[code],
            code,
            2,
            Remedy.DRAIN if sure and not shared else Remedy.ALERT,
            onset_ns,
            words + _part_words(placement),
            placement.advice or "look at the cable and at both of its ends",
            (f"{key[1]}/{key[2]}: {placement.text}", *placement.reasons)[:3],
        )

    def _crowds_now(self, now_ns: int, nodes: Mapping[str, Node]) -> tuple[Crowd, Crowd]:
        """Who has trouble at once where no cable is known: as to states, and as to drops."""
        ports = [
            (key, self._hosts[key[0]][key[1:]])
            for key in self._sick
            if not is_plane(key) and self._cable_of(key) is None
        ]
        window_ns = int(self.thresholds.settle_seconds * SECOND_NS)
        # A link that stays down once the others are up again is its host's after a while.
        recent_ns = int(self.thresholds.recent_seconds * SECOND_NS)
        states = Crowd(ports, nodes, window_ns, now_ns - recent_ns)
        return states, Crowd(ports, nodes, window_ns, 0)

    def view(self, key: Key, troubled: Mapping[str, set[str]]) -> LinkView:
        """Both ends of the host's port ``key``, and its neighbours."""
        port = self._hosts[key[0]][key[1:]]
        cable = self._cable_of(key)
        switch = self._fabric.get(cable.switch) if cable else None
        guid = cable.switch[0] if cable else ""
        ports = [one for at, one in self._hosts[key[0]].items() if not is_plane((key[0], *at))]
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
            port = self._hosts[key[0]][key[1:]]
            planes = self._planes.get(key, {})
            # Which of its planes makes a link slow, the planes themselves say.
            slow = 0 if planes else port.narrow_since_ns
            state = port.down_since_ns or port.init_since_ns or slow
            dropped = port.flaps and now_ns - port.flaps[-1].time_ns <= recent_ns
            if (state and port.expected) or dropped:
                for one in (key, *planes):
                    if one in self._cables:
                        found.setdefault(self._cables[one].switch[0], set()).add(key[0])
        return found

    # ---- to JSON and back ------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """What must outlive a restart: what is expected, what went wrong, who hangs where.

        The counters of the last hour are learned anew.
        """
        return put_together(self.dump_turns())

    def dump_turns(self) -> Iterator[Turn]:
        """The same some hosts or cables at a time: readings may come between."""
        yield ("ports",), []
        for names in some_of(self._hosts):
            yield ("ports",), dump_ports(self._hosts, names)
        yield from rows_at_once(("cables",), self._cables, dump_cable)
        yield ("managers",), dict(self._managers)
        yield ("manager_lost_ns",), self._manager_lost_ns
        yield ("described",), dict(self._described)
        yield from rows_at_once(("named",), self._named, lambda guid, key: [guid, *key])

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes back what ``dump`` gave."""
        self._hosts, self._fabric, self._sick = {}, {}, set()
        self._cables, self._owner, self._place, self._hosts_on = {}, {}, {}, {}
        self._planes = {}
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
