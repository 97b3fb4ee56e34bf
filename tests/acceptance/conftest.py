"""A house over a fresh or shared cluster, for tests of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.house import House
from tests.collectors import fake_gpus
from tests.testbed.slurm.cluster import Cluster

nvml_libraries = fake_gpus.nvml_libraries


@pytest.fixture
def build_house(slurm: Cluster, nvml_libraries: Path) -> Iterator[Callable[..., House]]:
    """Builds houses over the shared cluster and ends them with the test."""
    built: list[House] = []

    def build(**options: str) -> House:
        house = House(slurm, nvml_libraries, **options)
        built.append(house)
        return house

    yield build
    for house in built:
        house.close()


@pytest.fixture
def house(build_house: Callable[..., House]) -> House:
    """A head in act mode and four agents, all heard."""
    made = build_house()
    made.start()
    return made
