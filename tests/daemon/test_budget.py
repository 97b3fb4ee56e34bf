"""What the head polls itself is cut as senders are, when it brings in series without end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from collectors.sample import Sample, sample
from collectors.slurm.nodes import NodeState
from daemon.budget import PART_LIMIT, SeriesBudget
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.head import Head
from daemon.slurm.simulated import SimulatedSlurm
from daemon.source_loop import DirectOutlet

DAY_NS = 86_400 * 10**9


def sensors(node: str, names: Sequence[object], time_ns: int = 0) -> list[Sample]:
    return [
        sample("bmc", time_ns, {"value": 1.0}, node=node, sensor=str(name), kind="celsius")
        for name in names
    ]


def test_a_part_that_invents_series_is_cut_and_no_other() -> None:
    budget = SeriesBudget(lambda: DAY_NS, part_limit=10)
    assert len(budget.within(sensors("n1", range(10)))) == 10
    assert budget.within(sensors("n1", range(100, 105))) == []
    assert len(budget.within(sensors("n1", range(10)))) == 10, "what is known goes on"
    assert len(budget.within(sensors("n2", range(10)))) == 10
    fans = [sample("host", 0, {"load_1m": 1.0}, node="n1")]
    assert list(budget.within(fans)) == fans, "another measurement has room of its own"
    assert budget.refused == 5
    assert budget.cut == {"n1": "series budget: 10 series of bmc already"}
    assert budget.loud() == "n1: series budget: 10 series of bmc already"


def test_switches_are_counted_by_their_guid() -> None:
    budget = SeriesBudget(lambda: DAY_NS, part_limit=64)
    ports = [
        sample("fabric_port", 0, {"state": 4.0}, guid=f"0x{guid}", port=str(port))
        for guid in range(30)
        for port in range(64)
    ]
    assert len(budget.within(ports)) == len(ports)
    assert budget.loud() == ""


def test_who_has_few_has_a_place_whatever_others_have_used_up() -> None:
    budget = SeriesBudget(lambda: DAY_NS, part_limit=10**6, series_limit=1000)
    assert len(budget.within(sensors("n1", range(5000)))) == 1000
    assert len(budget.within(sensors("n2", range(60)))) == 60
    made_up = [one for n in range(9000) for one in sensors(f"x{n}", range(1))]
    assert len(budget.within(made_up)) == 940
    assert budget.series == 2000, "and there is an end to that too"


def test_the_next_day_what_is_gone_gives_its_place_back() -> None:
    now = [DAY_NS]
    budget = SeriesBudget(lambda: now[0], part_limit=10)
    budget.within(sensors("n1", range(20)))
    now[0] += DAY_NS
    assert len(budget.within(sensors("n1", range(10, 20)))) == 10
    assert budget.cut == {}


def test_words_stay_short_however_many_are_cut() -> None:
    budget = SeriesBudget(lambda: DAY_NS, part_limit=1)
    for number in range(400):
        budget.within(sensors(f"n{number:03d}", range(2)))
    assert len(budget.loud()) < 400
    assert budget.loud().endswith("and 395 more")


async def test_what_is_cut_is_not_handed_on_and_the_rest_is() -> None:
    kept: list[Sample] = []
    saved: list[bool] = []

    async def keep(samples: Sequence[Sample]) -> bool:
        kept.extend(samples)
        return True

    outlet = DirectOutlet(keep, lambda: None, lambda: DAY_NS)
    outlet.budget.part_limit = 5
    await outlet.now(sensors("n1", range(9)), False, lambda: saved.append(True))
    await outlet.add(sensors("n1", range(3, 9)))
    assert [one.tag("sensor") for one in kept] == ["0", "1", "2", "3", "4", "3", "4"]
    assert saved == [True], "a log's cursor goes on all the same"
    assert outlet.budget.refused == 8


async def test_people_are_told_and_nothing_is_taken_for_missing_in_that_node(
    tmp_path: Path,
) -> None:
    slurm = SimulatedSlurm([NodeState("n1", base="idle", partitions=("p",))], time.time_ns)
    config = Config.model_validate(
        {
            "head": {"state_dir": tmp_path, "operators_group": "", "judge_seconds": 300},
            "page": {"enabled": False},
            "store": {"reserve_bytes": 0},
        }
    )
    source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
    head = Head(config, clock=SystemClock(), adapter=slurm, slurm=source)
    await head.start()
    try:
        now_ns = head.clock.now_ns()
        await head.outlet.add(sensors("n1", range(PART_LIMIT + 1), now_ns))
        await head.judge()
        (alert,) = [one for one in head.active if one.key == "gateway/senders"]
        assert "n1: series budget: 4096 series of bmc already" in alert.text
        assert "series budget" in head.situation().refused["n1"]
        held = head.store.read("bmc", 0, 2**62)
        assert held.num_rows == PART_LIMIT
    finally:
        await head.stop()
