"""A cluster with a second slurmctld, the backup, that shares the first one's state or does not.

Each controller has a host name of its own, in a UTS namespace, and an address of its own in
127.0.0.0/8; a mount namespace gives both a hosts file that knows them. Needs root, as the rest of
the testbed does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.testbed.slurm.cluster import Cluster, wait_for

# So soon a backup takes over; then the nodes register anew, at most a MessageTimeout later.
EXTRA = "SlurmctldTimeout=3\nMessageTimeout=2\nCommunicationParameters=NoCtldInAddrAny\n"
HOSTS = "127.0.0.1 localhost ctl1\n127.0.0.2 ctl2\n"
ONE = "SlurmctldHost=localhost(127.0.0.1)"
TWO = "SlurmctldHost=ctl1(127.0.0.1)\nSlurmctldHost=ctl2(127.0.0.2)"


class Pair:
    """``cluster`` with a backup. ``shared``: whether that has the first one's StateSaveLocation."""

    def __init__(self, start: Callable[..., Cluster], nodes: int, *, shared: bool) -> None:
        self.cluster = cluster = start(nodes=nodes, extra=EXTRA)
        folder = cluster.directory
        for node in cluster.nodes:
            cluster.node("stop-node", node)
        cluster.stop_controller()
        (folder / "hosts").write_text(HOSTS)
        text = cluster.conf.read_text().replace(ONE, TWO)
        cluster.conf.write_text(text)
        self._second = folder / "slurm.second.conf"
        for name in ("slurmctld.pid", "slurmctld.log", *(() if shared else ("state",))):
            text = text.replace(f"{name}\n", f"{name}2\n")
        (folder / "state2").mkdir()
        self._second.write_text(text)
        self._start("ctl1", cluster.conf)
        wait_for(lambda: "is UP" in self._ping(), "the first slurmctld to answer")
        for node in cluster.nodes:
            cluster.node("start-node", node)
        # In another second than the first: it tells its start in whole seconds.
        begun_seconds = int(time.time())
        wait_for(lambda: int(time.time()) > begun_seconds, "the next second")
        self._start("ctl2", self._second)
        wait_for(lambda: self._ping().count("is UP") == 2, "both slurmctlds to answer")
        wait_for(
            lambda: {words for words, _ in cluster.show().values()} == {frozenset({"IDLE"})},
            "all nodes to be idle",
        )
        if shared and cluster.version >= (23, 11):
            # Without one a backup does not dare to take over.
            wait_for((folder / "state/heartbeat").exists, "the first one's heartbeat")

    def _start(self, host: str, conf: Path) -> None:
        hosts = self.cluster.directory / "hosts"
        subprocess.run(
            [
                "unshare", "--uts", "--mount", "sh", "-c",
                'hostname "$0"; mount --bind "$1" /etc/hosts; exec slurmctld -f "$2"',
                host, str(hosts), str(conf),
            ],
            env={**self.cluster.env, "SLURM_CONF": str(conf)}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=60, check=True,
        )  # fmt: skip

    def _ping(self) -> str:
        return self.cluster.run("scontrol", "ping", check=False)

    def wait_for_takeover(self) -> None:
        """Returns when the second one answers, with nodes that have registered."""

        def answers() -> bool:
            with contextlib.suppress(AssertionError, ValueError):
                shown = self.cluster.show()
                return all("UNKNOWN" not in words for words, _ in shown.values())
            return False

        wait_for(answers, "the backup to take over")

    def close(self) -> None:
        """Ends the backup."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.cluster.directory / "run/slurmctld.pid2").read_text())
            os.kill(pid, signal.SIGKILL)
