"""``tocsin agent``: the agent of one compute node."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import structlog

from collectors.sample import Source
from daemon import __version__
from daemon.agent.config import AgentSection, read_agent
from daemon.agent.cycle import run_agent
from daemon.agent.sources import make_all
from daemon.logs import LEVELS, configure
from daemon.notify import Notifier

EXAMPLE = """example:
  tocsin agent --config /etc/tocsin/agent.toml

The file needs [agent.uplink] head_url and token_file;
`tocsin check --config /etc/tocsin/agent.toml` says what is missing and which sources work here."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin agent``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--config", type=Path, help="default: /etc/tocsin/tocsin.toml")
    parser.add_argument("--log-level", choices=list(LEVELS), default="info")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Runs until SIGTERM."""
    del verb
    section = read_agent(arguments.config)
    configure("tocsin-agent", arguments.log_level)
    asyncio.run(_serve(section))
    return 0


def make_sources(section: AgentSection) -> list[Source]:
    """The enabled sources of the node."""
    return make_all(section.sources, section.node, section.state_dir, section.root)


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
