"""``/api/v1/jobs``: the jobs that run, what they make of their GPUs, and one of them in full."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from daemon.head import Head
from daemon.jobs.held import Held, held
from daemon.jobs.idle import FRESH_NS, Idle
from daemon.jobs.look import JobLook, look
from daemon.latest import Latest
from daemon.page.api import number, reply
from daemon.page.view import UnknownSubject, iso, plain

_JOB = re.compile(r"[0-9]{1,10}(_[0-9]{1,10}|\+[0-9]{1,4})?")
_NO_JOB = "a job is a number, as squeue shows it: 1234 or 1234_5"
# A look reads the store: so many at once, whoever asks.
_LOOKS_AT_ONCE = 2


def job_routes(head: Head) -> list[web.RouteDef]:
    """GET: for the page's listener and the operator's socket."""
    looking = asyncio.Semaphore(_LOOKS_AT_ONCE)

    async def jobs(request: web.Request) -> web.Response:
        del request
        return reply({"jobs": await asyncio.to_thread(job_rows, head)})

    async def job(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not _JOB.fullmatch(name):
            raise web.HTTPBadRequest(text=_NO_JOB)
        minutes = number(request, "minutes", 30.0, 1.0, 1440.0)
        one = held(head.desk.jobs.values(), head.nodes).get(name)
        if one is None:
            raise UnknownSubject(
                f"no job {name} runs that holds GPUs (tocsin jobs lists them; what jobs "
                "met that have ended: tocsin jobs --faults)"
            )
        now_ns = head.clock.now_ns()
        async with looking:
            found = await asyncio.to_thread(
                look, head.store, one, head.config.policy.cost, minutes, now_ns
            )
        return reply(_in_full(head, one, found, now_ns))

    async def faults(request: web.Request) -> web.Response:
        days = number(request, "days", 30.0, 0.01, 730.0)
        name = request.query.get("job", "")
        if name and not _JOB.fullmatch(name):
            raise web.HTTPBadRequest(text=_NO_JOB)
        since_ns = head.clock.now_ns() - int(days * 86_400e9)
        met = await asyncio.to_thread(head.met.newest, since_ns, name)
        return reply({"faults": plain(met)})

    return [
        web.get("/api/v1/jobs", jobs),
        web.get("/api/v1/job_faults", faults),
        web.get("/api/v1/jobs/{name}", job),
    ]


def job_rows(head: Head) -> list[dict[str, Any]]:
    """Each running job that holds GPUs, by the newest readings of its nodes."""
    now_ns, latest, idle = head.clock.now_ns(), head.intake.latest, head.idle_jobs.found
    facts = _facts(head)
    return [
        _row(one, latest, idle.get(key), facts, now_ns)
        for key, one in sorted(held(head.desk.jobs.values(), head.nodes).items(), key=_order)
    ]


def _order(item: tuple[str, Held]) -> tuple[int, str]:
    return int(item[1].job.id) if item[1].job.id.isdecimal() else 0, item[0]


def _facts(head: Head) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fact in head.judgement.facts:
        words = f"{fact.entity.node} {fact.entity.device}: {fact.text} ({fact.code})"
        found.setdefault(fact.entity.node, []).append(words)
    return found


def _row(
    one: Held, latest: Latest, idle: Idle | None, facts: Mapping[str, list[str]], now_ns: int
) -> dict[str, Any]:
    job = one.job
    used: list[float] = []
    watts: list[float] = []
    for name, count in one.gpus.items():
        node = latest.nodes.get(name)
        if node is None or name not in one.alone:
            continue
        fresh = [gpu for gpu in list(node.gpus.values()) if now_ns - gpu.time_ns < FRESH_NS]
        # Where it holds some of a node's GPUs, the busiest are taken for its own.
        fresh.sort(key=lambda gpu: -(gpu.value("utilization_ratio") or 0.0))
        for gpu in fresh[:count]:
            use, power = gpu.value("utilization_ratio"), gpu.value("power_watts")
            used += [use] if use is not None else []
            watts += [power] if power is not None else []
    return {
        "job": job.key,
        "user": job.user,
        "partition": job.partition,
        "nodes": sorted(one.gpus),
        "gpus": one.total if one.whole else None,
        "elapsed_seconds": job.elapsed_seconds,
        "utilization_ratio": sum(used) / len(used) if used else None,
        "utilization_low_ratio": min(used) if used else None,
        "power_watts": sum(watts) if watts else None,
        "gpus_read": len(used),
        "idle_seconds": (now_ns - idle.since_ns) / 1e9 if idle is not None else None,
        "faults": [words for name in sorted(one.gpus) for words in facts.get(name, ())],
    }


def _in_full(head: Head, one: Held, found: JobLook, now_ns: int) -> dict[str, Any]:
    row = _row(one, head.intake.latest, head.idle_jobs.found.get(one.job.key), _facts(head), now_ns)
    energy = found.energy
    return {
        **row,
        "gpu_hours": found.gpu_hours,
        "at_stake_gpu_hours": found.at_stake_gpu_hours,
        "energy_joules": energy.joules if energy is not None else None,
        "energy_measured": energy.measured if energy is not None else None,
        "findings": plain(found.findings),
        "gpu_use": plain(found.gpus),
        "host_use": plain(found.hosts),
        "shared_nodes": list(found.shared),
        "events": [
            {
                "time": iso(event.time_ns), "node": event.node, "kind": event.kind,
                "code": event.code, "device": event.device, "text": event.text,
            }
            for event in found.events
        ],
    }  # fmt: skip
