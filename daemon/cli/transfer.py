"""``tocsin import`` and ``tocsin export``: between a store and a telemetry directory."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from daemon.cli.store import as_owner, directory_of, keep_days

EXAMPLES = {
    "import": """examples:
  tocsin import --telemetry /tmp/fleet                 a telemetry directory into the store
  tocsin import --map gwdg-tidy.toml --out DIR FILE .. foreign CSV into a telemetry directory

Importing the same twice changes nothing. Stop the head first: one process writes to a store.
A file that would be larger, unpacked, than --unpacked-limit is refused: it may come from anybody.
A link that leads out of the directory is not followed.""",
    "export": """examples:
  tocsin export --out /tmp/telemetry                   everything
  tocsin export --out DIR --since 2026-11-01 --csv --measurement gpu --measurement event

Only reads; may run beside the head.""",
}


class UsageError(Exception):
    """Options that do not go together, or too few of them."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin import`` and ``tocsin export``."""
    parser.epilog = EXAMPLES[verb]
    parser.add_argument("--directory", type=Path, help="the store (default: the configured one)")
    parser.add_argument("--config", type=Path, help="where the store is configured")
    parser.add_argument("--json", action="store_true", help="the counts as JSON")
    if verb == "import":
        parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="with --map")
        parser.add_argument("--telemetry", type=Path, metavar="DIR", help="a telemetry directory")
        parser.add_argument("--map", type=Path, metavar="FILE.toml", help="how to read the CSV")
        parser.add_argument("--out", type=Path, metavar="DIR", help="with --map: where to")
        parser.add_argument(
            "--unpacked-limit",
            type=_gibibytes,
            metavar="GIB",
            help="of each file (default: 256)",
        )
        parser.set_defaults(usage=parser.format_usage())
        return
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--since", metavar="TIME", help="ISO time, UTC unless it says otherwise")
    parser.add_argument("--until", metavar="TIME")
    parser.add_argument("--measurement", action="append", default=[], metavar="NAME")
    parser.add_argument("--csv", action="store_true", help="CSV instead of Parquet")
    parser.set_defaults(usage=parser.format_usage())


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Moves rows."""
    from daemon.logs import to_standard_error

    to_standard_error()
    from daemon.store.errors import StoreUnavailableError
    from models.telemetry.unpack import TooLargeError

    try:
        counts = _import(arguments) if verb == "import" else _export(arguments)
    except UsageError as error:
        print(f"{arguments.usage}tocsin: {error}", file=sys.stderr)
        return 2
    except TooLargeError as error:
        print(f"tocsin: {error}; --unpacked-limit GIB raises the bound", file=sys.stderr)
        return 1
    except (StoreUnavailableError, FileExistsError, FileNotFoundError, ValueError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"tocsin: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(counts))
    else:
        print("\n".join(f"{rows:>12} {name}" for name, rows in sorted(counts.items())) or "nothing")
    return 0 if counts else 3


def _import(arguments: argparse.Namespace) -> dict[str, int]:
    if arguments.map is not None:
        return _import_mapped(arguments)
    if arguments.files or arguments.out is not None:
        raise UsageError("FILE and --out go with --map; a telemetry directory with --telemetry")
    from daemon.store.embedded import Store
    from daemon.store.pieces import DEFAULT_LIMIT_BYTES
    from daemon.store.transfer import import_directory

    if arguments.telemetry is None:
        raise UsageError("say what to import: --telemetry DIR, or --map FILE.toml FILE ...")
    directory = directory_of(arguments)
    with as_owner(directory), contextlib.closing(Store(directory)) as store:
        counts = import_directory(
            store,
            arguments.telemetry,
            _progress,
            arguments.unpacked_limit or DEFAULT_LIMIT_BYTES,
            _left_out,
        )
        store.commit()
        spans = [store.span_ns(name) for name in counts]
    oldest_ns = min((span[0] for span in spans if span is not None), default=time.time_ns())
    age_days = (time.time_ns() - oldest_ns) / 86_400e9
    if age_days > keep_days(arguments):
        print(
            f"tocsin: rows of {age_days:.0f} days ago came in; a head that keeps "
            f"{keep_days(arguments):g} days removes them within the hour: set [store] keep_days",
            file=sys.stderr,
        )
    return counts


def _import_mapped(arguments: argparse.Namespace) -> dict[str, int]:
    import models.telemetry
    from models.telemetry.foreign import DEFAULT_LIMIT_BYTES, import_foreign, load_map

    if arguments.telemetry is not None:
        raise UsageError("--map and --telemetry are two different imports: say one")
    if not arguments.files:
        raise UsageError("--map needs the CSV files to read")
    if arguments.out is None:
        raise UsageError("--map needs --out DIR; then: tocsin import --telemetry DIR")
    name = arguments.map.name.removesuffix(".toml") + ".toml"
    shipped = Path(models.telemetry.__file__).parent / "maps" / name
    plan = load_map(shipped if shipped.exists() and not arguments.map.exists() else arguments.map)
    files = [(plan, path) for path in arguments.files]
    return import_foreign(files, arguments.out, arguments.unpacked_limit or DEFAULT_LIMIT_BYTES)


def _export(arguments: argparse.Namespace) -> dict[str, int]:
    from daemon.store.reader import Reader
    from daemon.store.transfer import export_directory

    directory = directory_of(arguments)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is no store; name one with --directory")
    return export_directory(
        Reader(directory),
        arguments.out,
        _time(arguments.since),
        _time(arguments.until),
        arguments.measurement,
        arguments.csv,
    )


def _time(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no ISO time such as 2026-11-30T04:00:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000


def _gibibytes(text: str) -> int:
    """Bytes of an option in GiB."""
    try:
        size = int(float(text) * 1024**3)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB")
    return size


def _left_out(path: Path, why: str) -> None:
    print(f"tocsin: {path} was left out: {why}", file=sys.stderr)


def _progress(measurement: str, rows: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{measurement}: {rows} rows", end="", file=sys.stderr, flush=True)
