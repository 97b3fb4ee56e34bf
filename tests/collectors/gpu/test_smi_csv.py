"""CSV of nvidia-smi that people ask for with columns of their own."""

from __future__ import annotations

import pytest

from collectors.gpu import smi_csv
from tests.collectors.contract import NODE, NOW_NS


def test_rows_that_name_a_gpu_by_its_address_only_are_told_apart() -> None:
    row = "{name}, 00000000:{bus}:00.0, 535.104.05, {temperature}\n"
    text = "name, pci.bus_id, driver_version, temperature.gpu\n" + "".join(
        row.format(name="NVIDIA H100", bus=bus, temperature=temperature)
        for bus, temperature in (("1B", "34"), ("2B", "[GPU is lost]"), ("1B", "35"))
    )
    samples, problems = smi_csv.parse(text, NODE, NOW_NS)
    told = [(one.tag("gpu"), one.number("lost")) for one in samples if one.measurement == "gpu"]
    assert told == [("0", 0.0), ("1", 1.0), ("0", 0.0)]
    places = {one.text("device") for one in samples if one.tag("code") == "gpu"}
    assert places == {"0000:1b:00", "0000:2b:00"}
    assert [one.problem for one in problems] == [
        "rows without index and uuid: GPUs are numbered as they come, from 0"
    ]


def test_a_header_is_known_among_many_columns_that_are_not() -> None:
    names = "clocks.gr [MHz], encoder.stats.sessionCount, gom.current, x.y, temperature.gpu"
    samples, problems = smi_csv.parse(f"index, {names}\n3, 1 MHz, 0, [N/A], 7, 44\n", NODE, NOW_NS)
    assert problems == []
    assert [dict(one.fields) for one in samples if one.measurement == "gpu"] == [
        {"temperature_celsius": 44.0, "lost": 0.0}
    ]


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("Reset", 1),
        ("GPU Reset Required", 1),
        ("Node Reboot Required", 2),
        ("Drain P2P", 3),
        ("DRAIN_AND_RESET", 4),
        ("Drain and Reset Recommended", 4),
        ("System Reboot Required", 7),
        ("None", 0),
    ],
)
def test_an_action_is_known_in_the_words_of_nvidia_smi_and_of_the_kernel(
    words: str, action: int
) -> None:
    samples, problems = smi_csv.parse(f"index, gpu_recovery_action\n0, {words}\n", NODE, NOW_NS)
    assert problems == []
    assert samples[0].number("recovery_action") == action
