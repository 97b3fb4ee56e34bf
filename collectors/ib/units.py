"""InfiniBand's words and numbers: link speeds, port states, counters, names of nodes.

Sources: InfiniBand Architecture Specification vol. 1 (14.2.5.6 PortInfo, 16.1.3.5 PortCounters,
16.1.4.11 PortCountersExtended); Linux drivers/infiniband/core/sysfs.c (names, units and widths
of the sysfs counters); rdma-core infiniband-diags (how the tools print them).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collectors.sample import Metric

# Lane: the signalling rate that PortInfo and the tools name, and the data rate that the kernel
# and `ibstat` multiply by the width. From FDR on, 64b/66b coding makes the two differ.
LANES: dict[str, tuple[float, float]] = {
    "SDR": (2.5e9, 2.5e9),
    "DDR": (5.0e9, 5.0e9),
    "QDR": (10.0e9, 10.0e9),
    "FDR10": (10.3125e9, 10.0e9),
    "FDR": (14.0625e9, 14.0e9),
    "EDR": (25.78125e9, 25.0e9),
    "HDR": (53.125e9, 50.0e9),
    "NDR": (106.25e9, 100.0e9),
    "XDR": (212.5e9, 200.0e9),
}
WIDTHS = frozenset({1, 2, 4, 8, 12})

# PortInfo.LinkWidthActive, .LinkSpeedActive, .LinkSpeedExtActive and .LinkSpeedExtActive2.
WIDTH_CODES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
SPEED_CODES = {1: "SDR", 2: "DDR", 4: "QDR"}
SPEED_EXTENDED_CODES = {1: "FDR", 2: "EDR", 4: "HDR", 8: "NDR"}
SPEED_EXTENDED2_CODES = {1: "XDR"}

DOWN, INIT, ARMED, ACTIVE = 1.0, 2.0, 3.0, 4.0
POLLING, DISABLED, LINK_UP = 2.0, 3.0, 5.0

STATES = {
    "noop": 0.0,
    "nop": 0.0,
    "down": DOWN,
    "init": INIT,
    "initialize": INIT,
    "initializing": INIT,
    "armed": ARMED,
    "active": ACTIVE,
    "activedefer": 5.0,
}
PHYSICAL_STATES = {
    "nostate": 0.0,
    "sleep": 1.0,
    "polling": POLLING,
    "disabled": DISABLED,
    "portconfigurationtraining": 4.0,
    "linkup": LINK_UP,
    "linkerrorrecovery": 6.0,
    "phytest": 7.0,
}
STATE_WORDS = {0.0: "no state", DOWN: "Down", INIT: "Init", ARMED: "Armed", ACTIVE: "Active"}
PHYSICAL_WORDS = {
    0.0: "no state",
    1.0: "Sleep",
    POLLING: "Polling",
    DISABLED: "Disabled",
    4.0: "Training",
    LINK_UP: "LinkUp",
    6.0: "LinkErrorRecovery",
    7.0: "Phy Test",
}


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of a port.

    ``tool`` is its name in PortCounters and in the tools, ``sysfs`` its file, ``field`` ours.
    ``bits`` is its width in PortCounters, where it stops at its ceiling (16.1.3.5); ``factor``
    turns its unit into ours: data counters count units of four octets on the wire and in sysfs.
    """

    tool: str
    sysfs: str
    field: str
    bits: int
    factor: int
    help: str

    @property
    def ceiling(self) -> int:
        """Where it stops in PortCounters."""
        return int((1 << self.bits) - 1)


COUNTERS: tuple[Counter, ...] = (
    Counter(
        "SymbolErrorCounter",
        "symbol_error",
        "symbol_errors_total",
        16,
        1,
        "Minor link errors seen by the receiver of this port.",
    ),
    Counter(
        "LinkErrorRecoveryCounter",
        "link_error_recovery",
        "link_recoveries_total",
        8,
        1,
        "Times the link was retrained with success.",
    ),
    Counter(
        "LinkDownedCounter",
        "link_downed",
        "link_downs_total",
        8,
        1,
        "Times retraining failed and the link went down.",
    ),
    Counter(
        "PortRcvErrors",
        "port_rcv_errors",
        "receive_errors_total",
        16,
        1,
        "Packets received with an error.",
    ),
    Counter(
        "PortRcvRemotePhysicalErrors",
        "port_rcv_remote_physical_errors",
        "receive_remote_physical_errors_total",
        16,
        1,
        "Packets that another link had marked bad: the fault is elsewhere.",
    ),
    Counter(
        "PortRcvSwitchRelayErrors",
        "port_rcv_switch_relay_errors",
        "receive_switch_relay_errors_total",
        16,
        1,
        "Packets that the switch could not relay (also routine with multicast).",
    ),
    Counter(
        "PortXmitDiscards",
        "port_xmit_discards",
        "transmit_discards_total",
        16,
        1,
        "Outbound packets dropped: the port was down or the receiver took none for too long.",
    ),
    Counter(
        "LocalLinkIntegrityErrors",
        "local_link_integrity_errors",
        "local_link_integrity_errors_total",
        4,
        1,
        "Times local physical errors passed their threshold.",
    ),
    Counter(
        "ExcessiveBufferOverrunErrors",
        "excessive_buffer_overrun_errors",
        "excessive_buffer_overruns_total",
        4,
        1,
        "Times buffers overran in a row: flow control of the neighbour is broken.",
    ),
    Counter(
        "VL15Dropped",
        "VL15_dropped",
        "vl15_drops_total",
        16,
        1,
        "Management packets dropped for want of buffers.",
    ),
    Counter(
        "PortXmitWait",
        "port_xmit_wait",
        "transmit_wait_total",
        32,
        1,
        "Ticks in which there was data to send and no credit to send it.",
    ),
    Counter(
        "PortRcvData", "port_rcv_data", "receive_bytes_total", 32, 4, "Octets received, all lanes."
    ),
    Counter(
        "PortXmitData", "port_xmit_data", "transmit_bytes_total", 32, 4, "Octets sent, all lanes."
    ),
)
BY_TOOL = {counter.tool: counter for counter in COUNTERS}
BY_SYSFS = {counter.sysfs: counter for counter in COUNTERS}
BY_FIELD = {counter.field: counter for counter in COUNTERS}

# Data counters in PortCounters are 32 bits wide: full within a second at 100 Gb/s. At their
# ceiling they say nothing; an error counter at its ceiling still says "at least this many".
DATA_FIELDS = frozenset({"receive_bytes_total", "transmit_bytes_total"})
# What perfquery called them before infiniband-diags 1.5.
OLD_NAMES = {
    "SymbolErrors": "SymbolErrorCounter",
    "LinkRecovers": "LinkErrorRecoveryCounter",
    "LinkDowned": "LinkDownedCounter",
    "RcvErrors": "PortRcvErrors",
    "RcvRemotePhysErrors": "PortRcvRemotePhysicalErrors",
    "RcvSwRelayErrors": "PortRcvSwitchRelayErrors",
    "XmtDiscards": "PortXmitDiscards",
    "LinkIntegrityErrors": "LocalLinkIntegrityErrors",
    "ExcBufOverrunErrors": "ExcessiveBufferOverrunErrors",
    "XmtData": "PortXmitData",
    "RcvData": "PortRcvData",
    "XmtWait": "PortXmitWait",
}

U64_CEILING = (1 << 64) - 1


def port_metrics(measurement: str) -> tuple[Metric, ...]:
    """What a port can tell, for ``ib_port`` (the node's side) or ``fabric_port``."""
    gauges = (
        Metric(measurement, "state", "state", "0 none, 1 down, 2 init, 3 armed, 4 active.", 0, 5),
        Metric(
            measurement,
            "physical_state",
            "state",
            "1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test.",
            0,
            7,
        ),
        Metric(
            measurement,
            "rate_bits_per_second",
            "gauge",
            "Data rate: lanes times the lane's data rate (4X EDR = 100e9).",
            0,
            1e13,
        ),
        Metric(measurement, "link_width", "gauge", "Active lanes.", 1, 12),
        Metric(
            measurement,
            "link_speed_bits_per_second",
            "gauge",
            "Signalling rate of one lane (EDR = 25.78125e9).",
            1e9,
            1e12,
        ),
    )
    counters = tuple(
        Metric(measurement, counter.field, "counter", counter.help, 0, 4.0 * U64_CEILING)
        for counter in COUNTERS
    )
    optics = (
        Metric(
            measurement,
            "transceiver_temperature_celsius",
            "gauge",
            "Temperature of the cable's or module's electronics.",
            -40,
            130,
        ),
        Metric(
            measurement,
            "receive_power_watts",
            "gauge",
            "Optical power received on the weakest lane.",
            0,
            1,
        ),
    )
    return gauges + counters + optics


def state_of(word: str) -> float | None:
    """The port state in ``Active``, ``4: ACTIVE``, ``ACTIVE`` ..., or None.

    >>> state_of("4: ACTIVE"), state_of("Initializing"), state_of("???")
    (4.0, 2.0, None)
    """
    return STATES.get(_plain(word))


def physical_state_of(word: str) -> float | None:
    """The physical state in ``LinkUp``, ``5: LinkUp``, ``LINK_UP`` ..., or None.

    >>> physical_state_of("LINK_UP"), physical_state_of("2: Polling")
    (5.0, 2.0)
    """
    return PHYSICAL_STATES.get(_plain(word))


def _plain(word: str) -> str:
    return re.sub(r"[^a-z]", "", word.partition(":")[2].lower() or word.lower())


_RATE = re.compile(
    r"\s*(\d{1,5}(?:\.\d{1,5})?)\s*G[bB]/sec(?:\s*\((\d{1,2})[xX](?:\s*([A-Za-z0-9]+))?\))?\s*\Z"
)


def rate_fields(text: str) -> dict[str, float] | None:
    """What a sysfs or ibstatus rate says, or None where it says nothing.

    >>> rate_fields("100 Gb/sec (4X EDR)")["rate_bits_per_second"]
    100000000000.0
    >>> rate_fields("0 GB/sec"), rate_fields("unknown")
    ({'rate_bits_per_second': 0.0}, None)
    """
    match = _RATE.match(text)
    if match is None:
        return None
    rate, width, name = match.groups()
    fields = {"rate_bits_per_second": float(rate) * 1e9}
    if width is not None and int(width) in WIDTHS:
        fields["link_width"] = float(width)
        lane = LANES.get((name or "").upper()) if name else None
        if lane is None and not name and float(rate) == 2.5 * int(width):
            lane = LANES["SDR"]  # kernels before 3.17 print no name for SDR
        if lane is not None:
            fields["link_speed_bits_per_second"] = lane[0]
    return fields


def lane_fields(width: int, name: str) -> dict[str, float]:
    """Width, lane speed and rate of a link of ``width`` lanes at the speed called ``name``."""
    fields: dict[str, float] = {}
    if width in WIDTHS:
        fields["link_width"] = float(width)
    lane = LANES.get(name.upper())
    if lane is not None:
        fields["link_speed_bits_per_second"] = lane[0]
        if width in WIDTHS:
            fields["rate_bits_per_second"] = width * lane[1]
    return fields


def lane_name(bits_per_second: float) -> str:
    """The name of a lane speed within 1 %, or ''. 10.0 Gb/s is QDR, 10.3125 is FDR10.

    >>> lane_name(25.78125e9), lane_name(3e9)
    ('EDR', '')
    """
    near = [
        (abs(signal - bits_per_second), name)
        for name, (signal, _) in LANES.items()
        if abs(signal - bits_per_second) <= 0.01 * signal
    ]
    return min(near)[1] if near else ""


def speed_words(fields: Mapping[str, float]) -> str:
    """``4X EDR (100 Gb/s)`` from the fields of a port, with what of it is known."""
    width = fields.get("link_width")
    name = lane_name(fields.get("link_speed_bits_per_second", 0.0))
    rate = fields.get("rate_bits_per_second")
    head = " ".join(part for part in (f"{width:g}X" if width else "", name) if part)
    tail = f"{rate / 1e9:g} Gb/s" if rate is not None else ""
    return f"{head} ({tail})" if head and tail else head or tail or "rate unknown"


def guid_of(text: str) -> str:
    """A GUID in the one form used in tags (``0x`` and 16 digits), or '' for what is none.

    >>> guid_of("b8ce:f603:0010:f950"), guid_of("0x1030"), guid_of("nil")
    ('0xb8cef6030010f950', '0x0000000000001030', '')
    """
    plain = text.strip().lower().removeprefix("0x").replace(":", "")
    if not plain or len(plain) > 16 or not re.fullmatch(r"[0-9a-f]+", plain):
        return ""
    return f"0x{int(plain, 16):016x}"


# How hosts name their adapters in a node description: rdma-ndd's default is "%h %d"
# ("gpu-0001 mlx5_0"), older scripts write "gpu-0001 HCA-1". A factory description
# ("MT4129 ConnectX7   Mellanox Technologies") names no host.
_DESCRIPTION = re.compile(
    r"(?P<node>[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252}))"
    r"(?:\s+(?P<device>HCA-\d+|[a-z][a-z0-9]{1,14}(?:_[a-z0-9]+){0,3}))?\Z"
)
_FACTORY = re.compile(r"mellanox|connectx|technologies|aggregation|nvidia|hfi\d", re.IGNORECASE)


def host_of(description: str, pattern: re.Pattern[str] | None = None) -> tuple[str, str]:
    """(node, device) that the description of a channel adapter names, '' for what it does not.

    ``pattern`` replaces the built-in form; its groups are ``node`` and ``device``.

    >>> host_of("gpu-0001.cluster mlx5_0"), host_of("MT4129 ConnectX7   Mellanox Technologies")
    (('gpu-0001', 'mlx5_0'), ('', ''))
    """
    text = description.strip()
    match = (pattern or _DESCRIPTION).match(text)
    if match is None or (pattern is None and _FACTORY.search(text)):
        return "", ""
    groups = match.groupdict()
    node = (groups.get("node") or "").split(".")[0] if pattern is None else groups.get("node") or ""
    return node, groups.get("device") or ""


def at_ceiling(counter: Counter, raw: int, bits: int | None = None) -> bool:
    """Whether ``raw`` is where the counter stops (``bits``: its width if not PortCounters')."""
    width = counter.bits if bits is None else bits
    return raw == (1 << width) - 1


def saturated_words(fields: Iterable[str]) -> str:
    """One line about counters that stand at their ceiling."""
    return "at its ceiling, so at least this many and no longer counting: " + ", ".join(fields)
