"""When a drain for a risk is worth it: what it costs and saves, and what follows from that."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.slurm.nodes import NodeState
from collectors.slurm.reader import Job
from daemon.drains.jobcare import JobCare
from daemon.explain import of_case
from daemon.policy.cases import LedgerView, State
from daemon.policy.cost import (
    CostOptions,
    Running,
    Weighed,
    checkpoint_hours,
    market,
    running_on,
    until_free_hours,
    weigh,
)
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Decision, Guard, Mode
from daemon.policy.limits import Limits
from models.voices import Fact, Risk
from tests.daemon.policy.test_policy import NOW_NS, case
from tests.daemon.worlds import GENEROUS, by_node, cluster, idle, lost, risk

HOUR_NS = 3600 * 10**9
OPTIONS = CostOptions()
ACTS = Limits.model_validate({**GENEROUS.model_dump(), "risk_mode": "act", "risk_threshold": 0.3})


def job(number: str, *nodes: str, hours: float = 1.0, **more: object) -> Job:
    made = Job(
        number, number, "RUNNING", "zoe", nodes, NOW_NS + int(hours * HOUR_NS), 7200.0, 8, "batch"
    )
    return replace(made, **more)  # type: ignore[arg-type]


def busy(name: str, *jobs: str, **changes: object) -> NodeState:
    values = {"base": "allocated", "gpus_allocated": 8, "jobs": jobs, **changes}
    return idle(name, **values)


def judge(
    *risks: Risk,
    nodes: dict[str, NodeState],
    jobs: tuple[Job, ...] = (),
    limits: Limits = ACTS,
    facts: tuple[Fact, ...] = (),
    ledger: LedgerView | None = None,
) -> dict[str, Decision]:
    situation = Situation(
        nodes, 1.0, facts, risks=risks, coverage=dict.fromkeys(nodes, 1.0),
        jobs={one.id: one for one in jobs},
    )  # fmt: skip
    return by_node(decide(situation, limits, ledger or LedgerView(), Mode.ACT, NOW_NS))


def scales(
    probability: float, *running: Running, next_gpus: float = 8.0, pressure: float = 1.0
) -> Weighed:
    return weigh(probability, 24.0, 8.0, running, next_gpus, pressure, OPTIONS)


def on_node(gpus: float, left_hours: float, **more: object) -> Running:
    made = Running(gpus, gpus, left_hours, 1.0, 2.0, False)
    return replace(made, **more)  # type: ignore[arg-type]


# ---- the scales ------------------------------------------------------------------------------


def test_an_idle_node_costs_its_time_out_of_service_and_saves_the_next_job() -> None:
    found = scales(0.5)
    # 8 GPUs for 4 h where it would not have failed; 8 GPUs lose 1.5 h where it would.
    assert found.out_gpu_hours == pytest.approx(0.5 * 8 * 4)
    assert found.next_jobs_gpu_hours == pytest.approx(0.5 * 8 * 1.5)
    assert found.idle_gpu_hours == 0
    assert not found.now


def test_jobs_of_many_nodes_make_a_drain_worth_it_at_a_lower_risk() -> None:
    assert not scales(0.5, next_gpus=8).now
    assert scales(0.5, next_gpus=128).now
    assert scales(0.95, next_gpus=8).now


def test_a_running_job_is_as_exposed_with_the_drain_as_without() -> None:
    # It holds the whole node beyond the horizon: nothing new can start there to be saved.
    found = scales(0.95, on_node(8, 30.0))
    assert found.saves_gpu_hours == 0
    assert found.idle_gpu_hours == 0
    assert not found.now
    # It ends within it: what comes after can be saved.
    assert 0 < scales(0.95, on_node(8, 6.0)).saves_gpu_hours < scales(0.95).saves_gpu_hours


def test_gpus_that_would_stand_idle_beside_a_long_job_count() -> None:
    found = scales(0.95, on_node(2, 20.0))
    rate = -math.log(0.05) / 24
    assert found.idle_gpu_hours == pytest.approx(6 * (1 - math.exp(-rate * 20)) / rate)
    assert not found.now
    assert scales(0.95, on_node(2, 0.2)).now


def test_a_job_that_saves_its_work_on_a_signal_is_a_gain_of_its_own() -> None:
    told = on_node(8, 10.0, job_gpus=64.0, signalled=True)
    deaf = replace(told, signalled=False)
    gain = scales(0.9, told).checkpoint_gpu_hours
    # Within its own interval of 2 h the failure comes, and 64 GPUs would lose an hour.
    assert gain == pytest.approx(64 * 1.0 * (1 - 0.1 ** (2 / 24)))
    assert scales(0.9, deaf).checkpoint_gpu_hours == 0


@given(
    st.floats(0.0, 1.0), st.floats(1.0, 4096.0), st.floats(0.1, 1.0),
    st.lists(st.tuples(st.floats(0.1, 8.0), st.floats(0.0, 1000.0)), max_size=8),
)  # fmt: skip
def test_the_scales_bear_any_load(
    probability: float, next_gpus: float, pressure: float, running: list[tuple[float, float]]
) -> None:
    jobs = [on_node(gpus, hours) for gpus, hours in running]
    found = scales(probability, *jobs, next_gpus=next_gpus, pressure=pressure)
    assert all(math.isfinite(value) and value >= 0 for value in found.plain().values())
    more = scales(min(1.0, probability + 0.1), *jobs, next_gpus=next_gpus, pressure=pressure)
    assert more.costs_gpu_hours <= found.costs_gpu_hours + 1e-9
    # Beside running jobs a surer failure comes earlier, and meets less of what is new.
    assert jobs or more.saves_gpu_hours >= found.saves_gpu_hours - 1e-9
    assert scales(1.0).now
    assert found.text


# ---- what Slurm shows ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "hours"),
    [
        ("", 2.0),
        ("tocsin=checkpoint:90m", 1.5),
        ("x tocsin=checkpoint:6h y", 6.0),
        ("tocsin=checkpoint:none", math.inf),
        ("tocsin=checkpoint:0m", 1 / 60),
        ("tocsin=checkpoint:90", 2.0),
        ("tocsin=checkpoint:999999999m", 2.0),
    ],
)
def test_a_job_says_how_often_it_saves_its_work(comment: str, hours: float) -> None:
    assert checkpoint_hours(comment, OPTIONS) == pytest.approx(hours)


def test_jobs_are_read_from_what_slurm_shows() -> None:
    node = busy("n1", "1", "2", "3", base="mixed", gpus_allocated=6)
    jobs = {
        "1": job("1", "n1", "n2", hours=3, gpus_per_node=2, comment="tocsin=signal:USR1"),
        "2": job("2", "n1", hours=0, end_time_ns=0, gpus_per_node=0),
    }
    first, second = running_on(node, jobs, NOW_NS, OPTIONS, JobCare(signal="asked"))
    assert (first.gpus, first.job_gpus, first.left_hours) == (2, 4, pytest.approx(3))
    assert first.signalled
    # No limit: it runs on as long as it has run. It did not ask by the node: what is left.
    assert (second.gpus, second.left_hours) == (4, 2)
    assert not second.signalled
    assert until_free_hours(node, jobs, NOW_NS) == pytest.approx(3)
    assert until_free_hours(busy("n1", "9"), {}, NOW_NS) == math.inf
    assert until_free_hours(idle("n1"), {}, NOW_NS) == 0


def test_the_queue_is_seen_in_use_and_in_planned_nodes() -> None:
    nodes = cluster(4)
    nodes["n1"] = busy("n1", "1")
    nodes["n2"] = idle("n2", flags=frozenset({"PLANNED"}))
    nodes["n3"] = idle("n3", flags=frozenset({"DRAIN"}), reason="ops")
    nodes["n4"] = idle("n4", base="mixed", gpus_allocated=4)
    found = market(nodes, {"1": job("1", "n1"), "2": job("2", "n4", "n5", "n6")})
    assert found.pressure["batch"] == pytest.approx((8 + 8 + 4) / 24)
    # A node meets the job of three nodes three times as often: (8 + 3 * 24) / 4.
    assert found.job_gpus["batch"] == pytest.approx(20)


# ---- decisions -------------------------------------------------------------------------------


def test_a_drain_that_costs_more_than_it_saves_is_held_with_the_numbers() -> None:
    decision = judge(risk("n1", 0.5), nodes=cluster(4))["n1"]
    assert (decision.action, decision.guard) == (Action.HOLD, Guard.COST)
    assert "a drain costs 1.6 GPU-hours" in decision.guard_text
    assert "saves 0.6" in decision.guard_text
    plain = json.loads(json.dumps(decision.inputs))["cost"]
    assert plain["costs_gpu_hours"] > plain["saves_gpu_hours"] > 0
    told = of_case(case("n1", decision, State.WATCH, voice="risk"), [decision], [], [], [])
    assert any(one.name == "drain saves" for one in told.signals)
    assert any("Guard cost said no" in sentence for sentence in told.sentences)


def test_history_is_weighed_as_risk_is_and_a_lost_gpu_is_not() -> None:
    nodes = cluster(4)
    assert judge(risk("n1", 0.5, voice="history"), nodes=nodes)["n1"].guard is Guard.COST
    found = judge(risk("n1", 0.5), nodes=nodes, facts=(lost("n1"),))["n1"]
    assert (found.action, found.guard) == (Action.DRAIN, None)
    assert found.inputs["cost"] is None


def test_costs_need_not_be_weighed() -> None:
    limits = ACTS.model_copy(update={"cost": CostOptions(weigh=False)})
    assert judge(risk("n1", 0.5), nodes=cluster(4), limits=limits)["n1"].guard is None


def test_a_persons_yes_stands_against_the_scales() -> None:
    held = judge(risk("n1", 0.5), nodes=cluster(4))["n1"]
    said = case("n1", held, State.APPROVED, user="ann")
    ledger = LedgerView(cases={held.id: said}, onsets={("n1", held.rule, held.device): NOW_NS})
    assert judge(risk("n1", 0.5), nodes=cluster(4), ledger=ledger)["n1"].guard is None


def test_the_same_node_drains_when_large_jobs_are_about() -> None:
    nodes = {**cluster(4), **{f"m{i}": busy(f"m{i}", "7") for i in range(16)}}
    large = job("7", *(f"m{i}" for i in range(16)))
    assert judge(risk("n1", 0.5), nodes=nodes)["n1"].guard is Guard.COST
    assert judge(risk("n1", 0.5), nodes=nodes, jobs=(large,))["n1"].guard is None


def test_idle_nodes_first_then_those_whose_jobs_end_soonest() -> None:
    nodes = cluster(6)
    nodes["n1"] = busy("n1", "1")
    nodes["n2"] = busy("n2", "2")
    nodes["n3"] = busy("n3", "3")
    jobs = (job("1", "n1", hours=9), job("2", "n2", hours=2))  # of 3 nothing is known
    limits = ACTS.model_copy(update={"drains_per_hour": 3})
    found = judge(
        nodes=nodes, jobs=jobs, limits=limits, facts=tuple(lost(f"n{i}") for i in range(1, 6))
    )
    drained = [name for name, one in found.items() if one.action is Action.DRAIN]
    assert sorted(drained) == ["n2", "n4", "n5"]
    assert {found[name].guard for name in ("n1", "n3")} == {Guard.CAP_HOUR}


def test_a_graver_fault_goes_before_an_idle_node() -> None:
    nodes = {**cluster(2), "n1": busy("n1", "1")}
    limits = ACTS.model_copy(update={"drains_per_hour": 1})
    mild = replace(lost("n2"), severity=2)
    found = judge(nodes=nodes, jobs=(job("1", "n1"),), limits=limits, facts=(mild, lost("n1")))
    assert found["n1"].action is Action.DRAIN
    assert found["n2"].guard is Guard.CAP_HOUR
