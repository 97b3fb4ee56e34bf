"""The file of ``ibdiagnet``: ports, cables, and what switches say of themselves.

It is made by hand: the program is NVIDIA's and runs here on nothing.
"""

from __future__ import annotations

from pathlib import Path

from collectors.bmc import points as bmc
from collectors.ib.diagnet import parse_ibdiagnet
from collectors.ib.units import port_metrics
from collectors.sample import Sample

TEXT = (Path(__file__).parents[2] / "fixtures/ib/made-ibdiagnet2.db_csv").read_text()
NOW_NS = 1_796_100_000 * 10**9
SWITCH, HOST = "0xfc6a1c0300200000", "0xb8cef60300100000"
METRICS = {(one.measurement, one.name): one for one in (*port_metrics("fabric_port"), *bmc.METRICS)}


def port(samples: list[Sample], guid: str, number: str) -> Sample:
    (found,) = [one for one in samples if (one.tag("guid"), one.tag("port")) == (guid, number)]
    return found


def test_ports_have_counters_states_and_the_host_at_their_other_end() -> None:
    samples, problems = parse_ibdiagnet(TEXT, "", NOW_NS)
    assert problems == []
    for one in samples:
        for name, value in one.fields.items():
            assert METRICS[one.measurement, name].accepts(value), (one, name)
    first = port(samples, SWITCH, "1")
    assert first.tag("peer_node") == "gpu-0001"
    assert first.fields["transmit_bytes_total"] == 4000.0
    assert first.fields["state"] == 4.0
    assert first.fields["transceiver_temperature_celsius"] == 47.0
    second = port(samples, SWITCH, "2")
    assert second.tag("peer_node") == "gpu-0002"
    # The wide counters count on where the narrow ones are full.
    assert second.fields["link_downs_total"] == 300.0
    assert second.fields["symbol_errors_total"] == 70_000.0
    assert (second.fields["state"], second.fields["physical_state"]) == (1.0, 2.0)
    assert "transmit_bytes_total" not in second.fields
    assert "transceiver_temperature_celsius" not in second.fields
    own = port(samples, HOST, "1")
    assert (own.tag("peer_node"), own.fields["symbol_errors_total"]) == ("gpu-0001", 4.0)


def test_a_switch_tells_its_fans_supplies_and_temperature() -> None:
    samples, _ = parse_ibdiagnet(TEXT, "", NOW_NS)
    name = "MF0;ibsw-01:MQM8700/U1"
    found = {
        (one.tag("sensor"), one.tag("kind")): dict(one.fields)
        for one in samples
        if one.measurement == "bmc" and one.tag("node") == name
    }
    assert found == {
        ("Temperature", "celsius"): {"value": 51.0, "present": 1.0},
        ("FAN1", "rpm"): {"value": 6500.0, "present": 1.0},
        ("FAN2", "rpm"): {"value": 0.0, "present": 1.0},
        ("PSU0", "state"): {"critical": 0.0, "present": 1.0},
        ("PSU1", "state"): {"critical": 1.0, "present": 1.0},
        ("PSU2", "state"): {"present": 0.0},
        ("PSU3", "state"): {"present": 1.0},
    }


def numbers(text: str) -> set[tuple[object, ...]]:
    return {
        (one.measurement, one.tag("guid"), one.tag("port"), one.tag("sensor"), *field)
        for one in parse_ibdiagnet(text, "", NOW_NS)[0]
        for field in one.fields.items()
    }


def test_cut_off_or_with_a_line_of_noise_it_gives_no_number_that_the_whole_does_not() -> None:
    # Without the wide counters: those of a table that is cut are all there or not at all.
    whole = numbers(TEXT)
    for end in range(0, len(TEXT), 7):
        assert numbers(TEXT[:end]) <= whole
    lines = TEXT.split("\n")
    for place in range(len(lines)):
        for noise in ("~~~~", "\x8f\x02,zz", lines[place][1:]):
            text = "\n".join([*lines[:place], noise, *lines[place + 1 :]])
            new = numbers(text) - whole
            assert new == set(), (place, noise, new)


def test_a_table_without_end_and_what_is_no_such_file_are_told() -> None:
    assert "no end" in parse_ibdiagnet(TEXT[:1500], "", NOW_NS)[1][-1].problem
    for text in ("-E- Failed to open umad\n", "ibpanic: can't open UMAD port\n", "\x00\xff\n"):
        samples, problems = parse_ibdiagnet(text, "", NOW_NS)
        assert (samples, len(problems)) == ([], 1)
