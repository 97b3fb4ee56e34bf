"""A real Slurm cluster for tests, driven through the ``slurm-testbed`` script of this folder.

Every process of the cluster is real (munged, slurmctld, one slurmd a node); only the GPUs
are links to /dev/null. All addresses are loopback and the work folder is private.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT = HERE / "slurm-testbed"
TOOLS = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol", "squeue")
# A Slurm other than that of the system: the folder that holds its bin and sbin.
ANOTHER = "TOCSIN_TEST_SLURM"


def use_named() -> str:
    """Puts the Slurm of ``TOCSIN_TEST_SLURM`` first in this process's PATH; "" where none is named.

    Answers its version otherwise. All that a test starts then finds that Slurm: the cluster, the
    commands that tocsin runs and those of a test itself. Raises ValueError where the folder holds
    no Slurm, for a run against the system's own would be told as one against the other.
    """
    named = os.environ.get(ANOTHER, "")
    if not named:
        return ""
    prefix = Path(named).resolve()
    for tool in ("bin/scontrol", "sbin/slurmctld"):
        if not os.access(prefix / tool, os.X_OK):
            raise ValueError(f"{ANOTHER}={named}: there is no {prefix / tool}")
    rest = os.environ.get("PATH", "").split(os.pathsep)
    first = [str(prefix / "bin"), str(prefix / "sbin")]
    os.environ["PATH"] = os.pathsep.join(first + [part for part in rest if part not in first])
    # A scontrol would need a slurm.conf to tell as much.
    told = subprocess.run(
        [str(prefix / "sbin/slurmctld"), "-V"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        text=True,
        check=False,
    )
    if told.returncode:
        raise ValueError(f"{ANOTHER}={named}: slurmctld does not run: {told.stderr.strip()}")
    return f"{told.stdout.strip()} in {prefix}"


def search_path() -> str:
    """Where Slurm's commands and daemons are looked for."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def missing() -> str:
    """Why the testbed cannot run here, or the empty string."""
    if os.geteuid() != 0:
        return "the Slurm testbed needs root"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=search_path()) is None]
    if absent:
        packages = " ".join((HERE / "packages.txt").read_text().split())
        return f"the Slurm testbed needs {', '.join(absent)}: apt-get install {packages}"
    return ""


def release(tool: str = "slurmctld") -> tuple[int, int]:
    """The release of the Slurm that tests use, ``(22, 5)``; ``(0, 0)`` where there is none."""
    found = shutil.which(tool, path=search_path())
    if found is None:
        return 0, 0
    done = subprocess.run(
        [found, "-V"], capture_output=True, stdin=subprocess.DEVNULL, timeout=60, text=True,
        check=False,
    )  # fmt: skip
    told = re.search(r" (\d+)\.(\d+)", done.stdout)
    return (int(told[1]), int(told[2])) if told else (0, 0)


def rest_writes() -> bool:
    """Whether there is a slurmrestd that writes nodes, as from 24.11 on."""
    return release("slurmrestd") >= (24, 11)


def wait_for(
    condition: Callable[[], object],
    what: str,
    timeout_seconds: float = 90.0,
    *,
    seen: Callable[[], object] | None = None,
) -> None:
    """Polls until ``condition`` holds; fails with ``what`` when it does not in time.

    ``seen``: what is there instead, for the words of the failure. The time is generous: on a busy
    machine slurmctld takes seconds for what takes milliseconds on a quiet one.
    """
    end = time.monotonic() + timeout_seconds
    pause_seconds = 0.02
    while not condition():
        if time.monotonic() > end:
            instead = f"; there is {seen()!r}" if seen is not None else ""
            raise AssertionError(f"not within {timeout_seconds:g} s: {what}{instead}")
        # Asking costs a process or an answer of the head: what takes long is asked for less often.
        time.sleep(pause_seconds)
        pause_seconds = min(0.25, 1.2 * pause_seconds)


class Cluster:
    """One running cluster; ``conf`` is its slurm.conf and ``env`` what its clients need."""

    def __init__(self, nodes: int = 4, extra: str = "", jwt: bool = False) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tocsin-slurm-", dir="/tmp"))
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.conf = self.directory / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": search_path()}
        arguments = ["start", "-d", str(self.directory), "-n", str(nodes)]
        if extra:
            more = self.directory.with_suffix(".conf")
            more.write_text(extra)
            arguments += ["-x", str(more)]
        if jwt:
            arguments.append("-j")
        try:
            self.script(*arguments)
        except BaseException:
            self.close()
            raise
        finally:
            if extra:
                more.unlink()

    @functools.cached_property
    def version(self) -> tuple[int, int]:
        """The release of this Slurm: ``(22, 5)``."""
        return release()

    @functools.cached_property
    def _keeps_reasons(self) -> bool:
        """Whether this Slurm, without accounting, keeps the reason of a node that came back."""
        return (23, 11) <= self.version <= (25, 11)

    def script(self, *arguments: str, timeout_seconds: float = 180.0) -> str:
        """Runs the testbed script and answers what it printed."""
        done = subprocess.run(
            [str(SCRIPT), *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"slurm-testbed {' '.join(arguments)}: {done.stdout}")
        return done.stdout

    def run(self, *command: str, check: bool = True, timeout_seconds: float = 60.0) -> str:
        """Runs one of Slurm's own commands against this cluster; answers its stdout."""
        done = subprocess.run(
            command,
            env=self.env,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def update(self, node: str, **settings: str) -> None:
        """``scontrol update`` as an operator types it."""
        self.run(
            "scontrol", "update", f"nodename={node}", *(f"{k}={v}" for k, v in settings.items())
        )

    def drain(self, node: str, reason: str) -> None:
        """An operator's own drain."""
        self.update(node, state="drain", reason=reason)

    def show(self) -> dict[str, tuple[frozenset[str], str]]:
        """Every node's state words (``IDLE``, ``DRAIN`` ...) and reason, as Slurm gives them."""
        # From 23.02 on sinfo's JSON puts several nodes into one record; 22.05's scontrol has none.
        asked = ("sinfo",) if self.version < (23, 2) else ("scontrol", "show", "nodes")
        answer = json.loads(self.run(*asked, "--json"))
        found: dict[str, tuple[frozenset[str], str]] = {}
        for node in answer["nodes"]:
            state = node["state"]
            words = [state, *node.get("state_flags", ())] if isinstance(state, str) else state
            shown = frozenset(w.upper() for w in words)
            kept = not self._keeps_reasons or shown & {"DOWN", "DRAIN", "FAIL"}
            found[node["name"]] = (shown, node["reason"] if kept else "")
        return found

    def words(self, node: str) -> frozenset[str]:
        """The state words of one node."""
        return self.show()[node][0]

    def reason(self, node: str) -> str:
        """The reason of one node, without user and time."""
        return self.show()[node][1]

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Running and pending jobs: id to state and node list."""
        lines = self.run("squeue", "-h", "-o", "%A|%T|%N").splitlines()
        return {job: (state, where) for job, state, where in (line.split("|") for line in lines)}

    def submit(self, *options: str, seconds: float = 300.0) -> str:
        """Submits a job that sleeps; answers its id."""
        command = ["sbatch", "--parsable", "-o", "/dev/null", *options]
        return self.run(*command, f"--wrap=sleep {seconds:g}").strip()

    def rest(self) -> str:
        """Starts slurmrestd and answers its URL; the cluster was started with ``jwt``."""
        return self.script("rest", "-d", str(self.directory)).split()[-1]

    def token(self, user: str = "root") -> str:
        """A JWT of ``user`` for slurmrestd, good for an hour."""
        said = self.run("scontrol", "token", f"username={user}", "lifespan=3600")
        return said.strip().removeprefix("SLURM_JWT=")

    def start_job(self, node: str, *options: str) -> str:
        """A job that runs on ``node`` when this returns; answers its id."""
        job = self.submit("-w", node, "-N1", *options)
        wait_for(lambda: self.jobs().get(job, ("", ""))[0] == "RUNNING", f"job {job} on {node}")
        return job

    def stop_controller(self) -> None:
        """Stops slurmctld cleanly."""
        self.script("stop-ctld", "-d", str(self.directory))

    def start_controller(self) -> None:
        """Starts slurmctld and waits until it answers."""
        self.script("start-ctld", "-d", str(self.directory))

    @property
    def controller_pid(self) -> int:
        """The pid of slurmctld."""
        return int((self.directory / "run/slurmctld.pid").read_text())

    def freeze_controller(self) -> None:
        """SIGSTOP: connections are accepted and nothing answers."""
        os.kill(self.controller_pid, signal.SIGSTOP)

    def thaw_controller(self) -> None:
        """SIGCONT."""
        os.kill(self.controller_pid, signal.SIGCONT)

    def kill_controller(self) -> None:
        """SIGKILL, as in a crash; ``start_controller`` brings it back from its saved state."""
        pid = self.controller_pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not _alive(pid), "slurmctld to die")

    def node(self, command: str, node: str, *options: str) -> None:
        """``kill-node``, ``stop-node`` or ``start-node``."""
        self.script(command, "-d", str(self.directory), node, *options)

    def log(self) -> str:
        """slurmctld's log."""
        return (self.directory / "log/slurmctld.log").read_text(errors="replace")

    def log_size(self) -> int:
        """The length of slurmctld's log in bytes, to read from later."""
        return (self.directory / "log/slurmctld.log").stat().st_size

    def updates_since(self, offset_bytes: int) -> list[str]:
        """What slurmctld logged about node updates since ``offset_bytes``."""
        with (self.directory / "log/slurmctld.log").open("rb") as stream:
            stream.seek(offset_bytes)
            lines = stream.read().decode(errors="replace").splitlines()
        return [line.partition("] ")[2] for line in lines if "update_node: node" in line]

    def reset(self) -> None:
        """Back to idle nodes without reasons, comments, jobs and reservations."""
        for line in self.run("scontrol", "show", "reservation", "-o").splitlines():
            if line.startswith("ReservationName="):
                name = line.split()[0].partition("=")[2]
                self.run("scontrol", "delete", f"reservationname={name}", check=False)
        jobs = list(self.jobs())
        if jobs:
            self.run("scancel", *jobs)
            wait_for(lambda: not self.jobs(), "jobs to end")
        names = ",".join(self.nodes)
        for node in self.nodes:
            if not (self.directory / f"run/slurmd.{node}.pid").exists() or not self._slurmd(node):
                self.node("start-node", node)
        # After a restart of slurmctld a node is UNKNOWN until it has registered.
        wait_for(
            lambda: all("UNKNOWN" not in self.show()[n][0] for n in self.nodes),
            "all nodes to register",
        )
        dirty = [n for n, (words, reason) in self.show().items() if words != {"IDLE"} or reason]
        own = [name for name in dirty if name in self.nodes]
        if own:
            wanted = ",".join(own)
            # RESUME refuses a node that is neither down nor drained: make it so first.
            self.run("scontrol", "update", f"nodename={wanted}", "state=drain", "reason=reset")
            self.run("scontrol", "update", f"nodename={wanted}", "state=resume")
        if self._keeps_reasons:
            # Only a job's start clears them; wait_for below sees that the nodes are idle again.
            kept = [n for n in self.nodes if " Reason=" in self.run("scontrol", "show", "node", n)]
            for node in kept:
                self.run("scancel", self.start_job(node))
        self.run("scontrol", "update", f"nodename={names}", "comment=", check=False)
        wait_for(
            lambda: all(self.show()[n] == (frozenset({"IDLE"}), "") for n in self.nodes),
            "all nodes to be idle",
        )

    def _slurmd(self, node: str) -> bool:
        return _alive(int((self.directory / f"run/slurmd.{node}.pid").read_text() or "0"))

    def close(self) -> None:
        """Stops everything and removes the folder. May be called twice."""
        if self.directory.exists():
            with contextlib.suppress(OSError, ValueError):
                self.thaw_controller()
            subprocess.run(
                [str(SCRIPT), "stop", "-d", str(self.directory), "--purge"],
                env=self.env,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=180,
                check=False,
            )
            shutil.rmtree(self.directory, ignore_errors=True)


def _alive(pid: int) -> bool:
    """Whether the process lives; a zombie that nobody reaps does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "\nState:\tZ" not in status and "\nState:\tX" not in status
