"""The ``tocsin`` command: one file per verb, imported only when that verb is called."""

from daemon.cli.main import main

__all__ = ["main"]
