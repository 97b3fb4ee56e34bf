"""A GPU that has not joined its NVLink fabric is told, by whatever tells of it."""

from __future__ import annotations

import pytest

from collectors.gpu import dcgm_dmon, dcgm_exporter_text, nvidia_smi, nvml, smi_csv, smi_xml
from collectors.gpu.fabric import PATIENCE_SECONDS, FabricWatch
from collectors.inventory import Board
from collectors.sample import Context, Sample
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.fake_gpus import FakeGpus
from tests.collectors.gpu.nvml_help import PATIENT, SECOND
from tests.collectors.recorded_tool import PROGRAM, RecordedTool

BAD = [1, 2, 4]
MINUTE = 60 * SECOND


def told(samples: object) -> list[tuple[str, float | None]]:
    assert isinstance(samples, list | tuple)
    return [
        (one.text("device"), one.number("severity"))
        for one in samples
        if isinstance(one, Sample) and one.tag("kind") == "fabric"
    ]


def document(*states: tuple[str, str]) -> str:
    gpus = "".join(
        f'<gpu id="00000000:{index + 1}B:00.0"><uuid>GPU-{index}</uuid>'
        f"<minor_number>{index}</minor_number><fabric><state>{state}</state>"
        f"<status>{status}</status></fabric><temperature><gpu_temp>40 C</gpu_temp></temperature>"
        "</gpu>"
        for index, (state, status) in enumerate(states)
    )
    return (
        '<?xml version="1.0" ?><nvidia_smi_log>'
        f"<attached_gpus>{len(states)}</attached_gpus>{gpus}</nvidia_smi_log>\n"
    )


STATES = (
    ("Completed", "Success"),
    ("In Progress", "N/A"),
    ("Completed", "Unknown Error"),
    ("Not Started", "N/A"),
    ("N/A", "N/A"),
)


def test_every_text_that_tells_of_it_is_read() -> None:
    bad = [("0000:2b:00", 2.0), ("0000:3b:00", 2.0), ("0000:4b:00", 2.0)]
    assert told(smi_xml.parse(document(*STATES), NODE, NOW_NS)[0]) == bad
    rows = "".join(
        f"{index}, 00000000:{index + 1}B:00.0, {state}, {status}\n"
        for index, (state, status) in enumerate(STATES)
    )
    text = f"index, pci.bus_id, fabric.state, fabric.status\n{rows}"
    samples, problems = smi_csv.parse(text, NODE, NOW_NS)
    assert (told(samples), problems) == (bad, [])
    by_index = [(f"gpu{index}", 2.0) for index in (1, 2, 3)]
    dmon = "#Entity   FMSTA  GPUTL  \nID                      \n" + "".join(
        f"GPU {index}     {state:<7}{97:<7}\n" for index, state in enumerate((3, 2, 4, 1, 0))
    )
    assert told(dcgm_dmon.parse(dmon, NODE, NOW_NS)[0]) == by_index
    lines = "".join(
        f'DCGM_FI_DEV_FABRIC_MANAGER_STATUS{{gpu="{index}",UUID="GPU-{index}"}} {state}\n'
        for index, state in enumerate((3, 2, 4, 1, 6))
    )
    assert told(dcgm_exporter_text.parse(lines, NODE, NOW_NS)[0]) == by_index


@pytest.mark.parametrize("state", BAD)
def test_it_is_told_once_when_it_has_lasted_and_once_when_it_is_over(state: int) -> None:
    watch = FabricWatch(NODE)
    boards = {0: Board(0, bus="0000:1b:00"), 1: Board(1, bus="0000:2b:00")}
    patience = int(PATIENCE_SECONDS * SECOND)
    assert watch.events({0: state, 1: 3}, boards, NOW_NS) == []
    assert watch.events({0: state, 1: 3}, boards, NOW_NS + patience - SECOND) == []
    assert told(watch.events({0: state, 1: 3}, boards, NOW_NS + patience)) == [("0000:1b:00", 2.0)]
    assert watch.events({0: state, 1: 3}, boards, NOW_NS + 2 * patience) == []
    assert watch.events({1: 3}, boards, NOW_NS + 2 * patience) == []  # gpu0 could not be read
    over = watch.events({0: 3, 1: 3}, boards, NOW_NS + 3 * patience)
    assert told(over) == [("0000:1b:00", 0.0)]
    assert watch.events({0: state}, boards, NOW_NS + 4 * patience) == []


@pytest.mark.parametrize("old", [False, True])
def test_nvml_tells_of_it_old_and_new(gpus: FakeGpus, context: Context, old: bool) -> None:
    folder = gpus.old_library_folder if old else gpus.library_folder
    options = nvml.Options(library_folder=folder, deadline_seconds=PATIENT)
    source = nvml.make(options, context)
    try:
        gpus.write("[gpu2]\nfabric = 2\n[gpu3]\nfabric = 3\nfabric.status = 999\n")
        assert told(source.collect(NOW_NS).samples) == []
        later = source.collect(NOW_NS + 6 * MINUTE)
        assert len(told(later.samples)) == 2
        assert not any("fabric_state" in one.fields for one in later.samples)
        gpus.write("[gpu2]\nfabric = 3\n[gpu3]\nfabric = 3\n")
        over = told(source.collect(NOW_NS + 8 * MINUTE).samples)
        assert [severity for _, severity in over] == [0.0, 0.0]
    finally:
        source.close()


def test_nvidia_smi_tells_of_it(tool: RecordedTool, context: Context) -> None:
    options = nvidia_smi.Options(program=PROGRAM, deadline_seconds=PATIENT)
    source = nvidia_smi.make(options, context)
    tool.answer("-q -x", document(*STATES[:2]))
    assert told(source.collect(NOW_NS).samples) == []
    assert told(source.collect(NOW_NS + 6 * MINUTE).samples) == [("0000:2b:00", 2.0)]
    tool.answer("-q -x", document(STATES[0], STATES[0]))
    assert told(source.collect(NOW_NS + 7 * MINUTE).samples) == [("0000:2b:00", 0.0)]
