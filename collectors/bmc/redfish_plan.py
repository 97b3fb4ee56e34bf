"""Finds out what one BMC offers, and makes of it the list of resources to read in each round.

Where a chassis has Sensors, they are read and its Thermal is not: both show the same sensors under
different names. Only where none of its Sensors is a temperature, or there are none, its Thermal is
read. Where a BMC writes MetricReports, these are read in most rounds (one answer for all
sensors) and the Sensors only now and then, for their health and thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.bmc.redfish_http import ROOT, Client, HttpError
from collectors.bmc.redfish_metrics import Known
from collectors.bmc.redfish_parts import is_baseboard, real, sensor_kind, text

CHASSIS_LIMIT = 200
SENSORS_LIMIT = 4_000
LOGS_LIMIT = 12
ADDRESS_LIMIT_CHARACTERS = 1_024
# The answers of one walk together: a GB300 tray has some 50,000 values.
WALK_VALUES_LIMIT = 2_000_000
EXPAND = "?$expand=.($levels=1)"

PAGES_LIMIT = 100
PROCESSORS_LIMIT = 32

# Logs that are no event logs: journals, dumps, POST codes, audit.
_NO_EVENTS = ("journal", "dump", "postcode", "audit", "hostlog", "crash", "lclog", "fault", "debug")


@dataclass
class Plan:
    """What to read. ``states`` in every round; ``sensors`` in detail rounds, or in every round
    where there are no ``reports``. ``counters`` are error counters that no report tells: they are
    read in detail rounds only. ``systems`` say whether the host is on, which is asked where fans
    stand. ``known`` is what sensors are, by address.
    """

    states: list[str] = field(default_factory=list)
    sensors: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)
    systems: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    expand: bool = False
    events: str = ""  # address of the event stream
    subscriptions: str = ""  # address of the collection of subscriptions
    unread: dict[str, str] = field(default_factory=dict)  # what the BMC did not show, and why not


def link(body: Mapping[str, Any], key: str) -> str:
    """The address under ``key``, or empty."""
    held = body.get(key)
    uri = text(held.get("@odata.id")) if isinstance(held, dict) else ""
    return uri if len(uri) <= ADDRESS_LIMIT_CHARACTERS else ""


def members(body: Any) -> list[Any]:
    """The members of a collection."""
    listed = body.get("Members") if isinstance(body, dict) else None
    return listed if isinstance(listed, list) else []


def links(body: Any) -> list[str]:
    """The addresses of a collection's members."""
    found = [text(one.get("@odata.id")) for one in members(body) if isinstance(one, dict)]
    return [
        uri for uri in found if uri.startswith("/redfish/") and len(uri) <= ADDRESS_LIMIT_CHARACTERS
    ]


async def _try(client: Client, uri: str) -> dict[str, Any]:
    """A resource; empty where the BMC has none or refuses it. Silence and login still raise.

    What it refuses is kept in ``client.unread``.
    """
    if not uri:
        return {}
    try:
        body = await _get(client, uri)
    except HttpError as error:
        if not error.of_resource:
            raise
        if error.kind != "missing":
            client.unread[uri] = error
        body = client.walked[uri] = {}
    return body if isinstance(body, dict) else {}


async def _get(client: Client, uri: str) -> Any:
    """An answer, kept until the walk is done: a slow BMC is walked over several rounds."""
    if uri not in client.walked:
        body = await client.get(uri)
        client.walked_values += client.values
        if client.walked_values > WALK_VALUES_LIMIT:
            forget_walk(client)
            raise HttpError(f"what the BMC offers is over {WALK_VALUES_LIMIT} values", "cut")
        client.walked[uri] = body
    return client.walked[uri]


def forget_walk(client: Client) -> None:
    """The walk is done or given up: what was kept of it is let go."""
    client.walked.clear()
    client.unread.clear()
    client.walked_values = 0


async def discover(client: Client) -> Plan:
    """Walks the service once. Raises HttpError where the BMC cannot be read."""
    plan = Plan()
    root = await _get(client, ROOT)
    if not isinstance(root, dict):
        raise HttpError("the service root is no JSON object", "refused")
    await client.login()
    features = root.get("ProtocolFeaturesSupported")
    if isinstance(features, dict) and isinstance(features.get("ExpandQuery"), dict):
        plan.expand = bool(features["ExpandQuery"].get("Levels"))
    chassis = await _try(client, link(root, "Chassis") or ROOT + "/Chassis")
    for uri in links(chassis)[:CHASSIS_LIMIT]:
        await _chassis(client, uri, plan)
    telemetry = await _try(client, link(root, "TelemetryService"))
    if telemetry and plan.sensors:
        plan.reports = links(await _try(client, link(telemetry, "MetricReports")))[:50]
    service = await _try(client, link(root, "EventService"))
    if service and service.get("ServiceEnabled") is not False:
        stream = text(service.get("ServerSentEventUri"))
        plan.events = stream if stream.startswith("/redfish/") else ""
        listed = link(service, "Subscriptions")
        plan.subscriptions = listed if listed.startswith("/redfish/") else ""
    for key in ("Systems", "Managers"):
        for uri in links(await _try(client, link(root, key)))[:20]:
            await _logs(client, uri, plan)
            if key == "Systems":
                await _system(client, uri, plan)
    plan.unread.update((uri, str(error)) for uri, error in client.unread.items())
    first = next(iter(client.unread.values()), None)
    forget_walk(client)
    if not plan.states and not plan.sensors:
        # It may be starting: then it shows more the next time.
        kind = "login" if first is not None and first.kind == "forbidden" else "refused"
        said = f": {first}" if first is not None else ""
        raise HttpError(f"the BMC shows nothing that can be read{said}", kind)
    return plan


async def _chassis(client: Client, uri: str, plan: Plan) -> None:
    body = await _try(client, uri)
    if not body:
        return
    sensors = link(body, "Sensors")
    thermal, power = link(body, "Thermal"), link(body, "Power")
    cooling = await _try(client, link(body, "ThermalSubsystem"))
    plan.states.extend(one for one in (link(cooling, "LeakDetection"),) if one)
    any_sensors, with_heat = await _sensors(client, sensors, plan)
    if thermal and not with_heat:
        plan.states.append(thermal)
    elif any_sensors:
        pass
    elif cooling:
        plan.states.extend(one for one in (link(cooling, "ThermalMetrics"),) if one)
        plan.states.extend((await _collection(client, link(cooling, "Fans"), plan))[0])
    else:
        plan.states.extend(one for one in (link(body, "EnvironmentMetrics"),) if one)
    if power:
        plan.states.append(power)
    else:
        supplies = await _try(client, link(body, "PowerSubsystem"))
        listed = link(supplies, "PowerSupplies")
        plan.states.extend((await _collection(client, listed, plan))[0])


def _expanded(plan: Plan, uri: str) -> str:
    return uri + EXPAND if uri and plan.expand else uri


async def _collection(
    client: Client, uri: str, plan: Plan
) -> tuple[list[str], list[Mapping[str, Any]]]:
    """What is to be read of a collection, and its members where they stand in it.

    Page by page where they do, else one member after the other.
    """
    pages: list[str] = []
    addresses: list[str] = []
    whole: list[Mapping[str, Any]] = []
    following = _expanded(plan, uri)
    bare = False
    while following.startswith("/redfish/") and following not in pages[:PAGES_LIMIT]:
        body = await _try(client, following)
        if not body and following != uri and not pages:
            # It says that it expands, and refuses to: without, and so with the other collections.
            client.unread.pop(following, None)
            following = uri
            body = await _try(client, following)
            plan.expand = not body
        pages.append(following)
        held = [one for one in members(body) if isinstance(one, dict) and set(one) != {"@odata.id"}]
        bare = bare or len(held) < len(members(body))
        addresses += links(body)
        whole += held
        following = text(body.get("Members@odata.nextLink")) if len(pages) < PAGES_LIMIT else ""
    if not addresses and not whole:
        return [], []
    return (list(dict.fromkeys(addresses))[:SENSORS_LIMIT], []) if bare else (pages, whole)


async def _sensors(client: Client, uri: str, plan: Plan) -> tuple[bool, bool]:
    """Learns the sensors of one chassis, and how they are read: at once, or one by one.

    Whether there are any, and whether there are temperatures among them.
    """
    steps, whole = await _collection(client, uri, plan)
    plan.sensors.extend(steps[: max(0, SENSORS_LIMIT - len(plan.sensors))])
    for one in whole:
        learn(plan, one)
    if len(steps) == 1 and not whole:
        whole = [await _try(client, steps[0])]
    kinds = [sensor_kind(one) for one in whole]
    heat = any(kind is not None and kind[0] == "celsius" for kind in kinds)
    return bool(steps), heat if whole else bool(steps)


async def _system(client: Client, uri: str, plan: Plan) -> None:
    """Where one system says that it is on, and the error counters of its GPUs."""
    body = await _try(client, uri)
    if body.get("PowerState") is not None and not is_baseboard(body):
        plan.systems.append(uri)
    if plan.reports:
        return
    steps, whole = await _collection(client, link(body, "Processors"), plan)
    if not whole:
        whole = [await _try(client, step) for step in steps[:PROCESSORS_LIMIT]]
    for one in whole[:PROCESSORS_LIMIT]:
        if text(one.get("ProcessorType")) not in ("GPU", "Accelerator"):
            continue
        summary = one.get("MemorySummary")
        memory = link(summary, "Metrics") if isinstance(summary, dict) else ""
        plan.counters.extend(place for place in (link(one, "Metrics"), memory) if place)


def learn(plan: Plan, body: Mapping[str, Any]) -> None:
    """Keeps what a Sensor resource says of itself, for reports that do not say it."""
    uri = text(body.get("@odata.id"))
    kind = sensor_kind(body)
    if not uri or kind is None or len(plan.known) >= SENSORS_LIMIT:
        return
    limits = body.get("Thresholds")
    held = limits if isinstance(limits, dict) else {}

    def limit(name: str) -> float | None:
        one = held.get(name)
        return real(one.get("Reading")) if isinstance(one, dict) else None

    high, low = limit("UpperCritical"), limit("LowerCritical")
    plan.known[uri] = Known(kind[0], kind[1], high if high and high > 0 else None, low)


async def _logs(client: Client, uri: str, plan: Plan) -> None:
    """The event logs of one system or manager."""
    body = await _try(client, uri)
    for service in links(await _try(client, link(body, "LogServices")))[:20]:
        name = service.rstrip("/").rsplit("/", 1)[-1].lower()
        if any(word in name for word in _NO_EVENTS) or len(plan.logs) >= LOGS_LIMIT:
            continue
        entries = link(await _try(client, service), "Entries")
        if entries and entries not in plan.logs:
            plan.logs.append(entries)
    if not body:
        return
    # Some services do not list the log that they have.
    guess = uri.rstrip("/") + "/LogServices/SEL/Entries"
    if not link(body, "LogServices") and await _try(client, guess):
        plan.logs.append(guess)
