"""Starts simulated BMCs for tests: OpenIPMI's ipmi_sim, a Redfish emulator, slow relays.

Every instance has a folder and a network of loopback addresses of its own, so that tests of two
people on one machine do not meet.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def missing(*programs: str) -> str:
    """Why simulators cannot run here, or the empty string."""
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (tests/testbed/bmc/packages.txt)"
    if sys.platform != "linux":
        return "the simulators use addresses of Linux's loopback network"
    return ""


def _net(offset: int) -> str:
    """Three octets of a loopback network that is this process's own."""
    return f"127.{100 + offset}.{os.getpid() % 250 + 1}"


def _wait_bound(host: str, port: int) -> None:
    """Waits until a UDP port is bound: then nobody else can bind it."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nothing has bound {host}:{port}")


class IpmiBmcs:
    """``count`` IPMI BMCs, user admin, password secret; see ``ipmibmc``."""

    def __init__(self, count: int, offset: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-ipmibmc-"))
        self.net = _net(offset)
        self._relays: list[subprocess.Popen[bytes]] = []
        arguments = ["--count", str(count), "--net", self.net]
        if os.geteuid() != 0:
            arguments.append("--ports")
        self.run("start", *arguments)
        self.addresses = [
            f"{words[1]}:{words[2]}"
            for words in (line.split() for line in self.run("list").splitlines())
        ]

    def run(self, verb: str, *arguments: str) -> str:
        """One verb of ``ipmibmc``; its output."""
        answer = subprocess.run(
            [sys.executable, HERE / "ipmibmc", verb, *arguments],
            env={**os.environ, "IPMIBMC_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return answer.stdout

    def fill_log(self, number: int, count: int) -> None:
        """Adds ``count`` entries (in fifties) to the log of BMC ``number``, now."""
        stamp = " ".join(f"0x{byte:02x}" for byte in int(time.time()).to_bytes(4, "little"))
        line = f"sel_add 0x20 2 {stamp} 0x20 0 4 0x0c 0x99 0x6f 0x00 0xff 0xff\n".encode()
        host, _, console = (self.folder / str(number) / "addr").read_text().split()
        with socket.create_connection((host, int(console)), 30) as connection:
            for _ in range(count // 50):
                # The simulator echoes: the comment comes back when these fifty are in.
                connection.sendall(line * 50 + b"#end\r\n")
                answer = b""
                while b"#end" not in answer:
                    answer = answer[-10:] + connection.recv(65_536)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass

    def relay(self, number: int, *arguments: str) -> str:
        """Address of a relay that makes BMC ``number`` slow, lossy or mute; see ``slowbmc``."""
        port = 7000 + len(self._relays)
        address = f"{self.net.rsplit('.', 1)[0]}.{os.getpid() % 250 + 1}.250:{port}"
        target = self.addresses[number - 1]
        process = subprocess.Popen(
            [sys.executable, HERE / "slowbmc", "--listen", address, "--to", target, *arguments],
            stdin=subprocess.DEVNULL,
        )
        self._relays.append(process)
        _wait_bound(address.rsplit(":", 1)[0], port)  # it says nothing
        return address

    def silent(self, number: int) -> str:
        """An address at which nothing answers and nothing is refused."""
        return self.relay(number, "--drop", "1")

    def close(self) -> None:
        """Ends every simulator and relay."""
        for relay in self._relays:
            relay.kill()
            relay.wait()
        self.run("stop")
        shutil.rmtree(self.folder, ignore_errors=True)


class DcmiBmc:
    """One BMC that answers DCMI power readings; see ``dcmibmc``. ``watts`` may be changed."""

    def __init__(self, python: str, watts: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-dcmibmc-"))
        self.file = self.folder / "watts"
        self.file.write_text(str(watts))
        host = _net(5) + ".1"
        self.address = f"{host}:6623"
        self._process = subprocess.Popen(
            [python, HERE / "dcmibmc", "--address", host, "--port", "6623", "--file", self.file],
            stdin=subprocess.DEVNULL,
        )
        _wait_bound(host, 6623)

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedfishBmcs:
    """``count`` Redfish BMCs over TLS, user admin, password secret; see ``redfishbmc``."""

    PORT = 8443

    def __init__(self, count: int, offset: int = 10) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-redfishbmc-"))
        self.net = _net(offset)
        self.count = count
        self._faults: dict[str, dict[str, float]] = {}
        self._run("start", "--count", str(count), "--net", self.net, "--port", str(self.PORT))

    @property
    def addresses(self) -> list[str]:
        """Host and port of each BMC."""
        return [f"{self.net}.{number}:{self.PORT}" for number in range(1, self.count + 1)]

    @property
    def certificate(self) -> Path:
        """The self-signed certificate that they all show."""
        return self.folder / "cert.pem"

    def fault(self, number: int | str, *settings: str) -> None:
        """Sets or clears faults: ``fault(3, "delay=5")``, ``fault("all", "clear")``.

        The simulator looks at the file at each request, so this takes effect at once.
        """
        if settings == ("clear",):
            self._faults = {} if number == "all" else self._faults
            self._faults.pop(str(number), None)
        else:
            held = self._faults.setdefault(str(number), {})
            held.update({key: float(value) for key, value in (s.split("=") for s in settings)})
        temporary = self.folder / "faults.new"
        temporary.write_text(json.dumps(self._faults))
        temporary.replace(self.folder / "faults.json")

    def _run(self, verb: str, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, HERE / "redfishbmc", verb, *arguments],
            env={**os.environ, "REDFISHBMC_DIR": str(self.folder)},
            capture_output=True,
            timeout=60,
            check=True,
        )

    def close(self) -> None:
        """Ends them."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / "pid").read_text()), signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)
