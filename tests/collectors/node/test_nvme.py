"""SMART of NVMe drives by nvme-cli and smartctl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import collectors.node.nvme as nvme
from collectors.command import Limits, Runner
from collectors.node.nvme import Nvme
from collectors.node.nvme_text import parse
from collectors.sample import Context, Sample, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract
from tests.collectors.recorded_tool import PROGRAM, RecordedTool

LOG = (Path(__file__).resolve().parents[2] / "fixtures/reported/nvme-smart-log.json").read_text()
SMARTCTL = json.dumps(
    {
        "device": {"name": "/dev/nvme3", "type": "nvme"},
        "nvme_smart_health_information_log": {
            "critical_warning": 4,
            "temperature": 41,
            "available_spare": 9,
            "percentage_used": 130,
            "media_errors": 12,
        },
    }
)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "root/sys/class/nvme").mkdir(parents=True)
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path / "root", now_ns=lambda: NOW_NS)


def drives(context: Context, *names: str) -> None:
    for name in names:
        (context.root / "sys/class/nvme" / name).mkdir(parents=True)


def source(context: Context, **options: object) -> Nvme:
    settings = {"nvme_program": PROGRAM, "smartctl_program": PROGRAM, **options}
    runner = Runner(Limits(term_seconds=0.2, kill_seconds=0.2))
    return Nvme(nvme.Options.model_validate(settings), context, runner)


def by_drive(samples: tuple[Sample, ...] | list[Sample]) -> dict[str, dict[str, float | str]]:
    return {one.tag("device"): dict(one.fields) for one in samples}


def test_endurance_that_its_counter_can_count_no_further_is_read() -> None:
    samples, problems = parse('{"critical_warning": 0, "percent_used": 255}', NODE, NOW_NS)
    assert problems == []
    assert samples[0].number("percentage_used_ratio") == pytest.approx(2.55)


def test_kelvin_and_numbers_as_text_are_read() -> None:
    samples, problems = parse(LOG, NODE, NOW_NS)
    assert problems == []
    assert dict(samples[0].fields) == pytest.approx(
        {
            "critical_warning": 0.0,
            "media_errors_total": 0.0,
            "available_spare_ratio": 1.0,
            "percentage_used_ratio": 0.03,
            "temperature_celsius": 39.0,
        }
    )


def test_a_critical_warning_may_be_an_object_and_a_count_a_text() -> None:
    text = '{"critical_warning":{"value":8,"read_only":1},"media_errors":"4294967297"}'
    fields = parse(text, NODE, NOW_NS)[0][0].fields
    assert (fields["critical_warning"], fields["media_errors_total"]) == (8.0, 4294967297.0)


def test_smartctl_names_its_drive_and_gives_celsius() -> None:
    samples, problems = parse(SMARTCTL, NODE, NOW_NS)
    assert problems == []
    assert by_drive(samples)["nvme3"] == pytest.approx(
        {
            "critical_warning": 4.0,
            "media_errors_total": 12.0,
            "available_spare_ratio": 0.09,
            "percentage_used_ratio": 1.3,
            "temperature_celsius": 41.0,
        }
    )


def test_impossible_numbers_are_refused() -> None:
    samples, problems = parse('{"avail_spare":255,"temperature":65535}', NODE, NOW_NS)
    assert samples == []
    assert len(problems) == 2


def test_a_line_before_it_names_the_drive() -> None:
    samples, _ = parse("# device: nvme7\n" + LOG, NODE, NOW_NS)
    assert samples[0].tag("device") == "nvme7"


class TestContract(SourceContract):
    module = nvme

    @pytest.fixture
    def healthy(self, tool: RecordedTool, context: Context) -> Source:
        drives(context, "nvme0", "nvme1")
        for name in ("nvme0", "nvme1"):
            tool.answer(f"smart-log /dev/{name} -o json", LOG)
        return source(context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return source(context)


def test_a_drive_that_fails_costs_itself_only(tool: RecordedTool, context: Context) -> None:
    drives(context, "nvme10", "nvme2", "nvme-subsys0")
    tool.answer("smart-log /dev/nvme10 -o json", LOG)
    tool.answer("smart-log /dev/nvme2 -o json", "No such device\n", 1)
    batch = source(context).collect(NOW_NS)
    assert list(by_drive(batch.samples)) == ["nvme10"]
    assert ["nvme2: " in one.problem for one in batch.problems] == [True]


def test_smartctl_is_taken_where_nvme_cli_is_missing_whatever_its_exit_code(
    tool: RecordedTool, context: Context
) -> None:
    drives(context, "nvme3")
    tool.answer("-j -a /dev/nvme3", SMARTCTL, 8)
    made = source(context, nvme_program="no-such-nvme-cli")
    assert "nvme3" in by_drive(made.collect(NOW_NS).samples)


def test_without_any_tool_it_says_so(context: Context) -> None:
    drives(context, "nvme0")
    made = source(context, nvme_program="no-such-nvme", smartctl_program="no-such-smartctl")
    with pytest.raises(SourceUnavailable, match="was not found"):
        made.collect(NOW_NS)


def test_a_drive_that_hangs_is_given_up(tool: RecordedTool, context: Context) -> None:
    drives(context, "nvme0")
    tool.hang(60)
    with pytest.raises(SourceUnavailable, match=r"nvme0 did not end within 0\.4 s"):
        source(context, drive_seconds=0.4).collect(NOW_NS)
