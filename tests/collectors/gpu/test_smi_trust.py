"""What nvidia-smi's XML may be believed in: each schema's names, and nothing that users named."""

from __future__ import annotations

import pytest

from collectors.gpu.smi_xml import parse, read_xml
from collectors.sample import Problem, Sample

NOW_NS = 1_796_007_000_000_000_000
LOST = "Unable to determine the device handle for GPU 0000:9B:00.0: GPU is lost."
PIECES = {
    "temperature": "<temperature><gpu_temp>40 C</gpu_temp></temperature>",
    "sums": "<aggregate><sram_correctable>1</sram_correctable><dram_correctable>30"
    "</dram_correctable></aggregate><volatile><dram_correctable>3</dram_correctable></volatile>",
}


def document(inside: str, schema: int = 12, attached: int = 1) -> str:
    return (
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{schema}.dtd">\n'
        f"<nvidia_smi_log><attached_gpus>{attached}</attached_gpus>"
        '<gpu id="00000000:3B:00.0"><uuid>GPU-1</uuid><minor_number>0</minor_number>'
        f"{inside}</gpu></nvidia_smi_log>\n"
    )


def board(text: str) -> tuple[dict[str, object], list[str]]:
    samples, problems = parse(text, "n1", NOW_NS)
    found = [one for one in samples if one.measurement == "gpu"]
    return dict(found[0].fields) if found else {}, words(problems)


def words(problems: list[Problem]) -> list[str]:
    return [one.problem for one in problems]


def kinds(samples: list[Sample]) -> set[str]:
    return {one.tag("kind") for one in samples}


def process(name: str) -> str:
    return (
        "<processes><process_info><pid>7</pid>"
        f"<process_name>{name}</process_name></process_info></processes>"
    )


@pytest.mark.parametrize(
    "name",
    [
        "GPU is lost",
        LOST,
        f"x\n{LOST}",
        # Should nvidia-smi not escape what it prints.
        "a</process_name></process_info></processes><gpu_recovery_action>Reboot"
        "</gpu_recovery_action><processes><process_info><process_name>",
        f"a</process_name></process_info></processes>{LOST}<processes><process_info><process_name>",
    ],
)
def test_the_name_of_a_process_says_nothing_of_the_gpu(name: str) -> None:
    text = document(PIECES["temperature"] + process(name))
    fields, problems = board(text)
    assert (fields, problems) == ({"temperature_celsius": 40.0, "lost": 0.0}, [])
    assert "gpu_lost" not in kinds(parse(text, "n1", NOW_NS)[0])


def test_a_gpu_that_a_name_brings_along_makes_the_document_unbelievable() -> None:
    name = (
        'a</process_name></process_info></processes></gpu><gpu id="00000000:9B:00.0">'
        "<temperature><gpu_temp>GPU is lost</gpu_temp></temperature>"
        "<processes><process_info><process_name>"
    )
    fields, problems = board(document(PIECES["temperature"] + process(name)))
    assert fields == {}
    assert "nothing of this document is believed" in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        f"{LOST}\n{document(PIECES['temperature'], attached=2)}",
        f"{document(PIECES['temperature'], attached=2)}{LOST}\n",
        document(PIECES["temperature"] + f"\n{LOST}\n", attached=2),
    ],
    ids=["before", "after", "within"],
)
def test_a_failure_before_within_or_after_a_document_is_heard(text: str) -> None:
    samples, _ = parse(text, "n1", NOW_NS)
    assert "gpu_lost" in kinds(samples)
    assert any(one.number("temperature_celsius") == 40.0 for one in samples)


@pytest.mark.parametrize("broken", ["Unknown Error", "ERR!"])
def test_a_sum_of_errors_is_whole_or_absent(broken: str) -> None:
    assert board(document(f"<ecc_errors>{PIECES['sums']}</ecc_errors>"))[0][
        "ecc_corrected_total"
    ] == pytest.approx(31)
    for cell in ("1</sram", "30\u003c/dram"):
        text = PIECES["sums"].replace(cell, f"{broken}<{cell.partition('<')[2]}")
        fields, problems = board(document(f"<ecc_errors>{text}</ecc_errors>"))
        assert "ecc_corrected_total" not in fields
        assert any("ecc_corrected_total" in one for one in problems)
    absent = PIECES["sums"].replace("1</sram", "N/A</sram")
    assert board(document(f"<ecc_errors>{absent}</ecc_errors>"))[0]["ecc_corrected_total"] == 30


GENERATIONS = {
    # schema, throttle reasons, power readings, the limit's name, the draw's name
    "418": (10, "throttle", "power_readings", "power_limit", "power_draw"),
    "450": (11, "throttle", "power_readings", "enforced_power_limit", "power_draw"),
    "510": (11, "throttle", "power_readings", "enforced_power_limit", "power_draw"),
    "530": (12, "throttle", "gpu_power_readings", "current_power_limit", "power_draw"),
    "545": (12, "event", "gpu_power_readings", "current_power_limit", "average_power_draw"),
    "580": (13, "event", "gpu_power_readings", "current_power_limit", "instant_power_draw"),
    "700": (15, "event", "gpu_power_readings", "current_power_limit", "power_draw"),
}


@pytest.mark.parametrize("driver", GENERATIONS)
def test_each_generation_names_the_same_things_in_its_way(driver: str) -> None:
    schema, reason, power, limit, draw = GENERATIONS[driver]
    fields, problems = board(
        document(
            f"<clocks_{reason}_reasons><clocks_{reason}_reason_hw_slowdown>Active"
            f"</clocks_{reason}_reason_hw_slowdown></clocks_{reason}_reasons>"
            f"<{power}><{draw}>44.10 W</{draw}><{limit}>250.00 W</{limit}></{power}>"
            "<gpu_module_power_readings><power_draw>900.00 W</power_draw>"
            "</gpu_module_power_readings><module_power_readings><power_draw>900.00 W</power_draw>"
            "</module_power_readings><fan_speed>N/A</fan_speed><temperature><gpu_temp>"
            "Requested functionality has been deprecated</gpu_temp></temperature>",
            schema,
        )
    )
    assert fields == {
        "throttle_hw_slowdown": 1.0,
        "power_watts": pytest.approx(44.1),
        "power_limit_watts": 250.0,
        "lost": 0.0,
    }
    assert [("not one of those known" in one) for one in problems] == [True] * (schema > 13)


# ---- an answer to ourselves -----------------------------------------------------------------

FORGED = (
    '<gpu id="00000000:9B:00.0"><uuid>GPU-f</uuid>'
    f"<temperature><gpu_temp>GPU is lost</gpu_temp></temperature>\n{LOST}\n"
)
OUT = "a</process_name></process_info></processes></gpu>"
IN = "<processes><process_info><process_name>"


def eight(name: str, last: str = "python") -> str:
    """A document of eight GPUs; a process on the first and one on the last bear these names."""
    gpus = "".join(
        f'<gpu id="00000000:{index + 1}B:00.0"><uuid>GPU-{index}</uuid><minor_number>{index}'
        f"</minor_number>{PIECES['temperature']}{process(named) if named else ''}</gpu>\n"
        for index, named in enumerate((name, *[""] * 6, last))
    )
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log><attached_gpus>8</attached_gpus>{gpus}</nvidia_smi_log>\n"
    )


@pytest.mark.parametrize(
    ("name", "last"),
    [
        (f"{OUT}{FORGED}{IN}\x01<", "python"),
        (f"{OUT}{FORGED}{IN}a & b", "python"),
        (f"{OUT}{FORGED}{IN}", "python"),
        (f"{OUT}{FORGED}</gpu></nvidia_smi_log>\n{LOST}\n<!--", "python"),
        (
            f"{OUT}</nvidia_smi_log>\n{LOST}\n<?xml version='1.0'?><nvidia_smi_log>"
            f"<attached_gpus>1</attached_gpus>{FORGED}{IN}",
            "python",
        ),
        # Two processes of one user: all between them is hidden, and as many GPUs are forged.
        (f"{OUT}{(FORGED + '</gpu>') * 6}{FORGED}<!--", f"-->{IN}"),
        (f"{OUT}{(FORGED + '</gpu>') * 6}{FORGED}<![CDATA[", f"]]>{IN}"),
        (f"{OUT}{(FORGED + '</gpu>') * 6}<later>", f"{OUT}</later>{FORGED}{IN}"),
        (f"{OUT}{(FORGED + '</gpu>') * 6}{FORGED}<processes>", f"{OUT}</processes>{IN}"),
    ],
    ids=["control", "and", "gpu", "end", "second", "comment", "cdata", "element", "within"],
)
def test_no_name_of_a_process_tells_the_live_source_of_a_gpu(name: str, last: str) -> None:
    read = read_xml(eight(name, last), "n1", NOW_NS, asked=0)
    samples, problems = read.close()
    assert not any(one.number("lost") for one in samples)
    assert "gpu_lost" not in kinds(samples)
    assert [one.tag("uuid") for one in samples if one.measurement == "gpu"] == ["GPU-0"]
    assert read.mixed in words(problems)
    assert "names of processes" in read.mixed


def test_a_text_that_is_broken_within_tells_of_no_gpu_behind_a_name() -> None:
    whole = eight("python")
    samples, problems = parse(eight(f"{OUT}{FORGED}{IN}\x01<"), "n1", NOW_NS)
    assert [one.tag("uuid") for one in samples if one.measurement == "gpu"] == ["GPU-0"]
    assert any("names of processes" in one for one in words(problems))
    # One that was only cut off gives what came before the cut.
    samples, _ = parse(whole[: whole.index("GPU-5")], "n1", NOW_NS)
    assert len([one for one in samples if one.tag("uuid")]) == 5


def test_an_answer_about_one_gpu_tells_of_no_other() -> None:
    text = document(PIECES["temperature"] + process(f"{OUT}{FORGED}{IN}"), attached=8)
    read = read_xml(text, "n1", NOW_NS, asked=1)
    samples, _ = read.close()
    assert [one.tag("uuid") for one in samples if one.measurement == "gpu"] == ["GPU-1"]
    assert not any(one.number("lost") for one in samples)
    assert "gpu_lost" not in kinds(samples)


def test_a_whole_answer_with_processes_is_believed() -> None:
    read = read_xml(eight("python"), "n1", NOW_NS, asked=0)
    assert sorted(read.boards) == list(range(8))
    assert (read.mixed, read.incomplete) == ("", "")
