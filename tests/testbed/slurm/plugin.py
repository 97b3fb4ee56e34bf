"""pytest fixtures of the real Slurm testbed. Loaded by tests/conftest.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.testbed.slurm.cluster import Cluster, missing, search_path, use_named

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


@dataclass(frozen=True)
class Rest:
    """A slurmrestd at ``url`` over ``cluster``; ``token_file`` holds a token of root's."""

    cluster: Cluster
    url: str
    token_file: Path


@pytest.fixture(scope="session")
def slurm_rest_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """A cluster of four nodes that takes JWTs, with a slurmrestd, for the whole session."""
    reason = missing()
    if reason or shutil.which("slurmrestd", path=search_path()) is None:
        pytest.skip(reason or "slurmrestd is missing, see packages-rest.txt")
    cluster = Cluster(nodes=4, jwt=True)
    try:
        token_file = tmp_path_factory.mktemp("rest") / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(cluster.token())
        yield Rest(cluster, cluster.rest(), token_file)
    finally:
        cluster.close()


@pytest.fixture
def slurm_rest(slurm_rest_cluster: Rest, monkeypatch: pytest.MonkeyPatch) -> Rest:
    """The shared cluster with slurmrestd, all nodes idle; SLURM_CONF points at it."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_rest_cluster.cluster.conf))
    monkeypatch.setenv("PATH", slurm_rest_cluster.cluster.env["PATH"])
    slurm_rest_cluster.cluster.reset()
    return slurm_rest_cluster


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
