"""Why is this job slow? Pure: what its GPUs and hosts did within a window, in findings.

Each finding names the node and the part, what was read there, and what the job's other parts
read. The limits are wide: what is told should be worth a look. A job that waits for one of its
GPUs shows it: the others are at full utilisation, for they spin, and take little power.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# Below that a GPU does nothing; above that it is busy.
IDLE, BUSY = 0.05, 0.5
# A clock or a power below this share of the job's median stands out.
CLOCK_SHARE, POWER_SHARE = 0.9, 0.5
# Share of readings in which a cause of throttling must be told.
THROTTLED = 0.1
# Shares of time in which something waits (PSI, "some").
WAITS_CPU, WAITS_IO, WAITS_MEMORY = 0.3, 0.2, 0.1

_CAP = "throttle_sw_power_cap"
CAUSES: Mapping[str, str] = {
    "throttle_hw_thermal": "heat (hardware)",
    "throttle_sw_thermal": "heat",
    "throttle_hw_power_brake": "the power brake",
    "throttle_sw_power_cap": "its power limit",
    "throttle_hw_slowdown": "a hardware slowdown",
}


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU's means within the window; None: not read. ``throttled``: share by cause."""

    node: str
    gpu: str
    utilization_ratio: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_hertz: float | None = None
    temperature_celsius: float | None = None
    pcie_link_width: float | None = None
    throttled: Mapping[str, float] | None = None

    @property
    def name(self) -> str:
        """``n3 gpu2``."""
        return f"{self.node} gpu{self.gpu}"


@dataclass(frozen=True, slots=True)
class HostUse:
    """How one host's processes waited within the window: shares of time."""

    node: str
    cpu_ratio: float | None = None
    io_ratio: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PortUse:
    """One InfiniBand port within the window."""

    node: str
    port: str
    rate_bits_per_second: float | None = None
    errors: float = 0.0  # how far its error counters grew
    downs: float = 0.0  # how often it went down


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that may slow the job down: a word, where, and what was read there."""

    kind: str
    where: str
    text: str


def findings(
    gpus: Sequence[GpuUse], hosts: Iterable[HostUse] = (), ports: Iterable[PortUse] = ()
) -> list[Finding]:
    """What stands out, the surest first."""
    read = [one for one in gpus if one.utilization_ratio is not None]
    found = [*_idle(read), *_clocks(read), *_waiting(read), *_widths(gpus), *_ports(list(ports))]
    found += _starved(read, list(hosts))
    return found or _uneven(read) or _low(read)


def _use(one: GpuUse) -> float:
    return one.utilization_ratio or 0.0


def _idle(gpus: Sequence[GpuUse]) -> list[Finding]:
    if not gpus:
        return []
    idle = [one for one in gpus if _use(one) < IDLE]
    if len(idle) == len(gpus):
        return [Finding("idle", "all", f"none of its {len(gpus)} GPUs does anything")]
    others = median([_use(one) for one in gpus if _use(one) >= IDLE])
    if others < 4 * IDLE:
        return []
    return [
        Finding("idle", one.name, f"does nothing, while the others are at {others:.0%}")
        for one in idle
    ]


def _clocks(gpus: Sequence[GpuUse]) -> list[Finding]:
    busy = [one for one in gpus if _use(one) >= BUSY and one.sm_clock_hertz]
    if len(busy) < 2:
        return [_throttle(one) for one in busy if _cause(one, capped=False)]
    usual = median([one.sm_clock_hertz or 0.0 for one in busy])
    found = []
    for one in busy:
        clock = one.sm_clock_hertz or 0.0
        if clock < CLOCK_SHARE * usual:
            cause = _cause(one) or "no cause is told"
            text = (
                f"runs at {clock / 1e6:.0f} MHz, the others at {usual / 1e6:.0f}: {cause}; "
                "the others wait for it in each step"
            )
            found.append(Finding("slow_gpu", one.name, text + _heat(one)))
    # That all work at their power limit is what one wants of them.
    slowed = [one for one in busy if _cause(one, capped=False)]
    if not found and len(slowed) * 2 > len(busy):
        cause = _cause(slowed[0], capped=False)
        text = f"{len(slowed)} of {len(busy)} busy GPUs are slowed by {cause}"
        found.append(Finding("throttled", "all", text))
    return found


def _throttle(one: GpuUse) -> Finding:
    return Finding("throttled", one.name, f"is slowed by {_cause(one, capped=False)}{_heat(one)}")


def _cause(one: GpuUse, capped: bool = True) -> str:
    """What slows it; ``capped``: its power limit counts, too."""
    told = (one.throttled or {}).items()
    shares = {
        name: share for name, share in told if share >= THROTTLED and (capped or name != _CAP)
    }
    worst = max(shares, key=lambda name: (name != _CAP, shares[name]), default="")
    return f"{CAUSES[worst]} in {shares[worst]:.0%} of the readings" if worst else ""


def _heat(one: GpuUse) -> str:
    return f" ({one.temperature_celsius:.0f} C)" if one.temperature_celsius is not None else ""


def _waiting(gpus: Sequence[GpuUse]) -> list[Finding]:
    """Most spin at full utilisation with little power, a few work: those are waited for."""
    busy = [
        one
        for one in gpus
        if _use(one) >= 0.9 and one.power_watts is not None and one.power_limit_watts
    ]
    if len(busy) < 4:
        return []
    usual = median([one.power_watts or 0.0 for one in busy])
    limit = median([one.power_limit_watts or 0.0 for one in busy])
    if usual > POWER_SHARE * limit:
        return []
    few = [one for one in busy if (one.power_watts or 0.0) > 1.3 * usual]
    if not few or len(few) * 4 > len(busy):
        text = (
            f"its GPUs say that they are busy and take {usual:.0f} W of {limit:.0f}: they wait, "
            "for communication or for data"
        )
        return [Finding("waits", "all", text)]
    return [
        Finding(
            "straggler", one.name, f"works ({one.power_watts:.0f} W) while the others wait for it "
            f"({usual:.0f} W at full utilisation)",
        )
        for one in few
    ]  # fmt: skip


def _widths(gpus: Sequence[GpuUse]) -> list[Finding]:
    widths = [one.pcie_link_width for one in gpus if one.pcie_link_width]
    usual = median(widths) if widths else 0.0
    return [
        Finding(
            "pcie", one.name, f"has {one.pcie_link_width:.0f} PCIe lanes, the others {usual:.0f}"
        )
        for one in gpus
        if one.pcie_link_width and one.pcie_link_width < usual
    ]


def _ports(ports: Sequence[PortUse]) -> list[Finding]:
    rates = [one.rate_bits_per_second for one in ports if one.rate_bits_per_second]
    best = max(rates, default=0.0)
    found = []
    for one in ports:
        where = f"{one.node} {one.port}"
        if one.downs:
            found.append(Finding("link", where, f"its link went down {one.downs:.0f} times"))
        rate = one.rate_bits_per_second
        if rate and rate < 0.95 * best:
            text = f"runs at {rate / 1e9:.0f} Gb/s, the best at {best / 1e9:.0f}"
            found.append(Finding("link", where, text))
        if one.errors:
            text = f"its error counters grew by {one.errors:.0f} (tocsin diagnose ib {one.node})"
            found.append(Finding("link", where, text))
    return found


def _starved(gpus: Sequence[GpuUse], hosts: Sequence[HostUse]) -> list[Finding]:
    """Only where GPUs have time to spare: busy ones starve of nothing."""
    found = []
    for host in hosts:
        own = [_use(one) for one in gpus if one.node == host.node]
        if not own or median(own) >= 0.8:
            continue
        spare = f"its GPUs are at {median(own):.0%}"
        for ratio, limit, kind, words in (
            (host.io_ratio, WAITS_IO, "io", "its processes wait for files or network storage"),
            (
                host.cpu_ratio,
                WAITS_CPU,
                "cpu",
                "its processes wait for a processor (data?)",
            ),
            (host.memory_ratio, WAITS_MEMORY, "memory", "its processes wait for memory"),
        ):
            if ratio is not None and ratio >= limit:
                found.append(
                    Finding(kind, host.node, f"{words} in {ratio:.0%} of the time; {spare}")
                )
    return found


def _uneven(gpus: Sequence[GpuUse]) -> list[Finding]:
    if len(gpus) < 2:
        return []
    low, high = min(gpus, key=_use), max(gpus, key=_use)
    if _use(high) - _use(low) < 0.3:
        return []
    text = f"is at {_use(low):.0%}, {high.name} at {_use(high):.0%}: the work is not even"
    return [Finding("uneven", low.name, text)]


def _low(gpus: Sequence[GpuUse]) -> list[Finding]:
    usual = median([_use(one) for one in gpus]) if gpus else 1.0
    if usual >= BUSY:
        return []
    text = f"its GPUs are at {usual:.0%}: little work for them, or a wait that is not read here"
    return [Finding("low", "all", text)]
