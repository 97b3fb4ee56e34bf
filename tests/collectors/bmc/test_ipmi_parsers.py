"""What is read in the output of ipmitool and FreeIPMI, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from collectors.bmc import points as bmc
from collectors.bmc.ipmi_faults import WRONG_LOGIN, session_words
from collectors.parsers import PARSERS
from collectors.sample import Problem, Sample
from tests.collectors.contract import check_samples

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
NOW_NS = 1_796_100_000 * 10**9  # 2026-12-01, a day after the fixtures were taken


def read(parser: str, name: str) -> tuple[list[Sample], list[Problem]]:
    raw = (FIXTURES / name).read_bytes()
    return PARSERS[parser](raw, "n7", NOW_NS)


def values(samples: list[Sample]) -> dict[tuple[str, str], float]:
    return {
        (one.tag("sensor"), one.tag("kind")): float(one.fields["value"])
        for one in samples
        if "value" in one.fields
    }


def sensor(samples: list[Sample], name: str) -> dict[str, object]:
    found = [one for one in samples if one.tag("sensor") == name]
    assert len(found) == 1, [one.tags for one in samples]
    return dict(found[0].fields)


SENSOR_LISTINGS = [
    ("ipmitool-sdr", "ipmi/ipmitool-sdr-elist-all.txt"),
    ("ipmitool-sdr", "ipmi/ipmitool-sdr-list.txt"),
    ("ipmitool-sdr", "ipmi/ipmitool-sdr-csv.txt"),
    ("ipmitool-sensor", "ipmi/ipmitool-sensor.txt"),
    ("ipmitool-sensor", "ipmi/ipmitool-sensor-csv.txt"),
    ("ipmi-sensors", "ipmi/freeipmi-sensors.txt"),
    ("ipmi-sensors", "ipmi/freeipmi-sensors-csv.txt"),
    ("ipmi-sensors", "ipmi/freeipmi-monitoring.txt"),
]
SEL_LISTINGS = [
    ("ipmitool-sel", "ipmi/ipmitool-sel-elist.txt"),
    ("ipmitool-sel", "ipmi/ipmitool-sel-list.txt"),
    ("ipmitool-sel", "ipmi/ipmitool-sel-elist-csv.txt"),
    ("ipmi-sel", "ipmi/freeipmi-sel.txt"),
    ("ipmi-sel", "ipmi/freeipmi-sel-csv.txt"),
]


@pytest.mark.parametrize(("parser", "name"), SENSOR_LISTINGS)
def test_every_listing_of_one_bmc_gives_the_same_readings(parser: str, name: str) -> None:
    samples, problems = read(parser, name)
    assert problems == []
    check_samples(bmc, samples)
    read_values = values(samples)
    assert read_values[("Inlet Temp", "celsius")] == 42
    assert read_values[("FAN3", "rpm")] == 600
    assert read_values[("P12V", "volts")] == pytest.approx(10.62)
    assert read_values[("P3V3", "volts")] == pytest.approx(3.31, abs=0.006)
    assert read_values[("Total Power", "watts")] == 6700
    assert len(read_values) == 32
    assert sensor(samples, "FAN3")["critical"] == 1.0
    assert sensor(samples, "Inlet Temp")["critical"] == 0.0
    assert sensor(samples, "PSU1 Status") == {"critical": 0.0, "present": 1.0}
    assert sensor(samples, "PSU2 Status") == {"critical": 1.0, "present": 1.0}
    assert sensor(samples, "PSU5 Status") == {"present": 0.0}


@pytest.mark.parametrize(("parser", "name"), SENSOR_LISTINGS[:-1])
def test_a_sensor_without_reading_is_absent_and_never_zero(parser: str, name: str) -> None:
    samples, _ = read(parser, name)
    assert sensor(samples, "NVMe7 Temp") == {"present": 0.0}


def test_one_sensor_printed_in_full_is_read() -> None:
    samples, problems = read("ipmitool-sensor", "ipmi/ipmitool-sensor-get.txt")
    assert problems == []
    assert values(samples) == {("Inlet Temp", "celsius"): 42.0}


def test_a_reading_without_unit_is_refused() -> None:
    samples, problems = read("ipmitool-sensor", "ipmi/ipmitool-sensor-reading.txt")
    assert samples == []
    assert len(problems) == 2
    assert "without a unit" in problems[0].problem


def test_what_came_before_a_bmc_fell_silent_is_kept_and_the_silence_told() -> None:
    samples, _ = read("ipmitool-sdr", "ipmi/ipmitool-mute-mid-session.txt")
    assert len(samples) == 4
    nothing, problems = read("ipmitool-sdr", "ipmi/ipmitool-mute-mid-session.stderr.txt")
    assert nothing == []
    assert {one.problem for one in problems} == {"the BMC answered and then fell silent"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("CPU1 Temp        | 03h | ok  |  3.98 | 250 degrees C", "cannot be"),
        ("CPU1 Temp        | 03h | ok  |  3.98 | -128 degrees C", "cannot be"),
        ("FAN1             | 99000 RPM         | ok", "cannot be"),
        ("Total Power      | 65535 Watts       | ok", "cannot be"),
        ("CPU1 Temp,58,5,degrees C,ok", "too few columns"),
        ("CPU1 Temp        | 42,5 degrees C    | ok", "unit"),
        ("CPU1 Temp        | 42 degrees        | ok", "unit that is not kept"),
        ("CPU1 Temp        | 42 degrees C      | perfect", "status"),
        ("CPU1 Temp        | 03h | ok  |  3.98 | 58", "without a unit"),
        ("\x00\x01\x02|\x03|\x04", "bytes"),
        ("Segmentation fault", "not a line"),
    ],
)
def test_an_impossible_or_unclear_line_is_a_problem_and_no_number(line: str, words: str) -> None:
    samples, problems = PARSERS["ipmitool-sdr"](line + "\n", "n7", NOW_NS)
    assert values(samples) == {}
    assert len(problems) == 1, (samples, problems)
    assert words in problems[0].problem


def test_fahrenheit_becomes_celsius() -> None:
    text = "Inlet Temp       | 01h | ok  | 55.96 | 77 degrees F\n"
    samples, _ = PARSERS["ipmitool-sdr"](text, "n7", NOW_NS)
    assert values(samples)[("Inlet Temp", "celsius")] == pytest.approx(25)


def test_two_sensors_of_one_name_stay_two() -> None:
    text = "Temp | 0Eh | ok  |  3.1 | 40 degrees C\nTemp | 0Fh | ok  |  3.2 | 44 degrees C\n"
    samples, _ = PARSERS["ipmitool-sdr"](text, "n7", NOW_NS)
    assert values(samples) == {("Temp #3.1", "celsius"): 40.0, ("Temp #3.2", "celsius"): 44.0}


def test_freeipmi_over_many_hosts_gives_each_host_its_own_readings() -> None:
    text = (
        "10.0.0.1: ID | Name | Type | Reading | Units | Event\n"
        "10.0.0.1: 1  | Inlet Temp | Temperature | 24.00 | C | 'OK'\n"
        "10.0.0.3: ipmi-sensors: connection timeout\n"
        "bmc-n2: 1  | Inlet Temp | Temperature | 25.00 | C | 'OK'\n"
    )
    samples, problems = PARSERS["ipmi-sensors"](text, "n7", NOW_NS)
    assert {(one.tag("node"), one.fields["value"]) for one in samples} == {
        ("10.0.0.1", 24.0),
        ("bmc-n2", 25.0),
    }
    assert [one.problem for one in problems] == ["the BMC does not answer"]
    assert problems[0].line.startswith("10.0.0.3")


def test_the_layout_of_old_freeipmi_is_read() -> None:
    text = (
        "3: FAN 1 (Fan): 5214.00 RPM (715.00/NA): [OK]\n"
        "9: CPU Temp (Temperature): 96.00 C (NA/95.00): "
        "[At or Above (>=) Upper Critical Threshold]\n"
        "17: PS Status (Power Supply): [Presence detected]\n"
    )
    samples, problems = PARSERS["ipmi-sensors"](text, "n7", NOW_NS)
    assert problems == []
    assert values(samples) == {("FAN 1", "rpm"): 5214.0, ("CPU Temp", "celsius"): 96.0}
    assert sensor(samples, "CPU Temp")["critical"] == 1.0
    assert sensor(samples, "PS Status") == {"critical": 0.0, "present": 1.0}


# ---- SEL -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parser", "name"), SEL_LISTINGS)
def test_every_listing_of_one_sel_gives_the_same_events(parser: str, name: str) -> None:
    samples, problems = read(parser, name)
    assert problems == []
    check_samples(bmc, samples)
    codes = [(one.tag("code"), one.fields["severity"]) for one in samples]
    assert codes[1:5] == [
        ("temperature_upper_warning", 1.0),
        ("power_supply_input_lost", 3.0),
        ("power_supply_failure", 3.0),
        ("fan_lower_critical", 3.0),
    ]
    assert codes[6:14] == [
        ("temperature_upper_warning", 1.0),
        ("temperature_upper_critical", 3.0),
        ("memory_uncorrectable", 3.0),
        ("memory_correctable", 1.0),
        ("voltage_lower_critical", 3.0),
        ("bus_uncorrectable", 3.0),
        ("watchdog", 2.0),
        ("clock", 0.0),
    ]
    assert codes[14:16] == [("oem", 0.0), ("oem", 0.0)]
    assert codes[16:] == [
        ("temperature_upper_warning", 0.0),
        ("temperature_upper_critical", 0.0),
    ], "a state that went away is no fault"
    assert [one.tag("kind") for one in samples] == ["sel"] * 18
    assert str(samples[9].fields["text"]).startswith("SEL 0xa: ")
    assert samples[1].time_ns == 1_796_001_403 * 10**9  # 2026-11-30 01:16:43 UTC


def test_the_device_of_an_event_is_the_sensor_without_its_type() -> None:
    samples, _ = read("ipmitool-sel", "ipmi/ipmitool-sel-elist.txt")
    assert samples[2].fields["device"] == "PSU2 Status"
    assert samples[4].fields["device"] == "FAN3"


def test_presence_that_goes_away_is_a_removed_supply() -> None:
    samples, _ = read("ipmitool-sel", "ipmi/ipmitool-sel-elist.txt")
    assert (samples[5].tag("code"), samples[5].fields["severity"]) == ("power_supply_removed", 2.0)


@pytest.mark.parametrize("name", ["ipmitool-sel-elist-v", "ipmitool-sel-get"])
def test_entries_printed_in_full_are_read_although_their_time_of_day_is_not_printed(
    name: str,
) -> None:
    samples, problems = read("ipmitool-sel", f"ipmi/{name}.txt")
    assert problems == []
    assert samples
    for one in samples:
        assert one.time_ns // 10**9 == NOW_NS // 10**9
        assert "BMC says 11/30/26" in str(one.fields["text"])


def test_a_time_before_the_bmc_knew_it_is_now_and_says_so() -> None:
    samples, _ = read("ipmitool-sel", "ipmi/ipmitool-sel-elist-pre-init.txt")
    assert samples[0].time_ns == NOW_NS
    assert "5832 s after its start" in str(samples[0].fields["text"])


def test_a_clock_that_lost_its_battery_gives_now_and_says_so() -> None:
    text = "   3 | 01/01/1970 | 00:12:07 | Fan FAN3 | Lower Critical going low  | Asserted\n"
    samples, problems = PARSERS["ipmitool-sel"](text, "n7", NOW_NS)
    assert problems == []
    assert samples[0].time_ns == NOW_NS
    assert "1970-01-01 00:12:07" in str(samples[0].fields["text"])


def test_an_empty_sel_is_told_and_is_no_event() -> None:
    samples, problems = read("ipmitool-sel", "ipmi/ipmitool-sel-elist-empty.stderr.txt")
    assert samples == []
    assert [one.problem for one in problems] == ["the SEL is empty"]


# ---- power, chassis, complaints ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        ("ipmi/ipmitool-dcmi-power.txt", 6700.0),
        ("reported/ipmitool-dcmi-old-format.txt", 215.0),
        ("ipmi/freeipmi-dcmi-power.txt", 6700.0),
    ],
)
def test_dcmi_power_is_read_in_every_format(name: str, watts: float) -> None:
    samples, problems = read("ipmitool-dcmi", name)
    assert problems == []
    assert values(samples) == {("DCMI Power", "watts"): watts}


def test_a_meter_that_is_switched_off_does_not_read_zero_watts() -> None:
    samples, _ = read("ipmitool-dcmi", "ipmi/ipmitool-dcmi-power-inactive.txt")
    assert dict(samples[0].fields) == {"present": 0.0}


def test_chassis_faults_are_states() -> None:
    samples, problems = read("ipmitool-chassis", "ipmi/ipmitool-chassis-status.txt")
    assert problems == []
    assert sensor(samples, "System Power") == {"critical": 0.0, "present": 0.0}
    text = "System Power         : on\nCooling/Fan Fault    : true\n"
    samples, _ = PARSERS["ipmitool-chassis"](text, "n7", NOW_NS)
    assert sensor(samples, "Cooling/Fan Fault") == {"critical": 1.0, "present": 1.0}


def test_the_time_tells_a_refused_login_from_silence() -> None:
    refused = (FIXTURES / "ipmi/ipmitool-wrong-password.stderr.txt").read_text()
    silent = (FIXTURES / "ipmi/ipmitool-silent.stderr.txt").read_text()
    assert refused == silent
    assert session_words(refused, 0.05) == WRONG_LOGIN
    assert session_words(silent, 20.0) == "the BMC does not answer"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ipmi/freeipmi-wrong-password.stderr.txt", "the BMC refuses the password"),
        ("ipmi/freeipmi-wrong-user.stderr.txt", "the BMC does not know the user"),
        ("ipmi/freeipmi-priv-unobtainable.stderr.txt", "the user has too few rights on the BMC"),
        ("ipmi/ipmitool-v-wrong-password.stderr.txt", "the BMC refuses the password"),
        ("ipmi/ipmitool-v-wrong-user.stderr.txt", "the BMC does not know the user"),
        (
            "reported/ipmitool-mixed-session-errors.stderr.txt",
            "the BMC offers no cipher suite that we know",
        ),
    ],
)
def test_each_fault_of_a_session_has_its_own_words(name: str, words: str) -> None:
    assert session_words((FIXTURES / name).read_text(), 0.1) == words


# ---- bad input ---------------------------------------------------------------------------------

ALL = [*SENSOR_LISTINGS, *SEL_LISTINGS, ("ipmitool-sensor", "ipmi/ipmitool-sensor-get.txt"),
       ("ipmitool-sel", "ipmi/ipmitool-sel-elist-v.txt"),
       ("ipmitool-dcmi", "ipmi/ipmitool-dcmi-power.txt"),
       ("ipmitool-chassis", "ipmi/ipmitool-chassis-status.txt")]  # fmt: skip


@pytest.mark.parametrize(("parser", "name"), ALL)
def test_output_cut_off_anywhere_never_gives_a_reading_that_the_whole_does_not(
    parser: str, name: str
) -> None:
    # Its head and its end: what lies between is read before the cut, as ever.
    lines = (FIXTURES / name).read_text().splitlines(keepends=True)
    raw = "".join([*lines[:4], *lines[4:][-20:]])
    everything = PARSERS[parser](raw, "n7", NOW_NS)[0]
    whole = {(one.tags, frozenset(one.fields.items())) for one in everything}
    events = [one for one in everything if one.measurement == "event"]
    start = max(0, len(raw) - 500)  # the last lines, each cut at every place
    for end in range(start, len(raw)):
        samples, _ = PARSERS[parser](raw[:end], "n7", NOW_NS)
        for one in samples:
            if one.measurement == "bmc" and one.tag("kind") == "state":
                continue  # whether a blank supply is absent depends on the others being listed
            if one.measurement == "event":  # its last words may be missing, and no more
                assert any(
                    (other.tags, other.fields["severity"], other.fields.get("device"))
                    == (one.tags, one.fields["severity"], one.fields.get("device"))
                    and str(other.fields["text"]).startswith(
                        str(one.fields["text"]).split("; Reading")[0]
                    )
                    for other in events
                ), raw[:end][-120:]
                continue
            assert (one.tags, frozenset(one.fields.items())) in whole, raw[:end][-120:]


@pytest.mark.parametrize(("parser", "name"), ALL)
def test_a_line_that_is_noise_gives_its_numbers_to_no_other_sensor_or_entry(
    parser: str, name: str
) -> None:
    def told(text: bytes) -> set[tuple[object, ...]]:
        return {
            (one.tags, one.fields["text"], one.fields["severity"], one.fields.get("device"))
            if one.measurement == "event"
            else (one.tags, one.fields.get("value"))
            for one in PARSERS[parser](text, "n7", NOW_NS)[0]
        }

    raw = (FIXTURES / name).read_bytes()
    whole, lines = told(raw), raw.split(b"\n")
    for number in range(0, len(lines), 1 + len(lines) // 60):
        for noise in (b"\x8f\x02#zz%", b"~~~~", b"Zw" + lines[number][2:]):
            text = b"\n".join([*lines[:number], noise, *lines[number + 1 :]])
            # The line itself may be read under a name of its own, and a time be lost.
            odd = ("Zw", "when is not known")
            new = {one for one in told(text) - whole if not any(word in str(one) for word in odd)}
            assert new == set(), (number, noise, new)


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (
            "ipmitool-sdr",
            "Power Supply 1 | 73h | ok | 10.1 | 95 Watts, Presence detected\n"
            "Power Supply 2 | 74h | ok | 10.2 | 5 Watts, Presence detected, Failure detected\n"
            "Fans | 75h | ok | 7.1 | 35 unspecified, Fully Redundant\n",
        ),
        (
            "ipmi-sensors",
            "1 | Power Supply 1 | Power Supply | Nominal | 95.00 | W | 'Presence detected'\n"
            "2 | Power Supply 2 | Power Supply | Critical | 5.00 | W | 'Presence detected' "
            "'Power Supply Failure detected'\n"
            "3 | Fans | Fan | Nominal | N/A | N/A | 'Fully Redundant'\n",
        ),
    ],
)
def test_a_supply_with_a_number_and_states_has_both(parser: str, text: str) -> None:
    samples, problems = PARSERS[parser](text, "n7", NOW_NS)
    assert problems == []
    found = {(one.tag("sensor"), one.tag("kind")): dict(one.fields) for one in samples}
    assert found == {
        ("Power Supply 1", "watts"): {"value": 95.0, "present": 1.0},
        ("Power Supply 2", "watts"): {"value": 5.0, "present": 1.0},
        ("Power Supply 1", "state"): {"critical": 0.0, "present": 1.0},
        ("Power Supply 2", "state"): {"critical": 1.0, "present": 1.0},
        ("Fans", "state"): {"critical": 0.0, "present": 1.0},
    }


@pytest.mark.parametrize(
    ("states", "critical"),
    [
        ("Presence detected", 0.0),
        ("State Deasserted", 0.0),
        ("Transition to Running", 0.0),
        ("Presence detected, Power Supply AC lost", 1.0),
        ("Netz verloren, Power Supply AC lost", 1.0),
        ("Anwesend, Netz verloren", None),
        ("Presence detected, OEM-Zustand 7", None),
    ],
)
def test_that_a_part_is_well_is_said_only_of_words_that_say_so(
    states: str, critical: float | None
) -> None:
    samples, problems = PARSERS["ipmitool-sdr"](f"PSU1 | 1h | ok | {states}\n", "n7", NOW_NS)
    assert samples == []  # no such layout
    text = f"PSU1 | 11h | ok | 10.1 | {states}\n"
    samples, problems = PARSERS["ipmitool-sdr"](text, "n7", NOW_NS)
    assert problems == []
    assert sensor(samples, "PSU1").get("critical") == critical


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf", "Infinity"])
@pytest.mark.parametrize("form", ["{} Volts | ok", "{} | Volts | ok" + " | na" * 6])
def test_what_is_no_number_is_no_part_that_is_well(word: str, form: str) -> None:
    samples, problems = PARSERS["ipmitool-sdr"](f"VRM | {form.format(word)}\n", "n7", NOW_NS)
    assert (samples, len(problems)) == ([], 1)


@pytest.mark.parametrize(("parser", "name"), ALL)
def test_noise_never_raises_and_never_gives_an_impossible_number(parser: str, name: str) -> None:
    raw = (FIXTURES / name).read_bytes()
    rng = random.Random(f"{parser}{name}")
    for _ in range(60):
        noisy = bytearray(raw)
        for _ in range(rng.randrange(1, 40)):
            noisy[rng.randrange(len(noisy))] = rng.randrange(256)
        samples, problems = PARSERS[parser](bytes(noisy), "n7", NOW_NS)
        check_samples(bmc, samples, node="")
        assert all(one.problem for one in problems)
        for (_, kind), value in values(samples).items():
            assert bmc.possible(kind, value)


@pytest.mark.parametrize("parser", sorted({parser for parser, _ in ALL}))
@pytest.mark.parametrize("text", [b"", b"\n\n\n", b"\x00" * 1000, b"|" * 5000, b"," * 5000,
                                  b"Temperatur Einlass | 42 Grad C | gut\n",
                                  b"<html><body>504 Gateway Time-out</body></html>\n"])  # fmt: skip
def test_what_is_no_output_of_the_tool_gives_nothing(parser: str, text: bytes) -> None:
    samples, problems = PARSERS[parser](text, "n7", NOW_NS)
    assert samples == []
    assert problems or not text.strip()


def test_a_flood_of_lines_costs_bounded_problems() -> None:
    _, problems = PARSERS["ipmitool-sdr"](b"garbage\n" * 50_000, "n7", NOW_NS)
    assert 0 < len(problems) <= bmc.PROBLEMS_LIMIT
