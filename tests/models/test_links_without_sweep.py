"""No fabric is swept, so nobody knows the switches: what began at once has one cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectors.sample import Sample, sample
from models.rules import Rules
from models.voices import Fact, Remedy

SECOND = 10**9
NOW = 1_796_000_000 * SECOND
UP = {"state": 4.0, "physical_state": 5.0, "rate_bits_per_second": 400e9, "link_width": 4.0}
POLLING = {"state": 1.0, "physical_state": 2.0}
NARROW = {"rate_bits_per_second": 200e9, "link_width": 2.0}


class Agents:
    """Nodes that read their own port every 30 s, each at a moment of its own."""

    def __init__(self, nodes: int) -> None:
        self.rules = Rules()
        self.now = NOW
        self.fields = {f"n{k + 1}": {**UP, "link_downs_total": 0.0} for k in range(nodes)}
        self.drained: set[str] = set()
        self.told: list[Fact] = []

    def run(self, minutes: float) -> None:
        """Judges after each reading, as a head does that is woken by it."""
        for _ in range(int(minutes * 2)):
            for k, name in enumerate(self.fields):
                moment = self.now + k * 30 * SECOND // len(self.fields)
                for one in self.readings(name, moment):
                    self.rules.observe(one, moment)
                self.told = self.rules.facts(moment, dict.fromkeys(self.fields, 0))
                self.drained |= {f.entity.node for f in self.told if f.remedy is Remedy.DRAIN}
            self.now += 30 * SECOND

    def readings(self, name: str, at: int) -> Iterator[Sample]:
        yield sample("slurm_node", at, {"jobs": 1.0}, node=name)
        yield sample("ib_port", at, self.fields[name], node=name, device="mlx5_0", port="1")
        yield sample("host", at, {"boot_time_seconds": NOW / SECOND - 86_400}, node=name)


@pytest.fixture
def agents() -> Agents:
    made = Agents(8)
    made.run(15)
    assert made.told == []
    return made


@pytest.mark.parametrize("what", [POLLING, NARROW], ids=["down", "slow"])
def test_links_that_fail_at_once_drain_nobody(agents: Agents, what: dict[str, float]) -> None:
    for fields in agents.fields.values():
        fields.update(what)
    agents.run(10)
    assert agents.drained == set()
    assert len(agents.told) == 8, "people are told"


def test_a_switch_that_restarts_under_jobs_drains_nobody(agents: Agents) -> None:
    for fields in agents.fields.values():
        fields["link_downs_total"] += 1.0
    agents.run(10)
    assert agents.drained == set()
    assert {fact.code for fact in agents.told} == {"ibflap"}


@pytest.mark.parametrize("nodes", [1, 8])
def test_one_link_that_fails_is_its_nodes(nodes: int) -> None:
    agents = Agents(nodes)
    agents.run(15)
    agents.fields["n1"].update(POLLING)
    agents.run(3)
    assert agents.drained == {"n1"}


def test_one_link_that_drops_under_a_job_is_its_nodes(agents: Agents) -> None:
    agents.fields["n1"]["link_downs_total"] += 1.0
    agents.run(4)
    assert agents.drained == {"n1"}


def test_links_that_fail_one_after_the_other_are_their_nodes(agents: Agents) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        agents.fields[name].update(POLLING)
        agents.run(10)
    assert agents.drained == {"n1", "n2", "n3", "n4"}


def test_a_link_that_stays_down_when_the_others_are_back_is_its_nodes(agents: Agents) -> None:
    for fields in agents.fields.values():
        fields.update(POLLING)
        fields["link_downs_total"] += 1.0
    agents.run(3)
    for name in list(agents.fields)[1:]:
        agents.fields[name].update(UP)
    agents.run(10)
    assert agents.drained == set()
    agents.run(10)
    assert agents.drained == {"n1"}
