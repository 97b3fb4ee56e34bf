"""What the tests of the kernel log share."""

from __future__ import annotations

from pathlib import Path

from collectors.sample import Batch, Context
from tests.collectors.contract import NOW_NS

SECOND = 10**9
XID = "NVRM: Xid (PCI:0000:{:02x}:00): {}, pid=1, name=a, GPU has fallen off the bus.\n"


def line(code: int, bus: int = 0x3B) -> str:
    return XID.format(bus, code)


def codes(batch: Batch) -> list[str]:
    return [one.tag("code") for one in batch.samples]


def proc(context: Context, boot_id: str = "b0", boot_ns: int = NOW_NS - 1_000 * SECOND) -> None:
    folder = context.root / "proc/sys/kernel/random"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "boot_id").write_text(boot_id + "\n")
    (context.root / "proc/stat").write_text(f"cpu 1 2 3\nbtime {boot_ns // SECOND}\n")


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)
