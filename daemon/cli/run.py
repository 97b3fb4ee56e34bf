"""``tocsin run``: the head."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from pathlib import Path

import structlog

from daemon import __version__
from daemon.alerts.outbox import WayError
from daemon.assemble import calm_collector, open_ears
from daemon.clock import SystemClock
from daemon.config import Config, read
from daemon.gate.tokens import TokenFile, TokensError
from daemon.head import Head
from daemon.listen import ListenError, Listeners
from daemon.logs import LEVELS, configure
from daemon.loop import run_head
from daemon.notify import Notifier
from daemon.reach import make_reach, make_slurm_source
from daemon.slurm.lease import Lease
from daemon.standby import end_at_once, make_lease, stand_by
from daemon.store.errors import StoreUnavailableError

EXAMPLE = """example:
  tocsin run --config /etc/tocsin/tocsin.toml

The mode stands in the file; without one it is shadow: everything is judged and recorded, and
nothing is written to Slurm.

With [head.lease] it stands by while another head acts. A head that loses its lease ends at once,
with exit code 75, and stands by when it is started again."""

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
        run_head(_serve(config))
    except (ListenError, StoreUnavailableError, TokensError, WayError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: Config) -> None:
    notifier = Notifier()
    stop = asyncio.Event()
    waits_no_more = threading.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        waits_no_more.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    tokens = TokenFile(config.head.tokens_file)
    loop.add_signal_handler(signal.SIGHUP, tokens.refresh)
    heart = asyncio.create_task(_beat(notifier, tokens))
    lease = make_lease(config)
    try:
        if lease is None:
            await _act(config, notifier, tokens, stop, None)
        elif await stand_by(lease, config, waits_no_more, notifier.ready):
            lease.keep(lambda: end_at_once(lease))
            try:
                await _act(config, notifier, tokens, stop, lease)
            finally:
                await asyncio.to_thread(lease.give_up)
    finally:
        notifier.stopping()
        heart.cancel()


async def _act(
    config: Config,
    notifier: Notifier,
    tokens: TokenFile,
    stop: asyncio.Event,
    lease: Lease | None,
) -> None:
    """The head itself, until ``stop``."""
    log = structlog.get_logger("tocsin.head")
    log.info("head_opens", version=__version__, state=str(config.head.state_dir))
    calm_collector()
    fence = lease.held if lease is not None else None
    reach = make_reach(config, fence)
    log.info("slurm_adapter", adapter=reach.adapter.name, why=reach.why)
    head = Head(
        config,
        clock=SystemClock(),
        adapter=reach.adapter,
        slurm=make_slurm_source(config, config.head.state_dir),
        job_tools=reach.job_tools,
        prover=reach.prover,
        accounting=reach.accounting,
        beside=reach.beside,
        fence=fence,
    )
    listeners = Listeners()
    try:
        await head.start()
        gate, page = await open_ears(head, config, tokens, listeners)
        log.info("head_listens", gateway=str(gate), page=str(page or ""))
        notifier.ready(f"{config.mode.value} mode, {len(head.nodes)} nodes")
        await stop.wait()
    finally:
        await listeners.close()
        await head.stop()


async def _beat(notifier: Notifier, tokens: TokenFile) -> None:
    """The watchdog's sign of life, and a look whether the tokens file has changed."""
    period = notifier.watchdog_seconds / 3 or _TOKENS_PERIOD_SECONDS
    while True:
        notifier.alive()
        tokens.refresh()
        await asyncio.sleep(min(period, _TOKENS_PERIOD_SECONDS))
