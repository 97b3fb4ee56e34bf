"""What is read in Redfish resources of many vendors and versions, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from collectors.bmc import points as bmc
from collectors.parsers import PARSERS
from collectors.sample import Problem, Sample
from tests.collectors.contract import check_samples

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
NOW_NS = 1_796_100_000 * 10**9  # 2026-12-01
REDFISH = sorted(
    path
    for folder in ("redfish", "reported")
    for path in (FIXTURES / folder).iterdir()
    if path.suffix == ".json"
)


def parse(text: Any) -> tuple[list[Sample], list[Problem]]:
    raw = text if isinstance(text, str | bytes) else json.dumps(text)
    return PARSERS["redfish"](raw, "n7", NOW_NS)


def read(name: str) -> tuple[list[Sample], list[Problem]]:
    return parse((FIXTURES / name).read_bytes())


def table(samples: list[Sample]) -> dict[tuple[str, str], dict[str, object]]:
    return {(one.tag("sensor"), one.tag("kind")): dict(one.fields) for one in samples}


@pytest.mark.parametrize("path", REDFISH, ids=lambda path: path.name)
def test_every_resource_gives_samples_that_keep_the_contract_or_a_problem(path: Path) -> None:
    samples, problems = parse(path.read_bytes())
    assert samples or problems
    check_samples(bmc, samples, node="n7")


def test_thermal_gives_temperatures_and_fans() -> None:
    samples, problems = read("redfish/own-thermal.json")
    assert problems == []
    found = table(samples)
    assert found[("Inlet Temp", "celsius")] == {"value": 25.0, "critical": 0.0, "present": 1.0}
    assert found[("FAN1", "rpm")]["value"] == 9060.0
    assert len(found) == 11


def test_supplies_of_one_name_are_told_apart_by_member_id_or_place() -> None:
    samples, _ = read("reported/redfish-power-hpe-same-names.json")
    states = {name: fields for (name, kind), fields in table(samples).items() if kind == "state"}
    assert states == {
        "HpeServerPowerSupply #0": {"critical": 0.0, "present": 1.0},
        "HpeServerPowerSupply #1": {"critical": 1.0, "present": 1.0},
        "HpServerPowerSupply": {"critical": 0.0, "present": 1.0},
    }


def test_a_supply_without_input_is_there_and_critical_and_its_null_watts_are_no_zero() -> None:
    samples, problems = read("reported/redfish-power-dell-idrac.json")
    assert problems == []
    found = table(samples)
    assert found[("PS2 Status", "state")] == {"critical": 1.0, "present": 1.0}
    assert ("PS2 Status Input", "watts") not in found
    assert found[("System Power Control", "watts")]["value"] == 464.0


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ({"LineInputStatus": "Normal"}, {"critical": 0.0, "present": 1.0}),
        ({"LineInputStatus": "LossOfInput"}, {"critical": 1.0, "present": 1.0}),
        ({"LineInputStatus": None}, {"critical": 0.0, "present": 1.0}),
        ({"LineInputStatus": "LossOfInput", "Status": {"State": "Absent"}}, {"present": 0.0}),
    ],
)
def test_a_supply_without_input_is_critical_though_it_calls_itself_healthy(
    said: dict[str, Any], fields: dict[str, float]
) -> None:
    healthy = {"Status": {"State": "Enabled", "Health": "OK"}}
    body = {"@odata.type": "#PowerSupply.v1_5_0.PowerSupply", "Id": "PSU1", **healthy, **said}
    samples, problems = parse(body)
    assert (table(samples), problems) == ({("PSU1", "state"): fields}, [])


def test_a_distance_to_a_limit_is_no_temperature() -> None:
    samples, _ = read("reported/redfish-sensor-headroom.json")
    assert table(samples) == {
        ("HGX_GPU_2_TEMP_1", "headroom"): {"value": 31.5, "critical": 0.0, "present": 1.0}
    }
    samples, _ = read("redfish/own-sensors-gpu-expanded.json")
    kinds = {one.tag("sensor"): one.tag("kind") for one in samples}
    assert kinds["HGX_GPU_SXM_3_TEMP_0"] == "celsius"
    assert kinds["HGX_GPU_SXM_3_TEMP_1"] == "headroom"
    assert kinds["HGX_GPU_SXM_3_Energy_0"] == "joules"


def test_headroom_at_its_lower_limit_is_critical() -> None:
    body = json.loads((FIXTURES / "reported/redfish-sensor-headroom.json").read_text())
    body["Reading"] = -4.5
    assert table(parse(body)[0])[("HGX_GPU_2_TEMP_1", "headroom")]["critical"] == 1.0


def test_a_host_that_is_off_gives_no_number_and_no_alarm() -> None:
    samples, problems = read("redfish/own-thermal-host-off.json")
    assert problems == []
    assert len(samples) == 11
    assert all(dict(one.fields) == {"present": 0.0} for one in samples)


@pytest.mark.parametrize("name", ["own-power-nulls", "own-sensors-nulls"])
def test_null_readings_and_null_health_give_no_number_and_no_judgement(name: str) -> None:
    samples, problems = read(f"redfish/{name}.json")
    assert samples or problems
    assert all("value" not in one.fields and "critical" not in one.fields for one in samples)


def test_names_stay_the_same_while_a_neighbour_reads_null() -> None:
    body = json.loads((FIXTURES / "redfish/own-power.json").read_text())
    for supply in body["PowerSupplies"][1:]:
        supply["PowerInputWatts"] = None
    found = table(parse(body)[0])
    assert found[("SimServerPowerSupply Input #0", "watts")]["value"] == 1101.0


def test_a_value_over_its_threshold_is_critical_whatever_health_says() -> None:
    body = json.loads((FIXTURES / "redfish/own-thermal.json").read_text())
    body["Temperatures"][0]["ReadingCelsius"] = 46
    assert table(parse(body)[0])[("Inlet Temp", "celsius")]["critical"] == 1.0


def test_leaks_are_critical_states() -> None:
    dry, _ = read("redfish/simhall-leakdetection.json")
    wet, _ = read("redfish/simhall-leakdetection-leak.json")
    assert [one.fields["critical"] for one in dry] == [0.0, 0.0]
    assert [one.fields["critical"] for one in wet] == [1.0, 1.0]


def test_thermal_metrics_are_read() -> None:
    found = table(read("redfish/simhall-thermalmetrics.json")[0])
    assert found[("Inlet Air", "celsius")]["value"] == 24.0
    assert len(found) == 4


def test_a_metric_report_is_read_by_address_and_its_nan_left_out() -> None:
    base = "/redfish/v1/Chassis/HGX_GPU_SXM_3/Sensors/HGX_GPU_SXM_3_"
    stamp = "2026-12-01T04:39:50+00:00"
    body = {
        "@odata.type": "#MetricReport.v1_4_2.MetricReport",
        "MetricValues": [
            {"MetricProperty": base + "TEMP_0", "MetricValue": "43.5", "Timestamp": stamp},
            {"MetricProperty": base + "TEMP_1", "MetricValue": "31.0", "Timestamp": stamp},
            {"MetricProperty": base + "Power_0", "MetricValue": "nan", "Timestamp": stamp},
            {"MetricProperty": base + "DRAM_0_Temp_0", "MetricValue": None, "Timestamp": stamp},
            {
                "MetricProperty": "/redfish/v1/Chassis/S/Thermal#/Temperatures/0/ReadingCelsius",
                "MetricValue": "22",
                "Timestamp": "2019-01-01T00:00:00Z",
            },
        ],
    }
    samples, problems = parse(body)
    found = table(samples)
    assert found[("HGX_GPU_SXM_3_TEMP_0", "celsius")]["value"] == 43.5
    assert found[("HGX_GPU_SXM_3_TEMP_1", "headroom")]["value"] == 31.0
    assert len(found) == 2
    assert samples[0].time_ns == 1_796_099_990 * 10**9
    assert ["days ago" in one.problem for one in problems] == [True]


def test_log_entries_become_events_with_their_own_time_zone() -> None:
    samples, problems = read("reported/redfish-log-paged.json")
    assert problems == []
    assert samples[0].tag("code") == "power_supply_failure"
    assert samples[0].fields["severity"] == 3.0
    assert str(samples[0].fields["text"]).startswith("Sel 52: Power supply 2 failed.")
    assert samples[0].time_ns == 1_777_878_729 * 10**9  # 2026-05-04 07:12:09 UTC


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("The power input for power supply 1 is lost.", "power_supply_input_lost"),
        ("The input power for power supply 1 has been lost.", "power_supply_input_lost"),
        ("The input power for power supply 2 has been restored.", "psu0016"),
        ("Power supply redundancy is lost.", "redundancy_lost"),
        ("Power supply 1 failed.", "power_supply_failure"),
        ("Power supply 1 is operating normally.", "psu0016"),
        ("Multi-bit memory errors detected at DIMM_B2.", "memory_uncorrectable"),
    ],
)
def test_the_same_event_has_one_code_however_a_vendor_words_it(message: str, code: str) -> None:
    samples, problems = parse({"Id": "1", "Message": message, "MessageId": "IDRAC.2.8.PSU0016",
                               "Created": "2026-11-30T00:00:00Z", "Severity": "OK"})  # fmt: skip
    assert (samples[0].tag("code"), problems) == (code, [])


def test_errors_are_told_in_words() -> None:
    for name in ("redfish/own-session-limit.json", "reported/redfish-session-limit-503.json"):
        samples, problems = read(name)
        assert samples == []
        assert problems[0].problem.startswith("the BMC has no session left")


def test_json_that_ends_half_way_is_a_problem_and_gives_nothing() -> None:
    samples, problems = read("redfish/own-truncated.txt")
    assert samples == []
    assert problems[0].problem == "JSON that ends too early"


@pytest.mark.parametrize("end", range(1, 1700, 50))
def test_a_cut_answer_never_gives_a_number(end: int) -> None:
    raw = (FIXTURES / "redfish/own-power.json").read_bytes()
    samples, problems = parse(raw[:end])
    assert samples == []
    assert problems


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "42",
        '"text"',
        "[[[[[]]]]]",
        "{}",
        '{"Members": 5}',
        '{"@odata.type": 7}',
        '{"@odata.type": "#Thermal.v1.Thermal", "Temperatures": {"0": 1}, "Fans": [null, 3, "x"]}',
        '{"@odata.type": "#Sensor.v1.Sensor", "Id": "T", "Reading": NaN, "ReadingUnits": "Cel"}',
        '{"@odata.type": "#Sensor.v1.Sensor", "Id": "T", "Reading": 1e999, "ReadingUnits": "Cel"}',
        '{"@odata.type": "#Sensor.v1.Sensor", "Id": "T", "Reading": true, "ReadingUnits": "Cel"}',
        '{"@odata.type": "#Sensor.v1.Sensor", "Id": "T", "Reading": 255, "ReadingUnits": "Cel"}',
        '{"error": null}',
        '{"error": {"@Message.ExtendedInfo": "x"}}',
        "[" * 20_000,
        '{"a":' * 20_000,
        "<html><body>502</body></html>",
        "\x00\x01\x02",
    ],
)
def test_what_is_no_resource_gives_no_number_and_no_exception(text: str) -> None:
    samples, _ = parse(text)
    assert [one for one in samples if "value" in one.fields] == []


@pytest.mark.parametrize("path", REDFISH, ids=lambda path: path.name)
def test_members_of_wrong_types_never_raise(path: Path) -> None:
    rng = random.Random(path.name)
    strange: list[Any] = [None, "", "x", -1, 1e300, True, [], {}, ["a"], {"b": 1}, "nan", 10**400]

    def twist(value: Any) -> Any:
        if rng.random() < 0.05:
            return rng.choice(strange)
        if isinstance(value, dict):
            return {key: twist(item) for key, item in value.items()}
        if isinstance(value, list):
            return [twist(item) for item in value]
        return value

    body = json.loads(path.read_text())
    for _ in range(80):
        samples, _ = parse(twist(body))
        check_samples(bmc, samples, node="n7")
