"""The nvidia-smi source on a stand-in program that prints recorded texts."""

from __future__ import annotations

from pathlib import Path

import pytest

import collectors.gpu.nvidia_smi as nvidia_smi
from collectors.command import Limits, Runner
from collectors.gpu.nvidia_smi import QUERY, NvidiaSmi
from collectors.sample import Batch, Context, Sample, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract
from tests.collectors.recorded_tool import PROGRAM, RecordedTool

TESTS = Path(__file__).resolve().parents[2]
SMI = TESTS / "fixtures/gpu/smi"
PATIENT = 30.0
SECOND = 1_000_000_000


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path, now_ns=lambda: NOW_NS)


def source(context: Context, **options: object) -> NvidiaSmi:
    settings = {"program": PROGRAM, "deadline_seconds": PATIENT, **options}
    return nvidia_smi.make(nvidia_smi.Options.model_validate(settings), context)


def by_gpu(batch: Batch) -> dict[str, Sample]:
    return {one.tag("gpu"): one for one in batch.samples if one.measurement == "gpu"}


def events(batch: Batch, kind: str) -> list[Sample]:
    return [one for one in batch.samples if one.tag("kind") == kind]


def one_gpu(index: int) -> str:
    """A document of one GPU of eight, as ``-i INDEX`` prints it."""
    text = (SMI / "q-x_v12_535.xml").read_text()
    text = text.replace("<attached_gpus>1<", "<attached_gpus>8<")
    text = text.replace("0c0ffee00000", f"0c0ffee0000{index}").replace(":1B:", f":{index}B:")
    return text.replace("<minor_number>0<", f"<minor_number>{index}<")


LOST = "Unable to determine the device handle for GPU0000:2C:00.0: GPU is lost.  Reboot\n\n\n"


class TestContract(SourceContract):
    module = nvidia_smi

    @pytest.fixture
    def healthy(self, tool: RecordedTool, context: Context) -> Source:
        tool.answer("-q -x", (SMI / "q-x_v12_535.xml").read_text())
        return source(context)

    @pytest.fixture
    def unavailable(self, tool: RecordedTool, context: Context) -> Source:
        text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
        tool.answer("-q -x", text, 9)
        return source(context)


def test_inventory_comes_at_the_start_and_not_every_time(
    tool: RecordedTool, context: Context
) -> None:
    tool.answer("-q -x", (SMI / "q-x_v12_535.xml").read_text())
    made = source(context)
    assert len(events(made.collect(NOW_NS), "inventory")) == 2
    assert events(made.collect(NOW_NS + 30 * SECOND), "inventory") == []


def test_one_lost_gpu_blanks_the_others_and_they_are_read_one_by_one(
    tool: RecordedTool, context: Context
) -> None:
    tool.answer("-q -x", LOST, 15)
    tool.answer("-L", (SMI / "L_one-lost_550.txt").read_text(), 15)
    for index in (0, 2):
        tool.answer(f"-q -x -i {index}", one_gpu(index))
    made = source(context)
    batch = made.collect(NOW_NS)
    found = by_gpu(batch)
    assert sorted(found) == ["0", "1", "2"]
    assert dict(found["1"].fields) == {"lost": 1.0}
    assert found["2"].number("power_watts") == 402.77
    assert found["2"].tag("uuid").endswith("2")
    assert [one.text("device") for one in events(batch, "gpu_lost")] == ["0000:2c:00"]
    assert tool.calls() == ["-q -x", "-L", "-q -x -i 0", "-q -x -i 2"]

    # Said once as an event, on every cycle as a field.
    batch = made.collect(NOW_NS + 30 * SECOND)
    assert events(batch, "gpu_lost") == []
    assert by_gpu(batch)["1"].number("lost") == 1.0


def test_a_gpu_that_cannot_be_read_is_not_called_lost(tool: RecordedTool, context: Context) -> None:
    tool.answer(
        "-q -x", "Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error\n"
    )
    tool.answer("-L", (SMI / "L_one-bad_550.txt").read_text(), 255)
    tool.answer("-q -x -i 0", one_gpu(0))
    batch = source(context).collect(NOW_NS)
    assert sorted(by_gpu(batch)) == ["0"]
    assert [one.tag("code") for one in events(batch, "driver")] == ["unreadable"]
    # The answers for the others are missing in this test: each is told.
    assert sum("gpu" in one.problem for one in batch.problems) >= 6


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "different versions"),
        ("No devices were found\n", 6, "finds no GPU"),
        ("Failed to initialize NVML: Unknown Error\n", 255, "cannot speak to the driver"),
        ("Segmentation fault\n", 139, "exit code 139"),
        ("", 0, "no nvidia-smi XML"),
    ],
)
def test_a_failure_of_the_tool_is_told_in_words(
    tool: RecordedTool, context: Context, text: str, code: int, words: str
) -> None:
    tool.answer("-q -x", text, code)
    with pytest.raises(SourceUnavailable, match=words):
        source(context).collect(NOW_NS)


def test_a_missing_program_is_told(context: Context) -> None:
    with pytest.raises(SourceUnavailable, match="was not found"):
        source(context, program="no-such-nvidia-smi").collect(NOW_NS)


def test_a_program_that_hangs_is_ended_at_the_deadline(
    tool: RecordedTool, context: Context
) -> None:
    tool.hang(60)
    settings = nvidia_smi.Options(program=PROGRAM, deadline_seconds=0.5)
    made = NvidiaSmi(settings, context, Runner(Limits(term_seconds=0.2, kill_seconds=0.2)))
    with pytest.raises(SourceUnavailable, match="did not end within"):
        made.collect(NOW_NS)


def test_a_field_that_this_version_does_not_know_is_left_out_from_then_on(
    tool: RecordedTool, context: Context
) -> None:
    def call(fields: tuple[str, ...]) -> str:
        return f"--query-gpu={','.join(fields)} --format=csv,noheader"

    tool.answer(call(QUERY), 'Field "gpu_recovery_action" is not a valid field to query.\n\n', 2)
    without = tuple(name for name in QUERY if name != "gpu_recovery_action")
    words = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
    tool.answer(call(without), words, 2)
    older = tuple(name.replace("clocks_event_r", "clocks_throttle_r") for name in without)
    cells = {
        "index": "0",
        "uuid": "GPU-7e57a000",
        "pci.bus_id": "00000000:1B:00.0",
        "temperature.gpu": "46",
        "clocks_throttle_reasons.active": "0x0000000000000040",
    }
    tool.answer(call(older), ", ".join(cells.get(name, "[N/A]") for name in older) + "\n")
    made = source(context, method="csv")
    fields = by_gpu(made.collect(NOW_NS))["0"].fields
    assert fields["temperature_celsius"] == 46.0
    assert fields["throttle_hw_thermal"] == 1.0
    made.collect(NOW_NS + SECOND)
    assert len(tool.calls()) == 4
