"""Events of what lasts: told at its beginning and end, not in between."""

from __future__ import annotations

from collectors.events import ERROR, WARNING, event
from collectors.sample import Sample
from collectors.told import Told

NOW_NS = 1_796_000_000 * 10**9


def bad(code: str, severity: float = WARNING, device: str = "gpu1") -> Sample:
    return event("n", "dcgm_health", code, NOW_NS, text="x", severity=severity, device=device)


def said(samples: list[Sample]) -> list[tuple[str, float | None]]:
    return [(one.tag("code"), one.number("severity")) for one in samples]


def test_a_report_that_says_the_same_again_is_told_once() -> None:
    told = Told("is well")
    assert said(told.changes([bad("mem")], {"gpu1"}, NOW_NS)) == [("mem", WARNING)]
    assert told.changes([bad("mem")], {"gpu1"}, NOW_NS) == []
    assert said(told.changes([bad("mem", ERROR)], {"gpu1"}, NOW_NS)) == [("mem", ERROR)]


def test_the_end_is_told_once_and_the_next_begin_again() -> None:
    told = Told("is well")
    told.changes([bad("mem")], {"gpu1"}, NOW_NS)
    (over,) = told.changes([], {"gpu1"}, NOW_NS)
    assert (over.number("severity"), over.text("text")) == (0.0, "gpu1: mem: is well")
    assert told.changes([], {"gpu1"}, NOW_NS) == []
    assert said(told.changes([bad("mem")], {"gpu1"}, NOW_NS)) == [("mem", WARNING)]


def test_a_part_that_was_not_read_is_not_well_for_that() -> None:
    told = Told("is well")
    told.changes([bad("mem")], {"gpu1"}, NOW_NS)
    assert told.changes([], {"gpu0"}, NOW_NS) == []
