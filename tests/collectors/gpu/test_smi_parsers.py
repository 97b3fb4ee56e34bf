"""What is read in the texts of nvidia-smi, from 418 to 595, whole, sick and broken."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from collectors.gpu import smi_csv, smi_lists, smi_topo, smi_xml
from collectors.gpu.smi_values import flag, quantity, recovery_action
from collectors.sample import Problem, Sample

SMI = Path(__file__).resolve().parents[2] / "fixtures/gpu/smi"
NOW_NS = 1_760_000_000_000_000_000
NODE = "n7"
MIB = 2**20


def gpus(samples: list[Sample]) -> list[dict[str, float | str]]:
    return [dict(one.fields) for one in samples if one.measurement == "gpu"]


def events(samples: list[Sample], kind: str) -> list[Sample]:
    return [one for one in samples if one.tag("kind") == kind]


def xml(name: str) -> tuple[list[Sample], list[Problem]]:
    return smi_xml.parse((SMI / name).read_bytes(), NODE, NOW_NS)


def failures() -> list[tuple[str, str]]:
    with open(SMI / "errors.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))[1:]
    return [(row[1].replace("\\n", "\n"), row[2]) for row in rows]


# ---- one value -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("402.77 W", "watts", 402.77),
        ("1980 MHz", "hertz", 1.98e9),
        ("81559 MiB", "bytes", 81559 * MIB),
        ("96 %", "ratio", 0.96),
        ("16x", "lanes", 16),
        ("2560 bank(s)", "count", 2560),
        ("-8 C", "celsius", -8),
        ("0", "count", 0),
        ("0 %", "ratio", 0),
        (" 47 ", "celsius", 47),
    ],
)
def test_a_number_comes_in_our_unit(text: str, kind: str, number: float) -> None:
    assert quantity(text, kind).number == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("N/A", "absent"),
        ("[N/A]", "absent"),
        ("[Not Supported]", "absent"),
        ("", "absent"),
        ("Requested functionality has been deprecated", "absent"),
        ("[Requested functionality has been deprecated]", "absent"),
        ("ERR!", "error"),
        ("[Unknown Error]", "error"),
        ("[Insufficient Permissions]", "error"),
        ("GPU is lost", "lost"),
        ("[GPU is lost]", "lost"),
        ("[GPU requires reset]", "reset"),
        ("47 F", "error"),
        ("four", "error"),
        ("1e", "error"),
    ],
)
def test_no_number_has_many_meanings_and_none_is_zero(text: str, meaning: str) -> None:
    said = quantity(text, "celsius")
    assert said.number is None
    assert said.meaning == meaning


def test_yes_and_no_have_many_words() -> None:
    assert [flag(word).number for word in ("Yes", "Enabled", "Active", "1")] == [1, 1, 1, 1]
    assert [flag(word).number for word in ("No", "Disabled", "Not Active", "0")] == [0, 0, 0, 0]
    assert flag("[N/A]").meaning == "absent"
    assert flag("perhaps").meaning == "error"


def test_recovery_actions_are_numbered_as_the_driver_numbers_them() -> None:
    words = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "GPU Reset", "Node Reboot")
    assert [recovery_action(word).number for word in words] == [0, 1, 2, 3, 4, 1, 2]
    assert recovery_action("Dance").meaning == "error"


# ---- XML ---------------------------------------------------------------------------------------


def test_schema_11_of_an_a100_with_a_pending_remap() -> None:
    samples, problems = xml("q-x_v11_470.xml")
    (fields,) = gpus(samples)
    assert problems == []
    assert fields["power_watts"] == 63.42
    assert fields["power_limit_watts"] == 400.0
    assert fields["memory_temperature_celsius"] == 38.0
    assert (fields["row_remap_pending"], fields["row_remap_failed"]) == (1.0, 0.0)
    assert (fields["remap_banks_max"], fields["remap_banks_high"]) == (639.0, 1.0)
    assert (fields["ecc_corrected_total"], fields["ecc_uncorrected_total"]) == (3.0, 9.0)
    assert fields["memory_used_bytes"] == 0.0
    assert fields["pcie_link_width"] == 16.0
    assert fields["throttle_hw_thermal"] == 0.0
    assert fields["mig_enabled"] == 0.0
    assert fields["lost"] == 0.0
    assert not {"fan_speed_ratio", "retired_pages_single_total", "retired_pages_pending"} & set(
        fields
    )


def test_schema_12_of_an_h100() -> None:
    samples, problems = xml("q-x_v12_535.xml")
    (fields,) = gpus(samples)
    assert problems == []
    assert fields["power_watts"] == 402.77
    assert fields["power_limit_watts"] == 700.0
    assert fields["temperature_celsius"] == 47.0  # not the T.Limit distance of 38
    assert fields["sm_clock_hertz"] == 1.755e9
    assert fields["memory_used_bytes"] == 60112 * MIB
    assert fields["ecc_uncorrected_total"] == 0.0
    assert fields["ecc_sram_threshold_exceeded"] == 0.0
    assert fields["recovery_action"] == 0.0


def test_schema_13_asks_for_a_reset_and_a_repair() -> None:
    samples, problems = xml("q-x_v13_595_recovery.xml")
    (fields,) = gpus(samples)
    assert problems == []
    assert fields["recovery_action"] == 1.0
    assert fields["power_watts"] == 631.95
    assert fields["pcie_replays_total"] == 9.0
    (repair,) = events(samples, "repair")
    assert repair.tag("code") == "tpc_repair_pending"
    assert repair.text("device") == "0000:3d:00"


def test_xml_tells_which_board_it_is() -> None:
    samples, _ = xml("q-x_v12_535.xml")
    (board,) = events(samples, "inventory")
    assert board.text("device") == "0000:1b:00"
    assert board.text("text") == (
        "gpu=0 uuid=GPU-7e57a000-0021-4100-a005-0c0ffee00000 serial=1650000000030 "
        "model=NVIDIA H100 80GB HBM3"
    )
    assert [one.text("text") for one in events(samples, "version")] == ["535.261.03"]


def test_a_lost_gpu_in_xml_is_lost_and_has_no_other_reading() -> None:
    text = (SMI / "q-x_v12_535.xml").read_text().replace(">402.77 W<", ">GPU is lost<")
    (fields,) = gpus(smi_xml.parse(text, NODE, NOW_NS)[0])
    assert fields == {"lost": 1.0}


def test_the_boards_up_to_volta_tell_single_and_double_bit_errors() -> None:
    text = (
        "<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='0000:1B:00.0'><ecc_errors>"
        "<volatile><single_bit><total>1</total></single_bit></volatile>"
        "<aggregate><single_bit><device_memory>6</device_memory><total>7</total></single_bit>"
        "<double_bit><total>2</total></double_bit></aggregate></ecc_errors>"
        "<retired_pages><multiple_single_bit_retirement><retired_count>3</retired_count>"
        "</multiple_single_bit_retirement><double_bit_retirement><retired_count>1</retired_count>"
        "</double_bit_retirement><pending_blacklist>Yes</pending_blacklist></retired_pages>"
        "</gpu></nvidia_smi_log>"
    )
    (fields,) = gpus(smi_xml.parse(text, NODE, NOW_NS)[0])
    assert (fields["ecc_corrected_total"], fields["ecc_uncorrected_total"]) == (7.0, 2.0)
    assert (fields["retired_pages_single_total"], fields["retired_pages_double_total"]) == (3, 1)
    assert fields["retired_pages_pending"] == 1.0


def test_volatile_errors_stand_in_where_no_aggregate_is_kept() -> None:
    text = (SMI / "q-x_v11_470.xml").read_text()
    head, _, tail = text.partition("<aggregate>")
    body, _, rest = tail.partition("</aggregate>")
    for number in ("3", "0", "9"):
        body = body.replace(f">{number}<", ">N/A<")
    (fields,) = gpus(smi_xml.parse(f"{head}<aggregate>{body}</aggregate>{rest}", NODE, NOW_NS)[0])
    assert (fields["ecc_corrected_total"], fields["ecc_uncorrected_total"]) == (0.0, 2.0)


def test_a_schema_of_the_future_is_read_as_far_as_known_and_told_once() -> None:
    text = (SMI / "q-x_v13_595_recovery.xml").read_text()
    text = text.replace("_v13.dtd", "_v27.dtd").replace("<pdi>", "<flux>9 Wb</flux><pdi>")
    samples, problems = smi_xml.parse(text * 3, NODE, NOW_NS)
    assert len(gpus(samples)) == 3
    assert ["v27" in one.problem for one in problems] == [True]


def test_an_impossible_number_is_refused_and_told() -> None:
    text = (SMI / "q-x_v12_535.xml").read_text()
    text = text.replace(">47 C<", ">2147483648 C<").replace(">0</replay", ">4294967295</replay")
    samples, problems = smi_xml.parse(text, NODE, NOW_NS)
    (fields,) = gpus(samples)
    assert not {"temperature_celsius", "pcie_replays_total"} & set(fields)
    assert sorted(one.problem.split(" out")[0] for one in problems) == [
        "gpu0: pcie_replays_total",
        "gpu0: temperature_celsius",
    ]


def test_a_document_cut_off_anywhere_gives_what_came_before_and_says_so() -> None:
    raw = (SMI / "q-x_v12_535.xml").read_bytes()
    whole = gpus(smi_xml.parse(raw, NODE, NOW_NS)[0])[0]
    for length in range(200, len(raw) - 20, 97):
        samples, problems = smi_xml.parse(raw[:length], NODE, NOW_NS)
        assert problems, length
        for fields in gpus(samples):
            for name, value in fields.items():
                # An action is concluded from two flags; one of them may be missing here.
                assert name == "recovery_action" or whole[name] == value, (length, name)


def test_xml_that_declares_entities_is_refused() -> None:
    bomb = (
        '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa">'
        '<!ENTITY b "&a;&a;&a;&a;">]><nvidia_smi_log><gpu><uuid>&b;</uuid></gpu></nvidia_smi_log>'
    )
    samples, problems = smi_xml.parse(bomb, NODE, NOW_NS)
    assert samples == []
    assert any("entities" in one.problem for one in problems)


def test_words_before_the_document_do_not_hide_it() -> None:
    raw = (
        b"Warning: infoROM is corrupted at gpu 0000:1B:00.0\n"
        + (SMI / "q-x_v12_535.xml").read_bytes()
    )
    assert len(gpus(smi_xml.parse(raw, NODE, NOW_NS)[0])) == 1


def test_a_part_of_the_gpus_takes_its_index_from_the_minor_number() -> None:
    text = (SMI / "q-x_v13_595_recovery.xml").read_text()
    text = text.replace("<attached_gpus>1<", "<attached_gpus>8<")
    samples, problems = smi_xml.parse(text, NODE, NOW_NS)
    assert [one.tag("gpu") for one in samples if one.measurement == "gpu"] == ["2"]
    assert "8 GPUs are attached and 1 are listed" in {one.problem for one in problems}


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "when"), failures())
@pytest.mark.parametrize(
    "parse", [smi_xml.parse, smi_csv.parse, smi_lists.parse_list], ids=["xml", "csv", "list"]
)
def test_every_failure_is_a_problem_in_words_and_never_a_reading(
    parse: object, text: str, when: str
) -> None:
    assert callable(parse)
    samples, problems = parse(text, NODE, NOW_NS)
    assert problems, when
    for one in samples:
        if one.measurement == "gpu":  # only -L knows which index it is that is lost
            assert set(one.fields) <= {"lost", "recovery_action"}
        else:
            assert one.text("device") == "0000:9b:00"


def test_a_lost_gpu_is_an_event_of_its_address() -> None:
    text = "Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost.  Reboot\n"
    samples, _ = smi_xml.parse(text, NODE, NOW_NS)
    (told,) = events(samples, "gpu_lost")
    assert told.text("device") == "0000:9b:00"
    assert told.number("severity") == 3.0


# ---- CSV -----------------------------------------------------------------------------------------


def table(name: str) -> tuple[list[Sample], list[Problem]]:
    return smi_csv.parse((SMI / name).read_bytes(), NODE, NOW_NS)


def test_columns_are_read_by_what_was_asked_though_headed_otherwise() -> None:
    samples, problems = table("query_550_alias.csv")
    first, second = gpus(samples)
    assert problems == []
    assert first["throttle_sw_power_cap"] == 1.0
    assert (second["throttle_hw_thermal"], second["throttle_sw_thermal"]) == (1.0, 1.0)
    assert second["memory_temperature_celsius"] == 97.0
    assert second["power_watts"] == 512.0


def test_new_fields_and_words_of_590() -> None:
    samples, problems = table("query_590_new-fields.csv")
    none, reset, mig = gpus(samples)
    assert problems == []
    assert (none["recovery_action"], reset["recovery_action"]) == (0.0, 1.0)
    assert reset["row_remap_pending"] == 1.0
    assert reset["utilization_ratio"] == 0.0
    assert "row_remap_pending" not in mig
    assert "utilization_ratio" not in mig
    assert mig["remap_banks_max"] == 2560.0


def test_a_table_without_header_gives_boards_and_no_numbers() -> None:
    samples, problems = table("query_550_nounits.csv")
    assert gpus(samples) == []
    assert [one.text("device") for one in events(samples, "inventory")] == [
        "0000:1b:00",
        "0000:2c:00",
    ]
    assert len(problems) == 1


def test_our_own_query_is_read_by_position() -> None:
    asked = ["index", "uuid", "pci.bus_id", "temperature.gpu", "power.draw", "memory.used"]
    rows = (SMI / "query_550_nounits.csv").read_text().splitlines()
    text = "".join(", ".join(row.split(", ")[:6]) + "\n" for row in rows)
    samples, problems = smi_csv.read_csv(text, NODE, NOW_NS, asked).close()
    first, _ = gpus(samples)
    assert problems == []
    assert first["temperature_celsius"] == 46.0
    assert first["power_watts"] == 402.77
    assert first["memory_used_bytes"] == 60112 * MIB


def test_remapped_rows_come_as_digits_and_by_uuid() -> None:
    samples, problems = table("remapped-rows_550.csv")
    first, second = gpus(samples)
    assert problems == []
    assert (first["row_remap_pending"], first["row_remap_failed"]) == (1.0, 0.0)
    assert second["row_remap_pending"] == 0.0
    assert samples[0].tag("uuid") == "GPU-7e57a002-0023-4102-a007-0c0ffee00002"


def test_rows_that_name_no_page_are_no_retired_pages() -> None:
    samples, _ = table("retired-pages_590.csv")
    assert samples == []


def test_retired_pages_are_counted_by_cause() -> None:
    text = (
        "gpu_uuid, retired_pages.address, retired_pages.cause\n"
        "GPU-aaaa0000, 0x000000000001f000, Single Bit ECC\n"
        "GPU-aaaa0000, 0x000000000002f000, Double Bit ECC\n"
        "GPU-aaaa0000, 0x000000000003f000, Double Bit ECC\n"
    )
    samples, _ = smi_csv.parse(text, NODE, NOW_NS)
    found = {name: value for fields in gpus(samples) for name, value in fields.items()}
    assert found == {"retired_pages_single_total": 1.0, "retired_pages_double_total": 2.0}


def test_processes_are_no_readings_of_a_gpu() -> None:
    samples, problems = table("compute-apps_590_mig.csv")
    assert samples == []
    assert len(problems) == 1


def test_a_lost_gpu_among_healthy_ones_in_a_table() -> None:
    text = (
        "index, uuid, temperature.gpu, power.draw [W], utilization.gpu [%]\n"
        "0, GPU-aaaa0000, 41, 118.50 W, 97 %\n"
        "1, GPU-bbbb0000, [GPU is lost], [GPU is lost], [GPU is lost]\n"
        "2, GPU-cccc0000, 43, [Unknown Error], 3 %\n"
    )
    samples, problems = smi_csv.parse(text, NODE, NOW_NS)
    healthy, lost, odd = gpus(samples)
    assert healthy["lost"] == 0.0
    assert lost == {"lost": 1.0}
    assert odd == {"temperature_celsius": 43.0, "utilization_ratio": 0.03, "lost": 0.0}
    assert [one.problem for one in problems] == ["gpu2: power_watts: Unknown Error"]


def test_a_row_that_was_cut_off_is_left_out() -> None:
    text = "index, temperature.gpu, power.draw [W]\n0, 41, 118.50 W\n1, 41, 11"
    samples, problems = smi_csv.parse(text, NODE, NOW_NS)
    assert len(gpus(samples)) == 1
    assert "cut off" in problems[0].problem


def test_a_row_with_another_number_of_cells_is_left_out() -> None:
    text = "index, temperature.gpu, power.draw [W]\n0, 41\n1, 41, 7.00 W, 9\n2, 40, 5.00 W\n"
    samples, problems = smi_csv.parse(text, NODE, NOW_NS)
    assert [one.tag("gpu") for one in samples if one.measurement == "gpu"] == ["2"]
    assert len(problems) == 2


def test_average_power_wins_over_instant_power_in_any_order() -> None:
    for header, cells in (
        ("power.draw.instant, power.draw", "9.00 W, 5.00 W"),
        ("power.draw, power.draw.instant", "5.00 W, 9.00 W"),
    ):
        (fields,) = gpus(smi_csv.parse(f"index, {header}\n0, {cells}\n", NODE, NOW_NS)[0])
        assert fields["power_watts"] == 5.0


# ---- the smaller texts ---------------------------------------------------------------------------


def test_the_list_goes_on_after_a_bad_gpu() -> None:
    samples, _ = smi_lists.parse_list((SMI / "L_one-bad_550.txt").read_text(), NODE, NOW_NS)
    told = [one.text("text").split()[0] for one in events(samples, "inventory")]
    assert told == [f"gpu={index}" for index in (0, 1, 2, 3, 4, 6, 7)]
    assert [one.text("device") for one in events(samples, "driver")] == ["0000:9b:00"]
    assert gpus(samples) == []  # nobody said that it is lost


def test_the_list_tells_the_index_of_a_lost_gpu() -> None:
    samples, _ = smi_lists.parse_list((SMI / "L_one-lost_550.txt").read_text(), NODE, NOW_NS)
    (lost,) = [one for one in samples if one.measurement == "gpu"]
    assert (lost.tag("gpu"), dict(lost.fields)) == ("1", {"lost": 1.0})


def test_dmon_leaves_out_what_is_a_dash() -> None:
    samples, problems = smi_lists.parse_dmon((SMI / "dmon_590.txt").read_text(), NODE, NOW_NS)
    first, second = gpus(samples)
    assert problems == []
    assert first["power_watts"] == 438.0
    assert first["utilization_ratio"] == 0.98
    assert second == {
        "temperature_celsius": 51.0,
        "memory_clock_hertz": 2.619e9,
        "sm_clock_hertz": 1.98e9,
    }


# ---- topology --------------------------------------------------------------------------------


def matrix(*rows: str) -> str:
    return "".join(row.replace(" ", "\t") + "\n" for row in rows)


def test_the_matrix_is_read_through_escapes_and_doubled_tabs() -> None:
    samples, problems = smi_topo.parse((SMI / "topo-m_550.txt").read_text(), NODE, NOW_NS)
    assert problems == []
    assert [one.text("text") for one in samples] == [
        "GPU0: NV18 to 1 GPU; NODE to 1 GPU; PIX to mlx5_0; NUMA 0",
        "GPU1: NV18 to 1 GPU; SYS to 1 GPU; NODE to mlx5_0; NUMA 0",
        "GPU2: NODE to 1 GPU; SYS to 1 GPU; SYS to mlx5_0; NUMA 1",
    ]


def test_a_pair_with_fewer_nvlinks_than_the_others_is_a_fault() -> None:
    text = matrix(
        " GPU0 GPU1 GPU2 NIC0 NIC1",
        "GPU0 X NV18 NV18 PIX SYS",
        "GPU1 NV18 X NV12 PIX SYS",
        "GPU2 NV18 NV12 X SYS NODE",
    )
    samples, problems = smi_topo.parse(text, NODE, NOW_NS)
    assert problems == []
    faults = [one.text("text") for one in samples if one.tag("code") == "fault"]
    assert faults == [
        "GPU1 and GPU2: NV12 where others have NV18",
        "GPU2: nearest network card at NODE where others have PIX",
    ]


def test_a_whole_mesh_has_no_fault() -> None:
    text = matrix(" GPU0 GPU1 NIC0", "GPU0 X NV18 PIX", "GPU1 NV18 X PIX", "NIC0 PIX PIX X")
    samples, _ = smi_topo.parse(text, NODE, NOW_NS)
    assert [one.tag("code") for one in samples] == ["gpu0", "gpu1"]


def test_a_row_with_an_unknown_relation_is_left_out() -> None:
    text = matrix(" GPU0 GPU1", "GPU0 X LASER", "GPU1 NV18 X")
    samples, problems = smi_topo.parse(text, NODE, NOW_NS)
    assert len(problems) == 1
    assert [one.tag("code") for one in samples] == ["gpu1"]
