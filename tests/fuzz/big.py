"""Very large inputs for the parsers: ``python -m tests.fuzz.big SOURCE|all --megabytes 100``.

Each parser of ``tocsin parse`` is fed three texts of that size, each in a process of its own: one
of its own tool (4 MB of ever other boards, ports and sensors, again and again), noise, and its
tool's text as UTF-16. Printed are seconds of processor time and MiB at the peak beside the text.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOW_NS = 1_796_007_000_000_000_000
KINDS = ("own", "noise", "utf16")
BLOCK_BYTES = 4_000_000
DEADLINE_SECONDS = 3_600


def main() -> int:
    """One line for each parser, or, with ``--kind``, one parse as JSON."""
    words = argparse.ArgumentParser(prog="python -m tests.fuzz.big", description=__doc__)
    words.add_argument("source", help="a source of tocsin parse, or all")
    words.add_argument("--megabytes", type=int, default=100)
    words.add_argument("--kind", choices=KINDS, help="one text only")
    given = words.parse_args()
    from tests.collectors.test_parser_growth import OWN

    if given.kind:
        print(json.dumps(measure(given.source, given.kind, given.megabytes * 1_000_000)))
        return 0
    for name in sorted(OWN) if given.source == "all" else [given.source]:
        cells = []
        for kind in KINDS:
            argv = [sys.executable, "-m", "tests.fuzz.big", name, "--kind", kind]
            argv += ["--megabytes", str(given.megabytes)]
            done = subprocess.run(
                argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=DEADLINE_SECONDS
            )
            found = json.loads(done.stdout)
            cells.append(f"{found['cpu_seconds']:5.1f} s {found['peak_mib']:4.0f} MiB")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
    return 0


def measure(name: str, kind: str, size: int) -> dict[str, float]:
    """One parse of one text of ``size`` bytes."""
    from collectors.parsers import PARSERS

    text = made(name, kind, size)
    # The peak of the text's own making is forgotten.
    Path("/proc/self/clear_refs").write_text("5")
    before, begin = _status("VmRSS"), time.process_time()
    samples, problems = PARSERS[name](text, "n1", NOW_NS)
    return {
        "cpu_seconds": round(time.process_time() - begin, 2),
        "peak_mib": round((_status("VmHWM") - before) / 1024),
        "samples": len(samples),
        "problems": len(problems),
    }


def made(name: str, kind: str, size: int) -> bytes:
    """A text of ``size`` bytes."""
    from tests.collectors.test_parser_growth import others

    noise = kind == "noise"
    block = random.Random(7).randbytes(1_000_003) if noise else others(name, BLOCK_BYTES)
    if kind == "utf16":
        block = block.decode("utf-8", "replace").encode("utf-16-le")
    return (block * (size // len(block) + 1))[:size]


def _status(key: str) -> int:
    """A line of /proc/self/status in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
