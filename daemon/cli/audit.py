"""``tocsin audit``: who hangs where in this node's PCIe tree, and what is not as it should be."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

EXAMPLE = """examples:
  tocsin audit
  tocsin audit --json

Each GPU and network card with its ports, lanes and memory node; faults below it. Two nodes of one
kind have the same signature. An idle link is slow by itself, so speed is no fault here."""


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin audit``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--root", type=Path, default=Path("/"), help="what stands before /sys")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Looks and prints; exit code 1 when something is wrong, 3 when there is nothing to audit."""
    del verb
    from collectors.topology import faults, placed, signature

    parts = placed(arguments.root)
    found = faults(parts)
    if arguments.json:
        rows = [asdict(part) for part in parts]
        faulty = [asdict(one) for one in found]
        print(json.dumps({"signature": signature(parts), "parts": rows, "faults": faulty},
                         default=str))  # fmt: skip
    elif not parts:
        print("no GPU and no network card stands in this node's PCIe tree")
    else:
        print(f"signature {signature(parts)}")
        for part in parts:
            lanes = part.link.width if part.link.width is not None else "?"
            path = " < ".join(part.ports) or "root"
            print(f"{part.device.kind:<7} {part.device.address}  x{lanes:<3} "
                  f"numa {part.numa or '?':<3} {path}")  # fmt: skip
        for fault in found:
            print(f"FAULT   {fault.device}  {fault.code}: {fault.text}")
    if not parts:
        return 3
    return 1 if found else 0
