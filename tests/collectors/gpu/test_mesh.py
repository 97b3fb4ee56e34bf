"""A GPU with fewer NVLinks than its peers is told, by NVML's own readings."""

from __future__ import annotations

from collectors.gpu.mesh import MeshWatch
from collectors.gpu.nvml import Nvml
from collectors.inventory import Board
from collectors.sample import Sample
from models.rules import Rules
from models.voices import Remedy
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.fake_gpus import FakeGpus
from tests.collectors.gpu.nvml_help import SECOND

MINUTE = 60 * SECOND


def told(samples: object) -> list[tuple[str, str, float | None]]:
    assert isinstance(samples, list | tuple)
    return [
        (one.tag("code"), one.text("device"), one.number("severity"))
        for one in samples
        if isinstance(one, Sample) and one.tag("kind") == "topology"
    ]


def boards(count: int, model: str = "H100") -> dict[int, Board]:
    return {index: Board(index, bus=f"0000:{index:02x}:00", model=model) for index in range(count)}


def test_fewer_links_are_told_when_read_twice_and_when_they_are_back() -> None:
    watch, here = MeshWatch(NODE), boards(8)
    whole = dict.fromkeys(range(8), 18.0)
    broken = {**whole, 3: 17.0, 5: 0.0}
    assert watch.events(broken, here, NOW_NS) == []
    assert told(watch.events(broken, here, NOW_NS + MINUTE)) == [
        ("nvlink", "0000:03:00", 1.0),
        ("nvlink", "0000:05:00", 1.0),
    ]
    assert watch.events(broken, here, NOW_NS + 2 * MINUTE) == []
    without = {index: count for index, count in whole.items() if index != 5}
    assert told(watch.events(without, here, NOW_NS + 3 * MINUTE)) == [("nvlink", "0000:03:00", 0.0)]
    assert told(watch.events(whole, here, NOW_NS + 4 * MINUTE)) == [("nvlink", "0000:05:00", 0.0)]


def test_links_that_are_down_for_a_moment_are_no_fault() -> None:
    watch, here = MeshWatch(NODE), boards(4)
    whole = dict.fromkeys(range(4), 18.0)
    for step in range(6):
        now_ns = NOW_NS + step * MINUTE
        assert watch.events({**whole, 2: 0.0} if step % 2 else whole, here, now_ns) == []


def test_only_gpus_of_one_model_are_peers_and_a_majority_must_agree() -> None:
    here = {**boards(4), **{index: Board(index, model="L40S") for index in (4, 5)}}
    mixed = {0: 18.0, 1: 18.0, 2: 18.0, 3: 18.0, 4: 0.0, 5: 0.0}
    pairs = {0: 12.0, 1: 12.0, 2: 0.0, 3: 0.0}
    for links in (mixed, pairs, dict.fromkeys(range(4), 0.0), {0: 3.0}, {}):
        watch = MeshWatch(NODE)
        assert [watch.events(links, here, NOW_NS + step * MINUTE) for step in range(3)] == [[]] * 3


def test_nvml_tells_of_a_mesh_with_a_hole_and_it_reaches_people(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[gpu3]\nnvlink.4.state = 0\n")
    assert told(source.collect(NOW_NS).samples) == []
    batch = source.collect(NOW_NS + 2 * MINUTE)
    (one,) = told(batch.samples)
    assert (one[0], one[2]) == ("nvlink", 1.0)
    rules = Rules()
    for sample in batch.samples:
        rules.observe(sample, sample.time_ns)
    facts = [
        fact for fact in rules.facts(NOW_NS + 2 * MINUTE, {NODE: 8}) if fact.rule == "topology"
    ]
    assert [(fact.code, fact.remedy) for fact in facts] == [("topo-nvlink", Remedy.ALERT)]
    gpus.write()
    assert [one[2] for one in told(source.collect(NOW_NS + 4 * MINUTE).samples)] == [0.0]
