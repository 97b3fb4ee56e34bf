"""Pytest fixtures of the store testbed; a conftest imports the ones that it needs."""

from collections.abc import Iterator

import pytest

from tests.testbed.store.servers import Influx1, MissingServerError, Server, VictoriaMetrics


def _running(server: Server) -> Iterator[Server]:
    try:
        server.start()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def influx1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real InfluxDB 1.6.7, for the whole session; each test makes its own database."""
    yield from _running(Influx1(tmp_path_factory.mktemp("influx1")))


@pytest.fixture(scope="session")
def victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real VictoriaMetrics, for the whole session."""
    yield from _running(VictoriaMetrics(tmp_path_factory.mktemp("victoria")))
