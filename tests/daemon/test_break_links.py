"""One node's agent may not take another's cable, and the other's faults with it."""

from __future__ import annotations

import json

from collectors.sample import Sample, sample
from models.rules import Rules
from models.voices import Fact, Remedy

SECOND = 10**9
NOW = 1_796_000_000 * SECOND


class World:
    """Two hosts, ``a`` and ``b``; the sweep says that GUID 0xb is in ``b``."""

    def __init__(self) -> None:
        self.rules = Rules()
        self.now = NOW

    def event(self, node: str, code: str, text: str) -> None:
        fields: dict[str, float | str] = {"device": "mlx5_0/1", "text": text, "severity": 0.0}
        one = sample("event", self.now, fields, node=node, kind="inventory", code=code)
        self.rules.observe(one, self.now)

    def cable(self) -> None:
        self.event("b", "link", "switch=0x5 switch_port=4 adapter=0xb adapter_port=1 name=leaf")

    def look(self, *hosts: str, down: str = "", times: int = 1) -> list[Fact]:
        for _ in range(times):
            self.now += 60 * SECOND
            for host in hosts:
                boot: dict[str, float | str] = {"boot_time_seconds": NOW / SECOND - 86_400}
                self.rules.observe(sample("host", self.now, boot, node=host), self.now)
                self.rules.observe(self._port(host, down == host), self.now)
        return self.rules.facts(self.now, {"a": 0, "b": 0})

    def _port(self, host: str, down: bool) -> Sample:
        fields: dict[str, float | str] = {
            "state": 1.0 if down else 4.0,
            "rate_bits_per_second": 1e11,
            "link_downs_total": float(down),
        }
        return sample("ib_port", self.now, fields, node=host, device="mlx5_0", port="1")


def test_a_guid_claimed_by_another_node_hides_no_fault() -> None:
    world = World()
    world.event("b", "port", "guid=0xb")
    world.cable()
    world.look("a", "b", times=15)
    world.event("a", "port", "guid=0xb")
    world.look("a", "b", down="b", times=2)
    world.event("a", "port", "guid=0xb")
    (fact,) = world.look("a", "b", down="b")
    assert (fact.entity.node, fact.code, fact.remedy) == ("b", "ibdown", Remedy.DRAIN)


def test_a_guid_claimed_before_the_sweep_takes_no_cable() -> None:
    world = World()
    world.event("a", "port", "guid=0xb")
    world.look("a", "b", times=2)
    world.cable()
    assert ("a", "mlx5_0", "1") not in world.rules.links._cables
    again = World()
    again.rules.load(json.loads(json.dumps(world.rules.dump())))
    again.now = world.now
    again.event("a", "port", "guid=0xb")
    assert ("a", "mlx5_0", "1") not in again.rules.links._cables


def test_a_card_that_moved_is_its_new_nodes_once_the_old_one_is_silent() -> None:
    world = World()
    world.event("b", "port", "guid=0xb")
    world.cable()
    world.look("b", times=2)
    world.look("a", times=15)
    world.event("a", "port", "guid=0xb")
    assert ("a", "mlx5_0", "1") in world.rules.links._cables
