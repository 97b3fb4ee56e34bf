"""Reads BMCs by FreeIPMI, many in one run of ``ipmi-sensors`` and ``ipmi-sel``.

For BMCs with which we find no common words: another cipher suite, IPMI 1.5, firmware that needs
one of FreeIPMI's workarounds. BMCs that are due within a moment share a run; those that did not
answer last time have runs of their own, so that the others do not wait for them. User and
password go to the program's standard input and stand on no command line and in no file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from collectors.bmc.ipmi_faults import STALE_CACHE, words_for
from collectors.bmc.targets import Secrets
from collectors.command import Result, Runner

GATHER_SECONDS = 0.05
BATCH_LIMIT = 256
RUNS_AT_ONCE = 4
SENSOR_BYTES_PER_HOST = 200_000
OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}(:\d{1,5})?\Z")
# What FreeIPMI's configuration file cannot say, also in quotation marks.
_UNSAYABLE = re.compile(r"[^ -~]|[\"#\\]")


class FreeIpmi(BaseModel):
    """How FreeIPMI is called; see ipmi-sensors(8) for the words of its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: Literal["LAN_2_0", "LAN"] = "LAN_2_0"
    cipher_suite: int = Field(default=3, ge=0, le=17)
    workaround_flags: tuple[str, ...] = ()
    at_once: int = Field(default=64, ge=1, le=256)  # BMCs of a run that are asked at one time
    session_timeout_seconds: float = Field(default=10.0, ge=1, le=60)

    @field_validator("workaround_flags")
    @classmethod
    def _flags(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"[a-z0-9]{1,40}", one) for one in value):
            raise ValueError("workaround flags are words of small letters: opensesspriv")
        return value


@dataclass(frozen=True, slots=True)
class Told:
    """What FreeIPMI printed of one BMC, host names taken off. ``fault`` where it printed none."""

    text: str
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """BMCs that can share a run."""

    program: str
    secrets: Secrets
    suspect: bool
    tail: int
    driver: str


class Batches:
    """Gathers what is asked for and runs it. For one event loop."""

    def __init__(self, options: FreeIpmi, privilege: str, folder: Path, runner: Runner) -> None:
        self._options = options
        self._privilege = privilege
        self._folder = folder / "freeipmi"
        self._runner = runner
        self._waiting: dict[_Kind, list[tuple[str, asyncio.Future[Told]]]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(RUNS_AT_ONCE)

    async def sensors(self, host: str, secrets: Secrets, suspect: bool, driver: str = "") -> Told:
        """The lines of ``ipmi-sensors`` for one BMC; ``driver`` where it is not the usual one."""
        driver = driver or self._options.driver
        return await self._ask(host, _Kind("ipmi-sensors", secrets, suspect, 0, driver))

    async def log(self, host: str, secrets: Secrets, tail: int, driver: str = "") -> Told:
        """The last ``tail`` lines of ``ipmi-sel`` for one BMC."""
        driver = driver or self._options.driver
        return await self._ask(host, _Kind("ipmi-sel", secrets, False, tail, driver))

    async def _ask(self, host: str, kind: _Kind) -> Told:
        if not _HOST.match(host):
            return Told("", f"{host} is no address that can be given to FreeIPMI")
        if _UNSAYABLE.search((kind.secrets.user + kind.secrets.password).decode("latin-1")):
            return Told("", 'FreeIPMI takes no user or password with ", # or \\ in it')
        if kind.secrets.key:
            return Told("", "a BMC key (key_file) is not handed to FreeIPMI")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Told] = loop.create_future()
        waiting = self._waiting.setdefault(kind, [])
        waiting.append((host, future))
        if len(waiting) == 1:
            loop.call_later(GATHER_SECONDS, self._start, kind)
        return await future

    def _start(self, kind: _Kind) -> None:
        waiting = self._waiting.pop(kind, [])
        for place in range(0, len(waiting), BATCH_LIMIT):
            part = waiting[place : place + BATCH_LIMIT]
            task = asyncio.get_running_loop().create_task(self._run(kind, part))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, kind: _Kind, asked: Sequence[tuple[str, asyncio.Future[Told]]]) -> None:
        async with self._room:
            hosts = sorted({host for host, future in asked if not future.done()})
            told: dict[str, Told] = {}
            if hosts:
                try:
                    told = await asyncio.to_thread(self._read, kind, hosts)
                except OSError as error:
                    fault = f"{self._folder} cannot be made: {error.strerror}"
                    told = {host: Told("", fault) for host in hosts}
        for host, future in asked:
            if not future.done():
                future.set_result(told.get(host, Told("", "FreeIPMI was not run")))

    def _read(self, kind: _Kind, hosts: Sequence[str]) -> dict[str, Told]:
        """One run, in a thread."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        options = self._options
        argv = [kind.program, "--config-file=/dev/stdin", "--always-prefix", "--no-header-output"]
        argv += ["-h", ",".join(hosts), "-F", str(options.at_once), "--comma-separated-output"]
        argv += ["--quiet-cache", "--sdr-cache-recreate", f"--sdr-cache-directory={self._folder}"]
        whole_ms = 1000.0 * options.session_timeout_seconds
        argv += [f"--session-timeout={whole_ms:.0f}"]
        argv += [f"--retransmission-timeout={min(1000.0, whole_ms / 4):.0f}"]
        if kind.program == "ipmi-sensors":
            argv += ["--output-sensor-state"]
        else:
            argv += ["--output-event-state", f"--tail={kind.tail}"]
        turns = -(-len(hosts) // options.at_once)
        result = self._runner.run(
            argv,
            # Each BMC has its SDR read, at the first time, and then its sensors or its log.
            deadline_seconds=10.0 + 3.0 * turns * options.session_timeout_seconds,
            kind=f"{kind.program}{'-suspects' if kind.suspect else ''}",
            stdin=self._configuration(kind.secrets, kind.driver),
            env={"TZ": "UTC"},
            output_bytes=min(OUTPUT_LIMIT_BYTES, SENSOR_BYTES_PER_HOST * len(hosts)),
        )
        return share_out(result, hosts)

    def _configuration(self, secrets: Secrets, driver: str) -> bytes:
        options = self._options
        lines = [
            b'username "' + secrets.user + b'"',
            b'password "' + secrets.password + b'"',
            f"driver-type {driver}".encode(),
            f"privilege-level {self._privilege.upper()}".encode(),
        ]
        if driver == "LAN_2_0":
            lines.append(f"cipher-suite-id {options.cipher_suite}".encode())
        if options.workaround_flags:
            lines.append(b"workaround-flags " + " ".join(options.workaround_flags).encode())
        return b"\n".join(lines) + b"\n"


def share_out(result: Result, hosts: Sequence[str]) -> dict[str, Told]:
    """What a run printed, by host: lines begin with the host that they are of.

    A host of which nothing came has the fault that FreeIPMI named, or that the run had.
    """
    lines: dict[str, list[str]] = {host: [] for host in hosts}
    faults: dict[str, str] = {}
    for text in (result.text(), result.stderr.decode("utf-8", "replace")):
        for line in text.splitlines(keepends=True):
            host, colon, rest = line.partition(": ")
            if not colon or host not in lines:
                continue
            if rest.startswith(("ipmi-sensors: ", "ipmi-sel: ", "ipmi_")):
                words = words_for(rest)
                if words != STALE_CACHE:  # it is made anew in the same run
                    faults.setdefault(host, words or f"FreeIPMI: {rest.strip()[:100]}")
            else:
                lines[host].append(rest)
    general = "" if result.ok else result.fault
    if result.status == "ended" and result.returncode == 1 and faults:
        general = ""  # the code only says that some of the BMCs could not be read
    return {
        host: Told("".join(of_host), faults.get(host, "" if of_host else general))
        for host, of_host in lines.items()
    }
