"""Coverage-guided fuzzing of the parsers: ``python -m tests.fuzz SOURCE|all --seconds N``.

Each parser of ``tocsin parse`` is fed what the fuzzer makes of the fixtures; what reaches new code
is kept and changed further. A case fails when the parser raises, breaks the promises of
:mod:`tests.collectors.parser_check`, takes more than ten seconds or more than a gigabyte. It is
written to ``--found`` (default build/fuzz/SOURCE); made smaller by hand it goes to
tests/fixtures/found/SOURCE, where the suite feeds it to the parser for ever.

Needs atheris (pip install "tocsin[fuzz]"), which has wheels for CPython 3.11 to 3.13 on Linux.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
NOW_NS = 1_796_007_000_000_000_000
INPUT_MOST_BYTES = 32_768
CASE_SECONDS = 10
CASE_MEBIBYTES = 1024
_WORD = re.compile(rb"[!-~]{3,24}")


def main() -> int:
    """Runs one parser here, or all of them each in a process of its own."""
    words = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    words.add_argument("source", help="a source of tocsin parse, or all")
    words.add_argument("--seconds", type=int, default=60, help="for each source")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--found", type=Path, default=ROOT / "build/fuzz")
    given = words.parse_args()
    if given.source == "all":
        return _all(given)
    return _one(given.source, given.seconds, given.seed, given.found / given.source)


def _all(given: argparse.Namespace) -> int:
    from collectors.parsers import PARSERS

    failed = []
    for name in sorted(PARSERS):
        argv = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(given.seconds)]
        argv += ["--seed", str(given.seed), "--found", str(given.found)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        told = [line for line in done.stderr.splitlines() if line.startswith(("#", "Done"))]
        print(f"{name:<20} {'ok' if done.returncode == 0 else 'FAILED'}  {told[-1:]}", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stderr[-3000:], flush=True)
    print(f"{len(failed)} of {len(PARSERS)} parsers failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _one(name: str, seconds: int, seed: int, found: Path) -> int:
    try:
        import atheris
    except ImportError:
        print('atheris is not installed: pip install "tocsin[fuzz]"', file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["collectors"]):
        from collectors.parsers import PARSERS
    from tests.collectors.parser_check import check

    if name not in PARSERS:
        print(f"no source {name!r}; known: {', '.join(sorted(PARSERS))}", file=sys.stderr)
        return 2
    parse: Callable[..., Any] = PARSERS[name]

    def case(data: bytes) -> None:
        check(*parse(data, "n1", NOW_NS))

    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus, dictionary = Path(folder) / "corpus", Path(folder) / "words"
        corpus.mkdir()
        _seeds(parse, corpus, dictionary)
        argv = [
            sys.argv[0],
            str(corpus),
            f"-dict={dictionary}",
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_MOST_BYTES}",
            f"-timeout={CASE_SECONDS}",
            f"-rss_limit_mb={CASE_MEBIBYTES}",
            f"-seed={seed}",
            f"-artifact_prefix={found}/",
        ]
        atheris.Setup(argv, case)
        atheris.Fuzz()  # ends the process
    return 0


def _seeds(parse: Callable[..., Any], corpus: Path, dictionary: Path) -> None:
    """The fixtures that this parser reads something in, and their commonest words."""
    words: Counter[bytes] = Counter()
    for number, path in enumerate(sorted(FIXTURES.rglob("*"))):
        if not path.is_file():
            continue
        body = path.read_bytes()[:INPUT_MOST_BYTES]
        if parse(body, "n1", NOW_NS)[0]:
            (corpus / f"{number}").write_bytes(body)
            words.update(set(_WORD.findall(body)))
    lines = []
    for word, _ in words.most_common(300):
        text = "".join(chr(byte) if chr(byte).isalnum() else f"\\x{byte:02x}" for byte in word)
        lines.append(f'"{text}"')
    dictionary.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
