"""What 100 drains cost on a large cluster: the time, and what slurmctld is asked for.

A real slurmctld of its own with as many configured nodes as asked for, on loopback, ended again
afterwards; no other cluster is ever touched. Which Slurm that is, PATH says. One slurmd runs, for a
node that is not measured: the others were set IDLE, have no jobs and do not respond. slurmctld
sends and changes their records as it does any node's, but tocsin's own last check would not drain
a node that never registered, so the check here asks for foreign reasons alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collectors.slurm.nodes import NodeState
from collectors.slurm.source import Options
from collectors.slurm.state import left_over
from daemon.bench.figures import Figure, process_seconds
from daemon.slurm.adapter import Outcome, SlurmAdapter, SlurmError
from daemon.slurm.cli import CliAdapter
from daemon.slurm.pyslurm_adapter import PyslurmAdapter
from daemon.slurm.rest import RestAdapter

TESTBED = Path(__file__).resolve().parents[2] / "tests" / "testbed" / "slurm" / "slurm-testbed"
START_SECONDS = 120.0
COMMAND_SECONDS = 60.0
SETTLE_SECONDS_MOST = 60.0
BUSY_SHARE = 0.1
CYCLE_SECONDS_MOST = 5.0
REQUESTS_PER_GROUP_MOST = 3.0
# A reason that a loop of scontrol writes, too.
REASON = "tocsin:x79 gpu3 {0:04x}; fell off the bus; tocsin explain {0:04x}"
# Not asked by what is measured: by the count itself, and by Slurm's own daemons.
_NOT_OURS = ("REQUEST_STATS_INFO", "REQUEST_PING")
_REQUEST = re.compile(r"^\s+(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one measured step took. ``requests``: slurmctld's own count (sdiag), by their kind."""

    wall_seconds: float
    controller_cpu_seconds: float
    requests: Mapping[str, int]

    def asked(self, *kinds: str) -> int:
        """How many requests of ``kinds``; of all kinds without any."""
        return sum(n for kind, n in self.requests.items() if not kinds or kind in kinds)


class Controller:
    """A running slurmctld of the testbed with ``nodes`` configured nodes. Call ``close``.

    ``jwt``: it takes tokens, as a slurmrestd needs it. ``folder`` lies in one of the caller's own.
    """

    def __init__(self, folder: Path, nodes: int, jwt: bool = False) -> None:
        if not TESTBED.exists():
            raise RuntimeError("the Slurm testbed is part of the source tree, not of the package")
        if os.geteuid() != 0:
            raise RuntimeError("the Slurm testbed needs root")
        self._folder = folder
        self.conf = folder / "slurm.conf"
        self.names = tuple(f"c{number:05d}" for number in range(1, nodes + 1))
        self._env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._env["PATH"] = f"{self._env.get('PATH', '')}:/usr/sbin:/sbin"
        more = folder.with_suffix(".conf")
        more.write_text(_more(nodes))
        try:
            more_options = ["-j"] if jwt else []
            self._script("start", "-d", str(folder), "-n", "1", "-x", str(more), *more_options)
            # A node that never registered is UNKNOWN, and slurmctld answers UNDRAIN with an error.
            everyone = f"nodename=c[00001-{nodes:05d}]"
            self.run("scontrol", "update", everyone, "state=down", "reason=never registered")
            self.run("scontrol", "update", everyone, "state=resume")
            self._settle(nodes)
        except BaseException:  # Ctrl-C too: no daemon may be left behind
            self.close()
            raise
        finally:
            more.unlink()

    def _settle(self, nodes: int) -> None:
        """Waits until slurmctld has given up asking new nodes to register (12 s for 10,000).

        It begins some seconds after they were set IDLE, so a moment of rest is not yet the end.
        """
        pid, end = self._pid(), time.monotonic() + SETTLE_SECONDS_MOST
        rest_seconds = min(8.0, nodes / 1000)
        used, since = process_seconds(pid), time.monotonic()
        while time.monotonic() - since < rest_seconds and time.monotonic() < end:
            time.sleep(0.5)
            now = process_seconds(pid)
            if now - used > BUSY_SHARE * 0.5:
                since = time.monotonic()
            used = now

    def _pid(self) -> int:
        return int((self._folder / "run/slurmctld.pid").read_text())

    def run(self, *command: str) -> str:
        """What one of Slurm's commands prints. Raises RuntimeError when it fails."""
        return _run(command, self._env, COMMAND_SECONDS)

    @property
    def version(self) -> str:
        """``slurm 22.05.8``."""
        return self.run("scontrol", "--version").strip()

    def rest(self) -> dict[str, object]:
        """Starts a slurmrestd; answers the options that reach it, with a token of root's."""
        self._folder.parent.chmod(0o711)  # slurmrestd runs as nobody, and reads slurm.conf
        url = self._script("rest", "-d", str(self._folder)).split()[-1]
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(self.run("scontrol", "token", "username=root", "lifespan=3600"))
        return {"rest_url": url, "rest_user": "root", "rest_token_file": token}

    def requests(self) -> dict[str, int]:
        """How often slurmctld was asked for what since it was started."""
        found = {kind: int(count) for kind, count in _REQUEST.findall(self.run("sdiag"))}
        return {kind: count for kind, count in found.items() if kind not in _NOT_OURS}

    def cost(self, step: Callable[[], object]) -> Cost:
        """Measures ``step``. Raises what it raises."""
        before = self.requests()
        pid = self._pid()
        cpu, wall = process_seconds(pid), time.perf_counter()
        step()
        wall, cpu = time.perf_counter() - wall, process_seconds(pid) - cpu
        after = self.requests()
        asked = {kind: count - before.get(kind, 0) for kind, count in after.items()}
        return Cost(wall, cpu, {kind: count for kind, count in asked.items() if count})

    def close(self) -> None:
        """Ends every process of it; where none was started there is nothing to end."""
        if (self._folder / ".slurm-testbed").exists():
            self._script("stop", "-d", str(self._folder), "--purge")

    def _script(self, *arguments: str) -> str:
        return _run((str(TESTBED), *arguments), self._env, START_SECONDS)


def costs(
    folder: Path, nodes: int, drains: int, way: str = "cli", pyslurm_folder: Path | None = None
) -> tuple[str, dict[str, Cost]]:
    """Slurm's version, and each step's cost by its name, in the order of measuring.

    ``way``: the adapter's name. Raises RuntimeError, with words, where no Slurm can be had or a
    write did not come out.
    """
    controller = Controller(folder, nodes, jwt=way == "rest")
    adapter: SlurmAdapter | None = None
    try:
        adapter = _adapter(controller, way, pyslurm_folder)
        return controller.version, _steps(controller, adapter, drains)
    except SlurmError as error:
        raise RuntimeError(str(error)) from error
    finally:
        if adapter is not None:
            adapter.close()
        controller.close()


def _adapter(controller: Controller, way: str, pyslurm_folder: Path | None) -> SlurmAdapter:
    options = Options(conf=controller.conf, deadline_seconds=COMMAND_SECONDS)
    if way == "rest":
        rest = RestAdapter(options.model_copy(update=controller.rest()))
        if not rest.writes:
            raise RuntimeError(f"the slurmrestd of this Slurm ({rest.version}) writes no nodes")
        return rest
    if way == "pyslurm":
        return PyslurmAdapter(options.model_copy(update={"pyslurm_folder": pyslurm_folder}))
    return CliAdapter(options)


def _steps(controller: Controller, adapter: SlurmAdapter, drains: int) -> dict[str, Cost]:
    names = controller.names[:: len(controller.names) // drains][:drains]
    reasons = {name: REASON.format(number) for number, name in enumerate(names)}
    adapter.describe()  # asks for slurmctld's configuration, as a head does once in its life
    adapter.nodes()  # the form of answer that this Slurm gives is found once, too
    commands = CliAdapter(Options(conf=controller.conf, deadline_seconds=COMMAND_SECONDS))
    found = {
        "read nodes": controller.cost(adapter.nodes),
        "beside it: sinfo --json alone": controller.cost(
            lambda: controller.run("sinfo", "--all", "--local", "--json")
        ),
        "read jobs": controller.cost(commands.reader.jobs),
        "drain, one reason": controller.cost(
            lambda: _all(adapter.drain(dict.fromkeys(names, REASON.format(0)), foreign), names)
        ),
        "undrain": controller.cost(lambda: _lift(adapter, names)),
        "drain, a reason a node": controller.cost(
            lambda: _all(adapter.drain(reasons, foreign), names)
        ),
    }
    _lift(adapter, names)

    def loop(*settings: str, reason: bool) -> None:
        for name in names:
            why = [f"reason={reasons[name]}"] if reason else []
            controller.run("scontrol", "update", f"nodename={name}", *settings, *why)
            controller.run("scontrol", "show", "node", name)

    found["scontrol loop, drain"] = controller.cost(lambda: loop("state=drain", reason=True))
    found["scontrol loop, undrain"] = controller.cost(lambda: loop("state=undrain", reason=False))
    return found


def bench_slurm(
    folder: Path, nodes: int, drains: int, way: str = "cli", pyslurm_folder: Path | None = None
) -> Iterator[Figure]:
    """The same as lines of ``tocsin bench``; one line with why where there is no Slurm."""
    drains = min(drains, nodes)
    try:
        version, found = costs(folder, nodes, drains, way, pyslurm_folder)
    except RuntimeError as error:
        yield Figure(f"slurm: not measured: {error}", 0.0, "")
        return
    yield Figure(f"{version}, adapter {way}", nodes, "nodes")
    groups = {"drain, one reason": 1, "undrain": 1, "drain, a reason a node": drains}
    for name, cost in found.items():
        yield Figure(f"{name}: wall", cost.wall_seconds, "s")
        yield Figure(f"{name}: slurmctld's CPU", cost.controller_cpu_seconds, "s")
        for kind, count in cost.requests.items():
            yield Figure(f"{name}: {kind}", count, "requests")
        if name in groups:
            # Whoever looks at nodes asks for the partitions too, whether it wants them or not.
            every, of_nodes = cost.asked() / groups[name], node_requests(cost) / groups[name]
            reach = f"{REQUESTS_PER_GROUP_MOST:g}"
            yield Figure(f"{name}: all requests a group", every, "requests", reach)
            yield Figure(f"{name}: of them for nodes", of_nodes, "requests")
    reads, loop = ("read nodes", "read jobs"), found["scontrol loop, drain"]
    for name in ("drain, one reason", "drain, a reason a node"):
        whole = sum(found[part].wall_seconds for part in (*reads, name))
        reach = f"{CYCLE_SECONDS_MOST:g}"
        yield Figure(f"cycle of two reads and {drains} drains ({name})", whole, "s", reach)
        ratio = loop.wall_seconds / found[name].wall_seconds
        yield Figure(f"scontrol loop / {name}, wall", ratio, "times")


def node_requests(cost: Cost) -> int:
    """Looks at nodes and writes to them, without the partitions that come with each look."""
    return cost.asked("REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE", "REQUEST_UPDATE_NODE")


def foreign(node: NodeState) -> str:
    """Why a node of this benchmark must not be drained: somebody has.

    A reason that only stays behind at a node in service (23.11 to 25.11) holds nothing.
    """
    holds = node.drain or (node.reason and not left_over(node, node.reason))
    return f"it has the reason {node.reason!r}" if holds else ""


def _lift(adapter: SlurmAdapter, names: tuple[str, ...]) -> None:
    def ours(node: NodeState) -> str:
        return "" if node.drain and node.reason.startswith("tocsin:") else "is not ours"

    _all(adapter.undrain(names, ours), names)


def _all(outcome: Outcome, names: tuple[str, ...]) -> None:
    """A figure of writes that did not come out would be none."""
    left = sorted(set(names) - set(outcome.done))
    if left:
        why = {**outcome.skipped, **outcome.unknown}.get(left[0], "somebody else wrote")
        raise RuntimeError(f"{len(left)} of {len(names)} nodes were not written: {left[0]}: {why}")


def _more(nodes: int) -> str:
    """Lines of slurm.conf: nodes like the testbed's own, at a port where nothing listens."""
    return (
        "SlurmdTimeout=0\n"  # else all of them are DOWN after some seconds
        f"NodeName=c[00001-{nodes:05d}] NodeAddr=127.0.0.1 Port=9 Boards=1 SocketsPerBoard=2 "
        "CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000000 Gres=gpu:h200:8 Feature=h200,ib\n"
        f"PartitionName=many Nodes=c[00001-{nodes:05d}] Default=NO MaxTime=INFINITE State=UP\n"
    )


def _run(command: tuple[str, ...], env: Mapping[str, str], timeout_seconds: float) -> str:
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
            text=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])}: {done.stdout.strip()[-300:]}")
    return done.stdout
