"""Which machine this is: serial and boot disk, as far as this user may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.node.chassis import identity


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_serial_and_boot_disk_are_told(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "sys/class/dmi/id/product_serial": "SGH 123\n",
            "proc/mounts": "proc /proc proc rw 0 0\n/dev/nvme0n1p2 / ext4 rw 0 0\n",
            "sys/block/nvme0n1/device/serial": "S5XYNG0T  \n",
        },
    )
    assert identity(root) == "serial=SGH_123 disk=S5XYNG0T"


@pytest.mark.parametrize("words", ["Default string", "To be filled by O.E.M.", "0000", "", "None"])
def test_what_vendors_leave_in_place_of_a_serial_is_none(tmp_path: Path, words: str) -> None:
    files = {"sys/class/dmi/id/product_serial": words, "sys/class/dmi/id/board_serial": "B7\n"}
    assert identity(machine(tmp_path, files)) == "serial=B7"


def test_a_root_on_no_disk_of_its_own_tells_nothing(tmp_path: Path) -> None:
    for mounts in (
        "overlay / overlay rw 0 0\n",
        "/dev/mapper/vg-root / xfs rw 0 0\n",
        "\0\xff",
        "",
    ):
        assert identity(machine(tmp_path, {"proc/mounts": mounts})) == ""
    assert identity(tmp_path / "nothing") == ""
