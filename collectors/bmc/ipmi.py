"""BMCs over IPMI 2.0 (RMCP+): sensors, chassis, power and new entries of the System Event Log.

For the head. Thousands of BMCs are read by one thread, each in a session of its own that is
closed in the end; no outside program is started, so nothing can pile up and no password comes
near a command line. BMCs with which this finds no common words are read by FreeIPMI, in batches.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from collectors.bmc import ipmi_log, ipmi_read
from collectors.bmc import points as bmc
from collectors.bmc.claims import claims_beside
from collectors.bmc.cursors import CursorFile
from collectors.bmc.fleet import Fleet, Poll, Rule
from collectors.bmc.ipmi_batches import Batches, FreeIpmi
from collectors.bmc.ipmi_faults import ONLY_1_5
from collectors.bmc.ipmi_free import OLD_DRIVER, FreeBmc
from collectors.bmc.ipmi_lan import FOREIGN, BmcError, Lan, Login, Timing
from collectors.bmc.ipmi_packets import PRIVILEGES, SUITES
from collectors.bmc.ipmi_records import BMC_OWNER, SensorRecord
from collectors.bmc.points import Readings
from collectors.bmc.targets import (
    BmcOptions,
    Group,
    NoSecret,
    Secrets,
    Target,
    secrets_of,
    targets,
    tick_seconds,
)
from collectors.command import Runner
from collectors.events import spaced
from collectors.sample import Batch, Context, Problem, Sample

NAME = "ipmi"
PORT = 623
METRICS = bmc.METRICS

# A BMC ends a session that is idle for 60 s (IPMI 2.0, section 6.11.13); below this period it is
# kept open between rounds.
KEEP_SECONDS = 45.0
STATE_FILE = "ipmi-sel.json"


class IpmiGroup(Group):
    """A group of IPMI BMCs: ``tool`` where it is another than that of the rest."""

    tool: Literal["", "auto", "native", "freeipmi"] = ""


class Options(BmcOptions):
    """Options of the source ``ipmi``.

    ``tool``: ``native`` reads by our own RMCP+, ``freeipmi`` by ipmi-sensors and ipmi-sel,
    ``auto`` by the second only where the first finds no common words with a BMC.
    """

    groups: Mapping[str, IpmiGroup] = Field(default_factory=dict)
    tool: Literal["auto", "native", "freeipmi"] = "auto"
    freeipmi: FreeIpmi = FreeIpmi()
    privilege: str = "user"
    cipher_suites: tuple[int, ...] = (17, 3)
    timeout_seconds: float = Field(default=1.0, gt=0, le=60)
    tries: int = Field(default=4, ge=1, le=20)
    sel: bool = True

    @field_validator("privilege")
    @classmethod
    def _known_privilege(cls, value: str) -> str:
        if value not in PRIVILEGES:
            raise ValueError(f"one of {', '.join(PRIVILEGES)}")
        return value

    @field_validator("cipher_suites")
    @classmethod
    def _known_suites(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or any(one not in SUITES for one in value):
            raise ValueError(f"some of {', '.join(map(str, sorted(SUITES)))}")
        return value

    def tool_of(self, target: Target) -> str:
        """How a BMC is read."""
        group = self.groups.get(target.group)
        return (group.tool if group else "") or self.tool


class _Visitor:
    """One BMC: its session, what is known of its sensors, where we are in its log."""

    def __init__(
        self, target: Target, options: Options, context: Context, batches: Batches, held: object
    ) -> None:
        self.target = target
        self.cursor = ipmi_log.Cursor.load(held)
        self._free = FreeBmc(target, batches, options.log_backlog, options.sel)
        self._free.load(held)
        self._tool = options.tool_of(target)
        self._by_free = self._tool == "freeipmi" or (
            self._tool == "auto" and self._free.seen is not None
        )
        self._options = options
        self._context = context
        self._known = ipmi_read.Knowledge()
        self._secrets: Secrets | None = None
        self._suite = 0
        self._used_seconds = 0.0
        self._lan: Lan | None = None

    def changed(self) -> bool:
        try:
            return secrets_of(self._options.group(self.target.group)) != self._secrets
        except NoSecret:
            return False

    def dump(self) -> object:
        """Where the log stands, as JSON data; None before it was read."""
        if self._by_free:
            return self._free.dump()
        return self.cursor.dump() if self.cursor.started else None

    async def visit(self, poll: Poll) -> None:
        """Reads by the way that works with this BMC."""
        try:
            await self._visit(poll)
        finally:
            poll.place = self.dump()

    async def _visit(self, poll: Poll) -> None:
        if not self._by_free:
            await self._native(poll)
            if poll.kind != FOREIGN:
                return
            if self._tool != "auto":
                poll.fault += ': tool = "auto" has FreeIPMI read it'
                return
            if not shutil.which("ipmi-sensors"):
                poll.fault += ": install freeipmi-tools, which may understand it"
                return
            if poll.fault == ONLY_1_5:
                self._free.driver = OLD_DRIVER
            why, poll.fault, poll.kind = poll.fault, "", ""
            poll.problems.append(Problem(f"{self.target.node}: read by FreeIPMI: {why}"))
        try:
            self._secrets = secrets_of(self._options.group(self.target.group))
        except NoSecret as error:
            poll.fault, poll.kind = str(error), "login"
            return
        await self._free.visit(self._secrets, poll, self._context.now_ns())
        self._by_free = self._tool == "freeipmi" or not poll.fault

    async def _native(self, poll: Poll) -> None:
        node = self.target.node
        found = Readings()
        try:
            lan = await self._session()
            now_ns = self._context.now_ns()
            try:
                await self._read(lan, node, found, poll, now_ns)
            finally:
                poll.samples[:0] = found.samples(now_ns)
                poll.problems.extend(
                    Problem(f"{node}: {one.problem}", one.line) for one in found.problems
                )
        except NoSecret as error:
            poll.fault, poll.kind = str(error), "login"
        except BmcError as error:
            poll.fault, poll.kind = str(error), error.kind
        except asyncio.CancelledError:
            # Out of time: nobody waits for an answer, but the BMC is told that we are gone.
            if self._lan is not None:
                await self._lan.drop()
                self._lan = None
            raise
        self._used_seconds = time.monotonic()
        if self._lan is not None and (poll.fault or self._options.period_seconds > KEEP_SECONDS):
            await self.leave()

    async def _session(self) -> Lan:
        secrets = secrets_of(self._options.group(self.target.group))
        lan = self._lan
        idle_seconds = time.monotonic() - self._used_seconds
        stale = lan is not None and (not lan.is_open or idle_seconds > KEEP_SECONDS)
        if lan is not None and (secrets != self._secrets or stale):
            await self.leave()
            lan = None
        if lan is None:
            self._secrets = secrets
            login = Login(
                secrets.user, secrets.password, secrets.key, PRIVILEGES[self._options.privilege]
            )
            timing = Timing(self._options.timeout_seconds, self._options.tries)
            lan = Lan(self.target.address, self.target.port or PORT, login, timing)
            lan.suite = self._suite
            self._lan = lan
            await lan.open(self._options.cipher_suites)
            self._suite = lan.suite
        return lan

    async def _read(self, lan: Lan, node: str, found: Readings, poll: Poll, now_ns: int) -> None:
        await ipmi_read.learn(lan, self._known)
        # The log first: it is short, and it says what the sensors no longer show.
        if self._options.sel:
            entries: list[Sample] = []
            try:
                await ipmi_log.read_new(
                    lan,
                    self.cursor,
                    node,
                    self._by_number,
                    now_ns,
                    self._options.log_entries_per_round,
                    self._options.log_backlog,
                    entries,
                )
            except BmcError as error:
                asked = self.cursor.asked
                if asked and self._known.again_at("entry", asked):
                    self.cursor.pass_over()
                    found.problem(f"entry 0x{asked:x} of the SEL is left out: {error}", "SEL")
                raise
            finally:  # those before it fell silent are not read again
                poll.samples.extend(spaced(entries))
        await ipmi_read.chassis(lan, self._known, node, found)
        await ipmi_read.power(lan, self._known, node, found)
        await ipmi_read.sensors(lan, self._known, node, found)

    def _by_number(self) -> dict[tuple[int, int], SensorRecord]:
        return {(one.number, BMC_OWNER): one for one in self._known.sensors}

    async def leave(self) -> None:
        lan, self._lan = self._lan, None
        if lan is not None:
            await lan.close()


class Ipmi:
    """The source. Where the logs stand is kept in ``state_dir``, so that no entry comes twice."""

    name = NAME

    def __init__(self, options: Options, context: Context) -> None:
        self.period_seconds = tick_seconds(options)
        self.deadline_seconds = options.deadline_seconds
        self._options = options
        self._context = context
        self._fleet: Fleet | None = None
        self._cursors = CursorFile(context.state_dir / STATE_FILE)
        self._claims = claims_beside(context.state_dir)
        self._runner = Runner()

    def collect(self, now_ns: int) -> Batch:
        """One round over all BMCs; see :class:`collectors.bmc.fleet.Fleet`."""
        if self._fleet is None:
            self._fleet = self._start()
        # What the last round handed over has been taken: only now is it not read again.
        self._cursors.save()
        batch = self._fleet.collect(now_ns)
        self._cursors.pending = dict(self._fleet.places)
        return batch

    def close(self) -> None:
        """Closes every session. May be called twice."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.close()
            self._cursors.save()

    def _start(self) -> Fleet:
        held = self._cursors.load()
        options, folder = self._options, self._context.state_dir
        batches = Batches(options.freeipmi, options.privilege, folder, self._runner)

        def make(target: Target) -> _Visitor:
            known = held.get(target.node)
            return _Visitor(target, self._options, self._context, batches, known)

        listed = targets(self._options)
        claims = self._claims

        def free(node: str) -> bool:
            return not claims.held(node)

        rule = Rule(free, free, claims.stand_in)
        tick_seconds = self.period_seconds
        fleet = Fleet(NAME, listed, make, self._options, tick_seconds=tick_seconds, rule=rule)
        fleet.places.update({one.node: held[one.node] for one in listed if one.node in held})
        return fleet


def make(options: Options, context: Context) -> Ipmi:
    """The source ``ipmi`` for the head."""
    return Ipmi(options, context)
