"""Kernel lines that few machines print: NVSwitches that do not start, faults of arm64."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.kernel.hosts import Hosts
from collectors.kernel.lines import classify, parse
from collectors.kernel.text import TextReader
from tests.collectors.contract import NODE, NOW_NS


@pytest.mark.parametrize("device", ["loop3", "sda1"])
@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs error (device {}): ext4_lookup:1590: inode #12: comm a: bad extra_isize",
        "EXT4-fs ({}): Remounting filesystem read-only",
        "XFS ({}): Corruption of in-memory data detected.  Shutting down filesystem",
        "BTRFS info (device {}): forced readonly",
        "I/O error, dev {}, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "Buffer I/O error on dev {}, logical block 0, async page read",
        "F2FS-fs ({}): Remounting filesystem read-only",
    ],
)
def test_a_users_broken_image_is_no_fault_of_the_nodes_disks(line: str, device: str) -> None:
    samples, _ = parse(f"[  114.000001] {line.format(device)}\n", NODE, NOW_NS)
    assert [one.tag("kind") for one in samples] == ["filesystem"] * (device == "sda1")


@pytest.mark.parametrize(
    ("line", "kind", "code"),
    [
        ("nvidia-nvswitch2: Failed to initialize device : -5", "driver", "nvswitch"),
        ("nvidia-nvswitch2:Failed during device post init : -5", "driver", "nvswitch"),
        ("nvidia-nvswitch: Failed to register driver : -17", "driver", "nvswitch"),
        ("nvidia-nvswitch1: Interrupts disabled to avoid a storm", "driver", "nvswitch"),
        ("Unable to handle kernel paging request at virtual address dead", "panic", "oops"),
        ("Internal error: synchronous external abort: 96000210 [#1] SMP", "panic", "oops"),
        ("SError Interrupt on CPU7, code 0x00000000be000411 -- SError", "panic", "oops"),
    ],
)
def test_an_nvswitch_that_fails_and_a_grace_that_stumbles_are_found(
    line: str, kind: str, code: str
) -> None:
    (found,) = parse(f"[  114.000001] {line}\n", NODE, NOW_NS)[0]
    assert (found.tag("kind"), found.tag("code")) == (kind, code)
    assert found.number("severity") == 2.0


PROGRAM = """\
Nov 30 02:41:12 gpu07 kernel: NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=a, Ch 1
Nov 30 02:41:13 gpu07 trainer[77]: line one
                                   line two
                                   line three
                                   NVRM: Xid (PCI:0000:1b:00): 79, pid=1
                                   NVRM: Xid (PCI:0000:1b:00): 48, pid=1
Nov 30 02:41:14 gpu07 kernel: NVRM: Xid (PCI:0000:9b:00): 43, pid=1, name=a, Ch 1
Nov 30 02:41:15 gpu07 kernel: NVRM: GPU at PCI:0000:9b:00: GPU-1
                              NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=a, Ch 1
"""


def test_no_line_of_what_a_program_wrote_over_many_lines_is_the_kernels() -> None:
    assert [one.tag("code") for one in parse(PROGRAM, NODE, NOW_NS)[0]] == ["31", "43", "45"]


def test_nor_is_it_in_a_file_that_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    file.write_text(PROGRAM)
    hosts = Hosts(["gpu07"])
    reader = TextReader(file, lambda: 1, hosts, trust_mixed=True)
    events = [
        event.code
        for record in reader.read(NOW_NS, 100)
        if record.kernel and (event := classify(record.text)) is not None
    ]
    assert events == ["31", "43", "45"]
    reader.close()
