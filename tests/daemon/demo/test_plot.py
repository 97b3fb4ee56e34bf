"""The demo's story."""

from __future__ import annotations

import itertools

import pytest

from daemon.demo.plot import opening, plot
from models.simulate import CLASSES


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (2, 8), (8, 4), (64, 8), (1000, 8)])
def test_every_act_fits_the_fleet_and_time_only_grows(nodes: int, gpus: int) -> None:
    acts = list(itertools.islice(plot(nodes, gpus, 8, seed=1), 60))
    assert [act.at_seconds for act in acts] == sorted(act.at_seconds for act in acts)
    for act in acts:
        assert act.what in {*CLASSES, "noise", "silence"}
        assert all(0 <= node < nodes for node in act.nodes)
        assert 0 <= act.gpu < gpus


def test_the_same_seed_tells_the_same_story() -> None:
    def told(seed: int) -> list[object]:
        return list(itertools.islice(plot(64, 8, 8, seed), 40))

    assert told(3) == told(3)
    assert told(3) != told(4)


def test_a_gpu_sickens_first_and_silence_spares_the_sick() -> None:
    acts = opening(64, 8, 8)
    assert acts[0].what == "heat"
    assert acts[0].lead_seconds > 0
    (silence,) = [act for act in acts if act.what == "silence"]
    struck = {act.nodes[0] for act in acts if act.what in CLASSES}
    assert not struck & set(silence.nodes)
    assert len(struck) == 7


def test_a_fleet_of_one_rack_is_not_silenced_whole() -> None:
    assert [act for act in opening(8, 8, 8) if act.what == "silence" and len(act.nodes) == 8] == []
