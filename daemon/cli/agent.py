"""``tocsin agent``: the agent of one compute node."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import structlog

from collectors import host, kernel_log, nvml
from collectors.sample import Context, Source
from daemon import __version__
from daemon.agent import run_agent
from daemon.config import AgentSection, read
from daemon.logs import LEVELS, configure
from daemon.notify import Notifier

EXAMPLE = """example:
  tocsin agent --config /etc/tocsin/agent.toml

The file needs [agent.uplink] head_url and token_file; `tocsin check --role agent` says
what is missing and which sources work on this machine."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin agent``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--config", type=Path, help="default: /etc/tocsin/tocsin.toml")
    parser.add_argument("--log-level", choices=list(LEVELS), default="info")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Runs until SIGTERM."""
    del verb
    section = read(arguments.config, "agent").agent
    configure("tocsin-agent", arguments.log_level)
    asyncio.run(_serve(section))
    return 0


def make_sources(section: AgentSection) -> list[Source]:
    """The enabled sources. Order of work: the kernel log first, it is the fastest witness."""
    chosen = section.sources
    made: list[Source] = []
    if chosen.kernel_log.enabled:
        made.append(kernel_log.make(chosen.kernel_log, source_context(section, "kernel_log")))
    if chosen.host.enabled:
        made.append(host.make(chosen.host, source_context(section, "host")))
    if chosen.nvml.enabled:
        made.append(nvml.make(chosen.nvml, source_context(section, "nvml")))
    return made


def source_context(section: AgentSection, name: str) -> Context:
    """What the source ``name`` may know of the world; makes its state folder."""
    state_dir = section.state_dir / name
    state_dir.mkdir(parents=True, exist_ok=True)
    return Context(section.node, state_dir, section.root, time.time_ns)


async def _serve(section: AgentSection) -> None:
    log = structlog.get_logger("tocsin.agent")
    sources = make_sources(section)
    notifier = Notifier()
    names = ", ".join(source.name for source in sources)
    log.info("agent_starts", version=__version__, node=section.node, sources=names)
    heart = asyncio.create_task(_beat(notifier))
    try:
        await run_agent(section, sources, lambda: notifier.ready(f"{section.node}: {names}"))
    finally:
        notifier.stopping()
        heart.cancel()
        log.info("agent_ends", node=section.node)


async def _beat(notifier: Notifier) -> None:
    """The watchdog's sign of life, from the event loop alone: no device can hold it up."""
    if notifier.watchdog_seconds <= 0:
        return
    while True:
        notifier.alive()
        await asyncio.sleep(notifier.watchdog_seconds / 3)
