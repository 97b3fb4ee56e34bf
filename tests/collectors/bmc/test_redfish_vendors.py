"""Redfish services as vendors build them: what is read of each, also where it is half broken.

The trees are made up after DMTF's schemas and mock-ups; a real web server gives them out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from collectors.bmc import redfish
from collectors.bmc.fleet import Poll
from collectors.bmc.targets import targets
from collectors.sample import Context

NOW_NS = 1_796_100_000 * 10**9
V1 = "/redfish/v1"
Tree = dict[str, Any]
OK = {"State": "Enabled", "Health": "OK"}


def link(uri: str) -> dict[str, str]:
    return {"@odata.id": uri}


def listed(*uris: str, **more: object) -> Tree:
    return {"Members": [link(uri) for uri in uris], **more}


def root(expand: bool = False, **more: str) -> Tree:
    keys = {"Chassis": f"{V1}/Chassis", "Systems": f"{V1}/Systems", **more}
    features = {"ExpandQuery": {"Levels": expand}}
    return {**{k: link(v) for k, v in keys.items()}, "ProtocolFeaturesSupported": features}


def sensor(uri: str, value: object, unit: str = "Cel", kind: str = "Temperature") -> Tree:
    name = uri.rsplit("/", 1)[-1]
    return {"@odata.type": "#Sensor.v1_7_0.Sensor", "@odata.id": uri, "Id": name,
            "Reading": value, "ReadingUnits": unit, "ReadingType": kind, "Status": OK}  # fmt: skip


class Service:
    """One BMC that gives out ``tree``, and whoever visits it. ``asked`` counts by address."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        self.tree = tree
        self.asked: Counter[str] = Counter()
        self.refuses_expand = 0  # the status that it answers with
        self._folder = folder

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        place = request.path_qs.rstrip("/")
        self.asked[place] += 1
        body = self.tree.get(place, self.tree.get(request.path.rstrip("/")))
        if body is None:
            return web.json_response({"error": {}}, status=404)
        if isinstance(body, int):
            return web.json_response({"error": {}}, status=body)
        if isinstance(body, str):
            if not body:
                assert request.transport is not None
                request.transport.abort()
            return web.Response(text=body, content_type="application/json")
        if "$expand" in request.query and self.refuses_expand:
            return web.json_response({"error": {}}, status=self.refuses_expand)
        if "$expand" in request.query and "Members" in body and self._expands():
            members = [self.tree.get(one["@odata.id"], one) for one in body["Members"]]
            body = {**body, "Members": members}
        return web.json_response(body)

    def _expands(self) -> bool:
        return bool(self.tree[V1]["ProtocolFeaturesSupported"]["ExpandQuery"]["Levels"])

    def visits(self, count: int, between: Callable[[int], None] = lambda n: None) -> list[Poll]:
        """What so many visits in a row bring."""

        async def run() -> list[Poll]:
            app = web.Application()
            app.router.add_route("*", "/{any:.*}", self._handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address = f"127.0.0.1:{runner.addresses[0][1]}"
            secret = self._folder / "secret"
            secret.write_text("p")
            secret.chmod(0o600)
            options = redfish.Options(
                nodes="n1",
                scheme="http",
                address=address,
                user="u",
                password_file=str(secret),
                basic=True,
                timeout_seconds=5.0,
            )
            shared = redfish._Shared(options)
            context = Context("head", self._folder, now_ns=lambda: NOW_NS)
            target = targets(options)[0]
            visitor = redfish._Visitor(target, options, context, shared, {}, lambda poll: None)
            polls = []
            try:
                async with asyncio.timeout(60):
                    for number in range(count):
                        between(number)
                        poll = Poll()
                        await visitor.visit(poll)
                        polls.append(poll)
                await visitor.leave()
            finally:
                await shared.close()
                await runner.cleanup()
            return polls

        return asyncio.run(run())


@pytest.fixture
def service(tmp_path: Path) -> Callable[[Tree], Service]:
    return lambda tree: Service(tree, tmp_path)


def readings(poll: Poll) -> dict[tuple[str, str], dict[str, object]]:
    return {
        (one.tag("sensor"), one.tag("kind")): dict(one.fields)
        for one in poll.samples
        if one.measurement == "bmc"
    }


# ---- who shows what, and where -------------------------------------------------------------------


def supplies_and_fans(chassis: str) -> Tree:
    """A chassis with the newer subsystems, each part a resource of its own."""
    cooling, power = f"{chassis}/ThermalSubsystem", f"{chassis}/PowerSubsystem"
    fans = [f"{cooling}/Fans/{n}" for n in (1, 2)]
    units = [f"{power}/PowerSupplies/{n}" for n in (1, 2)]
    heat = f"{cooling}/ThermalMetrics"
    tree: Tree = {
        chassis: {"ThermalSubsystem": link(cooling), "PowerSubsystem": link(power)},
        cooling: {
            "Fans": link(f"{cooling}/Fans"),
            "ThermalMetrics": link(f"{cooling}/ThermalMetrics"),
        },
        f"{cooling}/Fans": listed(*fans),
        heat: {
            "@odata.type": "#ThermalMetrics.v1_3_0.ThermalMetrics",
            "TemperatureReadingsCelsius": [{"DeviceName": "Inlet", "Reading": 23.0}],
        },
        power: {"PowerSupplies": link(f"{power}/PowerSupplies")},
        f"{power}/PowerSupplies": listed(*units),
    }
    for place, uri in enumerate(fans):
        tree[uri] = {"@odata.type": "#Fan.v1_5_0.Fan", "@odata.id": uri, "Id": f"Fan{place + 1}",
                     "SpeedPercent": {"Reading": 40, "SpeedRPM": 6000}, "Status": OK}  # fmt: skip
    for place, uri in enumerate(units):
        tree[uri] = {"@odata.type": "#PowerSupply.v1_5_0.PowerSupply", "@odata.id": uri,
                     "Id": f"PSU{place + 1}", "Status": OK}  # fmt: skip
    return tree


@pytest.mark.parametrize("expand", [True, False])
def test_fans_and_supplies_of_the_newer_subsystems_are_read_also_one_by_one(
    expand: bool, service: Callable[[Tree], Service]
) -> None:
    chassis = f"{V1}/Chassis/1"
    tree = {V1: root(expand), f"{V1}/Chassis": listed(chassis), **supplies_and_fans(chassis)}
    (poll,) = service(tree).visits(1)
    assert (poll.fault, poll.problems) == ("", [])
    found = readings(poll)
    assert found["Inlet", "celsius"]["value"] == 23.0
    assert found["Fan2", "rpm"] == {"value": 6000.0, "critical": 0.0, "present": 1.0}
    assert found["PSU2", "state"] == {"critical": 0.0, "present": 1.0}


@pytest.mark.parametrize("status", [400, 404, 500, 501])
def test_a_bmc_that_only_says_that_it_expands_is_read_one_by_one(
    status: int, service: Callable[[Tree], Service]
) -> None:
    chassis = f"{V1}/Chassis/1"
    uris = [f"{chassis}/Sensors/T{n}" for n in range(4)]
    tree = {V1: root(expand=True), f"{V1}/Chassis": listed(chassis), **supplies_and_fans(chassis)}
    tree[chassis]["Sensors"] = link(f"{chassis}/Sensors")
    tree[f"{chassis}/Sensors"] = listed(*uris)
    tree |= {uri: sensor(uri, 30.0) for uri in uris}
    bmc = service(tree)
    bmc.refuses_expand = status
    for poll in bmc.visits(2):
        assert (poll.fault, poll.problems) == ("", [])
        assert {"T0", "T1", "T2", "T3", "PSU1", "PSU2"} == {name for name, _ in readings(poll)}


@pytest.mark.parametrize("expand", [True, False])
def test_a_list_of_sensors_in_pages_is_read_to_its_end(
    expand: bool, service: Callable[[Tree], Service]
) -> None:
    chassis = f"{V1}/Chassis/System.Embedded.1"
    uris = [f"{chassis}/Sensors/T{n}" for n in range(120)]
    tree: Tree = {V1: root(expand), f"{V1}/Chassis": listed(chassis)}
    tree[chassis] = {"Sensors": link(f"{chassis}/Sensors")}
    tree |= {uri: sensor(uri, float(n % 50)) for n, uri in enumerate(uris)}
    for skip in (0, 50, 100):
        query = f"?$skip={skip}" if skip else ""
        more = {"Members@odata.nextLink": f"{chassis}/Sensors?$skip={skip + 50}"}
        page = listed(*uris[skip : skip + 50], **(more if skip < 100 else {}))
        if expand:
            page["Members"] = [tree[uri] for uri in uris[skip : skip + 50]]
        tree[f"{chassis}/Sensors{query}"] = page
    for poll in service(tree).visits(2):
        assert (poll.fault, poll.problems) == ("", [])
        assert len(readings(poll)) == 120


def test_a_list_of_pages_that_leads_back_comes_to_an_end(
    service: Callable[[Tree], Service],
) -> None:
    chassis = f"{V1}/Chassis/1"
    uri = f"{chassis}/Sensors/T1"
    tree: Tree = {V1: root(), f"{V1}/Chassis": listed(chassis), uri: sensor(uri, 30.0)}
    tree[chassis] = {"Sensors": link(f"{chassis}/Sensors")}
    tree[f"{chassis}/Sensors"] = listed(uri, **{"Members@odata.nextLink": f"{chassis}/Sensors"})
    (poll,) = service(tree).visits(1)
    assert readings(poll) == {("T1", "celsius"): {"value": 30.0, "critical": 0.0, "present": 1.0}}


@pytest.mark.parametrize("what", ["empty", "none", "refused", "only power"])
def test_where_sensors_show_no_temperature_the_older_thermal_is_read(
    what: str, service: Callable[[Tree], Service]
) -> None:
    chassis = f"{V1}/Chassis/1"
    tree: Tree = {V1: root(expand=True), f"{V1}/Chassis": listed(chassis)}
    tree[chassis] = {"Sensors": link(f"{chassis}/Sensors"), "Thermal": link(f"{chassis}/Thermal")}
    tree[f"{chassis}/Thermal"] = {
        "@odata.type": "#Thermal.v1_6_0.Thermal",
        "Temperatures": [{"Name": "Inlet", "ReadingCelsius": 22, "Status": OK}],
    }
    watts = f"{chassis}/Sensors/P1"
    tree[watts] = sensor(watts, 90.0, "W", "Power")
    if what != "none":
        told: dict[str, object] = {"empty": listed(), "refused": 500, "only power": listed(watts)}
        tree[f"{chassis}/Sensors"] = told[what]
    (poll,) = service(tree).visits(1)
    assert readings(poll)["Inlet", "celsius"]["value"] == 22.0
    assert (("P1", "watts") in readings(poll)) == (what == "only power")


def test_error_counters_of_gpus_are_read_where_no_report_tells_them(
    service: Callable[[Tree], Service],
) -> None:
    chassis, system = f"{V1}/Chassis/HGX_GPU_SXM_1", f"{V1}/Systems/HGX_Baseboard_0"
    gpu = f"{system}/Processors/GPU_SXM_1"
    cpu = f"{system}/Processors/CPU_0"
    memory = f"{gpu}/MemorySummary/MemoryMetrics"
    heat = f"{chassis}/Sensors/HGX_GPU_SXM_1_TEMP_0"
    tree: Tree = {
        V1: root(),
        f"{V1}/Chassis": listed(chassis),
        chassis: {"Sensors": link(f"{chassis}/Sensors")},
        f"{chassis}/Sensors": listed(heat),
        heat: sensor(heat, 41.0),
        f"{V1}/Systems": listed(system),
        system: {"Processors": link(f"{system}/Processors")},
        f"{system}/Processors": listed(cpu, gpu),
        cpu: {"ProcessorType": "CPU", "Metrics": link(f"{cpu}/ProcessorMetrics")},
        gpu: {
            "ProcessorType": "GPU",
            "Metrics": link(f"{gpu}/ProcessorMetrics"),
            "MemorySummary": {"Metrics": link(memory)},
        },
        f"{gpu}/ProcessorMetrics": {
            "@odata.type": "#ProcessorMetrics.v1_6_0.ProcessorMetrics",
            "@odata.id": f"{gpu}/ProcessorMetrics",
            "PCIeErrors": {"FatalErrorCount": 2, "CorrectableErrorCount": None},
        },
        memory: {
            "@odata.type": "#MemoryMetrics.v1_7_0.MemoryMetrics",
            "@odata.id": memory,
            "LifeTime": {"UncorrectableECCErrorCount": 3, "CorrectableECCErrorCount": 11},
        },
    }
    bmc = service(tree)
    polls = bmc.visits(7)
    first = readings(polls[0]).items()
    counts = {name: one["value"] for (name, kind), one in first if kind == "count"}
    assert counts == {
        "GPU_SXM_1 FatalErrorCount": 2.0,
        "GPU_SXM_1 MemorySummary UncorrectableECCErrorCount": 3.0,
        "GPU_SXM_1 MemorySummary CorrectableECCErrorCount": 11.0,
    }
    assert bmc.asked[memory] == 2, "now and then: each is a request of its own"
    assert bmc.asked[f"{cpu}/ProcessorMetrics"] == 0


# ---- a host that is off ----------------------------------------------------------------------


def test_where_fans_stand_it_is_asked_whether_the_host_is_on(
    service: Callable[[Tree], Service],
) -> None:
    chassis, system = f"{V1}/Chassis/1", f"{V1}/Systems/1"
    fan = f"{chassis}/Sensors/FAN1"
    tree: Tree = {
        V1: root(),
        f"{V1}/Chassis": listed(chassis),
        chassis: {"Sensors": link(f"{chassis}/Sensors")},
        f"{chassis}/Sensors": listed(fan),
        fan: sensor(fan, 9000.0, "RPM", "Rotational"),
        f"{V1}/Systems": listed(system, f"{V1}/Systems/HGX_Baseboard_0"),
        system: {"@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": "1",
                 "PowerState": "On", "Status": OK},
        f"{V1}/Systems/HGX_Baseboard_0": {
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": "HGX_Baseboard_0",
            "PowerState": "On"},
    }  # fmt: skip

    def between(number: int) -> None:
        if number == 2:
            tree[fan] = sensor(fan, 0.0, "RPM", "Rotational")
            tree[system] = {**tree[system], "PowerState": "Off"}

    bmc = service(tree)
    polls = bmc.visits(4, between)
    power = ("System Power", "state")
    assert [power in readings(poll) for poll in polls] == [False, False, True, True]
    assert readings(polls[3])[power] == {"present": 0.0}


# ---- services that are half broken ---------------------------------------------------------------


def broken(what: object, count: int = 20) -> Tree:
    chassis = f"{V1}/Chassis/1"
    uris = [f"{chassis}/Sensors/T{n}" for n in range(count)]
    tree: Tree = {V1: root(), f"{V1}/Chassis": listed(chassis)}
    tree[chassis] = {"Sensors": link(f"{chassis}/Sensors")}
    tree[f"{chassis}/Sensors"] = listed(*uris)
    tree |= {uri: sensor(uri, 20.0 + n) for n, uri in enumerate(uris)}
    tree[uris[7]] = what
    return tree


@pytest.mark.parametrize("what", [None, 500, 400, 405, "{ half a", "<html>no"])
def test_one_resource_that_is_listed_and_never_answers_costs_itself_only(
    what: object, service: Callable[[Tree], Service]
) -> None:
    tree = broken(what)
    if what is None:
        del tree[f"{V1}/Chassis/1/Sensors/T7"]
    bmc = service(tree)
    polls = bmc.visits(6)
    for poll in polls:
        assert poll.fault == ""
        assert len(readings(poll)) == 19
    assert polls[0].problems
    # It is looked once what else there is, and not at each visit.
    assert bmc.asked[f"{V1}/Chassis/1/Sensors"] == 2


def test_a_resource_at_which_the_bmc_hangs_up_hides_the_others_only_once(
    service: Callable[[Tree], Service],
) -> None:
    """It is begun with again, for it may have been chance; and then passed over."""
    polls = service(broken("")).visits(4)
    seen = {name for poll in polls for name, _ in readings(poll)}
    assert len(seen) == 19
    assert all(poll.fault for poll in polls), "it is told as long as it lasts"


def test_a_bmc_that_refuses_everything_is_not_asked_for_everything(
    service: Callable[[Tree], Service],
) -> None:
    tree = broken(None)
    bmc = service(tree)

    def between(number: int) -> None:
        if number == 1:
            tree.update({uri: 500 for uri in tree if "/Sensors/" in uri})
            bmc.asked.clear()

    polls = bmc.visits(2, between)
    assert polls[0].fault == ""
    assert polls[1].fault == "the BMC answers with HTTP 500"
    assert sum(bmc.asked.values()) < 12


@pytest.mark.parametrize("what", [403, 500, "<html>please wait"])
def test_logs_that_the_user_may_not_read_hide_no_sensor(
    what: object, service: Callable[[Tree], Service]
) -> None:
    """Some vendors show logs to operators only: a user who may only read is told so."""
    system = f"{V1}/Systems/1"
    tree = broken(sensor(f"{V1}/Chassis/1/Sensors/T7", 27.0))
    tree[f"{V1}/Systems"] = listed(system)
    tree[system] = {"LogServices": link(f"{system}/LogServices")}
    tree[f"{system}/LogServices"] = what
    polls = service(tree).visits(3)
    assert [poll.fault for poll in polls] == ["", "", ""]
    assert len(readings(polls[0])) == len(readings(polls[2])) == 20
    assert "LogServices" in polls[0].problems[0].problem
    # The same where only the entries are kept from it.
    tree[f"{system}/LogServices"] = listed(f"{system}/LogServices/SEL")
    tree[f"{system}/LogServices/SEL"] = {"Entries": link(f"{system}/LogServices/SEL/Entries")}
    tree[f"{system}/LogServices/SEL/Entries"] = what
    for poll in service(tree).visits(2):
        assert (poll.fault, len(readings(poll)), len(poll.problems)) == ("", 20, 1)


@pytest.mark.parametrize(
    ("what", "words", "kind"),
    [(403, "too few rights", "login"), (500, "HTTP 500", "refused"), (None, "nothing", "refused")],
)
def test_a_bmc_that_shows_nothing_is_not_well_and_is_looked_through_again(
    what: object, words: str, kind: str, service: Callable[[Tree], Service]
) -> None:
    """As one does that is starting."""
    tree = broken(sensor(f"{V1}/Chassis/1/Sensors/T7", 27.0))
    whole = dict(tree)
    tree[f"{V1}/Chassis"] = what
    if what is None:
        tree[f"{V1}/Chassis"] = listed()

    def between(number: int) -> None:
        if number == 2:
            tree.update(whole)

    polls = service(tree).visits(3, between)
    assert words in polls[0].fault
    assert polls[0].kind == polls[1].kind == kind
    assert (polls[2].fault, len(readings(polls[2]))) == ("", 20)


def test_a_user_who_may_read_no_sensor_is_told_so(service: Callable[[Tree], Service]) -> None:
    tree = broken(None)
    tree.update({uri: 403 for uri in tree if "/Sensors/" in uri})
    (poll,) = service(tree).visits(1)
    assert (poll.fault, poll.kind) == ("the user has too few rights on the BMC", "login")


# ---- reports -------------------------------------------------------------------------------------


def with_report(stamp: str) -> Tree:
    tree = broken(sensor(f"{V1}/Chassis/1/Sensors/T7", 27.0))
    service, report = f"{V1}/TelemetryService", f"{V1}/TelemetryService/MetricReports/All"
    tree[V1] = root(TelemetryService=service)
    tree[service] = {"MetricReports": link(f"{service}/MetricReports")}
    tree[f"{service}/MetricReports"] = listed(report)
    tree[report] = {
        "@odata.type": "#MetricReport.v1_4_2.MetricReport",
        "MetricValues": [
            {
                "MetricProperty": f"{V1}/Chassis/1/Sensors/T{n}",
                "MetricValue": "20",
                "Timestamp": stamp,
            }
            for n in range(20)
        ],
    }
    return tree


@pytest.mark.parametrize(
    ("stamp", "is_read"),
    [
        ("2026-12-01T04:39:30Z", True),
        ("2026-12-01T04:19:30Z", False),  # frozen, or a slow clock
        ("2026-11-01T00:00:00Z", False),
        ("2026-12-01T05:20:00Z", False),  # a fast clock
    ],
)
def test_reports_of_another_time_are_not_relied_upon(
    stamp: str, is_read: bool, service: Callable[[Tree], Service]
) -> None:
    bmc = service(with_report(stamp))
    polls = bmc.visits(4)
    told = [
        one.problem for poll in polls for one in poll.problems if "metric reports" in one.problem
    ]
    assert len(told) == (0 if is_read else 1)
    assert all(poll.fault == "" for poll in polls)
    now = [one.time_ns == NOW_NS for one in polls[3].samples if one.measurement == "bmc"]
    assert len(now) == 20
    assert all(now) is not is_read
    assert sum(len(poll.problems) for poll in polls) <= 2
