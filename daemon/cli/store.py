"""``tocsin store verify|repair|stats``: the embedded store, from outside the head."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daemon.config import Config

EXAMPLES = """examples:
  tocsin store stats                       how much is kept, and how small
  tocsin store verify --directory DIR      reads everything; exit code 1 when something is wrong
  tocsin store repair                      sets damaged files aside; stop the head first

stats and verify only read, and may run beside the head."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin store``."""
    del verb
    parser.epilog = EXAMPLES
    parser.add_argument("what", choices=["verify", "repair", "stats"])
    parser.add_argument("--directory", type=Path, help="default: the configured store")
    parser.add_argument("--config", type=Path, help="where the store is configured")
    parser.add_argument("--quick", action="store_true", help="verify: do not read all values")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Verifies, repairs or describes."""
    del verb
    from daemon.logs import to_standard_error

    to_standard_error()
    from daemon.store.errors import StoreUnavailableError

    directory = directory_of(arguments)
    if not directory.is_dir():
        print(f"tocsin: {directory} is no store; name one with --directory", file=sys.stderr)
        return 2
    try:
        return {"verify": _verify, "repair": _repair, "stats": _stats}[arguments.what](
            directory, arguments
        )
    except StoreUnavailableError as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1


def directory_of(arguments: argparse.Namespace) -> Path:
    """``--directory``, else what the configuration says."""
    from daemon.config import store_directory

    if arguments.directory is not None:
        return Path(arguments.directory)
    return store_directory(_config(arguments))


@contextlib.contextmanager
def as_owner(directory: Path) -> Iterator[None]:
    """Root works as the user that the store (or the folder it is to be made in) belongs to: whose
    head has to go on with each file that is made, and could neither write nor remove it else."""
    there = next(
        path for path in (directory.absolute(), *directory.absolute().parents) if path.exists()
    )
    owner = there.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    os.setgroups([owner.st_gid])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def keep_days(arguments: argparse.Namespace) -> float:
    """For how long the configured store keeps rows."""
    return _config(arguments).store.keep_days


def _config(arguments: argparse.Namespace) -> Config:
    from daemon.config import DEFAULT_FILE, Config
    from daemon.settings import load

    file = arguments.config or DEFAULT_FILE
    return load(Config, file) if arguments.config or DEFAULT_FILE.exists() else Config()


def _verify(directory: Path, arguments: argparse.Namespace) -> int:
    from daemon.store.check import verify

    findings = list(verify(directory, deep=not arguments.quick))
    if arguments.json:
        rows = [
            {"path": str(one.path), "text": one.text, "loses_rows": one.loses_rows}
            for one in findings
        ]
        print(json.dumps({"ok": not findings, "findings": rows}))
    else:
        for finding in findings:
            print(f"{finding}{' (rows are lost)' if finding.loses_rows else ''}")
        print(f"{directory}: {len(findings) or 'no'} fault{'s' * (len(findings) != 1)}")
    return 1 if findings else 0


def _repair(directory: Path, arguments: argparse.Namespace) -> int:
    from daemon.store.check import repair

    with as_owner(directory):
        done = repair(directory, time.time_ns())
    if arguments.json:
        print(json.dumps({"done": done}))
    else:
        print("\n".join(done) if done else f"{directory}: nothing to mend")
    return 0


def _stats(directory: Path, arguments: argparse.Namespace) -> int:
    from daemon.store.check import stats

    found = stats(directory)
    if arguments.json:
        print(json.dumps(found.as_dict()))
        return 0
    total = found.parquet_bytes + found.rollup_bytes + found.spool_bytes + found.database_bytes
    print(
        f"{directory}: {size(total)}: Parquet {size(found.parquet_bytes)}, "
        f"roll-ups {size(found.rollup_bytes)}, spool {size(found.spool_bytes)}, "
        f"database {size(found.database_bytes)}, {found.events} events"
    )
    if found.database_fault:
        print(f"events are not counted: {found.database_fault}")
    if found.damaged_files:
        print(
            f"{found.damaged_files} files ({size(found.damaged_bytes)}) that were set aside lie in "
            f"{directory}/damaged"
        )
    rows: list[tuple[Any, ...]] = [
        (
            one.measurement,
            one.rows,
            one.spool_rows,
            one.values,
            one.files,
            f"{one.bytes_per_value:.2f}",
        )
        for one in found.measurements
    ]
    header = ("measurement", "rows", "in spool", "values", "files", "bytes/value")
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [str(row[0]).ljust(widths[0])]
        cells += [str(cell).rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))
    return 0


def size(count_bytes: float) -> str:
    """Bytes in the unit that people would say.

    >>> size(2048)
    '2.0 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < 1024:
            return f"{count_bytes:.1f} {unit}" if unit != "B" else f"{count_bytes:.0f} B"
        count_bytes /= 1024
    return f"{count_bytes:.1f} TiB"
