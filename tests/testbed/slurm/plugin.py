"""pytest fixtures of the real Slurm testbed. Loaded by tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.testbed.slurm.cluster import Cluster, missing, use_named

_USED = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Takes the Slurm that ``TOCSIN_TEST_SLURM`` names, for all tests of this run."""
    try:
        config.stash[_USED] = use_named()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str:
    """Says which Slurm is tested, where another than the system's is named."""
    used = config.stash.get(_USED, "")
    return f"slurm: {used}" if used else ""


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    """One cluster of four nodes with eight fake GPUs each, shared by the whole session."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    cluster = Cluster(nodes=4)
    yield cluster
    cluster.close()


@pytest.fixture
def slurm(slurm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The shared cluster with all nodes idle; SLURM_CONF points at it."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    monkeypatch.setenv("PATH", slurm_cluster.env["PATH"])
    slurm_cluster.reset()
    return slurm_cluster


@pytest.fixture
def slurm_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters of the test's own: ``slurm_start(nodes=8, extra="PrivateData=cloud")``."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    started: list[Cluster] = []

    def start(nodes: int = 4, extra: str = "", jwt: bool = False) -> Cluster:
        cluster = Cluster(nodes, extra, jwt)
        started.append(cluster)
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        monkeypatch.setenv("PATH", cluster.env["PATH"])
        return cluster

    yield start
    for cluster in started:
        cluster.close()
