"""``tocsin query``: asks the configured InfluxDB in InfluxQL, the one language of 1, 2 and 3."""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

EXAMPLES = """examples:
  tocsin query 'SHOW MEASUREMENTS'
  tocsin query "SELECT max(temperature_celsius) FROM gpu WHERE time > now() - 1h GROUP BY node"
  tocsin query "SELECT p99 FROM fleet WHERE metric = 'gpu.power_watts' AND time > now() - 1d"
  tocsin query --json "SELECT text FROM event WHERE node = 'n1'" | jq .

Asks the server of section [influxdb], with its token or password file. Times are UTC. Only
reads: statements other than SELECT (without INTO), SHOW and EXPLAIN are refused. Exit code 3: no
answer."""

_READS = ("SELECT", "SHOW", "EXPLAIN")
_BETWEEN_SLASHES = re.compile(r"/((?:\\.|[^/\\])*)/", re.S)
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin query``."""
    del verb
    parser.epilog = EXAMPLES
    parser.add_argument("statement", metavar="INFLUXQL")
    parser.add_argument("--config", type=Path, help="where [influxdb] is configured")
    parser.add_argument("--deadline", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Asks and prints."""
    del verb
    import urllib3
    from influxdb_client.rest import ApiException

    from daemon.agent.uplink import TokenError
    from daemon.config import DEFAULT_FILE, Config
    from daemon.settings import load
    from daemon.store.influx import query_influxql

    statement = arguments.statement.strip()
    try:
        reads = all(map(_only_reads, bare_statements(statement)))
    except ValueError as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2
    if not reads:
        print("tocsin: only SELECT, SHOW and EXPLAIN; to change the server use its own tool",
              file=sys.stderr)  # fmt: skip
        return 2
    file = arguments.config or DEFAULT_FILE
    config = load(Config, file) if arguments.config or DEFAULT_FILE.exists() else Config()
    if not config.influxdb.url:
        print(f"tocsin: no InfluxDB is configured: set [influxdb] url in {file}", file=sys.stderr)
        return 2
    where = config.influxdb.url
    try:
        raw = query_influxql(config.influxdb, statement, arguments.deadline)
        answer = json.loads(raw)
    except ApiException as error:
        text = str(error.body or error.reason).strip()[:500]
        print(f"tocsin: {where} answers {error.status}: {text}", file=sys.stderr)
        return 1
    except TokenError as error:
        print(f"tocsin: {error}", file=sys.stderr)
        return 2
    except (urllib3.exceptions.HTTPError, OSError) as error:
        print(f"tocsin: {where} does not answer: {error}", file=sys.stderr)
        return 3
    except ValueError:
        print(f"tocsin: {where} answered something that is no JSON", file=sys.stderr)
        return 3
    faults = faults_of(answer)
    if arguments.json:
        print(json.dumps(answer))
    else:
        print("\n\n".join(table(series) for series in series_of(answer)) or "nothing")
    for fault in faults:
        print(f"tocsin: {where}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _only_reads(bare: str) -> bool:
    return bare.upper().startswith(_READS) and re.search(r"\bINTO\b", bare.upper()) is None


def bare_statements(text: str) -> list[str]:
    """The statements of a query without what stands in quotes (a semicolon there ends nothing).

    Raises ValueError where one cannot be sure what is in quotes: a comment, or a quote between two
    slashes, which may be a regular expression or two divisions.

    >>> bare_statements("SELECT a FROM b WHERE c = '; drop'; SHOW SERVERS")
    ['SELECT a FROM b WHERE c =', 'SHOW SERVERS']
    """
    parts, place = [""], 0
    while place < len(text):
        if text.startswith(("--", "/*"), place):
            raise ValueError("leave comments out of the query")
        character = text[place]
        quoted = _QUOTED.match(text, place)
        if quoted:
            parts[-1] += " "
            place = quoted.end()
            continue
        if character in "'\"":
            raise ValueError("a quote is not closed")
        between = _BETWEEN_SLASHES.match(text, place)
        if between and ("'" in between[1] or '"' in between[1]):
            raise ValueError("ask without quotes between two slashes")
        if character == ";":
            parts.append("")
        else:
            parts[-1] += character
        place += 1
    return [part.strip() for part in parts if part.strip()] or [""]


def faults_of(answer: Any) -> list[str]:
    """What the server says is wrong, of the whole and of each statement."""
    if not isinstance(answer, dict):
        return ["the answer is no InfluxQL answer"]
    found = [answer, *answer.get("results", [])]
    return [str(one["error"]) for one in found if isinstance(one, dict) and one.get("error")]


def series_of(answer: Any) -> list[dict[str, Any]]:
    """All series of all statements."""
    results = answer.get("results", []) if isinstance(answer, dict) else []
    return [series for one in results for series in one.get("series", [])]


def table(series: dict[str, Any]) -> str:
    """One series: its name and tags, then its rows in columns as wide as their widest cell."""
    tags = ", ".join(f"{name}={value}" for name, value in (series.get("tags") or {}).items())
    title = ", ".join(part for part in (str(series.get("name", "")), tags) if part)
    columns = [str(name) for name in series.get("columns", [])]
    rows = [
        [_cell(name, value) for name, value in zip(columns, row, strict=False)]
        for row in series.get("values", [])
    ]
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=False)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in [columns, *rows]
    ]
    return "\n".join([title, *lines] if title else lines)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "time" and isinstance(value, int):
        whole, rest = divmod(value, 1_000_000_000)
        moment = datetime.fromtimestamp(whole, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}" + (f".{rest:09d}".rstrip("0") if rest else "") + "Z"
    if isinstance(value, float):
        return f"{value:.10g}"
    # A text must not write to the terminal.
    return "".join(c if c.isprintable() else " " for c in str(value))
