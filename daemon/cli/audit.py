"""``tocsin audit``: who hangs where in this node's PCIe tree, and what is not as it should be.

Where nvidia-smi is installed, its own matrix is looked at as well: is the NVLink mesh whole, and
does each GPU reach a network card as near as its peers do? That it fails is no fault of the node.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectors.node.topology import Fault

EXAMPLE = """examples:
  tocsin audit
  tocsin audit --json

Each GPU and network card with its ports, lanes and memory node; faults below it. Two nodes of one
kind have the same signature (the fleet's: tocsin nodes --versions). An idle link is slow by itself,
so speed is no fault here."""
SMI_SECONDS = 20.0


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin audit``."""
    del verb
    parser.epilog = EXAMPLE
    parser.add_argument("--root", type=Path, default=Path("/"), help="what stands before /sys")
    parser.add_argument("--nvidia-smi", default="nvidia-smi", metavar="PROGRAM",
                        help="whose topo -m is looked at; empty for none")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Looks and prints; exit code 1 when something is wrong, 3 when there is nothing to audit."""
    del verb
    from collectors.node.topology import faults, placed, signature

    parts = placed(arguments.root)
    found = faults(parts)
    mesh, note = _mesh(arguments.nvidia_smi)
    found += mesh
    if arguments.json:
        rows = [asdict(part) for part in parts]
        faulty = [asdict(one) for one in found]
        print(json.dumps({"signature": signature(parts), "parts": rows, "faults": faulty},
                         default=str))  # fmt: skip
        if note:
            print(note, file=sys.stderr)
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
        if note:
            print(note)
    if not parts:
        return 3
    return 1 if found else 0


def _mesh(program: str) -> tuple[list[Fault], str]:
    """What nvidia-smi's matrix shows that is not as with its peers, or why it was not looked at."""
    from collectors.command import Runner
    from collectors.gpu.findings import Findings
    from collectors.gpu.smi_topo import faults, read_matrix
    from collectors.node.topology import Fault

    if not program or shutil.which(program) is None:
        return [], ""
    result = Runner().run([program, "topo", "-m"], deadline_seconds=SMI_SECONDS, kind="nvidia-smi")
    matrix = read_matrix(result.stdout, Findings()) if result.ok else None
    if matrix is None or not matrix.gpus():
        why = result.fault or result.text().strip()[:200] or "it printed no matrix"
        return [], f"NVLink and the ways to network cards were not looked at: {program}: {why}"
    return [Fault(device, "mesh", words) for device, words in faults(matrix)], ""
