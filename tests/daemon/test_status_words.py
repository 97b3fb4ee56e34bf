"""``tocsin status`` says how old its view of Slurm is, also where there never was one."""

from __future__ import annotations

import dataclasses

import pytest

from daemon.cli.status import lines
from tests.daemon.page.pretend import PretendHead


@pytest.mark.parametrize(
    ("up", "age_seconds", "words"),
    [
        (True, 4.0, "read 4 s ago"),
        (False, 90.0, "AWAY, last read 90 s ago"),
        (False, None, "AWAY, never read"),
        (True, None, "never read yet"),
    ],
)
async def test_the_age_of_the_view_of_slurm_is_said(
    up: bool, age_seconds: float | None, words: str
) -> None:
    fleet = dataclasses.asdict(await PretendHead().fleet())
    fleet["slurm"] |= {"up": up, "age_seconds": age_seconds}
    (line,) = (one for one in lines(fleet) if one.startswith("slurm "))
    assert words in line


async def test_the_lines_of_an_alert_stand_below_each_other() -> None:
    fleet = dataclasses.asdict(await PretendHead().fleet())
    fleet["alerts"] = [{"title": "n1: gpu3 hot", "text": "tocsin:hot gpu3\nadvice: look at it"}]
    assert lines(fleet)[-1] == "ALERT    n1: gpu3 hot: tocsin:hot gpu3\n         advice: look at it"
