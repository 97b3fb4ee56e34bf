"""Runs the tools that tocsin reads and keeps what they print, anonymised, as a fixture.

Only reading commands; nothing is switched on, reset or cleared. One folder: a file for each
command, and ``commands.json`` with exit codes, durations and versions. A person looks it over
before it is given away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collectors.anonymise import Anonymiser
from collectors.command import Runner
from collectors.parsers import PARSERS
from collectors.sample import clip

OUTPUT_BYTES = 4 * 1024 * 1024
PORTS_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Command:
    """One thing to run; ``name`` is the file's name, ``parser`` the one that reads it.

    ``described``: it prints the names of the fabric's hosts and switches in quotes.
    """

    name: str
    argv: tuple[str, ...]
    parser: str = ""
    seconds: float = 30.0
    described: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("nvidia-smi-q-x.xml", ("nvidia-smi", "-q", "-x"), "nvidia-smi-xml"),
    Command("nvidia-smi.txt", ("nvidia-smi",), "nvidia-smi"),
    Command("nvidia-smi-L.txt", ("nvidia-smi", "-L"), "nvidia-smi-list"),
    Command("nvidia-smi-topo-m.txt", ("nvidia-smi", "topo", "-m"), "nvidia-smi-topo"),
    Command("nvidia-smi-nvlink-s.txt", ("nvidia-smi", "nvlink", "-s"), "nvidia-smi-nvlink"),
    Command("nvidia-smi-nvlink-e.txt", ("nvidia-smi", "nvlink", "-e"), "nvidia-smi-nvlink"),
    Command(
        "nvidia-smi-remapped-rows.csv",
        (
            "nvidia-smi",
            "--query-remapped-rows=gpu_uuid,remapped_rows.correctable,"
            "remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure",
            "--format=csv",
        ),
        "nvidia-smi-csv",
    ),
    Command(
        "nvidia-smi-query.csv",
        (
            "nvidia-smi",
            "--query-gpu=count,index,uuid,pci.bus_id,name,driver_version,vbios_version,"
            "temperature.gpu,temperature.memory,power.draw,enforced.power.limit,clocks.sm,"
            "clocks.mem,utilization.gpu,memory.used,memory.total,"
            "ecc.errors.corrected.aggregate.total,ecc.errors.uncorrected.aggregate.total,"
            "pcie.link.gen.current,pcie.link.width.current",
            "--format=csv",
        ),
        "nvidia-smi-csv",
    ),
    Command("nvidia-smi-dmon.txt", ("nvidia-smi", "dmon", "-c", "1"), "nvidia-smi-dmon"),
    Command(
        "dcgmi-dmon.txt",
        ("dcgmi", "dmon", "-e", "140,150,155,203,204,230,394,395,396", "-c", "1"),
        "dcgmi-dmon",
    ),
    Command("dcgmi-health.json", ("dcgmi", "health", "-c", "-j"), "dcgmi-health"),
    Command("ibstat.txt", ("ibstat",), "ibstat"),
    Command("ibstatus.txt", ("ibstatus",), "ibstatus"),
    Command("rdma-link.txt", ("rdma", "link"), "rdma-link"),
    Command("perfquery.txt", ("perfquery",), "perfquery"),
    Command("perfquery-x.txt", ("perfquery", "-x"), "perfquery"),
    Command("perfquery-a.txt", ("perfquery", "-a"), "perfquery"),
    Command("ibqueryerrors.txt", ("ibqueryerrors", "--skip-sl", "--data"), "ibqueryerrors",
            120.0, True),
    Command("ibqueryerrors-counters.txt", ("ibqueryerrors", "--skip-sl", "--counters"),
            "ibqueryerrors", 120.0, True),
    Command("iblinkinfo.txt", ("iblinkinfo", "-l"), "iblinkinfo", 120.0, True),
    Command("ibnetdiscover.txt", ("ibnetdiscover",), "ibnetdiscover", 120.0, True),
    Command("ipmitool-sdr.txt", ("ipmitool", "sdr", "elist", "all"), "ipmitool-sdr"),
    Command("ipmitool-sensor.txt", ("ipmitool", "sensor"), "ipmitool-sensor", 120.0),
    Command("ipmitool-sel.txt", ("ipmitool", "sel", "elist"), "ipmitool-sel", 120.0),
    Command("ipmitool-dcmi.txt", ("ipmitool", "dcmi", "power", "reading"), "ipmitool-dcmi"),
    Command("ipmitool-chassis.txt", ("ipmitool", "chassis", "status"), "ipmitool-chassis"),
    Command("ipmi-sensors.txt", ("ipmi-sensors", "--output-sensor-thresholds"), "ipmi-sensors",
            120.0),
    Command("ipmi-sel.txt", ("ipmi-sel",), "ipmi-sel", 120.0),
    Command("ipmi-dcmi.txt", ("ipmi-dcmi", "--get-system-power-statistics"), "ipmi-dcmi"),
    Command("slurm-nodes.json", ("scontrol", "show", "nodes", "--json"), "slurm-nodes"),
    Command("nvme-smart-log.json", ("nvme", "smart-log", "/dev/nvme0", "-o", "json"),
            "nvme-smart-log"),
    Command("smartctl.json", ("smartctl", "-a", "-j", "/dev/nvme0"), "smartctl"),
    Command("ras-mc-ctl.txt", ("ras-mc-ctl", "--errors"), "rasdaemon"),
    Command("dmesg.txt", ("dmesg", "--time-format", "iso"), "kernel-log"),
)  # fmt: skip


def of_ports(root: Path) -> list[Command]:
    """What the tools print of the cables of this machine's InfiniBand and RoCE ports."""
    made: list[Command] = []
    for device in sorted((root / "sys/class/infiniband").glob("*"))[:PORTS_LIMIT]:
        address = (device / "device").resolve().name
        made.append(
            Command(f"mlxlink-m-{device.name}.txt", ("mlxlink", "-d", address, "-m"), seconds=60.0)
        )
        for interface in sorted((device / "device" / "net").glob("*"))[:2]:
            name = f"ethtool-m-{device.name}-{interface.name}.txt"
            made.append(Command(name, ("ethtool", "-m", interface.name)))
            made.append(Command(name.replace("-m-", "-"), ("ethtool", interface.name)))
    return made


@dataclass(frozen=True, slots=True)
class Captured:
    """How one command went. ``replaced`` counts the names taken out of what it printed,
    ``readings`` and ``problems`` what its parser made of that (None: it has none)."""

    command: Command
    status: str
    returncode: int | None
    seconds: float
    output_bytes: int
    replaced: int
    fault: str
    readings: int | None = None
    problems: int | None = None


def capture(
    folder: Path,
    runner: Runner,
    anonymiser: Anonymiser,
    commands: Sequence[Command] = COMMANDS,
) -> list[Captured]:
    """Runs ``commands`` and writes what they print under ``folder``, which is made.

    A command that is missing, fails or hangs is told in ``commands.json`` and costs no other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = [_one(folder, runner, anonymiser, command) for command in commands]
    index = [
        {
            "file": one.command.name if one.output_bytes else "",
            "command": " ".join(one.command.argv),
            "parser": one.command.parser,
            "status": one.status,
            "exit": one.returncode,
            "seconds": round(one.seconds, 3),
            "names_replaced": one.replaced,
            "readings": one.readings,
            "problems": one.problems,
            "fault": one.fault,
        }
        for one in done
    ]
    text = json.dumps(index, indent=2, ensure_ascii=False) + "\n"
    (folder / "commands.json").write_text(text, encoding="utf-8")
    return done


def _one(folder: Path, runner: Runner, anonymiser: Anonymiser, command: Command) -> Captured:
    result = runner.run(command.argv, deadline_seconds=command.seconds, output_bytes=OUTPUT_BYTES)
    before = anonymiser.replaced
    text = result.text()
    text = anonymiser.text(anonymiser.descriptions(text) if command.described else text)
    if result.stderr and result.status != "missing":
        said = anonymiser.text(result.stderr.decode("utf-8", "replace"))
        (folder / f"{command.name}.stderr").write_text(said, encoding="utf-8")
    if text:
        (folder / command.name).write_text(text, encoding="utf-8")
    samples, problems = (
        PARSERS[command.parser](text, "node", 0) if text and command.parser else (None, None)
    )
    return Captured(
        command,
        result.status,
        result.returncode,
        result.duration_seconds,
        len(text),
        anonymiser.replaced - before,
        clip(anonymiser.text(result.fault), 300),
        None if samples is None else len(samples),
        None if problems is None else len(problems),
    )
