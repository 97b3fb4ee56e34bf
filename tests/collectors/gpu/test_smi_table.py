"""The table of plain nvidia-smi: old and new forms, sick GPUs, MIG, and what is no table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu.smi_table import parse
from collectors.sample import Sample
from tests.collectors.gpu.test_smi_parsers import failures

SMI = Path(__file__).resolve().parents[2] / "fixtures/gpu/smi"
NOW_NS = 1_760_000_000_000_000_000
MIB = 2**20


def gpus(samples: list[Sample]) -> list[dict[str, float | str]]:
    return [dict(one.fields) for one in samples if one.measurement == "gpu"]


def told(samples: list[Sample], kind: str) -> list[tuple[str, str, str]]:
    return [
        (one.tag("code"), one.text("device"), one.text("text"))
        for one in samples
        if one.tag("kind") == kind
    ]


def test_the_form_of_418() -> None:
    samples, problems = parse((SMI / "table_418.txt").read_bytes(), "n7", NOW_NS)
    assert problems == []
    tesla, quadro = gpus(samples)
    assert tesla == {
        "temperature_celsius": 40.0,
        "power_watts": 38.0,
        "power_limit_watts": 300.0,
        "memory_used_bytes": 0.0,
        "memory_total_bytes": 16160.0 * MIB,
        "utilization_ratio": 0.0,
        "lost": 0.0,
    }
    assert quadro["fan_speed_ratio"] == pytest.approx(0.46)
    assert told(samples, "inventory") == [
        ("gpu", "0000:1a:00", "gpu=0 model=Tesla V100-SXM2"),
        ("gpu", "0000:3b:00", "gpu=1 model=Quadro P4000"),
    ]
    assert told(samples, "version") == [("driver", "", "418.39")]


def test_mig_is_told_by_its_line_and_its_instances_are_left_out() -> None:
    samples, problems = parse((SMI / "table_535_mig.txt").read_bytes(), "n7", NOW_NS)
    words = "MIG is on: boards are scored, their instances are not"
    assert [one.problem for one in problems] == [words]
    assert [one["mig_enabled"] for one in gpus(samples)] == [1.0, 0.0]
    assert [one.get("utilization_ratio") for one in gpus(samples)] == [None, 0.0]


def test_sick_gpus_cost_their_own_cells_and_a_lost_one_is_lost() -> None:
    samples, problems = parse((SMI / "table_err_550.txt").read_bytes(), "n7", NOW_NS)
    well, lost, poor = gpus(samples)
    assert well["memory_used_bytes"] == 60112.0 * MIB
    assert lost == {"lost": 1.0}
    assert poor == {"power_limit_watts": 700.0, "lost": 0.0}
    assert [one.problem for one in problems] == ["gpu1: GPU is lost"]


@pytest.mark.parametrize(("text", "when"), failures())
def test_every_failure_is_a_problem_with_words(text: str, when: str) -> None:
    _, problems = parse(text, "n7", NOW_NS)
    assert problems, when


@pytest.mark.parametrize("text", ["", "hello", "| 1 | 2 | 3 |\n", b"\xff\xfe|\0|", "|" * 5000])
def test_what_is_no_table_is_a_problem(text: str | bytes) -> None:
    samples, problems = parse(text, "n7", NOW_NS)
    assert samples == []
    assert problems


TABLE = (SMI / "table_418.txt").read_bytes()


@given(st.integers(0, len(TABLE)), st.binary(max_size=40))
def test_a_table_cut_off_or_damaged_gives_no_traceback(at: int, noise: bytes) -> None:
    parse(TABLE[:at], "n7", NOW_NS)
    parse(TABLE[:at] + noise + TABLE[at:], "n7", NOW_NS)
