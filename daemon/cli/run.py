"""``tocsin run``: the head."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import structlog

from daemon import __version__
from daemon.assemble import calm_collector, make_adapter, make_slurm_source, open_ears
from daemon.clock import SystemClock
from daemon.config import Config, read
from daemon.head import Head
from daemon.listen import ListenError, Listeners
from daemon.logs import LEVELS, configure
from daemon.notify import Notifier
from daemon.slurm.jobs import JobTools
from daemon.store.errors import StoreUnavailableError
from daemon.tokens import TokenFile, TokensError
from daemon.webhook import WebhookError

EXAMPLE = """example:
  tocsin run --config /etc/tocsin/tocsin.toml

The mode stands in the file; without one it is shadow: everything is judged and recorded, and
nothing is written to Slurm."""

_TOKENS_PERIOD_SECONDS = 15.0


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin run``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--config", type=Path, help="default: /etc/tocsin/tocsin.toml")
    parser.add_argument("--log-level", choices=list(LEVELS), default="info")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Runs until SIGTERM."""
    del verb
    config = read(arguments.config, "head")
    configure("tocsin", arguments.log_level)
    try:
        asyncio.run(_serve(config))
    except (ListenError, StoreUnavailableError, TokensError, WebhookError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: Config) -> None:
    log = structlog.get_logger("tocsin.head")
    notifier = Notifier()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tokens = TokenFile(config.head.tokens_file)
    loop.add_signal_handler(signal.SIGHUP, tokens.refresh)
    log.info("head_opens", version=__version__, state=str(config.head.state_dir))
    calm_collector()
    head = Head(
        config,
        clock=SystemClock(),
        adapter=make_adapter(config),
        slurm=make_slurm_source(config, config.head.state_dir),
        job_tools=JobTools(config.slurm),
    )
    listeners = Listeners()
    heart: asyncio.Task[None] | None = None
    try:
        await head.start()
        gate, page = await open_ears(head, config, tokens, listeners)
        log.info("head_listens", gateway=str(gate), page=str(page or ""))
        notifier.ready(f"{config.mode.value} mode, {len(head.nodes)} nodes")
        heart = asyncio.create_task(_beat(notifier, tokens))
        await stop.wait()
    finally:
        notifier.stopping()
        if heart is not None:
            heart.cancel()
        await listeners.close()
        await head.stop()


async def _beat(notifier: Notifier, tokens: TokenFile) -> None:
    """The watchdog's sign of life, and a look whether the tokens file has changed."""
    period = notifier.watchdog_seconds / 3 or _TOKENS_PERIOD_SECONDS
    while True:
        notifier.alive()
        tokens.refresh()
        await asyncio.sleep(min(period, _TOKENS_PERIOD_SECONDS))
