"""BMCs over Redfish: sensors, fans, supplies, leaks, GPU baseboards and new log entries.

For the head. One BMC gets one request at a time over one kept connection and one session, which is
closed in the end. What a BMC offers is found out once and again every few hours.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
from pydantic import Field, model_validator

from collectors.bmc import points as bmc
from collectors.bmc.claims import claims_beside
from collectors.bmc.cursors import CursorFile
from collectors.bmc.fleet import Fleet, Poll, Rule
from collectors.bmc.points import Readings
from collectors.bmc.redfish_entries import LogCursor, every, read_new
from collectors.bmc.redfish_events import EventStream, Heard, told
from collectors.bmc.redfish_http import Client, HttpError, session
from collectors.bmc.redfish_parse import Walk
from collectors.bmc.redfish_plan import LOGS_LIMIT, Plan, discover, forget_walk, learn, members
from collectors.bmc.redfish_push import Listener, Push, Subscription
from collectors.bmc.targets import (
    BmcOptions,
    NoSecret,
    Secrets,
    Target,
    secrets_of,
    targets,
    tick_seconds,
)
from collectors.events import spaced
from collectors.sample import Batch, Context, Problem, SourceUnavailable

NAME = "redfish"
METRICS = bmc.METRICS
STATE_FILE = "redfish-logs.json"
# A BMC that refuses the first so many resources in a row refuses them all.
REFUSED_LIMIT = 5
# Where a BMC refused something when it was looked through, it is looked through anew so soon.
UNREAD_SECONDS = 3_600.0
# Reports of which nothing is newer than this are no readings of now.
REPORT_SECONDS = 600.0
# A kept TLS connection holds some 0.3 MiB (asyncio's buffer and OpenSSL's). Thousands of BMCs
# are too many to keep: theirs are closed soon after the visit; the session at the BMC stays.
KEEP_SECONDS, KEEP_MANY_SECONDS = 300.0, 5.0


class Options(BmcOptions):
    """Options of the source ``redfish``.

    ``ca_file`` pins the authority (or the self-signed certificate itself) that BMCs must show;
    ``insecure`` gives certificates up altogether and has to be asked for. ``events`` listens at
    the event stream of BMCs that offer one: a connection more per BMC, and entries within seconds.
    ``push`` has BMCs send their events to the head: it writes a subscription into each of them.
    """

    scheme: str = Field(default="https", pattern=r"^https?$")
    ca_file: str = ""
    check_name: bool = True
    insecure: bool = False
    basic: bool = False
    timeout_seconds: float = Field(default=10.0, gt=0, le=300)
    logs: bool = True
    events: bool = False
    push: Push = Push()
    detail_rounds: int = Field(default=5, ge=1, le=1_000)
    plan_seconds: float = Field(default=14_400.0, gt=0, le=604_800)

    @model_validator(mode="after")
    def _push_is_safe(self) -> Options:
        push = self.push
        if push.on and not push.plain and not push.certificate_file:
            raise ValueError("push.listen needs push.certificate_file (or push.plain = true)")
        anywhere = push.listen.startswith(("0.0.0.0:", "[::]:"))
        if push.on and not push.url and anywhere:
            raise ValueError("push.listen names no address that a BMC can reach: set push.url")
        return self


class _Shared:
    """What all BMCs of the source share: the TLS settings and the connections."""

    def __init__(self, options: Options, many: bool = False) -> None:
        self.tls = _tls(options)
        self._keep_seconds = (
            KEEP_MANY_SECONDS if many else min(KEEP_SECONDS, options.period_seconds * 1.5)
        )
        self._http: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self.listener = Listener(options.push) if options.push.on else None

    def streams(self) -> aiohttp.ClientSession:
        """The connections of the event streams, one a BMC."""
        if self._streams is None or self._streams.closed:
            self._streams = session(
                aiohttp.TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=600)
            )
        return self._streams

    def http(self) -> aiohttp.ClientSession:
        """The connections; made inside the loop that uses them."""
        if self._http is None or self._http.closed:
            connector = aiohttp.TCPConnector(
                limit=0,
                limit_per_host=1,
                keepalive_timeout=self._keep_seconds,
                ttl_dns_cache=600,
            )
            self._http = session(connector)
        return self._http

    async def close(self) -> None:
        if self.listener is not None:
            await self.listener.close()
        for one in (self._http, self._streams):
            if one is not None:
                await one.close()


def _tls(options: Options) -> ssl.SSLContext | None:
    if options.scheme == "http":
        return None
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SourceUnavailable(f"ca_file {options.ca_file} cannot be used: {error}") from error
    if options.insecure or not options.check_name:
        context.check_hostname = False
    if options.insecure:
        context.verify_mode = ssl.CERT_NONE
    return context


class _Visitor:
    """One BMC: its session, what it offers, where we are in its logs."""

    def __init__(
        self,
        target: Target,
        options: Options,
        context: Context,
        shared: _Shared,
        held: object,
        tell: Callable[[Poll], None],
    ) -> None:
        self.target = target
        self._options = options
        self._context = context
        self._shared = shared
        self._client: Client | None = None
        self._plan: Plan | None = None
        self._planned_ns = 0
        self._round = 0
        self._first = 0
        # Where the last visit broke off, and what could not be read of it.
        self._stuck = ""
        self._gone: frozenset[str] = frozenset()
        self._tell = tell
        self._heard = Heard()
        self._stream: EventStream | None = None
        self._pushed: Subscription | None = None
        if shared.listener is not None:
            owner = f"tocsin@{context.node} {target.node}"
            self._pushed = Subscription(shared.listener, owner, self._came)
        logs = held if isinstance(held, dict) else {}
        self._cursors = {str(uri): LogCursor.load(data) for uri, data in logs.items()}

    def dump(self) -> dict[str, Any]:
        """Where the logs stand, as JSON data."""
        return {uri: one.dump() for uri, one in self._cursors.items() if one.started}

    def changed(self) -> bool:
        client = self._client
        try:
            secrets = secrets_of(self._options.group(self.target.group))
        except NoSecret:
            return False
        return client is None or secrets != client.secrets

    async def visit(self, poll: Poll) -> None:
        node = self.target.node
        found = Readings()
        now_ns = self._context.now_ns()
        walk = Walk(found, node, now_ns)
        try:
            client = await self._logged_in()
            client.answers = 0
            known, plan = self._plan, await self._planned(client, now_ns)
            if plan is not known and plan.unread:
                uri, why = next(iter(plan.unread.items()))
                found.problem(f"{len(plan.unread)} resources are not shown, as {uri}: {why}", uri)
            walk.known = plan.known
            if self._options.events:
                self._listen(client, plan.events)
            if self._pushed is not None and plan.subscriptions:
                await self._subscribe(self._pushed, client, plan.subscriptions, poll)
            await self._read(client, plan, walk, poll, found, now_ns)
        except NoSecret as error:
            poll.fault, poll.kind = str(error), "login"
        except HttpError as error:
            poll.fault, poll.kind, poll.retry_seconds = str(error), error.kind, error.retry_seconds
            if error.kind == "login":
                await self._forget()
        finally:
            # Entries among sensors come by no cursor, and each time anew: so not without end.
            events = [*walk.events[: self._options.log_entries_per_round], *poll.samples]
            poll.samples = spaced([*found.samples(now_ns), *walk.timed, *events])
            poll.problems.extend(
                Problem(f"{node}: {one.problem}", one.line) for one in found.problems
            )
            poll.place = self.dump()

    def _listen(self, client: Client, uri: str) -> None:
        if self._stream is None:
            self._stream = EventStream(
                self._shared.streams(),
                self.target.node,
                self._heard,
                self._tell,
                self._context.now_ns,
            )
        self._stream.start(client, uri)

    def _came(self, raw: bytes) -> None:
        """A message that the BMC sent of its own."""
        poll = told(raw, self.target.node, self._heard, self._context.now_ns())
        if poll is not None:
            self._tell(poll)

    async def _subscribe(self, pushed: Subscription, client: Client, uri: str, poll: Poll) -> None:
        before = pushed.fault
        await pushed.keep(client, uri)
        if pushed.fault and pushed.fault != before:
            poll.problems.append(Problem(f"{self.target.node}: {pushed.fault}"))

    async def _logged_in(self) -> Client:
        secrets = secrets_of(self._options.group(self.target.group))
        if self._client is not None and self._client.secrets != secrets:
            await self.leave()
        if self._client is None:
            self._client = self._new_client(secrets)
        if self._plan is not None:
            await self._client.login()
        return self._client

    def _new_client(self, secrets: Secrets) -> Client:
        host, port = self.target.address, self.target.port
        name = f"[{host}]" if ":" in host else host
        base = f"{self._options.scheme}://{name}" + (f":{port}" if port else "")
        return Client(
            self._shared.http(),
            base,
            secrets,
            self._shared.tls,
            self._options.timeout_seconds,
            self._options.basic,
        )

    async def _planned(self, client: Client, now_ns: int) -> Plan:
        age_seconds = (now_ns - self._planned_ns) / 1e9
        limit_seconds = self._options.plan_seconds
        if self._plan is not None and self._plan.unread:
            limit_seconds = min(limit_seconds, UNREAD_SECONDS)
        if self._plan is None or age_seconds > limit_seconds:
            self._plan = await discover(client)
            self._planned_ns = now_ns
            self._keep_cursors(self._plan.logs)
            self._round = self._first = 0
        return self._plan

    def _keep_cursors(self, logs: list[str]) -> None:
        """Lets the oldest cursors go of logs that are no more: new names may come each time."""
        for uri in [uri for uri in self._cursors if uri not in logs][: -2 * LOGS_LIMIT]:
            del self._cursors[uri]

    async def _read(
        self, client: Client, plan: Plan, walk: Walk, poll: Poll, found: Readings, now_ns: int
    ) -> None:
        # The logs first: they are short, and they say what the sensors no longer show.
        for uri in plan.logs if self._options.logs else ():
            await self._log(client, uri, poll, found, now_ns)
        in_full = self._round % self._options.detail_rounds == 0
        detail = in_full or not plan.reports
        steps = plan.states + (plan.sensors if detail else plan.reports)
        steps += plan.counters if in_full else []
        first = self._first if self._first < len(steps) else 0
        gone: list[str] = []
        for place in range(len(steps)):
            uri = steps[(first + place) % len(steps)]
            self._first = (first + place) % len(steps)
            try:
                body = await client.get(uri)
            except HttpError as error:
                if not error.of_resource:
                    self._hung_up(uri, len(steps))
                    raise
                gone.append(uri)
                if place < REFUSED_LIMIT == len(gone) and error.kind in ("refused", "forbidden"):
                    # It refuses everything; a user who may read nothing is as good as none.
                    kind = "login" if error.kind == "forbidden" else error.kind
                    raise HttpError(str(error), kind, error.retry_seconds) from error
                if error.kind != "missing":
                    found.problem(str(error), uri)
                continue
            if detail:
                _learn(plan, body)
            walk.document(body)
        self._first = 0
        self._round += 1
        self._stuck = ""
        news = [uri for uri in gone if uri not in self._gone]
        self._gone = frozenset(gone)
        if news:
            self._plan = None  # something was taken out or put in: look again next time
            found.problem(
                f"{len(gone)} of {len(steps)} resources could not be read", self.target.node
            )
        if gone and len(gone) == len(steps):
            raise HttpError("none of the BMC's resources could be read", "refused")
        if not detail:
            self._judge_reports(plan, walk)
        if found.stands:
            await self._is_on(client, plan, walk)

    def _judge_reports(self, plan: Plan, walk: Walk) -> None:
        """Gives reports up that are of another time, until the BMC is looked through again."""
        if (walk.timed or walk.odd_times) and not walk.fresh(REPORT_SECONDS):
            plan.reports = []
            walk.found.problem(
                "its metric reports are old, or its clock is wrong: its sensors are read instead",
                self.target.node,
            )

    def _hung_up(self, uri: str, count: int) -> None:
        """The visit ends at ``uri``. The next begins with it; the one after that passes it over."""
        if uri == self._stuck:
            self._first = (self._first + 1) % count
        self._stuck = uri

    async def _is_on(self, client: Client, plan: Plan, walk: Walk) -> None:
        """Fans stand: a host that is off explains it."""
        for uri in plan.systems:
            try:
                walk.document(await client.get(uri))
            except HttpError as error:
                if not error.of_resource:
                    raise

    async def _log(
        self, client: Client, uri: str, poll: Poll, found: Readings, now_ns: int
    ) -> None:
        cursor = self._cursors.setdefault(uri, LogCursor())
        try:
            samples = await read_new(
                client,
                uri,
                cursor,
                self.target.node,
                now_ns,
                self._options.log_entries_per_round,
                self._options.log_backlog,
                found,
                self._heard.from_log if self._options.events or self._pushed else every,
            )
        except HttpError as error:
            if not error.of_resource:
                raise
            found.problem(str(error), uri)
            return
        poll.samples.extend(samples)

    async def leave(self) -> None:
        client, self._client = self._client, None
        self._plan = None
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
        if client is not None:
            if self._pushed is not None:
                await self._pushed.end(client)
            with contextlib.suppress(HttpError):
                await client.logout()

    async def _forget(self) -> None:
        """After a refused login: the next try begins anew, with the secrets kept to compare."""
        self._plan = None
        if self._client is not None:
            forget_walk(self._client)
            await self._client.logout()  # refused one resource, the session may still be open


def _learn(plan: Plan, body: Any) -> None:
    """Keeps what the sensors in an answer say of themselves."""
    for one in members(body) or [body]:
        if isinstance(one, dict) and "ReadingType" in one:
            learn(plan, one)


class Redfish:
    """The source. Where the logs stand is kept in ``state_dir``, so that no entry comes twice."""

    name = NAME

    def __init__(self, options: Options, context: Context) -> None:
        self.period_seconds = tick_seconds(options, often=options.events or options.push.on)
        self.deadline_seconds = options.deadline_seconds
        self.keep_connections: bool | None = None  # None: where BMCs are not many
        self._options = options
        self._context = context
        self._fleet: Fleet | None = None
        self._visitors: list[_Visitor] = []
        self._cursors = CursorFile(context.state_dir / STATE_FILE)
        self._claims = claims_beside(context.state_dir)
        with contextlib.suppress(SourceUnavailable):  # said at the first reading
            self._expect(targets(options))

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
            self._claims.give_up()
            self._cursors.save()

    def _expect(self, listed: list[Target]) -> None:
        nodes = [one.node for one in listed]
        self._claims.expect(nodes, self._options.period_seconds)

    def _told(self, poll: Poll) -> None:
        if self._fleet is not None:
            self._fleet.hand_over(poll)

    def _start(self) -> Fleet:
        listed = targets(self._options)
        self._expect(listed)
        keep = self.keep_connections
        many = len(listed) >= self._options.in_turn_from if keep is None else not keep
        shared = _Shared(self._options, many)
        held = self._cursors.load()
        self._visitors = []

        def make(target: Target) -> _Visitor:
            logs = held.get(target.node)
            visitor = _Visitor(target, self._options, self._context, shared, logs, self._told)
            self._visitors.append(visitor)
            return visitor

        fleet = Fleet(
            NAME,
            listed,
            make,
            self._options,
            leaving=shared.close,
            tick_seconds=self.period_seconds,
            rule=Rule(
                mine=lambda node: self._claims.may_try(node, self._options.period_seconds),
                speaks=lambda node: not self._claims.stood_in(node),
                read=lambda node: self._claims.read(node, self._options.period_seconds),
            ),
        )
        fleet.places.update({one.node: held[one.node] for one in listed if one.node in held})
        return fleet


def make(options: Options, context: Context) -> Redfish:
    """The source ``redfish`` for the head."""
    return Redfish(options, context)
