"""Logs: one JSON object a line on standard error, which journald, Loki and ELK take as it is.

On a terminal the same events are shown for people. Whatever is logged through the standard
library (aiohttp, APScheduler) goes the same way. ``id`` in a line is a case's id: it runs
through judgement, decision, drain and alert.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def to_standard_error() -> None:
    """For commands that set up no log: what they print stays whole, for people and for ``--json``.

    structlog would write to standard output by itself.
    """
    if not structlog.is_configured():
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def configure(service: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Sets up structlog and the standard library's logging for this process."""
    out = sys.stderr if stream is None else stream
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if out.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    # Each timer tick is a line there, and each request one here: noise at any size.
    logging.getLogger("apscheduler").setLevel(max(LEVELS[level], logging.WARNING))
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.captureWarnings(True)
