"""A learned model in the live head: beside the rival, in shadow, refused, promoted, rolled back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from collectors.sample import sample
from collectors.slurm.nodes import NodeState
from daemon.assemble import open_ears
from daemon.cli import main as tocsin
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.gate.tokens import parse_tokens
from daemon.head import Head
from daemon.learning.board import DAY_NS
from daemon.learning.shelf import Shelf
from daemon.listen import Listeners
from daemon.policy.decisions import Action, Guard
from daemon.slurm.simulated import SimulatedSlurm
from models.labels import mine
from models.voices import Risk
from tests.daemon.learning.making import make_model

SECOND_NS = 1_000_000_000
Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Head] = []

    async def begin(**sections: Any) -> Head:
        settings = {
            "mode": "act",
            "head": {
                "state_dir": tmp_path,
                "listen": "127.0.0.1:0",
                "socket": tmp_path / "socket",
                "operators_group": "",
                "judge_seconds": 300,
            },
            "page": {"enabled": False},
            "store": {"reserve_bytes": 0},
            "policy": {
                "risk_mode": "act", "risk_threshold": 0.5, "drained_share_max": 1.0,
                "partition_share_max": 1.0, "holdout": {"share": 0.0}, "cost": {"weigh": False},
            },
            **sections,
        }  # fmt: skip
        config = Config.model_validate(settings)
        nodes = [NodeState(f"n{n}", base="idle", partitions=("p",)) for n in range(8)]
        slurm = SimulatedSlurm(nodes, time.time_ns)
        source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
        head = Head(config, clock=SystemClock(), adapter=slurm, slurm=source)
        made.append(head)
        await head.start()
        return head

    yield begin
    for head in made:
        await head.stop()


async def load(head: Head, node: str = "n3", high: float = 99.0) -> None:
    """All nodes are heard; ``node`` is loaded as those that fail are."""
    now_ns = head.clock.now_ns()
    up = {"up": 1.0, "duration_seconds": 0.1, "age_seconds": 0.0}
    rows = []
    for name in head.nodes:
        busy = high if name == node else 5.0
        rows.append(sample("host", now_ns, {"load_1m": busy}, node=name))
        rows += [
            sample("source", now_ns, up, node=name, source=source)
            for source in ("agent", "nvml", "host")
        ]
    await head.intake.accept(rows, node, now_ns)
    await head.learning_jobs.shadow()
    await head.intake.in_turn(head.watch.forget_scores)
    await head.judge()


def scoring(head: Head) -> list[str]:
    """The names of all that score, within the judgement or beside it."""
    return [one.name for one in head.learning.models]


async def test_without_a_model_the_rival_scores_alone(start: Start) -> None:
    head = await start(risk={"shipped": False})
    assert scoring(head) == ["rival-1"]
    assert "the rival scores alone" in head.learning.words
    assert head.learning.alerts(0) == []
    await load(head)
    assert head.ledger.decisions(node="n3") == []


async def test_a_model_whose_gate_is_off_is_recorded_and_drains_nothing(
    start: Start, tmp_path: Path
) -> None:
    make_model(tmp_path / "models" / "learned-a")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start()
    assert scoring(head) == ["rival-1", "learned-a"]
    # No judgement waits for a model that may not act.
    assert [one.name for one in head.watch.models] == ["rival-1"]
    await load(head)
    assert {one.model for one in head.judgement.risks} == {"rival-1"}
    assert not [one for one in head.decisions if one.voice == "risk"]
    assert not head.adapter.nodes(["n3"])["n3"].drain
    (recorded,) = head.ledger.decisions(node="n3")
    assert (recorded.rule, recorded.action, recorded.guard) == (
        "risk:learned-a", Action.HOLD, Guard.SHADOW,
    )  # fmt: skip
    # What moved it stands in the decision, in words.
    (part,) = [one for one in recorded.inputs["said"]["parts"] if one["signals"]]
    assert part["signals"][0]["feature"] == "load"
    assert "load average of a minute" in part["signals"][0]["text"]
    assert not [one for one in head.active if one.node == "n3" and one.key.startswith("case/")]


async def test_a_model_that_scores_for_ever_holds_up_nothing_but_itself(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "models" / "learned-a")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start()
    begun: list[int] = []
    go_on = threading.Event()

    def for_ever(*_: object) -> list[Risk]:
        begun.append(1)
        go_on.wait()
        return []

    monkeypatch.setattr(head.learning.shadow, "score", for_ever)
    try:
        for _ in range(3):  # each past its deadline; the shared pool has few threads
            task = asyncio.create_task(head.learning_jobs.shadow())
            await asyncio.wait({task}, timeout=0.2)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert len(begun) <= 1
        await head.read_slurm()
        await head.judge()
    finally:
        go_on.set()


async def test_the_same_risk_is_recorded_once(start: Start, tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "learned-a")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start()
    for _ in range(3):
        await load(head)
    assert len(head.ledger.decisions(node="n3")) == 1


async def test_a_model_whose_gate_is_on_is_weighed_by_policy(start: Start, tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "learned-a", gate="on")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start()
    await load(head)
    (made,) = [one for one in head.decisions if one.node == "n3" and one.voice == "risk"]
    assert (made.action, made.guard) == (Action.DRAIN, None)
    assert "load average" in made.reason
    assert head.adapter.nodes(["n3"])["n3"].drain


async def test_a_model_promoted_meanwhile_lends_its_gate_to_no_other(
    start: Start, tmp_path: Path
) -> None:
    """What was scored before a promotion, or before it was taken back, has the gate of its time."""
    make_model(tmp_path / "models" / "learned-a")
    make_model(tmp_path / "models" / "learned-b", "learned-b", gate="on")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start()
    await load(head)
    shadow = head.learning.shadow
    assert shadow is not None
    assert shadow.name == "learned-a"
    frame = await head.intake.in_turn(head.watch.features.frame, head.clock.now_ns())
    late = shadow.score(frame, head.clock.now_ns())
    await head.by_hand(head.learning.promote, "learned-b", "ann", "", head.clock.now_ns())
    recorded = len(head.ledger.decisions(node="n3"))
    head.learning.overheard(shadow, late)  # it was chosen no more when it had scored
    await head.judge()
    assert len(head.ledger.decisions(node="n3")) == recorded
    assert head.learning.shadow is None
    await head.intake.in_turn(head.watch.use, head.learning.models)
    scored = await head.intake.in_turn(head.watch.judge, head.clock.now_ns(), {})
    assert "learned-b" in {one.model for one in head.learning.acting(scored).risks}
    await head.by_hand(head.learning.rollback, "ann", head.clock.now_ns())
    assert {one.model for one in head.learning.acting(scored).risks} == {"rival-1"}


async def test_a_held_out_node_is_not_drained_for_its_risk(start: Start, tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "learned-a", gate="on")
    Shelf(tmp_path / "models").promote("learned-a")
    policy = {
        "risk_mode": "act", "risk_threshold": 0.5, "drained_share_max": 1.0,
        "holdout": {"share": 0.5, "seed": "x"}, "cost": {"weigh": False},
    }  # fmt: skip
    head = await start(policy=policy)
    from daemon.policy.holdout import held_out

    now_ns = head.clock.now_ns()
    out = next(n for n in head.nodes if held_out(n, "risk", now_ns, head.config.policy.holdout))
    await load(head, out)
    (made,) = [one for one in head.decisions if one.node == out and one.voice == "risk"]
    assert (made.action, made.guard) == (Action.HOLD, Guard.HELD_OUT)
    assert not head.adapter.nodes([out])[out].drain


async def test_a_damaged_model_is_refused_in_words_and_the_rival_goes_on(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "models" / "learned-a"
    make_model(path)
    with (path / "model.skops").open("ab") as file:
        file.write(b"x")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start()
    assert [one.name for one in head.watch.models] == ["rival-1"]
    assert "not the file that its manifest speaks of" in head.learning.choice.refused
    await load(head)
    (alert,) = [one for one in head.active if one.key == "learning/model"]
    assert "train again" in alert.text
    assert "REFUSED" in head.learning.words


async def test_check_says_which_model_scores_or_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from daemon.cli.check import _model_finding

    config = Config.model_validate({"head": {"state_dir": tmp_path}})
    assert _model_finding(config).ok
    make_model(tmp_path / "m")
    config = Config.model_validate({"risk": {"model": tmp_path / "m"}})
    found = _model_finding(config)
    assert found.ok
    assert "in shadow" in found.text
    (tmp_path / "m" / "manifest.json").write_text("{}")
    found = _model_finding(config)
    assert not found.ok
    assert "is not a manifest" in found.text
    gone = _model_finding(Config.model_validate({"risk": {"model": tmp_path / "none"}}))
    assert not gone.ok
    assert "No such file" in gone.text


async def test_an_operator_promotes_and_rolls_back_and_the_audit_knows_who(
    start: Start, tmp_path: Path
) -> None:
    make_model(tmp_path / "models" / "learned-a")
    make_model(tmp_path / "models" / "learned-b", "learned-b", gate="on")
    head = await start()
    listeners = Listeners()
    await open_ears(head, head.config, parse_tokens(""), listeners)
    unix = aiohttp.UnixConnector(str(head.config.head.socket))

    async def said(word: str) -> tuple[int, dict[str, Any]]:
        async with session.post(f"http://localhost/api/v1/model/{word}", json={}) as answer:
            return answer.status, await answer.json()

    try:
        async with aiohttp.ClientSession(connector=unix) as session:
            assert (await said("promote/learned-a"))[0] == 200
            assert (await said("promote/learned-b"))[0] == 200
            assert scoring(head) == ["rival-1", "learned-b"]
            status, found = await said("rollback")
            assert (status, "learned-a" in found["text"]) == (200, True)
            assert scoring(head) == ["rival-1", "learned-a"]
            assert (await said("rollback"))[0] == 200
            assert scoring(head) == ["rival-1", "simulator-1"]
            status, found = await said("rollback")
            assert (status, "nothing to roll back" in found["error"]) == (409, True)
            status, found = await said("promote/learned-c")
            assert (status, "learned-a, learned-b" in found["error"]) == (409, True)
            status, found = await said("promote/..%2Fmodels")
            assert status == 400
            async with session.get("http://localhost/api/v1/model") as answer:
                shown = await answer.json()
        assert [one["name"] for one in shown["models"]] == [
            *("learned-b", "learned-a", "simulator-1")
        ]
        assert shown["models"][2]["promoted"]
        assert shown["models"][0]["early"] == 6
    finally:
        await listeners.close()
    import getpass

    # Behind the user stands whose login it was, or that the kernel knows of none.
    verbs = [(one.verb, one.subject, one.user.partition(" (")[0]) for one in head.ledger.audit()]
    me = getpass.getuser()
    assert ("model_promote", "learned-b", me) in verbs
    assert ("model_rollback", "learned-b", me) in verbs


async def test_a_model_that_is_refused_is_not_promoted(start: Start, tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "learned-a")
    make_model(tmp_path / "models" / "learned-b", "learned-b")
    manifest = tmp_path / "models" / "learned-b" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["format"] = 3
    manifest.write_text(json.dumps(facts))
    head = await start()
    await head.learning_jobs.promote("learned-a", "ada", "test")
    from daemon.learning.shelf import ShelfError

    with pytest.raises(ShelfError, match=r"learned-b is refused: .*format 3"):
        await head.learning_jobs.promote("learned-b", "ada", "test")
    assert scoring(head) == ["rival-1", "learned-a"]
    assert Shelf(tmp_path / "models").promoted() == "learned-a"


async def test_a_verdict_on_what_was_recorded_becomes_a_label_and_a_hit(
    start: Start, tmp_path: Path
) -> None:
    from daemon.headview import HeadEyes
    from daemon.recovery import rows_of

    make_model(tmp_path / "models" / "learned-a")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start()
    await load(head)
    case = head.ledger.decisions(node="n3")[0].id
    await HeadEyes(head).verdict(case, True, "ada")
    now_ns = head.clock.now_ns()
    table = head.store.read("event", now_ns - DAY_NS, now_ns + DAY_NS)
    labels = mine(rows_of("event", table))
    assert [(one.entity.node, one.cause) for one in labels.failures] == [("n3", "called right")]
    head.learning.count(now_ns)
    assert "would have drained 1 (1 right, 0 wrong" in head.learning.score_words
    fleet = await HeadEyes(head).fleet()
    assert "1 right" in fleet.learning


async def test_the_days_figures_are_stored_as_points(start: Start, tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "learned-a")
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start(learning={"hour": 0})
    await load(head)
    await head.learning_jobs.look()
    now_ns = head.clock.now_ns()
    table = head.store.read("learning", now_ns - DAY_NS, now_ns + DAY_NS)
    metrics = {
        (row["model"], row["metric"]): row["value"]
        for row in table.select(["model", "metric", "value"]).to_pylist()
    }
    assert metrics["learned-a", "drains"] == 1.0
    assert metrics["rival-1", "drains"] == 0.0
    assert [model for _, model, _ in head.learning.book.kept()] == ["learned-a", "rival-1"]
    before = len(head.learning.book.kept())
    await head.learning_jobs.look()  # once a day
    assert len(head.learning.book.kept()) == before


def test_tocsin_model_without_a_head_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tocsin(["model", "--socket", str(tmp_path / "none")]) == 3
    assert "no head listens" in capsys.readouterr().err
    assert tocsin(["model", "promote"]) == 2


async def test_the_night_runs_tocsin_train_on_the_heads_own_store(start: Start) -> None:
    head = await start(learning={"nodes_max": 20, "deadline_seconds": 100.0})
    await load(head)
    await head.by_hand(head.learning_jobs.ask, "ada")
    await head.learning_jobs.night()
    assert head.learning.night_fault == ""
    assert "days of history; 7 are needed" in head.learning.night_words
    assert ("model_retrain", "ada") in [(one.verb, one.user) for one in head.ledger.audit()]
    assert not head.learning.asked


@pytest.mark.parametrize(("better", "scores"), [(True, "learned-n"), (False, "simulator-1")])
async def test_what_a_night_made_goes_on_only_when_it_is_better(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: bool, scores: str
) -> None:
    """The child is a real process with a ready model; what the head makes of its answer counts."""
    make_model(tmp_path / "ready", "learned-n")
    answer = {
        "state": "judged", "why": "9 of 10 failures told", "failures": 40, "promote": better,
        "gate": False, "evidence": {"challenger": {"early": 9}},
    }  # fmt: skip
    code = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2]); print(sys.argv[3])"

    def child(options: object, store: Path, out: Path, champion: Path | None) -> list[str]:
        return [sys.executable, "-c", code, str(tmp_path / "ready"), str(out), json.dumps(answer)]

    monkeypatch.setattr("daemon.learning.jobs.command", child)
    head = await start(learning={"hour": 0})
    await head.learning_jobs.night()
    assert scoring(head)[1:] == [scores]
    (name,) = head.learning.shelf.names()
    said = {one.verb: one for one in head.ledger.audit()}
    assert said["model_trained"].detail["evidence"] == answer["evidence"]
    assert (said["model_promote"].user if better else "model_promote" not in said) == (
        "tocsin" if better else True
    )
    assert head.learning.shelf.promoted() == (name if better else "")
    await head.learning_jobs.night()  # once a night
    assert head.learning.shelf.names() == [name]


async def test_a_night_that_fails_is_told_and_the_head_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "daemon.learning.jobs.command",
        lambda *_: [sys.executable, "-c", "import sys; sys.exit('tocsin: no memory')"],
    )
    head = await start(learning={"hour": 0})
    await head.learning_jobs.night()
    (alert,) = [one for one in head.learning.alerts(1) if one.key == "learning/training"]
    assert "no memory" in alert.text
    await head.judge()


async def test_a_fleet_that_changed_is_told_in_words_and_drains_nothing(
    start: Start, tmp_path: Path
) -> None:
    """Loads were 0 to 100 in training; now all are at 5000, on enough nodes to say so."""
    make_model(tmp_path / "models" / "learned-a", alarms_per_1000_node_days=0.01)
    Shelf(tmp_path / "models").promote("learned-a")
    head = await start(learning={"hour": 0})
    now_ns = head.clock.now_ns()
    rows = [sample("host", now_ns, {"load_1m": 5000.0}, node=f"x{n}") for n in range(150)]
    await head.intake.accept(rows, "x1", now_ns)
    await head.learning_jobs.look()
    assert "1 of the 1 features that it looks at lie otherwise" in head.learning.drift_words
    assert "load average of a minute now (node, PSI" in head.learning.drift_words
    assert [one.key for one in head.learning.alerts(1)] == ["learning/drift"]
    table = head.store.read("learning", now_ns - DAY_NS, now_ns + DAY_NS)
    psi = {r["metric"]: r["value"] for r in table.select(["metric", "value"]).to_pylist()}
    assert psi["psi_max"] > 1
    assert psi["psi_far"] >= 1
    assert not [one for one in head.decisions if one.action is Action.DRAIN]
