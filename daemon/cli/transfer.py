"""``tocsin import`` and ``tocsin export``: between a store and a telemetry directory."""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

from daemon.cli.store import add_store_options, store_path

IMPORT_EXAMPLE = """examples:
  tocsin import --telemetry /data/fleet                  what simulate or export wrote
  tocsin import --map gwdg-tidy.toml node129.csv.bz2     foreign CSV, by a map
  tocsin import --map my.toml --out /data/dir *.csv.gz   only into a telemetry directory

Importing the same thing again changes nothing. The head must not run on the same store."""

EXPORT_EXAMPLE = """example:
  tocsin export --out /data/june --from 2026-06-01 --to 2026-07-01 --measurement gpu"""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of both verbs."""
    add_store_options(parser)
    if verb == "import":
        parser.epilog = IMPORT_EXAMPLE
        parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="with --map")
        parser.add_argument("--telemetry", type=Path, metavar="DIR")
        parser.add_argument("--map", type=Path, metavar="FILE.toml", help="how to read FILEs")
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="with --map: not into the store"
        )
        return
    parser.epilog = EXPORT_EXAMPLE
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--from", dest="start", metavar="TIME", help="UTC, ISO")
    parser.add_argument("--to", dest="end", metavar="TIME", help="UTC, ISO; not included")
    parser.add_argument("--measurement", action="append", default=[], metavar="NAME")
    parser.add_argument("--csv", action="store_true", help="CSV in place of Parquet")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Moves the tables; says how many rows of each."""
    from daemon.store.errors import StoreUnavailableError

    try:
        counts = _import(arguments) if verb == "import" else _export(arguments)
    except (StoreUnavailableError, OSError, ValueError) as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2
    for measurement, rows in sorted(counts.items()):
        print(f"{measurement}: {rows} rows")
    if not counts:
        print("tocsin: there was nothing to move", file=sys.stderr)
    return 0 if counts else 3


def _import(arguments: argparse.Namespace) -> dict[str, int]:
    if (arguments.telemetry is None) == (arguments.map is None):
        raise ValueError("name either --telemetry DIR or --map FILE.toml with the files to read")
    if arguments.map is None:
        if arguments.files or arguments.out:
            raise ValueError("FILEs and --out go with --map")
        return _into_store(arguments, arguments.telemetry)
    if not arguments.files:
        raise ValueError("name the files that the map is for")
    from models.telemetry.foreign import import_foreign, load_map

    plan = load_map(_map_file(arguments.map))
    inputs = [(plan, path) for path in arguments.files]
    if arguments.out is not None:
        return import_foreign(inputs, arguments.out)
    with tempfile.TemporaryDirectory(prefix="tocsin-import-") as folder:
        counts: dict[str, int] = {}
        for number, one in enumerate(inputs):
            # One after the other: what is converted waits on disk, and one file is small.
            part = Path(folder, str(number))
            import_foreign([one], part)
            for name, rows in _into_store(arguments, part).items():
                counts[name] = counts.get(name, 0) + rows
        return counts


def _map_file(path: Path) -> Path:
    """``path``, or the shipped map of that name."""
    if path.exists():
        return path
    import models.telemetry

    shipped = Path(models.telemetry.__file__).parent / "maps" / path.name
    return shipped if shipped.exists() else path


def _into_store(arguments: argparse.Namespace, directory: Path) -> dict[str, int]:
    from daemon.store.embedded import Store
    from daemon.store.transfer import import_directory

    store = Store(store_path(arguments))
    try:
        return import_directory(store, directory)
    finally:
        store.close()


def _export(arguments: argparse.Namespace) -> dict[str, int]:
    from daemon.store.reader import Reader
    from daemon.store.transfer import export_directory

    directory = store_path(arguments)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is no store")
    return export_directory(
        Reader(directory),
        arguments.out,
        _nanoseconds(arguments.start),
        _nanoseconds(arguments.end),
        arguments.measurement,
        arguments.csv,
    )


def _nanoseconds(text: str | None) -> int | None:
    if text is None:
        return None
    moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp()) * 1_000_000_000
