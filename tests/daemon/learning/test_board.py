"""The scoreboard, the shelf, the night: pure parts and files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from daemon.config import Config
from daemon.learning.board import DAY_NS, Book, Score, Would, score
from daemon.learning.choice import choose
from daemon.learning.night import HOUR_NS, NightError, answer_of, command, due, name_of, train
from daemon.learning.options import LearningOptions, RiskOptions
from daemon.learning.shadow import MOST_AT_ONCE, would_drain
from daemon.learning.shelf import Shelf, ShelfError
from daemon.policy.decisions import Action, Guard
from daemon.store.database import Database
from models.drift import unlike
from tests.daemon.learning.making import make_model
from tests.daemon.worlds import GENEROUS, START_NS, House, cluster, lost, risk, simulated

NOW = 100 * DAY_NS


def board(would: list[Would], failures: dict[str, list[int]], now_ns: int = NOW) -> Score:
    return score("m", 100, would, failures, DAY_NS, now_ns)


def test_a_failure_within_the_horizon_makes_a_hit_and_one_after_it_does_not() -> None:
    at = 50 * DAY_NS
    assert board([Would("a", "n1", at)], {"n1": [at + HOUR_NS]}).hits == 1
    late = board([Would("a", "n1", at)], {"n1": [at + 25 * HOUR_NS]})
    assert (late.hits, late.wrong, late.missed, late.failures) == (0, 1, 1, 1)
    other = board([Would("a", "n1", at)], {"n2": [at + HOUR_NS]})
    assert (other.hits, other.wrong, other.missed) == (0, 1, 1)


def test_the_lead_is_that_of_the_first_word_before_each_failure_that_was_foretold() -> None:
    at = 50 * DAY_NS
    would = [
        Would("a", "n1", at), Would("b", "n1", at + 2 * HOUR_NS), Would("c", "n2", at),
        Would("d", "n3", at),
    ]  # fmt: skip
    failures = {"n1": [at + 10 * HOUR_NS], "n2": [at + 4 * HOUR_NS], "n3": [], "n4": [at]}
    found = board(would, failures)
    assert found.lead_median_seconds == 7 * 3600  # of ten hours and of four
    assert "told the others 7.0 h before (median)" in found.words
    nothing = board([Would("d", "n3", at)], failures)
    assert nothing.lead_median_seconds == 0
    assert "before" not in nothing.words


def test_a_persons_word_counts_before_what_was_seen() -> None:
    at = 50 * DAY_NS
    right = board([Would("a", "n1", at, True)], {})
    assert (right.hits, right.wrong) == (1, 0)
    wrong = board([Would("a", "n1", at, False)], {"n1": [at + HOUR_NS]})
    assert (wrong.hits, wrong.wrong, wrong.missed) == (0, 1, 0)


def test_what_may_still_come_is_open_and_what_we_took_out_is_unknown() -> None:
    fresh = board([Would("a", "n1", NOW - HOUR_NS)], {})
    assert (fresh.open, fresh.wrong) == (1, 0)
    ours = board([Would("a", "n1", 50 * DAY_NS, None, 50 * DAY_NS + HOUR_NS)], {})
    assert (ours.unknown, ours.wrong) == (1, 0)


def test_a_risk_that_goes_on_would_drain_again_after_each_horizon() -> None:
    at = 50 * DAY_NS
    long = Would("a", "n1", at, until_ns=at + 3 * DAY_NS - 1)
    found = board([long], {"n1": [at + 3 * DAY_NS - HOUR_NS]})
    assert (found.drains, found.hits, found.wrong, found.missed) == (3, 1, 2, 0)


def test_the_book_adds_looks_up_by_day() -> None:
    book = Book(Database(":memory:"))
    for hour in range(4):
        book.looked("m", 10 * DAY_NS + hour * HOUR_NS, 100, 0.5)
    book.looked("m", 11 * DAY_NS, 200, 1.0)
    book.looked("other", 11 * DAY_NS, 900, 9.0)
    assert book.sums("m", 10, 12) == (300.0, 1.5)
    assert book.sums("m", 10, 11) == (100.0, 0.5)
    assert (book.first_day("m"), book.first_day("none")) == (10, None)


def test_the_shelf_promotes_and_rolls_back_as_a_stack(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    for name in ("a", "b", "c", "a"):
        shelf.promote(name)
    assert Shelf(tmp_path).stack() == ["b", "c", "a"]
    assert shelf.rollback() == ("a", "c")
    assert shelf.rollback() == ("c", "b")
    assert shelf.rollback() == ("b", "")
    with pytest.raises(ShelfError, match="nothing to roll back"):
        shelf.rollback()


def test_a_shelf_with_a_garbled_list_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "promoted.json").write_text('{"promoted": [1, "../x", "ok"]}')
    assert Shelf(tmp_path).stack() == ["ok"]
    (tmp_path / "promoted.json").write_bytes(b"\xff\x00")
    assert Shelf(tmp_path).promoted() == ""


def test_pruning_never_removes_what_was_promoted(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for day in range(1, 8):
        name = f"learned-2026110{day}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    shelf.promote("learned-20261101")
    assert shelf.prune(2) == [f"learned-2026110{day}" for day in range(2, 6)]
    assert shelf.names() == ["learned-20261101", "learned-20261106", "learned-20261107"]


def test_a_broken_manifest_is_listed_with_its_fault(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text("{")
    (one,) = Shelf(tmp_path).listed()
    assert one.fault
    assert not one.gate


def test_the_configured_model_comes_before_the_promoted_and_that_before_the_shipped(
    tmp_path: Path,
) -> None:
    for name in ("mine", "models/learned-a", "shipped"):
        make_model(tmp_path / name, name.rpartition("/")[2])
    shelf = Shelf(tmp_path / "models")
    shipped = tmp_path / "shipped"
    assert choose(RiskOptions(), shelf, tmp_path / "none").model is None
    assert choose(RiskOptions(), shelf, shipped).name == "shipped"
    shelf.promote("learned-a")
    assert choose(RiskOptions(), shelf, shipped).name == "learned-a"
    asked = RiskOptions(model=tmp_path / "mine")
    assert choose(asked, shelf, shipped).name == "mine"
    assert not choose(asked, shelf, shipped).acts


# ---- shadow ---------------------------------------------------------------------------


def test_a_model_in_shadow_never_drains_whatever_the_mode() -> None:
    world = House(simulated(60), limits=GENEROUS)
    risks = [risk(node, 0.4) for node in cluster(50)]
    view = world.ledger.view(START_NS)
    made = would_drain(world.situation(cluster(60)), risks, 0.3, GENEROUS, view, START_NS)
    assert len(made) == 50
    assert {one.action for one in made} == {Action.HOLD}
    assert {one.guard for one in made} == {Guard.COMMON_CAUSE}
    few = would_drain(world.situation(cluster(60)), risks[:3], 0.3, GENEROUS, view, START_NS)
    assert {(one.action, one.guard) for one in few} == {(Action.HOLD, Guard.SHADOW)}


def test_a_model_that_cries_wolf_fills_no_database() -> None:
    count = 3 * MOST_AT_ONCE
    world = House(simulated(1), limits=GENEROUS)
    risks = [risk(node, 0.4 + 0.001 * at) for at, node in enumerate(cluster(count))]
    view = world.ledger.view(START_NS)
    loose = GENEROUS.model_copy(update={"common_cause_nodes": 10_000})
    made = would_drain(world.situation(cluster(count)), risks, 0.3, loose, view, START_NS)
    assert len(made) == MOST_AT_ONCE
    assert min(one.probability for one in made) > 0.4 + 0.001 * (count - MOST_AT_ONCE - 1)


def test_what_others_hold_is_no_would_be_drain() -> None:
    world = House(simulated(4), limits=GENEROUS)
    world.facts = [lost("n1")]
    world.cycle()
    view = world.ledger.view(START_NS)
    nodes = world.adapter.nodes()
    made = would_drain(world.situation(nodes), [risk("n1", 0.9)], 0.3, GENEROUS, view, START_NS)
    assert made == []


# ---- the night ------------------------------------------------------------------------


def test_a_training_is_due_once_a_day_from_its_hour_on() -> None:
    two = 20 * DAY_NS + 2 * HOUR_NS
    assert not due(two - 1, two - DAY_NS, 2)
    assert due(two, two - DAY_NS, 2)
    assert due(two + 20 * HOUR_NS, two - DAY_NS, 2)  # the head was down at two
    assert not due(two + 20 * HOUR_NS, two, 2)
    assert due(two, 0, 2)


def test_names_tell_the_day_and_never_clash() -> None:
    at_ns = 1_795_000_000 * 1_000_000_000
    first = name_of(at_ns, [])
    assert first == "learned-20261118"
    assert name_of(at_ns, [first]) == first + "-2"


def test_the_child_is_given_its_bounds_and_no_shell(tmp_path: Path) -> None:
    argv = command(LearningOptions(), tmp_path, tmp_path / "m", None)
    assert argv[:4] == [sys.executable, "-P", "-m", "daemon.cli"]
    assert argv[argv.index("--nice") :][:2] == ["--nice", "15"]
    assert "--with-parent" in argv
    assert "--champion" not in argv


@pytest.mark.parametrize("said", [b"", b"{}", b"null", b"[1]", b"\xff", b'{"state": "judged"}'])
def test_an_answer_that_is_none_is_an_error_in_words(said: bytes) -> None:
    with pytest.raises(NightError, match="no answer"):
        answer_of(said)


async def test_a_training_that_takes_too_long_is_ended_with_all_it_started() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    before = time.monotonic()
    with pytest.raises(NightError, match=r"within 1 s \(learning.deadline_seconds\)"):
        await train([sys.executable, "-c", code], 1.0)
    assert time.monotonic() - before < 50


async def test_a_training_that_fails_tells_its_last_word() -> None:
    code = "import sys; print('tocsin: store /x holds no readings', file=sys.stderr); sys.exit(1)"
    with pytest.raises(NightError, match="failed: tocsin: store /x holds no readings"):
        await train([sys.executable, "-c", code], 30.0)
    with pytest.raises(NightError, match="was ended by signal 9"):
        await train([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 30.0)


async def test_a_training_ends_when_it_is_no_longer_waited_for() -> None:
    code = "import os, time; open(os.environ['MARK'], 'w').write(str(os.getpid())); time.sleep(60)"
    mark = Path(f"/tmp/tocsin-test-{os.getpid()}")
    os.environ["MARK"] = str(mark)
    try:
        task = asyncio.create_task(train([sys.executable, "-c", code], 60.0))
        for _ in range(200):
            await asyncio.sleep(0.05)
            if mark.exists() and mark.read_text():
                break
        pid = int(mark.read_text())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        del os.environ["MARK"]
        mark.unlink(missing_ok=True)


def test_far_more_or_fewer_than_expected_is_unlike_and_chance_is_not() -> None:
    assert (unlike(30, 5.0), unlike(0, 20.0)) == (1, -1)
    assert (unlike(8, 5.0), unlike(3, 5.0), unlike(0, 1.0)) == (0, 0, 0)
    # Sure, and a trifle: not worth an alert.
    assert unlike(1200, 1000.0) == 0


def test_the_sections_are_checked() -> None:
    assert Config().learning.enabled
    for bad in ({"hour": 24}, {"memory_bytes": 1}, {"nodes_max": 1}):
        with pytest.raises(ValueError, match=r"less than|greater than"):
            Config.model_validate({"learning": bad})


def test_json_of_a_score_is_plain() -> None:
    from daemon.learning.board import plain

    assert json.loads(json.dumps(plain(Score("m", 1))))["drains"] == 0
