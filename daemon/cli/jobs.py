"""``tocsin jobs``: what running jobs make of their GPUs, and why one of them is slow."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from daemon.cli.client import HeadAway, HeadRefused, ask, complain, name, socket_path
from daemon.cli.status import span

EXAMPLE = """examples:
  tocsin jobs                      each running job: use, power, faults on its nodes
  tocsin jobs --idle               those that hold GPUs and do nothing with them
  tocsin jobs --faults --days 7    which jobs met which faults, and what they had to lose
  tocsin jobs 1234                 why is it slow? GPUs, hosts and links, energy, cost so far
  tocsin jobs 1234 --minutes 120   the same, by the last two hours
  tocsin jobs --json | jq 'map(select(.utilization_ratio < 0.3)) | .[].user'

Which GPUs of a node that jobs share are whose, Slurm does not tell in passing: there only the node
is looked at. Where a job holds some GPUs of a node alone, the busiest are taken for its own."""
COLUMNS = (
    "JOB",
    "USER",
    "PARTITION",
    "NODES",
    "GPUS",
    "RUNS",
    "USE",
    "LOWEST",
    "POWER",
    "IDLE",
    "",
)


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin jobs``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("job", nargs="?", type=name, metavar="JOB", help="one job, in full")
    parser.add_argument(
        "--faults", action="store_true", help="which job met which fault, ended too"
    )
    parser.add_argument("--days", type=float, default=30.0, help="of --faults: how far back")
    parser.add_argument("--idle", action="store_true", help="only jobs whose GPUs do nothing")
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="of one job: how far to look back"
    )
    parser.add_argument(
        "--socket", help="the head's socket (default: TOCSIN_SOCKET, else the packaged one)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Asks the head and prints."""
    del verb
    path = socket_path(arguments.socket)
    try:
        if arguments.job is not None:
            where = f"/api/v1/jobs/{quote(arguments.job, safe='')}?minutes={arguments.minutes:g}"
            one = ask(path, where)
            print(json.dumps(one) if arguments.json else "\n".join(in_full(one)))
            return 0
        if arguments.faults:
            met = ask(path, f"/api/v1/job_faults?days={arguments.days:g}")["faults"]
            print(json.dumps(met) if arguments.json else faults(met))
            return 0
        rows = ask(path, "/api/v1/jobs")["jobs"]
    except (HeadAway, HeadRefused) as error:
        return complain(error)
    if arguments.idle:
        rows = [row for row in rows if row["idle_seconds"] is not None]
    print(json.dumps(rows) if arguments.json else table(rows, arguments.idle))
    return 0


def table(rows: list[dict[str, Any]], idle: bool = False) -> str:
    """The jobs in columns; what is wrong with their nodes comes last, uncut."""
    if not rows:
        return "no job holds GPUs and does nothing with them" if idle else "no job holds GPUs"
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(COLUMNS) - 1)]
    lines = []
    for line in cells:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        lines.append("  ".join([*padded, line[-1]]).rstrip())
    watts = sum(row["power_watts"] or 0.0 for row in rows)
    known = sum(row["gpus"] or 0 for row in rows)
    jobs = "1 job" if len(rows) == 1 else f"{len(rows)} jobs"
    lines.append(f"{jobs}, {known} GPUs, {watts / 1000:.1f} kW")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    nodes = row["nodes"]
    return (
        row["job"],
        row["user"],
        row["partition"] or "-",
        nodes[0] if len(nodes) == 1 else str(len(nodes)),
        "?" if row["gpus"] is None else str(row["gpus"]),
        span(row["elapsed_seconds"]),
        _percent(row["utilization_ratio"]),
        _percent(row["utilization_low_ratio"]),
        "-" if row["power_watts"] is None else f"{row['power_watts'] / 1000:.1f} kW",
        "-" if row["idle_seconds"] is None else span(row["idle_seconds"]),
        "; ".join(row["faults"][:3]),
    )


FAULT_COLUMNS = ("SINCE (UTC)", "JOB", "USER", "GPUS", "RAN", "AT STAKE", "NODE", "FAULT")


def faults(met: list[dict[str, Any]]) -> str:
    """One line for each fault that a job met, newest first, and what was at stake in all."""
    if not met:
        return "no job met a fault"
    cells = [FAULT_COLUMNS]
    for one in met:
        where = " ".join(filter(None, (one["device"], one["text"], f"({one['code']})")))
        gpus = str(one["gpus"]) if one["gpus"] else "?"
        cells.append(
            (
                one["onset"][:19], one["job"], one["user"], gpus, span(one["elapsed_seconds"]),
                f"{one['at_stake_gpu_hours']:.1f} GPU-h", one["node"], where,
            )
        )  # fmt: skip
    widths = [max(len(line[at]) for line in cells) for at in range(len(FAULT_COLUMNS) - 1)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]])
        for line in cells
    ]
    worst: dict[str, float] = {}  # a job that met several faults loses its work once
    for one in met:
        worst[one["job"]] = max(worst.get(one["job"], 0.0), one["at_stake_gpu_hours"])
    who = "1 job" if len(worst) == 1 else f"{len(worst)} jobs"
    lines.append(f"{who} had about {sum(worst.values()):.1f} GPU-hours to lose")
    return "\n".join(lines)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.0f} %"


def in_full(one: dict[str, Any]) -> list[str]:
    """One job as people read it: what stands out first."""
    gpus = "GPUs" if one["gpus"] is None else f"{one['gpus']} GPUs"
    nodes = one["nodes"][0] if len(one["nodes"]) == 1 else f"{len(one['nodes'])} nodes"
    head = f"job {one['job']} of {one['user']}: {gpus} on {nodes}"
    out = [
        f"{head}, runs for {span(one['elapsed_seconds'])}",
        f"held     {one['gpu_hours']:.1f} GPU-hours; if it died now, about "
        f"{one['at_stake_gpu_hours']:.1f} would be lost",
        f"use      {_percent(one['utilization_ratio'])} on the mean of {one['gpus_read']} GPUs, "
        f"the lowest {_percent(one['utilization_low_ratio'])}"
        + (f"; idle for {span(one['idle_seconds'])}" if one["idle_seconds"] is not None else ""),
    ]
    if one["energy_joules"] is not None:
        how = "by the GPUs' counters" if one["energy_measured"] else "reckoned from its power now"
        out.append(f"energy   {one['energy_joules'] / 3.6e6:.1f} kWh, {how}")
    if one["shared_nodes"]:
        shared = ", ".join(one["shared_nodes"][:8])
        out.append(f"shared   {shared}: other jobs run there too, their GPUs are not told apart")
    out += [f"FAULT    {words}" for words in one["faults"]]
    out += ["", "why it may be slow"]
    out += [f"  {found['where']}: {found['text']}" for found in one["findings"]]
    if not one["findings"]:
        out.append("  nothing stands out: GPUs even, clocks alike, hosts and links calm")
    out += ["", "GPUs (means of the window)"]
    out += [f"  {_gpu(use)}" for use in one["gpu_use"][:64]]
    if len(one["gpu_use"]) > 64:
        out.append(f"  and {len(one['gpu_use']) - 64} more (--json)")
    if one["events"]:
        out += ["", "errors on its nodes since it began (UTC)"]
        out += [
            f"  {event['time']}  {event['node']}  {event['kind']} {event['code']}: {event['text']}"
            for event in one["events"]
        ]
    return out


def _gpu(use: dict[str, Any]) -> str:
    parts = [f"{use['node']} gpu{use['gpu']}", f"use {_percent(use['utilization_ratio'])}"]
    for key, unit, scale in (
        ("power_watts", "W", 1.0),
        ("sm_clock_hertz", "MHz", 1e6),
        ("temperature_celsius", "C", 1.0),
    ):
        if use[key] is not None:
            parts.append(f"{use[key] / scale:.0f} {unit}")
    return "  ".join(parts)
