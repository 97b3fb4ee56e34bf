"""What ``sinfo -R`` calls a case finds that case, whatever else came before and after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.drains.ledger import Ledger, UnknownCaseError
from daemon.policy.decisions import Action, Decision, Mode
from daemon.store.database import Database
from tests.daemon.worlds import SECOND_NS, START_NS

DAY_NS = 86_400 * SECOND_NS


def made(ledger: Ledger, id_: str, node: str, at_ns: int, *, drained: bool = True) -> str:
    """A case as policy names it; answers the name that its reason gives it."""
    known = ledger.view(at_ns).names.like(id_)
    name = next(
        id_[:length]
        for length in range(4, 17)
        if not any(one.startswith(id_[:length]) for one in known if one != id_)
    )
    one = Decision(
        id_, at_ns, node, "gpu3", "gpu", Action.DRAIN, "fact", "xid", "x79", Mode.ACT,
        f"tocsin:x79 gpu3 {name}; fell off the bus; tocsin explain {name}",
    )  # fmt: skip
    if drained:
        ledger.intend(one, at_ns)
        ledger.settle(one, at_ns)
    else:
        ledger.record([replace(one, action=Action.ALERT)], at_ns)
    return name


def test_a_name_in_a_reason_stays_this_cases_when_another_begins_like_it() -> None:
    ledger = Ledger(Database(":memory:"))
    first = made(ledger, "9f2c1111aaaaaaaa", "n1", START_NS)
    second = made(ledger, "9f2c2222bbbbbbbb", "n2", START_NS + DAY_NS)
    assert (first, second) == ("9f2c", "9f2c2")
    assert ledger.find(first).node == "n1"
    assert ledger.find(second).node == "n2"


def test_a_name_that_was_given_again_after_months_is_the_newer_cases() -> None:
    ledger = Ledger(Database(":memory:"))
    old = made(ledger, "9f2c1111aaaaaaaa", "n1", START_NS, drained=False)
    new = made(ledger, "9f2c2222bbbbbbbb", "n2", START_NS + 90 * DAY_NS)
    assert old == new == "9f2c"
    assert ledger.find(new).node == "n2"
    assert ledger.find("9f2c1").node == "n1"


def test_a_beginning_that_is_nobodys_name_asks_for_more_digits() -> None:
    ledger = Ledger(Database(":memory:"))
    made(ledger, "9f2c1111aaaaaaaa", "n1", START_NS)
    made(ledger, "9f2d2222bbbbbbbb", "n2", START_NS)
    with pytest.raises(UnknownCaseError, match=r"9f2 may be 9f2[cd].* on n[12].*more digits"):
        ledger.find("9f2")
    with pytest.raises(UnknownCaseError, match="no case 9f2e"):
        ledger.find("9f2e")


def test_a_name_is_known_in_the_moment_after_its_case_was_opened_and_for_a_month() -> None:
    ledger = Ledger(Database(":memory:"))
    made(ledger, "9f2c1111aaaaaaaa", "n1", START_NS, drained=False)
    names = ledger.view(START_NS).names
    assert names.like("9f2c2222bbbbbbbb") == ("9f2c1111aaaaaaaa",)
    made(ledger, "9f2c3333cccccccc", "n2", START_NS + DAY_NS // 2, drained=False)
    both = ledger.view(START_NS + DAY_NS // 2).names.like("9f2c2222bbbbbbbb")
    assert both == ("9f2c1111aaaaaaaa", "9f2c3333cccccccc")
    assert names.like("aaaa000000000000") == ()
    # Nobody has seen either for over a month: what begins like them now may be called so.
    assert ledger.view(START_NS + 32 * DAY_NS).names.like("9f2c2222bbbbbbbb") == ()
    # A clock set back loses none.
    assert len(ledger.view(START_NS).names.like("9f2c2222bbbbbbbb")) == 2


def test_a_fleet_that_is_only_told_of_burdens_no_judgement() -> None:
    ledger = Ledger(Database(":memory:"))
    drained = "aaaa000000000000"
    made(ledger, drained, "n0", START_NS)
    for number in range(200):
        made(ledger, f"{number:016x}", f"n{number}", START_NS, drained=False)
    view = ledger.view(START_NS)
    assert set(view.cases) == {drained}
    assert [case.id for case in view.cases_of("n0", "gpu3")] == [drained]
    assert not view.cases_of("n1", "gpu3")
    told = ledger.like(ledger.find(drained), START_NS - DAY_NS, 5)
    assert len(told) == 5
    assert all(case.node != "n0" for case in told)
    assert ledger.of_ids([f"{number:016x}" for number in range(3)]).keys() == {
        f"{number:016x}" for number in range(3)
    }
