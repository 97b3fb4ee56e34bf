"""Facts about links end to end: the real tools and the real sweep on a simulated fabric."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.ib.fabric import FabricSource, Options, make
from collectors.ib.parsers import IB_PARSERS
from collectors.sample import Context, Sample
from models.rules import Rules
from models.voices import Fact, Remedy
from tests.testbed.ib.fabric import Fabric

SECOND = 10**9
NOW = 1_796_000_000 * SECOND


class Cluster:
    """A fabric, its sweep, and some hosts whose own ends are read with ibstat and perfquery."""

    def __init__(self, fabric: Fabric, state: Path, hosts: list[str]) -> None:
        self.fabric = fabric
        self.hosts = hosts
        self.rules = Rules()
        self.now = NOW
        options = Options(timeout_ms=100, rediscover_seconds=0)
        made = make(options, Context("head", state, state))
        assert isinstance(made, FabricSource)
        self.source = made

    def look(self, seconds: int = 60) -> None:
        """Time passes, and everything is read once."""
        self.now += seconds * SECOND
        for one in self.source.collect(self.now).samples:
            self.rules.observe(one, self.now)
        for host in self.hosts:
            for one in self._own_end(host):
                self.rules.observe(one, self.now)

    def _own_end(self, host: str) -> Iterator[Sample]:
        state = self.fabric.run("ibstat", host=host).stdout
        counters = self.fabric.run("perfquery", host=host).stdout
        fields: dict[str, float | str] = {}
        for tool, text in (("ibstat", state), ("perfquery", counters)):
            for one in IB_PARSERS[tool](text, host, self.now)[0]:
                fields |= one.fields
        # The simulator calls every adapter ibsim0 and adds 4 % to the rate of EDR.
        tags = (("device", "mlx5_0"), ("node", host), ("port", "1"))
        if fields.get("rate_bits_per_second") == 104e9:
            fields["rate_bits_per_second"] = 100e9
        yield Sample("ib_port", tags, fields, self.now)
        boot = {"boot_time_seconds": (NOW - 86_400 * SECOND) / SECOND}
        yield Sample("host", (("node", host),), boot, self.now)

    def facts(self) -> list[Fact]:
        return self.rules.facts(self.now, dict.fromkeys(self.hosts, 0))


@pytest.fixture
def cluster(
    ib_fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Cluster]]:
    """Watches some hosts of the shared fabric; no two tests take the same hosts."""
    for name, value in ib_fabric.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ib_fabric.directory)

    def watch(*hosts: str) -> Cluster:
        made = Cluster(ib_fabric, tmp_path, list(hosts))
        made.look()
        made.look(700)
        assert made.facts() == []
        return made

    yield watch
    monkeypatch.undo()


def test_a_cut_cable_is_placed_by_both_ends(cluster: Callable[..., Cluster]) -> None:
    seen = cluster("gpu-0004")
    seen.fabric.console('Unlink "H-gpu-0004-r0"[1]')
    seen.look(30)
    assert seen.facts() == []
    seen.look(60)
    (fact,) = seen.facts()
    assert (fact.entity.node, fact.entity.device) == ("gpu-0004", "mlx5_0/1")
    assert (fact.code, fact.remedy) == ("ibdown", Remedy.DRAIN)
    assert fact.text == "link down; likely the cable"
    assert "leaf-0-0 port 4: Down/Polling" in fact.evidence


def test_lost_lanes_are_a_fact_of_the_host_at_that_cable(cluster: Callable[..., Cluster]) -> None:
    seen = cluster("gpu-0003")
    seen.fabric.run("ibportstate", "1", "3", "width", "1")
    seen.look(30)
    seen.look(60)
    (fact,) = seen.facts()
    assert (fact.entity.node, fact.code, fact.remedy) == ("gpu-0003", "ibrate", Remedy.DRAIN)
    assert "of 100 Gb/s; likely the cable" in fact.text


def test_drops_counted_at_the_host_are_a_fact_and_errors_place_them(
    cluster: Callable[..., Cluster],
) -> None:
    seen = cluster("gpu-0002")
    fabric = seen.fabric
    fabric.counters("H-gpu-0002-r0", 1, LinkDownedCounter=2, SymbolErrorCounter=50)
    fabric.counters("S-leaf-0-0", 2, LinkDownedCounter=2, SymbolErrorCounter=70)
    seen.look()
    (fact,) = seen.facts()
    assert (fact.entity.node, fact.code, fact.remedy) == ("gpu-0002", "ibflap", Remedy.DRAIN)
    assert fact.text == "link went down 2 times in 24 h; likely the cable"


def test_three_hosts_of_one_leaf_are_the_switch_and_nobody_is_drained(
    cluster: Callable[..., Cluster],
) -> None:
    hosts = ["gpu-0006", "gpu-0007", "gpu-0008"]  # of the other leaf
    seen = cluster(*hosts)
    for host in hosts:
        seen.fabric.console(f'Unlink "H-{host}-r0"[1]')
    seen.look(30)
    seen.look(60)
    facts = seen.facts()
    assert [fact.entity.node for fact in facts] == hosts
    assert {fact.remedy for fact in facts} == {Remedy.ALERT}
    assert {fact.text for fact in facts} == {"link down; likely the switch"}
