"""A simulated InfiniBand fabric for tests: the real infiniband-diags over ibsim and opensm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("ibsim", "ibsim-run", "opensm", "ibnetdiscover", "ibqueryerrors")


def missing() -> str:
    """Why no fabric can be had here, or ''."""
    absent = [name for name in PROGRAMS if _which(name) is None]
    if absent:
        listing = (HERE / "packages.txt").read_text().split()
        return f"no simulated fabric: {', '.join(absent)} missing (apt install {' '.join(listing)})"
    return ""


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class Fabric:
    """One fabric with its state in ``directory``: hosts gpu-0001 ..., leaves leaf-0-0 ..."""

    def __init__(self, directory: Path, *arguments: str, manager: bool = True) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._script_env = {**os.environ, "IBFABRIC_DIR": str(directory)}
        self._script("start", *(() if manager else ("--no-sm",)), *arguments)

    def environment(self, host: str = "") -> dict[str, str]:
        """What makes a program of this machine see the fabric, as ``host`` (``gpu-0003``).

        libumad2sim keeps a folder ``sys-PID`` in the working directory: run it in
        ``directory``.
        """
        (library,) = list(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so"))[:1]
        name = self._socket_name()
        path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
        found = {"LD_PRELOAD": str(library), "IBSIM_SOCKNAME": name, "PATH": path}
        return {**found, "SIM_HOST": f"H-{host}-r0"} if host else found

    def run(self, *command: str, host: str = "") -> subprocess.CompletedProcess[str]:
        """Runs one of the real tools on a host of the fabric (default: the first)."""
        return subprocess.run(
            command,
            env={**os.environ, **self.environment(host)},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def console(self, command: str) -> str:
        """A command to ibsim: ``Unlink "H-gpu-0004-r0"[1]`` and the like."""
        return self._script("cmd", command)

    def counters(self, node: str, port: int, **values: int) -> None:
        """Sets counters: ``counters("S-leaf-0-0", 2, LinkDownedCounter=3)``."""
        for name, value in values.items():
            self.console(f'PerformanceSet "{node}"[{port}] PortCounters.{name}={value}')

    def manager(self, order: str) -> None:
        """``start`` or ``stop`` the subnet manager."""
        self._script("sm", order)

    def stop(self) -> None:
        """Ends ibsim and opensm and removes the state."""
        self._script("stop")

    def _socket_name(self) -> str:
        answer = subprocess.run(
            ["cksum"], input=str(self.directory), capture_output=True, text=True, check=True
        )
        return "ibfabric-" + answer.stdout.split()[0]

    def _script(self, *arguments: str) -> str:
        answer = subprocess.run(
            [HERE / "ibfabric", *arguments],
            env=self._script_env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if answer.returncode:
            raise RuntimeError(f"ibfabric {arguments[0]}: {answer.stderr or answer.stdout}")
        return answer.stdout
