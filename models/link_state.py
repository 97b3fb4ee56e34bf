"""What the rules remember of links: readings of both ends, drops, cables.

Memory is bounded by what is compared: states and eight counters per end, kept once while nothing
grows, so that 10,000 hosts with eight rails fit into some tens of MiB.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectors.sample import Value
from models.links import End
from models.rule_state import SECOND_NS, paced

DAY_NS = 86_400 * SECOND_NS
PORT_LIMIT = 160  # of a node, planes included: sixteen rails of eight planes and themselves
FLAP_LIMIT = 16

# Counters whose growth within the window places a fault.
GROWING = (
    "symbol_errors_total",
    "link_recoveries_total",
    "link_downs_total",
    "receive_errors_total",
    "receive_remote_physical_errors_total",
    "transmit_discards_total",
    "local_link_integrity_errors_total",
    "excessive_buffer_overruns_total",
)
DOWNS = GROWING.index("link_downs_total")
NOT_READ = -1.0
# Where LinkDowned stops, by its width: a port that stands there reads the same as one that answers
# "all bits set" for want of a number.
CEILINGS = frozenset(float((1 << bits) - 1) for bits in (8, 16, 32))


@dataclass(frozen=True, slots=True)
class LinkThresholds:
    """Every number that the rules about links compare with.

    ``flaps_day_count`` times down within a day ask for a drain, ``flaps_job_count`` are enough
    while a job holds the node. For ``settle_seconds`` a drop waits for what the other hosts of the
    switch say: a switch that restarts is read at each host at another moment. Around a restart
    of the node its links go down by themselves.
    """

    down_hold_seconds: float = 60.0
    init_hold_seconds: float = 300.0
    narrow_hold_seconds: float = 60.0
    learn_seconds: float = 600.0
    flaps_day_count: float = 2.0
    flaps_job_count: float = 1.0
    restart_grace_seconds: float = 900.0
    window_seconds: float = 3600.0
    recent_seconds: float = 900.0
    settle_seconds: float = 120.0
    quiet_seconds: float = 600.0
    rate_ratio: float = 0.95
    fresh_intervals: float = 3.0
    # In less than this no link goes down and comes up again (training takes longer).
    down_low_seconds: float = 0.1
    fresh_low_seconds: float = 90.0
    fresh_high_seconds: float = 7_200.0


@dataclass(slots=True)
class Flap:
    """The link went down ``count`` times between two readings; ``job``: while one ran."""

    before_ns: int
    time_ns: int
    count: float
    job: bool


@dataclass(slots=True)
class Track:
    """The newest reading of one end, and the counters as they were up to an hour before."""

    time_ns: int = 0
    arrival_ns: int = 0
    interval_ns: int = 0
    state: float = NOT_READ
    physical: float = NOT_READ
    rate: float = NOT_READ
    width: float = NOT_READ
    speed: float = NOT_READ
    counters: array[float] = field(default_factory=lambda: array("d"))
    base: array[float] = field(default_factory=lambda: array("d"))
    middle: array[float] = field(default_factory=lambda: array("d"))
    turned_ns: int = 0

    def take(
        self, fields: Mapping[str, Value], time_ns: int, arrival_ns: int, window_ns: int
    ) -> None:
        """Takes in a newer reading."""
        self.interval_ns = paced(self.interval_ns, time_ns - self.time_ns if self.time_ns else 0)
        self.time_ns, self.arrival_ns = time_ns, arrival_ns
        self.state = number(fields, "state")
        self.physical = number(fields, "physical_state")
        self.rate = number(fields, "rate_bits_per_second") or NOT_READ  # no link has none
        self.width = number(fields, "link_width")
        self.speed = number(fields, "link_speed_bits_per_second")
        counters = array("d", [number(fields, name) for name in GROWING])
        if counters == self.counters:
            counters = self.counters  # nothing has grown: one array serves for all
        self.counters = counters
        if not self.turned_ns:
            self.base = self.middle = counters
            self.turned_ns = time_ns
        elif time_ns - self.turned_ns >= window_ns // 2:
            self.base, self.middle, self.turned_ns = self.middle, counters, time_ns

    def end(self) -> End:
        """This end as :mod:`models.links` sees it."""
        if not self.time_ns:
            return End()
        fields = {
            name: value
            for name, value in (
                ("state", self.state),
                ("physical_state", self.physical),
                ("rate_bits_per_second", self.rate),
                ("link_width", self.width),
                ("link_speed_bits_per_second", self.speed),
            )
            if value != NOT_READ
        }
        growth = {}
        for name, now, was in zip(GROWING, self.counters, self.base, strict=False):
            if now != NOT_READ and was != NOT_READ:
                growth[name] = now - was if now >= was else now  # it was reset in between
        return End(fields, growth, True)


@dataclass(slots=True)
class HostPort:
    """A host's port: its newest reading, since when what is wrong, and how often it went down."""

    track: Track = field(default_factory=Track)
    expected: bool = False
    active_since_ns: int = 0
    best_rate: float = 0.0
    down_since_ns: int = 0
    init_since_ns: int = 0
    narrow_since_ns: int = 0
    flaps: list[Flap] = field(default_factory=list)
    spent: set[str] = field(default_factory=set)
    from_fabric: bool = False
    # The rate that it has, and since when; it counts as the link's own once it was held.
    rate: float = NOT_READ
    rate_since_ns: int = 0
    # LinkDowned as it was last believed, and when; what it fell from, or shows for the first time.
    downs: float = NOT_READ
    downs_ns: int = 0
    fell_from: float = NOT_READ
    doubted: float = NOT_READ

    def begin_anew(self) -> None:
        """Another reader, or another clock: what is compared must be read again first."""
        self.track = Track()
        self.downs = self.fell_from = self.doubted = NOT_READ

    def learn_rate(self, learnt_ns: int) -> None:
        """Takes in the rate of an active port. A rate that is shown for a moment is not the link's
        own: it would call the right one too slow for ever after.
        """
        rate, time_ns = self.track.rate, self.track.time_ns
        if rate == NOT_READ:
            return
        if rate != self.rate or not self.rate_since_ns:
            self.rate, self.rate_since_ns = rate, time_ns
        if time_ns - max(self.rate_since_ns, self.active_since_ns) >= learnt_ns:
            self.best_rate = max(self.best_rate, rate)

    def new_downs(self, least_seconds: float) -> tuple[float, int]:
        """How often it went down since LinkDowned was last read, and when that was; 0 for none.

        What one odd reading says is not believed: a number that no link can reach, "all bits set"
        that is not said twice, a number that falls and is back at the next reading.
        """
        now, time_ns = self.track.counters[DOWNS], self.track.time_ns
        if now == NOT_READ or (now in CEILINGS and now < self.downs):
            return 0.0, 0  # read with fewer bits for once, it stands where those end
        was, before_ns, fell_from = self.downs, self.downs_ns, self.fell_from
        grown = now - was if was != NOT_READ else 0.0
        if grown > 1.0 + (time_ns - before_ns) / SECOND_NS / least_seconds:
            return 0.0, 0
        if grown > 0.0 and now in CEILINGS and self.doubted != now:
            self.doubted = now
            return 0.0, 0
        self.downs, self.downs_ns, self.doubted = now, time_ns, NOT_READ
        self.fell_from = was if grown < 0.0 else NOT_READ
        return (grown, before_ns) if grown > 0.0 and now != fell_from else (0.0, 0)

    def sick(self) -> bool:
        """Whether anything about it may become a fact."""
        since = self.down_since_ns or self.init_since_ns or self.narrow_since_ns
        return bool(self.flaps) or (self.expected and since > 0)


def number(fields: Mapping[str, Value], name: str) -> float:
    value = fields.get(name)
    return value if isinstance(value, float) else NOT_READ


Place = tuple[str, str]  # (device, port) of a host
PortKey = tuple[str, str]  # (GUID, port) in the fabric
Key = tuple[str, str, str]  # (node, device, port)


@dataclass(frozen=True, slots=True)
class Cable:
    """Where a host's port hangs: the two ends in the fabric, and the switch's name."""

    switch: PortKey
    adapter: PortKey
    name: str


def dump_port(port: HostPort) -> list[Any]:
    """A port as JSON data, without the counters of the last hour."""
    track = port.track
    return [
        port.expected,
        port.best_rate,
        [
            port.active_since_ns,
            port.down_since_ns,
            port.init_since_ns,
            port.narrow_since_ns,
            port.rate_since_ns,
            port.downs_ns,
        ],
        [[flap.before_ns, flap.time_ns, flap.count, flap.job] for flap in port.flaps],
        sorted(port.spent),
        port.from_fabric,
        [track.time_ns, track.arrival_ns, track.interval_ns],
        [track.state, track.physical, track.rate, track.width, track.speed],
        port.downs,
    ]


def dump_ports(
    hosts: Mapping[str, Mapping[Place, HostPort]], names: Sequence[str]
) -> list[list[Any]]:
    """The ports of the hosts ``names``, where they are still known."""
    return [
        [name, *place, *dump_port(port)]
        for name in names
        if name in hosts
        for place, port in hosts[name].items()
    ]


def dump_cable(key: Key, cable: Cable) -> list[Any]:
    """A cable as JSON data, with the port that it hangs on."""
    return [list(key), list(cable.switch), list(cable.adapter), cable.name]


def load_port(row: list[Any]) -> HostPort:
    """What ``dump_port`` gave."""
    expected, best_rate, since, flaps, spent, from_fabric, times, told, downs = row
    # An older head kept neither the time of a rate nor that of LinkDowned.
    rate_since_ns, downs_ns = since[4:6] if len(since) > 4 else (since[0], times[0])
    port_rate = told[2]
    return HostPort(
        Track(*times, *told),
        expected,
        since[0],
        best_rate,
        since[1],
        since[2],
        since[3],
        [Flap(*flap) for flap in flaps],
        set(spent),
        from_fabric,
        port_rate,
        rate_since_ns,
        downs,
        downs_ns,
    )
