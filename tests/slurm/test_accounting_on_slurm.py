"""What a real slurmdbd tells of a node that died under its job, until it is a label.

Needs packages beyond the other tests': tests/testbed/slurm/packages-accounting.txt.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from collectors.sample import Sample
from collectors.slurm.faults import SlurmTrouble
from collectors.slurm.source import Options
from daemon.slurm.mining import Accounting, Past, mine
from daemon.store.database import Database
from models.labels import LabelMiner
from tests.ports import free_port
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
TOOLS = ("mariadbd", "mariadb-install-db", "slurmdbd", "sacctmgr")


@pytest.fixture
def accounted(slurm_start: Callable[..., Cluster], tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three nodes whose jobs are accounted."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}")
    cluster = slurm_start(nodes=3)
    port, own = free_port(), free_port()
    data = tmp_path / "db"
    subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root",
         "--auth-root-authentication-method=normal", "--skip-test-db"],
        env=cluster.env, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    conf = tmp_path / "slurmdbd.conf"
    conf.write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={cluster.directory}/run/munge.sock\n"
        f"DbdHost=localhost\nDbdPort={own}\nSlurmUser=root\nStorageType=accounting_storage/mysql\n"
        f"StorageHost=127.0.0.1\nStoragePort={port}\nStorageUser=root\nStorageLoc=acct\n"
        f"PidFile={tmp_path}/slurmdbd.pid\nLogFile={tmp_path}/slurmdbd.log\n"
    )
    conf.chmod(0o600)
    # slurmdbd looks for its file where slurm.conf would be.
    env = {**cluster.env, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    maria = ["mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", f"--port={port}"]
    maria += ["--bind-address=127.0.0.1", f"--socket={tmp_path}/db.sock"]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, at in ((maria, port), (["slurmdbd", "-D"], own)):
            running.append(
                subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            wait_for(functools.partial(_listens, at), f"{command[0]} listens")
        with cluster.conf.open("a") as file:
            file.write(
                "\nAccountingStorageType=accounting_storage/slurmdbd\n"
                f"AccountingStorageHost=localhost\nAccountingStoragePort={own}\n"
                f"AccountingStoragePass={cluster.directory}/run/munge.sock\n"
            )
        cluster.stop_controller()
        cluster.start_controller()
        yield cluster
    finally:
        for process in reversed(running):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_nodes_that_died_under_their_jobs_are_labels_requeued_or_not(
    accounted: Cluster, tmp_path: Path
) -> None:
    slurm = accounted
    wait_for(lambda: {slurm.words(n) for n in slurm.nodes} == {frozenset({"IDLE"})}, "idle")
    time.sleep(1)
    slurm.start_job("n1", "--requeue")
    slurm.start_job("n2", "--no-requeue")
    slurm.start_job("n3")
    begun_ns = time.time_ns()
    for node in ("n1", "n2"):
        slurm.node("kill-node", node)
        wait_for(lambda name=node: "DOWN" in slurm.words(name), f"{node} is down")  # type: ignore[misc]
    past = Past(Accounting(Options()), Database(tmp_path / "db.sqlite"), days=30.0)
    kept: list[Sample] = []

    async def keep(samples: Sequence[Sample]) -> None:
        kept.extend(samples)

    def mined() -> bool:
        asyncio.run(mine(past, keep, time.time_ns()))
        return len(kept) >= 2

    wait_for(mined, "accounting tells it")
    asyncio.run(mine(past, keep, time.time_ns()))
    miner = LabelMiner()
    for one in sorted(kept, key=lambda one: one.time_ns):
        assert (one.measurement, one.tag("code")) == ("slurm_event", "node_fail")
        assert begun_ns - 10**9 <= one.time_ns <= time.time_ns()
        miner.observe(one)
    told = {(one.entity.node, one.cause) for one in miner.labels().failures}
    assert told == {("n1", "node down"), ("n2", "node down")}
    assert len(kept) == 2, "each is told once"


def test_without_accounting_it_is_said_and_nothing_is_kept(slurm: Cluster, tmp_path: Path) -> None:
    with pytest.raises(SlurmTrouble, match="accounting storage is disabled"):
        Accounting(Options()).failures(0, time.time_ns())
    past = Past(Accounting(Options()), Database(tmp_path / "db.sqlite"), days=30.0)

    async def never(samples: Sequence[Sample]) -> None:
        raise AssertionError(samples)

    asyncio.run(mine(past, never, time.time_ns()))
