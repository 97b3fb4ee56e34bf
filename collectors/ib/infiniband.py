"""The ``infiniband`` source: the ports of this node's InfiniBand and RoCE adapters.

One ``ib_port`` point per port and cycle, from sysfs, and one ``ib_plane`` per plane of a link that
has several; ``event`` points of kind ``link`` when something changed (``down``, ``up``, ``flap``,
``rate``, ``no_sm``, ``missing``, ``saturated``, ``sm_changed``, ``ipoib_down``, ``ipoib_up``, and
``plane_...`` for what a single plane did), and of kind ``inventory`` and code ``port``, at the
start, on change and daily: which GUID a port has in the fabric. Ports that are no part of the
fabric of the jobs are left out by rule: virtual functions, bonded interfaces, slow or management
Ethernet ports.
"""

from __future__ import annotations

import fnmatch
import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from collectors.command import Runner
from collectors.events import EVENT_METRICS, INFO, event, spaced
from collectors.ib.memory import Learning, PortMemory, load_memory, remember, vanished
from collectors.ib.perf import parse_perfquery
from collectors.ib.planes import PLANE_METRICS, fold, tell_planes, with_planes
from collectors.ib.readers import Readers
from collectors.ib.sysfs import CLASS, HW_METRICS, PortReading, devices, read_device, read_text
from collectors.ib.transceiver import module_fields
from collectors.ib.units import ACTIVE, port_metrics
from collectors.options import Options as BaseOptions
from collectors.sample import (
    Batch,
    Context,
    Metric,
    Problem,
    Sample,
    Source,
    SourceUnavailable,
    sample,
)

METRICS: tuple[Metric, ...] = (
    *port_metrics("ib_port"),
    *HW_METRICS,
    *PLANE_METRICS,
    *port_metrics("ib_plane"),
    *(replace(one, measurement="ib_plane") for one in HW_METRICS),
    *EVENT_METRICS,
)

STATE_FILE = "ports.json"
INVENTORY_NS = 86_400 * 1_000_000_000
STATE_LIMIT_BYTES = 1 << 20


class Options(BaseOptions):
    """Which ports are watched, and when one counts as expected.

    ``expected`` declares ports in use (``mlx5_0`` or ``mlx5_0/1``); others become expected once
    they were active for ``learn_seconds``. ``ignore`` takes patterns for devices or ports that
    are none of our business. Of Ethernet ports those are watched whose best rate reaches
    ``ethernet_rate_bits_per_second`` and that carry no default route; bonded ones only with
    ``bonded``. ``transceivers`` names the tool that is asked about cables, one port a cycle and
    each port every ``transceiver_seconds``. ``perfquery`` allows to ask it for data counters
    where the kernel has none of 64 bits. ``planes`` takes patterns for RoCE devices whose ports are
    planes of one link (``mlx5_*``): it is watched as DEVICE/0. Planes of InfiniBand are found.
    """

    expected: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    learn_seconds: float = Field(default=600.0, ge=0)
    ethernet_rate_bits_per_second: float = Field(default=100e9, ge=0)
    bonded: bool = False
    hung_seconds: float = Field(default=3.0, gt=0)
    transceivers: Literal["off", "ethtool", "mlxlink"] = "off"
    transceiver_seconds: float = Field(default=300.0, ge=10)
    perfquery: bool = True
    planes: tuple[str, ...] = ()


def make(options: Options, context: Context) -> Source:
    """The source of this node."""
    return Infiniband(options, context, Runner())


def left_out(
    reading: PortReading, memory: PortMemory | None, options: Options, default_route: str
) -> str:
    """Why this port is not watched, or '' when it is."""
    if any(
        fnmatch.fnmatchcase(name, pattern)
        for name in (reading.device, reading.name)
        for pattern in options.ignore
    ):
        return "ignored by the configuration"
    if declared(reading.device, reading.name, options):
        return ""
    if reading.virtual:
        return "virtual function"
    if not reading.ethernet:
        return ""
    if not options.bonded and any(one.bonded for one in reading.netdevs):
        return "bonded"
    if default_route and any(one.name == default_route for one in reading.netdevs):
        return "carries the default route: management"
    rates = [memory.best_rate_bits_per_second if memory else 0.0]
    if reading.fields.get("state") == ACTIVE:
        rates.append(reading.fields.get("rate_bits_per_second", 0.0))
    if max(rates) < options.ethernet_rate_bits_per_second:
        return "slow Ethernet, or never active"
    return ""


def declared(device: str, name: str, options: Options) -> bool:
    """Whether the configuration says that this port is in use."""
    return device in options.expected or name in options.expected


class Infiniband:
    """Reads all ports, remembers them, and tells what changed."""

    name = "infiniband"

    def __init__(self, options: Options, context: Context, runner: Runner) -> None:
        self.period_seconds = options.period_seconds
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._runner = runner
        self._readers: Readers[list[PortReading]] = Readers(
            lambda device: read_device(context.root, device), options.hung_seconds
        )
        self._memory: dict[str, PortMemory] | None = None
        self._kept: dict[str, PortMemory] = {}
        self._asked_ns: dict[str, int] = {}
        self._told_ns: dict[str, tuple[str, int]] = {}
        self._perfquery = options.perfquery

    def collect(self, now_ns: int) -> Batch:
        """One reading of every port. Raises SourceUnavailable where there is no adapter."""
        if self._memory is None:
            self._memory = self._load()
        try:
            names = devices(self._context.root)
        except OSError as error:
            names = []
            if not self._memory:
                raise SourceUnavailable(
                    f"/{CLASS}: {error.strerror or error}: "
                    "is there an adapter, and is its driver loaded?"
                ) from error
        if not names and not self._memory:
            raise SourceUnavailable(f"/{CLASS} is empty: no adapter, or its driver is not loaded")
        answers, errors = self._readers.ask(names, self._options.deadline_seconds * 0.7)
        problems = [
            Problem(f"{name} cannot be read: {type(error).__name__}: {error}")
            for name, error in errors.items()
        ]
        hung = self._readers.hung_seconds()
        problems += [
            Problem(f"{name} does not answer since {seconds:.0f} s: its driver or firmware hangs")
            for name, seconds in hung.items()
        ]
        read = [port for ports in answers.values() for port in ports]
        links = fold(read, self._options.planes)
        samples = self._tell(links, now_ns)
        unread = (set(names) - set(answers)) | set(errors)
        samples += self._gone({port.name for port in [*read, *links]}, unread, now_ns)
        problems += [problem for ports in answers.values() for p in ports for problem in p.problems]
        self._save()
        if names and not answers:
            stuck = ", ".join(sorted(unread))
            why = f"no adapter answers: {stuck} hang or cannot be read"
            if not samples:
                raise SourceUnavailable(why)
            # That another one is gone is remembered by now, and told this once.
            return Batch(self.name, tuple(spaced(samples)), tuple(problems), False, why)
        fault = f"hung: {', '.join(sorted(hung))}" if hung else ""
        return Batch(self.name, tuple(spaced(samples)), tuple(problems), fault=fault)

    def close(self) -> None:
        """Nothing is held open; a thread that waits for the kernel ends when the kernel lets it."""

    # ---- inside ----------------------------------------------------------------------------

    def _tell(self, readings: list[PortReading], now_ns: int) -> list[Sample]:
        memory = self._memory if self._memory is not None else {}
        route = self._default_route()
        points: list[Sample] = []
        events: list[Sample] = []
        planes: list[Sample] = []
        watched: list[PortReading] = []
        for reading in readings:
            before = memory.get(reading.name)
            if left_out(reading, before, self._options, route) or not reading.fields:
                continue
            reading = with_planes(
                reading, memory, before.best_rate_bits_per_second if before else 0.0
            )
            watched.append(reading)
            learning = Learning(
                declared(reading.device, reading.name, self._options), self._options.learn_seconds
            )
            memory[reading.name], told = remember(
                self._context.node, reading, before, learning, now_ns
            )
            codes = frozenset(one.tag("code") for one in told)
            of_planes, their_events = tell_planes(
                self._context.node, reading, memory, self._options.learn_seconds, codes, now_ns
            )
            planes += of_planes
            events += told + their_events
        events += self._inventory(watched, now_ns)
        optics = self._optics(watched, now_ns)
        for reading in watched:
            more = optics.get(reading.name, {})
            fields = {**self._data_counters(reading, now_ns), **reading.fields, **more}
            tags = {"device": reading.device, "port": reading.port}
            points.append(sample("ib_port", now_ns, fields, node=self._context.node, **tags))
        return points + planes + events

    def _inventory(self, watched: list[PortReading], now_ns: int) -> list[Sample]:
        """Which GUID each port has: the fabric knows ports by nothing else for sure."""
        told: list[Sample] = []
        for reading in watched:
            before, at_ns = self._told_ns.get(reading.name, ("", 0))
            guid = reading.port_guid
            if guid and (guid != before or now_ns - at_ns >= INVENTORY_NS):
                self._told_ns[reading.name] = (guid, now_ns)
                text = f"guid={guid}"
                node, name = self._context.node, reading.name
                told.append(
                    event(node, "inventory", "port", now_ns, text=text, severity=INFO, device=name)
                )
        return told

    def _data_counters(self, reading: PortReading, now_ns: int) -> dict[str, float]:
        """Data counters of 64 bits from perfquery, where sysfs shows none that still count."""
        needed = "port_rcv_data" in reading.saturated or "port_xmit_data" in reading.saturated
        active = reading.fields.get("state") == ACTIVE
        if not (needed and active and self._perfquery) or reading.ethernet:
            return {}
        result = self._runner.run(
            ["perfquery", "-x", "-C", reading.device, "-P", reading.port],
            deadline_seconds=min(1.0, self._options.deadline_seconds * 0.1),
        )
        if result.status == "missing":
            self._perfquery = False
        points, _ = parse_perfquery(result.text() if result.ok else "", "", now_ns)
        if len(points) != 1:
            return {}
        found = points[0].fields
        wanted = ("receive_bytes_total", "transmit_bytes_total")
        return {
            name: value
            for name in wanted
            if isinstance(value := found.get(name), float) and name not in reading.fields
        }

    def _gone(self, seen: set[str], unread: set[str], now_ns: int) -> list[Sample]:
        """Events of ports that are remembered and no longer listed."""
        memory = self._memory if self._memory is not None else {}
        told: list[Sample] = []
        for name, before in list(memory.items()):
            if "." in name.partition("/")[2]:
                continue  # a plane: what it was is told with its link
            if name not in seen and name.partition("/")[0] not in unread:
                memory[name], events = vanished(self._context.node, name, before, now_ns)
                told += events
        return told

    def _optics(self, watched: list[PortReading], now_ns: int) -> dict[str, dict[str, float]]:
        """Asks about the cable whose turn it is: at most one a cycle, it takes up to a second."""
        if self._options.transceivers == "off":
            return {}
        due_ns = now_ns - int(self._options.transceiver_seconds * 1e9)
        for reading in watched:
            target = self._target(reading)
            if not target or self._asked_ns.get(reading.name, due_ns) > due_ns:
                continue
            self._asked_ns[reading.name] = now_ns
            result = self._runner.run(
                target, deadline_seconds=min(2.0, self._options.deadline_seconds * 0.2)
            )
            return {reading.name: module_fields(result.text())} if result.ok else {}
        return {}

    def _target(self, reading: PortReading) -> list[str]:
        if self._options.transceivers == "mlxlink":
            return ["mlxlink", "-d", reading.address, "-m"] if reading.address else []
        return ["ethtool", "-m", reading.netdevs[0].name] if reading.netdevs else []

    def _default_route(self) -> str:
        """The interface of the IPv4 default route (proc(5), /proc/net/route), '' if none."""
        text = read_text(self._context.root / "proc/net/route") or ""
        for line in text.splitlines()[1:]:
            words = line.split()
            if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
                return words[0]
        return ""

    def _boot_id(self) -> str:
        return read_text(self._context.root / "proc/sys/kernel/random/boot_id") or ""

    def _load(self) -> dict[str, PortMemory]:
        """What an earlier run remembered. After a reboot, counters start anew."""
        try:
            with open(self._path(), "rb") as file:
                data = json.loads(file.read(STATE_LIMIT_BYTES))
            ports = data["ports"]
            found = {str(name): load_memory(one) for name, one in ports.items()}
            rebooted = data["boot_id"] != self._boot_id()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        kept = {name: memory for name, memory in found.items() if memory is not None}
        if rebooted:
            kept = {
                name: replace(
                    memory, state=0.0, link_downs=None, carrier_downs=None, active_since_ns=0
                )
                for name, memory in kept.items()
            }
        self._kept = {} if rebooted else dict(kept)
        return kept

    def _save(self) -> None:
        """Writes what is remembered, when it changed; a full disk costs only this."""
        if self._memory is None or self._memory == self._kept:
            return
        data = {
            "boot_id": self._boot_id(),
            "ports": {name: memory.dump() for name, memory in self._memory.items()},
        }
        path = self._path()
        try:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(data), encoding="ascii")
            part.replace(path)
        except OSError:
            return
        self._kept = dict(self._memory)

    def _path(self) -> Path:
        return self._context.state_dir / STATE_FILE
