"""``tocsin store verify|repair|stats``: looks after the embedded store's files."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path

EXAMPLE = """examples:
  tocsin store stats            how much is kept, of what, in how many bytes
  tocsin store verify           is every file sound? May run beside the head
  tocsin store repair           sets damaged files aside; the head must be stopped"""


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Where the store is: by its folder, or as the configuration has it."""
    parser.add_argument("--store", type=Path, metavar="DIR", help="the store's folder")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the head's configuration")


def store_path(arguments: argparse.Namespace) -> Path:
    """The store that the options mean. Raises ConfigError for a faulty configuration."""
    if arguments.store is not None:
        return Path(arguments.store)
    from daemon.config import DEFAULT_FILE, Config
    from daemon.head import store_directory
    from daemon.settings import load

    file = arguments.config or DEFAULT_FILE
    config = load(Config, file) if arguments.config or file.exists() else Config()
    return store_directory(config)


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin store``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("what", choices=("verify", "repair", "stats"))
    parser.add_argument("--quick", action="store_true", help="verify: lists only, not all values")
    parser.add_argument("--json", action="store_true", help="stats and verify: as JSON")
    add_store_options(parser)


def run(arguments: argparse.Namespace, verb: str) -> int:
    """0: sound or mended; 1: verify found damage; 2: it could not be looked at."""
    del verb
    from daemon.store.errors import StoreUnavailableError

    directory = store_path(arguments)
    if not directory.is_dir():
        print(f"tocsin: {directory} is no store", file=sys.stderr)
        return 2
    try:
        if arguments.what == "verify":
            return _verify(directory, arguments)
        if arguments.what == "stats":
            return _stats(directory, arguments)
        return _repair(directory)
    except StoreUnavailableError as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2


def _verify(directory: Path, arguments: argparse.Namespace) -> int:
    from daemon.store.check import verify

    findings = list(verify(directory, deep=not arguments.quick))
    if arguments.json:
        plain = [
            {"path": str(f.path), "text": f.text, "loses_rows": f.loses_rows} for f in findings
        ]
        print(json.dumps(plain, indent=1))
    else:
        for finding in findings:
            print(f"{'DAMAGE ' if finding.loses_rows else 'note   '}{finding}")
        bad = sum(finding.loses_rows for finding in findings)
        print(f"{directory}: {bad} damaged" if bad else f"{directory}: sound")
    return 1 if any(finding.loses_rows for finding in findings) else 0


def _repair(directory: Path) -> int:
    from daemon.store.check import repair

    done = repair(directory, time.time_ns())
    for line in done:
        print(line)
    print(f"{directory}: {len(done)} things done" if done else f"{directory}: nothing to do")
    return 0


def _stats(directory: Path, arguments: argparse.Namespace) -> int:
    from daemon.store.check import stats

    found = stats(directory)
    if arguments.json:
        print(json.dumps(found.as_dict(), indent=1))
        return 0
    print(f"{directory}: {found.events} events")
    for name in ("parquet", "rollup", "spool", "database"):
        print(f"  {name:<10} {getattr(found, name + '_bytes') / 2**20:12.1f} MiB")
    if found.damaged_files:
        print(f"  {found.damaged_files} damaged files were set aside")
    names = ("rows", "in spool", "files", "bytes/value")
    heads = "{:>14} {:>10} {:>7} {:>12}".format(*names)
    print(f"  {'measurement':<16} {heads}  span")
    for one in found.measurements:
        span = f"{_date(one.first_ns)} to {_date(one.last_ns)}"
        print(
            f"  {one.measurement:<16} {one.rows:>14,} {one.spool_rows:>10,} {one.files:>7,}"
            f" {one.bytes_per_value:>12.2f}  {span}"
        )
    return 0


def _date(time_ns: int | None) -> str:
    if time_ns is None:
        return "-"
    moment = datetime.datetime.fromtimestamp(time_ns / 1e9, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M")
