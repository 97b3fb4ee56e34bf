"""Where a link's fault sits: cable, adapter, switch port, switch, subnet manager or host.

Pure: what both ends say goes in, a :class:`Placement` with its reasons comes out. A receiver
counts what reaches it spoilt, so an error seen at one end was made by that receiver, by the cable
in that direction, or by the other end's transmitter; errors at both ends are the cable's. Meaning
of the counters: InfiniBand Architecture Specification vol. 1, 16.1.3.5; practice of reading both
ends: the ibqueryerrors and ibdiagnet manuals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from collectors.ib.units import (
    ACTIVE,
    DISABLED,
    DOWN,
    INIT,
    LINK_UP,
    PHYSICAL_WORDS,
    POLLING,
    STATE_WORDS,
    speed_words,
)

# A switch is blamed when at least this many of its hosts, and this share, are in trouble at once.
SWITCH_LEAST_HOSTS = 3
SWITCH_LEAST_RATIO = 0.25

RECEIVE_FIELDS = (
    "symbol_errors_total",
    "receive_errors_total",
    "local_link_integrity_errors_total",
)
# What a running link may count without being sick: a few errors in the window of comparison.
RECEIVE_LEAST_COUNT = 10.0
DISCARD_LEAST_COUNT = 100.0


class Part(StrEnum):
    """What is at fault."""

    NONE = "none"
    CABLE = "cable"
    ADAPTER = "adapter"
    SWITCH_PORT = "switch port"
    SWITCH = "switch"
    MANAGER = "subnet manager"
    HOST = "host"
    ELSEWHERE = "another link"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: its newest fields (of ``ib_port`` or ``fabric_port``), by how much each
    error counter has grown within the window of comparison, and whether it was heard at all."""

    fields: Mapping[str, float] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)
    heard: bool = False

    @property
    def state(self) -> float | None:
        """PortState: 1 down, 2 init, 3 armed, 4 active."""
        return self.fields.get("state")

    @property
    def physical(self) -> float | None:
        """PortPhysicalState: 2 polling, 3 disabled, 5 link up."""
        return self.fields.get("physical_state")

    def received_bad(self) -> float:
        """Errors that its receiver has counted within the window."""
        return sum(self.growth.get(name, 0.0) for name in RECEIVE_FIELDS)


@dataclass(frozen=True, slots=True)
class LinkView:
    """A host's link from both ends, and how its neighbours fare.

    ``switch_hosts`` hosts hang on the same switch, ``switch_sick_hosts`` of them (this one
    included) have trouble now; ``node_sick_ports`` of the node's ``node_ports`` have. The
    ``expected_rate_bits_per_second`` is 0 where none is known.
    """

    host: End = field(default_factory=End)
    switch: End = field(default_factory=End)
    switch_name: str = ""
    switch_port: int = 0
    switch_hosts: int = 0
    switch_sick_hosts: int = 0
    node_ports: int = 1
    node_sick_ports: int = 1
    manager_up: bool | None = None
    rebooted: bool = False
    expected_rate_bits_per_second: float = 0.0

    def at_switch(self) -> str:
        """``leaf-0-0 port 4``, or ``the switch`` where it is not known."""
        return f"{self.switch_name} port {self.switch_port}" if self.switch_name else "the switch"


Certainty = Literal["sure", "likely", "open"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The part at fault, how certain that is, why, and what to do."""

    part: Part
    certainty: Certainty
    text: str
    advice: str = ""
    reasons: tuple[str, ...] = ()


def whole_switch(view: LinkView) -> bool:
    """Whether so many hosts of the switch are in trouble that it is the switch."""
    return (
        view.switch_sick_hosts >= SWITCH_LEAST_HOSTS
        and view.switch_sick_hosts >= SWITCH_LEAST_RATIO * view.switch_hosts
    )


def place(view: LinkView) -> Placement:
    """Places the worst trouble of a link; ``Part.NONE`` when there is none."""
    for judge in (_switch, _manager, _down, _narrow, _errors, _flow):
        placement = judge(view)
        if placement is not None:
            return placement
    return Placement(Part.NONE, "sure", "nothing is wrong with this link")


def in_trouble(view: LinkView) -> bool:
    """Whether anything is wrong with this link, wherever its cause sits."""
    return any(judge(view) is not None for judge in (_manager, _down, _narrow, _errors, _flow))


def end_words(end: End) -> str:
    """``Active/LinkUp 4X NDR (400 Gb/s)``, ``not heard`` ..."""
    if not end.heard:
        return "not heard"
    if end.state is None:
        return "heard, its state not read"
    state = STATE_WORDS.get(end.state, f"state {end.state:g}")
    physical = PHYSICAL_WORDS.get(end.physical if end.physical is not None else -1.0, "?")
    if end.state == ACTIVE:
        return f"{state}/{physical} {speed_words(end.fields)}"
    return f"{state}/{physical}"


def _switch(view: LinkView) -> Placement | None:
    return switch_at_fault(view) if whole_switch(view) and in_trouble(view) else None


def switch_at_fault(view: LinkView) -> Placement:
    """That it is the switch, also once the link is up again."""
    count = f"{view.switch_sick_hosts} of the {view.switch_hosts} hosts on it"
    return Placement(
        Part.SWITCH,
        "likely",
        f"switch {view.switch_name or 'unknown'}: {count} have trouble at once",
        "look at the switch (power, fans, firmware, log) before any host",
        (count,),
    )


def _manager(view: LinkView) -> Placement | None:
    ends = [end for end in (view.host, view.switch) if end.heard]
    stuck = [end for end in ends if end.state == INIT and end.physical in (LINK_UP, None)]
    if not stuck:
        return None
    if view.manager_up is False:
        return Placement(
            Part.MANAGER,
            "sure",
            "the link is up and nobody configures it: no subnet manager answers",
            "start the subnet manager (opensm, or the one on the switch)",
            ("physically up, logically Init", "sminfo gets no answer"),
        )
    return Placement(
        Part.MANAGER,
        "open",
        "the link is up and stays in Init: the subnet manager does not configure it",
        "look for this port in the subnet manager's log; restart its driver on the host",
        ("physically up, logically Init", "a subnet manager answers"),
    )


def _down(view: LinkView) -> Placement | None:
    host, switch = view.host, view.switch
    host_down = host.heard and host.state is not None and host.state <= DOWN
    switch_down = switch.heard and switch.state == DOWN
    if not (host_down or switch_down):
        return None
    reasons = (f"host end: {end_words(host)}", f"{view.at_switch()}: {end_words(switch)}")
    if switch.physical == DISABLED:
        return Placement(
            Part.SWITCH_PORT,
            "sure",
            f"{view.at_switch()} is disabled: by a person, or by the subnet manager as unhealthy",
            "enable it (ibportstate LID PORT enable) once its cause is known",
            reasons,
        )
    if host.physical == DISABLED:
        return Placement(
            Part.HOST,
            "sure",
            "the adapter's port is disabled on the host",
            "enable it there (mlxlink --port_state UP, or restart the driver)",
            reasons,
        )
    if not host.heard:
        return Placement(
            Part.HOST,
            "open",
            "the switch sees no link, and the host's end is not heard: "
            "it may be off, restarting, or without its adapter",
            "see whether the host is up and lists the adapter (lspci, ibstat)",
            reasons,
        )
    if host_down and switch.heard and not switch_down:
        return Placement(
            Part.ADAPTER,
            "likely",
            "the switch sees a link, the adapter does not",
            "restart the driver or reset the adapter; replace it if that does not help",
            reasons,
        )
    if view.node_sick_ports >= 2 and view.node_sick_ports == view.node_ports:
        return Placement(
            Part.HOST,
            "likely",
            f"all {view.node_ports} links of this host are down at once",
            "restart the driver; look at power and PCIe before any cable",
            reasons,
        )
    certainty: Certainty = (
        "likely" if host.physical == POLLING and switch.physical == POLLING else "open"
    )
    return Placement(
        Part.CABLE,
        certainty,
        "each end looks for the other and finds none: cable, plug or module",
        "reseat the cable at both ends, then try another; then another switch port",
        reasons,
    )


def _narrow(view: LinkView) -> Placement | None:
    for end in (view.host, view.switch):
        rate = end.fields.get("rate_bits_per_second")
        if not end.heard or end.state != ACTIVE or rate is None:
            continue
        if view.expected_rate_bits_per_second and rate < 0.95 * view.expected_rate_bits_per_second:
            expected = speed_words({"rate_bits_per_second": view.expected_rate_bits_per_second})
            return Placement(
                Part.CABLE,
                "likely",
                f"the link runs at {speed_words(end.fields)} instead of {expected}: "
                "lanes are lost or it trained too slowly",
                "reseat or replace the cable; then see whether speed and width are limited",
                (f"host end: {end_words(view.host)}", f"switch end: {end_words(view.switch)}"),
            )
    return None


def _errors(view: LinkView) -> Placement | None:
    at_host, at_switch = view.host.received_bad(), view.switch.received_bad()
    host_bad, switch_bad = at_host >= RECEIVE_LEAST_COUNT, at_switch >= RECEIVE_LEAST_COUNT
    overruns = "excessive_buffer_overruns_total"
    reasons = (
        f"errors received at the host: {at_host:g}",
        f"errors received at {view.at_switch()}: {at_switch:g}",
    )
    if host_bad and switch_bad:
        return Placement(
            Part.CABLE,
            "likely",
            "both ends receive spoilt packets: the cable, or a plug in it",
            "clean and reseat the cable, then replace it",
            reasons,
        )
    if host_bad and view.node_sick_ports >= 2:
        return Placement(
            Part.HOST,
            "likely",
            "several adapters of this host receive spoilt packets, their switches do not",
            "look at the host: power, temperature, adapter firmware",
            reasons,
        )
    if host_bad or switch_bad:
        good, bad = ("host", view.at_switch()) if switch_bad else (view.at_switch(), "the host")
        sender = "the adapter's transmitter" if switch_bad else "the switch's transmitter"
        return Placement(
            Part.CABLE,
            "open",
            f"only {bad} receives spoilt packets: the cable in that direction, {sender}, "
            f"or the receiver",
            "replace the cable first; if the errors stay with the port, its end is at fault",
            (*reasons, f"{good} receives well"),
        )
    if view.switch.growth.get(overruns, 0.0) > 0:
        return Placement(
            Part.ADAPTER,
            "likely",
            "the adapter sends more than the switch gave it room for",
            "update the adapter's firmware or replace it",
            (f"{view.at_switch()}: {overruns} has grown",),
        )
    if view.host.growth.get(overruns, 0.0) > 0:
        return Placement(
            Part.SWITCH_PORT,
            "likely",
            "the switch sends more than the adapter gave it room for",
            "move the cable to another switch port",
            (f"host end: {overruns} has grown",),
        )
    return None


def _flow(view: LinkView) -> Placement | None:
    remote = "receive_remote_physical_errors_total"
    if max(view.host.growth.get(remote, 0.0), view.switch.growth.get(remote, 0.0)) > 0:
        return Placement(
            Part.ELSEWHERE,
            "sure",
            "packets arrive that another link has already marked bad",
            "look for receive errors on the links upstream",
            (f"{remote} has grown",),
        )
    discards = view.switch.growth.get("transmit_discards_total", 0.0)
    if discards >= DISCARD_LEAST_COUNT:
        return Placement(
            Part.HOST,
            "open",
            f"{view.at_switch()} dropped {discards:g} packets that this host did not take in time",
            "look at the host's PCIe width and speed, and at congestion",
            (f"transmit_discards_total grew by {discards:g}, without receive errors",),
        )
    return None
