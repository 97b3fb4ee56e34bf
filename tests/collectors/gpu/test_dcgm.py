"""What is read of dcgmi: dmon, health, diagnostics, and the source that runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import collectors.gpu.dcgm as dcgm
from collectors.command import Limits, Runner
from collectors.gpu.dcgm import FIELD_NUMBERS, Dcgm
from collectors.gpu.dcgm_dmon import parse as parse_dmon
from collectors.gpu.dcgm_fields import ALL, BY_NUMBER, BY_SHORT, BY_SYMBOL
from collectors.gpu.dcgm_json import parse_diag, parse_health
from collectors.gpu.dcgm_values import is_blank
from collectors.gpu.metrics import GPU_FIELDS, PROFILED
from collectors.sample import Batch, Context, Problem, Sample, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract
from tests.collectors.recorded_tool import PROGRAM, RecordedTool

FOLDER = Path(__file__).resolve().parents[2] / "fixtures/gpu/dcgm"
SECOND = 1_000_000_000
MIB = 2**20


def gpus(samples: list[Sample]) -> dict[str, dict[str, float | str]]:
    return {one.tag("gpu"): dict(one.fields) for one in samples if one.measurement == "gpu"}


def dmon(text: str | Path) -> tuple[dict[str, dict[str, float | str]], list[Problem]]:
    raw = text.read_text() if isinstance(text, Path) else text
    samples, problems = parse_dmon(raw, NODE, NOW_NS)
    return gpus(samples), problems


# ---- the table of fields -------------------------------------------------------------------


def test_every_field_is_one_of_ours_and_every_name_is_of_one_field() -> None:
    assert all(field.ours in GPU_FIELDS for field in ALL if field.ours)
    assert len(BY_SHORT) == len(BY_NUMBER) == len(ALL)
    assert len(BY_SYMBOL) == len(ALL) + sum(len(field.symbols) for field in ALL)
    assert set(FIELD_NUMBERS) <= set(BY_NUMBER)


def test_blanks_of_every_width_are_no_values() -> None:
    temperature, energy = BY_SHORT["TMPTR"], BY_SHORT["TOTEC"]
    for blank in (2147483632.0, 2147483635.0, 9223372036854775792.0, 140737488355328.0):
        assert is_blank(temperature, blank)
    assert is_blank(temperature, float("nan"))
    assert not is_blank(temperature, 0.0)
    assert not is_blank(energy, 2147483632.0)
    assert is_blank(energy, 9223372036854775792.0)


# ---- dmon ------------------------------------------------------------------------------------


def test_dmon_of_4_6() -> None:
    found, problems = dmon(FOLDER / "dmon_4.6.txt")
    assert problems == []
    assert list(found) == ["0", "1", "2", "3"]
    assert found["2"] == {
        "temperature_celsius": 43.0,
        "memory_temperature_celsius": 52.0,
        "power_watts": 402.772,
        "utilization_ratio": 0.97,
        "sm_activity_ratio": 0.912,
    }


def test_a_gpu_of_na_only_is_told_and_gives_no_sample() -> None:
    found, problems = dmon(FOLDER / "dmon_na.txt")
    assert list(found) == ["0", "2"]
    assert found["0"]["energy_joules_total"] == pytest.approx(91827364.55)
    assert found["2"]["pcie_replays_total"] == 3.0
    assert "ecc_corrected_total" not in found["2"]
    assert [one.problem for one in problems] == ["gpu1: DCGM has no value of it at all"]


def test_names_with_blanks_do_not_shift_the_columns() -> None:
    samples, problems = parse_dmon((FOLDER / "dmon_strings.txt").read_text(), NODE, NOW_NS)
    assert problems == []
    assert gpus(samples)["0"] == {"temperature_celsius": 46.0}
    told = [one.text("text") for one in samples if one.tag("kind") == "inventory"]
    assert told[0].endswith("model=NVIDIA H100 80GB HBM3")
    assert told[1] == "gpu=1 uuid=GPU-7e57a001-0022-4101-a006-0c0ffee00001"


OLD = """\
# Entity  TMPTR  POWER          TOTEC
      Id      C      W             mJ
    GPU 0     41  118.500   91827364550
    GPU 1     42  119.000   91827364551
"""


def test_the_narrow_columns_of_older_versions_are_read_too() -> None:
    found, problems = dmon(OLD)
    assert problems == []
    assert found["1"]["temperature_celsius"] == 42.0
    assert found["1"]["power_watts"] == 119.0
    assert found["0"]["energy_joules_total"] == pytest.approx(91827364.55)


@pytest.mark.parametrize(
    "text",
    [
        "#Entity   GPUTL  MCUTL  GRACT  SMACT  \nID                                    \n"
        "GPU 0     97     45     0.981  0.912  \nGPU 1     0      0      N/A    0.000  \n",
        "# Entity  GPUTL  MCUTL  GRACT  SMACT\n      Id\n"
        "    GPU 0     97     45  0.981  0.912\n    GPU 1      0      0    N/A  0.000\n",
    ],
    ids=["left", "right"],
)
def test_utilisation_and_activity_are_four_fields(text: str) -> None:
    found, problems = dmon(text)
    assert problems == []
    assert found["0"] == {
        "utilization_ratio": 0.97,
        "memory_utilization_ratio": 0.45,
        "graphics_activity_ratio": 0.981,
        "sm_activity_ratio": 0.912,
    }
    assert "graphics_activity_ratio" not in found["1"]
    assert found["1"]["sm_activity_ratio"] == 0.0


def test_nothing_that_locks_out_other_tools_is_asked_for_unless_named(
    tool: RecordedTool, context: Context
) -> None:
    assert not any(BY_NUMBER[number].ours in PROFILED for number in FIELD_NUMBERS)
    text = "#Entity   GPUTL  SMACT  \nID                      \nGPU 0     97     0.912  \n"
    tool.answer("dmon -e 203,1002 -c 1", text)
    batch = source(context, fields=(203, 1002), health_period_seconds=0).collect(NOW_NS)
    assert gpus(list(batch.samples))["0"]["sm_activity_ratio"] == 0.912


def test_a_repeated_header_and_the_last_words_are_no_problem() -> None:
    text = (FOLDER / "dmon_4.6.txt").read_text()
    found, problems = dmon(text + text + "\n\ndmon was stopped due to receiving a signal\n")
    assert problems == []
    assert len(found) == 4


def test_a_missing_value_is_missing_and_shifts_nothing() -> None:
    text = "#Entity   TMPTR     POWER     PCILW     \nID        C         W                   \n"
    found, problems = dmon(text + "GPU 0     41                  16        \n")
    assert problems == []
    assert found["0"] == {"temperature_celsius": 41.0, "pcie_link_width": 16.0}


def test_instances_are_left_out_and_told_once() -> None:
    text = (
        "#Entity        TMPTR     \nID             C         \nGPU 0          41        \n"
        "GPU_I 0        41        \nGPU_I 1        41        \nGPU 0 LINK 3   9         \n"
    )
    found, problems = dmon(text)
    assert list(found) == ["0"]
    assert [one.problem for one in problems] == [
        "rows of GPU_I are left out: whole boards are scored"
    ]


def test_the_last_xid_is_an_event() -> None:
    text = "#Entity   TMPTR     XIDER     \nID        C                   \n"
    samples, _ = parse_dmon(text + "GPU 3     41        79        \n", NODE, NOW_NS)
    (xid,) = [one for one in samples if one.tag("kind") == "xid"]
    assert (xid.tag("code"), xid.text("device")) == ("79", "gpu3")
    assert xid.number("severity") == 3.0


def test_a_row_without_a_header_is_left_out() -> None:
    found, problems = dmon("GPU 0     41        402.770   \n")
    assert found == {}
    assert len(problems) == 1


def test_rows_of_single_nvlinks_are_summed_where_the_gpu_tells_no_sum() -> None:
    text = (
        "#Entity          NLREP      NLREC\n"
        "ID\n"
        "GPU 0            N/A        5\n"
        "GPU 0 LINK 0     3          1\n"
        "GPU 0 LINK 1     4          1\n"
        "GPU 1 LINK 0     2147483632 0\n"
        "GPU 1 LINK 1     6          0\n"
        "#Entity          NLREP      NLREC\n"
        "ID\n"
        "GPU 0            N/A        5\n"
        "GPU 0 LINK 0     3          1\n"
        "GPU 0 LINK 1     5          1\n"
    )
    samples, _ = parse_dmon(text, NODE, NOW_NS)
    newest = {
        (one.tag("gpu"), name): value
        for one in samples
        if one.measurement == "gpu"
        for name, value in one.fields.items()
    }
    assert newest == {
        ("0", "nvlink_recoveries_total"): 5.0,  # the GPU's own word
        ("0", "nvlink_replays_total"): 8.0,  # the newest row of each link
        ("1", "nvlink_replays_total"): 6.0,  # a blank is no count
        ("1", "nvlink_recoveries_total"): 0.0,
    }


# ---- health ----------------------------------------------------------------------------------

SICK = {
    "header": ["Health Monitor Report"],
    "body": {
        "Overall Health": {"value": "Failure"},
        "GPU": {
            "children": {
                "3": {
                    "value": "Failure",
                    "children": {
                        "Errors": {
                            "children": {
                                "PCIe system": {
                                    "value": "Warning",
                                    "overflow": [
                                        "Detected more than 8 PCIe replays",
                                        "per minute.",
                                    ],
                                },
                                "Memory system": {
                                    "value": "Failure",
                                    "overflow": ["A pending row remap."],
                                },
                            }
                        }
                    },
                }
            }
        },
    },
}


def test_a_report_without_a_gpu_says_that_all_is_well() -> None:
    samples, problems = parse_health((FOLDER / "health_ok_4.json").read_text(), NODE, NOW_NS)
    assert problems == []
    assert [(one.tag("code"), one.number("severity")) for one in samples] == [("overall", 0.0)]


def test_each_incident_is_an_event_of_its_gpu_and_system() -> None:
    samples, problems = parse_health(json.dumps(SICK), NODE, NOW_NS)
    assert problems == []
    found = {one.tag("code"): one for one in samples}
    assert set(found) == {"pcie_system", "memory_system"}
    pcie = found["pcie_system"]
    assert (pcie.text("device"), pcie.number("severity")) == ("gpu3", 1.0)
    assert pcie.text("text").endswith("Detected more than 8 PCIe replays per minute.")
    assert found["memory_system"].number("severity") == 2.0


# ---- diagnostics -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "severity", "words"),
    [
        ("diag_r1_3.3.json", "persistence_mode", 2.0, "Persistence mode for GPU 3 is disabled."),
        ("diag_r1_4.json", "software", 3.0, "GPU 3 has a pending row remap."),
    ],
)
def test_a_failed_test_is_an_event_of_its_gpu(
    name: str, code: str, severity: float, words: str
) -> None:
    samples, problems = parse_diag((FOLDER / name).read_text(), NODE, NOW_NS)
    assert problems == []
    failed, summary = samples
    assert (failed.tag("code"), failed.text("device")) == (code, "gpu3")
    assert failed.number("severity") == severity
    assert failed.text("text").endswith(words)
    assert summary.tag("code") == "summary"


def test_a_diagnostic_that_did_not_run_is_a_problem() -> None:
    text = (FOLDER / "diag_runtime-error.json").read_text()
    samples, problems = parse_diag(text, NODE, NOW_NS)
    assert samples == []
    assert [one.problem for one in problems] == ["another diagnostic is running"]


def test_broken_and_deep_json_is_a_problem() -> None:
    for text in ('{"body": {', "[" * 100_000, "{" * 100_000, '{"a":' * 50_000, "null", "[1]"):
        for parse in (parse_health, parse_diag):
            samples, problems = parse(text, NODE, NOW_NS)
            assert samples == []
            assert problems


# ---- the source ------------------------------------------------------------------------------

DMON = f"dmon -e {','.join(str(number) for number in FIELD_NUMBERS)} -c 1"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path, now_ns=lambda: NOW_NS)


def source(context: Context, **options: object) -> Dcgm:
    settings = {"program": PROGRAM, "deadline_seconds": 30.0, **options}
    limits = Limits(term_seconds=0.2, kill_seconds=0.2)
    return Dcgm(dcgm.Options.model_validate(settings), context, Runner(limits))


def health_events(batch: Batch) -> list[Sample]:
    return [one for one in batch.samples if one.tag("kind") == "dcgm_health"]


class TestContract(SourceContract):
    module = dcgm

    @pytest.fixture
    def healthy(self, tool: RecordedTool, context: Context) -> Source:
        tool.answer(DMON, (FOLDER / "dmon_4.6.txt").read_text())
        tool.answer("health -c -j", (FOLDER / "health_ok_4.json").read_text())
        return source(context)

    @pytest.fixture
    def unavailable(self, tool: RecordedTool, context: Context) -> Source:
        text = "Error: unable to establish a connection to the specified host: localhost\n"
        tool.answer(DMON, text, 235)
        return source(context)


def test_health_that_is_off_costs_health_only(tool: RecordedTool, context: Context) -> None:
    tool.answer(DMON, (FOLDER / "dmon_4.6.txt").read_text())
    tool.answer("health -c -j", "Error: Health watches not enabled. Please enable watches. \n", 253)
    batch = source(context).collect(NOW_NS)
    assert len(gpus(list(batch.samples))) == 4
    assert ["health watches are off" in one.problem for one in batch.problems] == [True]


def test_an_incident_is_told_when_it_begins_and_not_again(
    tool: RecordedTool, context: Context
) -> None:
    tool.answer(DMON, (FOLDER / "dmon_4.6.txt").read_text())
    tool.answer("health -c -j", json.dumps(SICK))
    made = source(context)
    assert len(health_events(made.collect(NOW_NS))) == 2
    assert health_events(made.collect(NOW_NS + 30 * SECOND)) == []
    assert tool.calls().count("health -c -j") == 1
    assert health_events(made.collect(NOW_NS + 301 * SECOND)) == []
    assert tool.calls().count("health -c -j") == 2


def test_the_end_of_an_incident_is_told(tool: RecordedTool, context: Context) -> None:
    tool.answer(DMON, (FOLDER / "dmon_4.6.txt").read_text())
    tool.answer("health -c -j", json.dumps(SICK))
    made = source(context)
    begun = health_events(made.collect(NOW_NS))
    tool.answer("health -c -j", (FOLDER / "health_ok_4.json").read_text())
    over = health_events(made.collect(NOW_NS + 301 * SECOND))
    assert {one.text("device") for one in over} <= {one.text("device") for one in begun}
    assert [one.number("severity") for one in over] == [0.0] * len(over) != []


def test_an_xid_that_dcgm_names_for_ever_is_news_once(tool: RecordedTool, context: Context) -> None:
    def dmon(first: str, second: str) -> str:
        return f"#Entity   XIDER\nID\nGPU 0     {first}\nGPU 1     {second}\n"

    asked = "dmon -e 230 -c 1"
    made = source(context, fields=(230,), health_period_seconds=0)

    def xids(at: int) -> list[tuple[str, str]]:
        samples = made.collect(at).samples
        return [
            (one.tag("code"), one.text("device")) for one in samples if one.tag("kind") == "xid"
        ]

    tool.answer(asked, dmon("79", "0"))
    assert xids(NOW_NS) == []  # of any age
    tool.answer(asked, dmon("79", "48"))
    assert xids(NOW_NS + 30 * SECOND) == [("48", "gpu1")]
    assert xids(NOW_NS + 60 * SECOND) == []


def test_a_remote_host_engine_is_named_on_the_command_line(
    tool: RecordedTool, context: Context
) -> None:
    tool.answer(
        DMON.replace("dmon", "dmon --host gpu7:5555"), (FOLDER / "dmon_4.6.txt").read_text()
    )
    batch = source(context, host="gpu7:5555", health_period_seconds=0).collect(NOW_NS)
    assert len(gpus(list(batch.samples))) == 4


def test_gpus_that_all_vanished_are_told_in_words(tool: RecordedTool, context: Context) -> None:
    tool.answer(DMON, "No data returned from the hostengine.\n", 242)
    with pytest.raises(SourceUnavailable, match="may all have vanished"):
        source(context).collect(NOW_NS)


def failures() -> list[tuple[int, str]]:
    with open(FOLDER / "errors.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [(int(code), text.replace("\\n", "\n")) for code, text, _ in rows]


ENGINE = {
    235: "the DCGM host engine does not answer",
    242: "the DCGM host engine has no data",
    227: "the DCGM host engine must run as root for these fields",
    253: "health watches are off: enable them",
}


@pytest.mark.parametrize(("code", "text"), [row for row in failures() if row[0] in ENGINE])
def test_what_the_host_engine_cannot_do_is_told_in_words_and_is_no_reading(
    tool: RecordedTool, context: Context, code: int, text: str
) -> None:
    tool.answer(DMON, text, code)
    with pytest.raises(SourceUnavailable, match=ENGINE[code]):
        source(context).collect(NOW_NS)
    # The same words where health should stand cost health only.
    tool.answer(DMON, (FOLDER / "dmon_4.6.txt").read_text())
    tool.answer("health -c -j", text, code)
    batch = source(context).collect(NOW_NS)
    assert batch.up
    assert len(gpus(list(batch.samples))) == 4
    assert any(ENGINE[code] in one.problem for one in batch.problems)
    assert health_events(batch) == []


@pytest.mark.parametrize("name", ["diag_r1_3.3.json", "diag_r1_4.json"])
def test_a_diagnostic_that_found_a_fault_is_read_whatever_its_exit_code(name: str) -> None:
    """226 and 205 are the codes of a finished run: what counts is its JSON."""
    samples, problems = parse_diag((FOLDER / name).read_text(), NODE, NOW_NS)
    assert problems == []
    assert {one.tag("kind") for one in samples} == {"dcgm_diag"}
    assert "summary" in {one.tag("code") for one in samples}


def test_a_hung_host_engine_is_given_up_at_the_deadline(
    tool: RecordedTool, context: Context
) -> None:
    tool.hang(60)
    with pytest.raises(SourceUnavailable, match="did not end within"):
        source(context, deadline_seconds=0.5).collect(NOW_NS)


def test_a_table_that_ended_early_is_not_up_and_calls_nothing_gone(
    tool: RecordedTool, context: Context
) -> None:
    text = (FOLDER / "dmon_4.6.txt").read_text()
    tool.answer(DMON, text)
    made = source(context, health_period_seconds=0)
    assert made.collect(NOW_NS).up
    lines = text.splitlines(keepends=True)
    tool.answer(DMON, "".join(lines[:-2]), 255)
    batch = made.collect(NOW_NS + 30 * 10**9)
    assert len(gpus(list(batch.samples))) == 2
    assert not batch.up
    assert "exit code 255" in batch.fault
    assert [one for one in batch.samples if one.tag("kind") == "inventory"] == []
