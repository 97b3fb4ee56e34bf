"""Kernel lines that few machines print: NVSwitches that do not start, faults of arm64."""

from __future__ import annotations

import pytest

from collectors.kernel.lines import parse
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
