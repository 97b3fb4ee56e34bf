"""Every failure of nvidia-smi that is known, with its exit code, through the live source.

What the program cannot do is never a fact about the node: a list that may lack GPUs because of it
is told as not up, counts nothing and calls no board gone.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from collectors.gpu import nvidia_smi
from collectors.gpu.nvidia_smi import QUERY, NvidiaSmi
from collectors.gpu.smi_failures import EXIT_CODES, failure_of
from collectors.sample import Batch, Context, Cycle, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.recorded_tool import PROGRAM, RecordedTool

SMI = Path(__file__).resolve().parents[2] / "fixtures/gpu/smi"
SECOND = 1_000_000_000
BAD = "0000:9b:00"
ONE_BAD = "Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error\n"

# The words that a person is told, by the text that nvidia-smi printed.
TOOL = {
    "NVIDIA-SMI has failed because it couldn't communicate": "the NVIDIA driver is not loaded",
    "NVIDIA-SMI couldn't find libnvidia-ml.so": "libnvidia-ml.so was not found",
    "Failed to initialize NVML: Driver/library version mismatch": "of different versions",
    "Failed to initialize NVML: Unknown Error": "cannot speak to the driver",
    "Failed to initialize NVML: GPU access blocked": "the operating system blocks access",
    "Failed to initialize NVML: Insufficient Permissions": "no permission to use the NVIDIA driver",
    "Failed to initialize NVML: Driver Not Loaded": "the NVIDIA driver is not loaded",
    "Failed to initialize NVML: Function Not Found": "of different versions",
    "Failed to initialize NVML: GPU is lost": "cannot speak to the driver",
    "NVIDIA-SMI has failed because you do not have suffient": "no permission to use the NVIDIA",
    "No devices": "finds no GPU",
    "Invalid combination of input arguments": "does not take these options",
    "Mismatch in versions between nvidia-smi and NVML": "of different versions",
    "Unable to determine the number of GPUs": "cannot speak to the driver",
    'Field "': "does not know a field",
    "(table of all GPUs) ... Failed to query device index": "cannot speak to the driver",
}


def rows() -> list[tuple[int, str]]:
    with open(SMI / "errors.tsv", encoding="utf-8", newline="") as file:
        found = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [(int(code), text.replace("\\n", "\n")) for code, text, _ in found]


OF_THE_TOOL = [row for row in rows() if "device handle" not in row[1] and "Problem" not in row[1]]
OF_A_GPU = [row for row in rows() if row not in OF_THE_TOOL]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path, now_ns=lambda: NOW_NS)


def source(context: Context, **options: object) -> NvidiaSmi:
    settings = {"program": PROGRAM, "deadline_seconds": 30.0, **options}
    return nvidia_smi.make(nvidia_smi.Options.model_validate(settings), context)


def documents(count: int) -> str:
    """One document of ``count`` GPUs, of which the last is the one that will go bad."""
    text = (SMI / "q-x_v12_535.xml").read_text()
    head, _, tail = text.partition("\t<gpu id=")
    gpu, _, end = tail.partition("</gpu>")
    buses = [f"{index + 1}B" for index in range(count - 1)] + ["9B"]
    gpus = "".join(
        "\t<gpu id="
        + gpu.replace("1B", bus)
        .replace("0c0ffee00000", f"0c0ffee0000{index}")
        .replace("<minor_number>0<", f"<minor_number>{index}<")
        + "</gpu>\n"
        for index, bus in enumerate(buses)
    )
    return head.replace("attached_gpus>1<", f"attached_gpus>{count}<") + gpus + end


def one(index: int, of: int) -> str:
    """What ``-i INDEX`` prints."""
    whole = documents(of)
    head, *gpus = whole.split("\t<gpu id=")
    return f"{head}\t<gpu id={gpus[index].partition('</gpu>')[0]}</gpu>\n</nvidia_smi_log>\n"


def told(batch: Batch, kind: str) -> list[tuple[str, str]]:
    return [
        (one.tag("code"), one.text("device")) for one in batch.samples if one.tag("kind") == kind
    ]


def indices(batch: Batch) -> list[str]:
    return sorted(one.tag("gpu") for one in batch.samples if one.measurement == "gpu")


@pytest.mark.parametrize(("code", "text"), OF_THE_TOOL, ids=[t[:60] for _, t in OF_THE_TOOL])
@pytest.mark.parametrize("method", ["xml", "csv"])
def test_what_the_tool_cannot_do_is_told_in_words_and_is_no_reading(
    tool: RecordedTool, context: Context, code: int, text: str, method: str
) -> None:
    if method == "csv":
        text = text.replace("gpu_recovery_action", "of_another_query")
    for call in ("-q -x", f"--query-gpu={','.join(QUERY)} --format=csv,noheader"):
        tool.answer(call, text, code)
    words = next(words for begin, words in TOOL.items() if text.startswith(begin))
    with pytest.raises(SourceUnavailable, match=words):
        source(context, method=method).collect(NOW_NS)


@pytest.mark.parametrize("code", sorted(EXIT_CODES))
@pytest.mark.parametrize("method", ["xml", "csv"])
def test_an_exit_code_without_a_word_is_told_in_words(
    tool: RecordedTool, context: Context, code: int, method: str
) -> None:
    for call in ("-q -x", f"--query-gpu={','.join(QUERY)} --format=csv,noheader"):
        tool.answer(call, "", code)
    with pytest.raises(SourceUnavailable) as told:
        source(context, method=method).collect(NOW_NS)
    assert EXIT_CODES[code] in str(told.value)
    assert f"exit code {code}" in str(told.value)


@pytest.mark.parametrize(("code", "text"), OF_A_GPU, ids=[t[-60:] for _, t in OF_A_GPU])
def test_one_bad_gpu_costs_itself_and_is_named(
    tool: RecordedTool, context: Context, code: int, text: str
) -> None:
    lines = [f"GPU {index}: NVIDIA H100 (UUID: GPU-{index}aaaaaaa)\n" for index in range(3)]
    tool.answer("-q -x", text, code)
    tool.answer("-L", "".join([lines[0], lines[1], text]), code)
    for index in (0, 1):
        tool.answer(f"-q -x -i {index}", one(index, 3))
    batch = Cycle(source(context), NODE).run(NOW_NS)
    failure = next(filter(None, map(failure_of, text.splitlines())))
    assert failure.device == BAD
    lost = "GPU is lost" in text
    reset = "reset" in text
    assert indices(batch) == (["0", "1", "2"] if lost or reset else ["0", "1"])
    assert told(batch, "gpu_lost") == ([("nvidia-smi", BAD)] if lost else [])
    if "Insufficient Permissions" in text:
        assert told(batch, "driver") == [("no_permission", BAD)]
        assert not batch.up  # hidden from us, perhaps well: nothing is missing in the node
        assert "GPUs may be missing" in batch.fault
    else:
        assert batch.up
        assert told(batch, "driver") == (
            [] if lost else [("reset_required" if reset else "unreadable", BAD)]
        )


def test_a_damaged_inforom_is_told_once_and_costs_no_reading(
    tool: RecordedTool, context: Context
) -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:9B:00.0\n"
    tool.answer("-q -x", documents(2) + warning, 14)
    made = source(context)
    batch = made.collect(NOW_NS)
    assert (batch.up, indices(batch)) == (True, ["0", "1"])
    assert told(batch, "repair") == [("inforom_corrupted", BAD)]
    assert ("count", "") in told(batch, "inventory")
    assert told(made.collect(NOW_NS + 30 * SECOND), "repair") == []
    tool.answer("-q -x", documents(2))
    assert told(made.collect(NOW_NS + 60 * SECOND), "repair") == [("inforom_corrupted", BAD)]


# ---- lists that may lack GPUs ---------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 139, 255])
def test_a_document_that_ends_early_is_not_up_and_calls_nothing_gone(
    tool: RecordedTool, context: Context, code: int
) -> None:
    whole = documents(4)
    tool.answer("-q -x", whole)
    made = source(context)
    assert made.collect(NOW_NS).up
    tool.answer("-q -x", whole[: whole.index('<gpu id="00000000:3B')], code)
    batch = made.collect(NOW_NS + 30 * SECOND)
    assert not batch.up
    assert "GPUs may be missing" in batch.fault
    assert indices(batch) == ["0", "1"]
    assert told(batch, "inventory") == []
    tool.answer("-q -x", whole)
    assert made.collect(NOW_NS + 60 * SECOND).up


def test_fewer_gpus_than_the_document_counts_are_not_a_whole_list(
    tool: RecordedTool, context: Context
) -> None:
    tool.answer("-q -x", documents(3).replace("attached_gpus>3<", "attached_gpus>8<"))
    batch = source(context).collect(NOW_NS)
    assert not batch.up
    assert "8 GPUs are attached and 3 are listed" in batch.fault
    assert ("count", "") not in told(batch, "inventory")


def rows_of(count: int, listed: int) -> str:
    cells = {"temperature.gpu": "46", "pci.bus_id": "00000000:{}B:00.0", "uuid": "GPU-{}aaaaaaa"}
    lines = []
    for index in range(listed):
        row = {**cells, "count": str(count), "index": str(index)}
        made = [row.get(name, "[N/A]").replace("{}", str(index + 1)) for name in QUERY]
        lines.append(", ".join(made) + "\n")
    return "".join(lines)


def test_a_table_counts_its_own_rows(tool: RecordedTool, context: Context) -> None:
    call = f"--query-gpu={','.join(QUERY)} --format=csv,noheader"
    tool.answer(call, rows_of(4, 4))
    made = source(context, method="csv")
    batch = made.collect(NOW_NS)
    assert (batch.up, indices(batch)) == (True, ["0", "1", "2", "3"])
    for text in (rows_of(4, 2), rows_of(4, 4)[:-30]):
        tool.answer(call, text, 139)
        batch = made.collect(NOW_NS + 30 * SECOND)
        assert not batch.up
        assert "GPUs may be missing" in batch.fault
        assert told(batch, "inventory") == []


def test_a_single_gpu_that_is_not_answered_for_in_time_is_not_missing(
    tool: RecordedTool, context: Context
) -> None:
    tool.answer("-q -x", ONE_BAD, 255)
    lines = [f"GPU {index}: H100 (UUID: GPU-{index}aaaaaaa)\n" for index in (0, 1)]
    tool.answer("-L", "".join([*lines, ONE_BAD]))
    tool.answer("-q -x -i 0", one(0, 3))
    tool.answer("-q -x -i 1", "Segmentation fault\n", 139)
    batch = source(context).collect(NOW_NS)
    assert indices(batch) == ["0"]
    assert not batch.up
    assert "gpu1: " in batch.fault


def test_words_after_a_whole_document_cost_nothing(tool: RecordedTool, context: Context) -> None:
    tool.answer("-q -x", documents(2) + "Failed to properly shut down NVML: Unknown Error\n", 255)
    batch = source(context).collect(NOW_NS)
    assert (batch.up, indices(batch)) == (True, ["0", "1"])


def test_a_name_that_breaks_the_document_costs_no_gpu(tool: RecordedTool, context: Context) -> None:
    named = "<processes><process_info><process_name>{}</process_name></process_info></processes>"
    whole = documents(3).replace("</gpu>", named.format("python") + "</gpu>", 1)
    tool.answer("-q -x", whole.replace("python", "x \x01 & <gpu"))
    lines = [f"GPU {index}: NVIDIA H100 (UUID: GPU-{index}aaaaaaa)\n" for index in range(3)]
    tool.answer("-L", "".join(lines))
    for index in range(3):
        answer = one(index, 3).replace("</gpu>", named.format("x \x01 & <gpu") + "</gpu>")
        tool.answer(f"-q -x -i {index}", answer)
    batch = source(context).collect(NOW_NS)
    assert (batch.up, indices(batch)) == (True, ["0", "1", "2"])
    assert any("names of processes" in one.problem for one in batch.problems)
    tool.answer("-L", "Segmentation fault\n", 139)
    batch = source(context).collect(NOW_NS + 30 * SECOND)
    assert (batch.up, indices(batch)) == (False, ["0"])
    assert "GPUs may be missing" in batch.fault
