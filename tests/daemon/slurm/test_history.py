"""Labels from Slurm's past: whose drain, for what, and which node failed."""

from __future__ import annotations

import pytest

from daemon.slurm.history import counts, in_words, of_ledger, parse_sacct
from daemon.slurm.mining import DAY_NS, Accounting, Past
from daemon.store.database import Database
from models.reasons import Kind, classify
from tests.daemon.worlds import START_NS, House, lost, simulated


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Xid 79 on GPU 3", Kind.HARDWARE),
        ("NHC: check_hw_ib:  No IB port mlx5_0:1 is ACTIVE", Kind.HARDWARE),
        ("bad DIMM P1-C2", Kind.HARDWARE),
        ("lustre not mounted", Kind.SOFTWARE),
        ("Kill task failed", Kind.SOFTWARE),
        ("firmware update of the HCA", Kind.MAINTENANCE),
        ("scheduled maintenance", Kind.MAINTENANCE),
        ("GPU driver stuck", Kind.UNKNOWN),
        ("ask bob", Kind.UNKNOWN),
        ("", Kind.UNKNOWN),
        ("tocsin:x79 gpu3 9f2c; fell off the bus", Kind.UNKNOWN),
    ],
)
def test_a_reason_tells_its_kind_or_nothing(reason: str, kind: Kind) -> None:
    assert classify(reason) is kind


def test_drains_of_others_are_outages_and_our_own_are_not() -> None:
    made = House(simulated(3))
    slurm = made.adapter
    made.facts = [lost("n1", onset_ns=made.clock.pass_seconds(1))]
    slurm.set("n2", user="ann", state="drain", reason="bad DIMM")  # type: ignore[attr-defined]
    slurm.set("n3", user="slurm", state="drain", reason="Kill task failed")  # type: ignore[attr-defined]
    made.cycle()
    begun_ns = made.now_ns()
    made.drains.resume("n1", "ann", made.clock.pass_seconds(60))
    slurm.set("n2", state="resume")  # type: ignore[attr-defined]
    made.facts = []
    made.clock.pass_seconds(60)
    made.cycle()
    found = {one.node: one for one in of_ledger(made.database)}
    assert set(found) == {"n2", "n3"}
    assert (found["n2"].kind, found["n2"].by) == (Kind.HARDWARE, "ann")
    assert (found["n2"].start_ns, found["n2"].end_ns) == (begun_ns, made.now_ns())
    assert (found["n3"].by, found["n3"].end_ns) == ("Slurm", 0)
    assert counts(found.values())["n2"][Kind.HARDWARE] == 1
    (one,) = of_ledger(made.database, node="n2")
    assert in_words([one]) == (
        "Others took it out of service 1 time (1 hardware), last for 'bad DIMM' by ann."
    )
    assert in_words(of_ledger(made.database, node="n1")) == ""


def test_only_a_failure_of_one_node_says_which() -> None:
    text = (
        "12|NODE_FAIL|2026-11-29T01:00:00|2026-11-29T02:00:00|n7\n"
        "13|NODE_FAIL|2026-11-29T01:00:00|2026-11-29T01:30:00|n[1-4]\n"
        "14|COMPLETED|2026-11-29T01:00:00|2026-11-29T01:30:00|n5\n"
        "15|NODE_FAIL|2026-11-28T01:00:00|2026-11-28T01:30:00|n6\n"
        "16|NODE_FAIL|Unknown|Unknown|n8\n"
        "rubbish\n17|NODE_FAIL|x|y|n[1-\n"
    )
    assert [node for node, _ in parse_sacct(text)] == ["n6", "n7"]
    assert parse_sacct("") == []


class Told(Accounting):
    """Accounting that knows of one failure, and what it was asked."""

    def __init__(self, *found: tuple[str, int]) -> None:
        super().__init__()
        self.found = found
        self.asked: list[tuple[int, int]] = []

    def failures(self, since_ns: int, until_ns: int) -> list[tuple[str, int]]:
        self.asked.append((since_ns, until_ns))
        return [one for one in self.found if since_ns <= one[1] <= until_ns]


def test_a_clock_that_once_stood_in_the_future_keeps_nothing_from_being_read() -> None:
    failed_ns = START_NS - DAY_NS // 2
    past = Past(told := Told(("n7", failed_ns)), Database(":memory:"), days=30.0)
    years_on_ns = START_NS + 3650 * DAY_NS
    past.remember(past.look(years_on_ns), years_on_ns)
    (found,) = past.look(START_NS)
    assert (found.tag("node"), found.time_ns) == ("n7", failed_ns)
    assert all(since_ns < until_ns for since_ns, until_ns in told.asked)
