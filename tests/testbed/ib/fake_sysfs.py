#!/usr/bin/env python3
"""Makes a fake /sys/class/infiniband for tests: fake_sysfs.py ROOT

ROOT/class/infiniband then has:
  mlx5_0  400 Gb/s NDR InfiniBand, healthy       mlx5_1  cable out: DOWN / Polling, rate 10
  mlx5_2  trained down to 2X (200 of 400 Gb/s)   mlx5_3  INIT: link up, no subnet manager
  mlx5_4  RoCE (link_layer Ethernet), LID 0      mlx5_5  counters saturated, one unreadable
  mlx5_6  disabled, rate "0 Gb/sec"              mlx5_7  ports 1 and 2 down, 3 active
  irdma0  no counters folder, only hw_counters   i40iw0  every counter "N/A (no PMA)"
  mlx5_8  a device with an empty ports folder (goes away while it is read)

The real ibstat reads such a tree in a mount namespace of its own (as root):
  unshare -m sh -c 'mount -t tmpfs none /sys/class; cp -a ROOT/class/infiniband /sys/class/; ibstat'
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
)
DATA = (
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_wait",
)
HW = (
    "local_ack_timeout_err",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)


def put(path: Path, text: object) -> None:
    """Writes a file as sysfs shows it: with a line end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def device(root: Path, name: str, firmware: str = "28.39.1002", kind: str = "MT4129") -> Path:
    """A device without ports yet."""
    folder = root / "class/infiniband" / name
    guid = f"b8ce:f603:0010:{zlib.crc32(name.encode()) & 0xFFF0:04x}"
    for file, text in (
        ("fw_ver", firmware),
        ("node_type", "1: CA"),
        ("node_guid", guid),
        ("sys_image_guid", guid),
        ("node_desc", f"gpu-0001 {name}"),
        ("hw_rev", "0"),
    ):
        put(folder / file, text)
    if kind:
        put(folder / "hca_type", kind)
        put(folder / "board_id", "MT_0000000838")
    (folder / "ports").mkdir()
    return folder


def port(
    folder: Path,
    number: int = 1,
    *,
    state: str = "4: ACTIVE",
    physical: str = "5: LinkUp",
    rate: str = "400 Gb/sec (4X NDR)",
    layer: str = "InfiniBand",
    lid: str = "0x1a",
    sm: str = "0x1",
    counters: bool = True,
    hw: bool = True,
    guid: str = "",
    no_sm: bool = False,
    **values: object,
) -> Path:
    """A port of ``folder``; ``values`` are counters by file name, ``every`` for all others.

    ``guid`` is that of the port where it is not the node's; ``no_sm`` sets IsSMDisabled.
    """
    place = folder / "ports" / str(number)
    for file, text in (
        ("state", state),
        ("phys_state", physical),
        ("rate", rate),
        ("link_layer", layer),
        ("lid", lid),
        ("sm_lid", sm),
        ("lid_mask_count", "0"),
        ("sm_sl", "0"),
        ("cap_mask", "0xa751ec48" if no_sm else "0xa751e848"),
    ):
        put(place / file, text)
    own = guid or (folder / "node_guid").read_text().strip()
    put(place / "gids/0", f"fe80:0000:0000:0000:{own}")
    put(place / "pkeys/0", "0xffff")
    if counters:
        for n, file in enumerate(ERRORS + DATA):
            usual = 0 if file in ERRORS else 10**12 + n
            put(place / "counters" / file, values.get(file, values.get("every", usual)))
    if hw:
        for file in HW:
            put(place / "hw_counters" / file, values.get(file, 0))
        put(place / "hw_counters" / "lifespan", "10")
    return place


def planes(
    root: Path, device_name: str, smi_name: str, guid: str, count: int = 4, *, tells_sm: bool = True
) -> tuple[Path, Path]:
    """An XDR adapter as mlx5 lists it: a device with the link, a sub-device with its planes."""
    whole = device(root, device_name, "40.44.0208", "MT4131")
    port(whole, guid=guid, no_sm=tells_sm, rate=f"{200 * count} Gb/sec ({count}X XDR)")
    sub = device(root, smi_name, "40.44.0208", "MT4131")
    for number in range(1, count + 1):
        port(sub, number, guid=guid, rate="200 Gb/sec (1X XDR)")
    return whole, sub


def interface(root: Path, folder: Path, name: str, *, ipoib: bool, **files: object) -> Path:
    """A network interface of the device: ``files`` are further files, e.g. ``operstate``."""
    (folder / "device" / "net" / name).mkdir(parents=True)
    net = root / "class/net" / name
    put(net / "type", "32" if ipoib else "1")
    put(net / "dev_port", "0")
    for file, text in files.items():
        put(net / file, text)
    return net


def tree(root: Path) -> None:
    """The tree with every kind of trouble that the text above lists."""
    port(device(root, "mlx5_0"))
    down = {"state": "1: DOWN", "lid": "0xffff", "sm": "0x0"}
    port(device(root, "mlx5_1"), physical="2: Polling", rate="10 Gb/sec (4X SDR)", **down)
    port(device(root, "mlx5_2"), rate="200 Gb/sec (2X NDR)", symbol_error=12, link_downed=1)
    port(device(root, "mlx5_3"), state="2: INIT", lid="0x0", sm="0x0")
    roce = {"layer": "Ethernet", "lid": "0x0", "sm": "0x0"}
    port(device(root, "mlx5_4"), out_of_sequence=7, roce_adp_retrans=3, **roce)
    full = {
        "symbol_error": 65535,
        "link_downed": 255,
        "link_error_recovery": 255,
        "local_link_integrity_errors": 15,
        "port_rcv_errors": 65535,
        "port_xmit_discards": 65535,
        "port_xmit_wait": 4294967295,
    }
    saturated = port(device(root, "mlx5_5"), **full) / "counters" / "VL15_dropped"
    saturated.unlink()
    saturated.symlink_to("/proc/self/clear_refs")  # reading it fails, also for root
    port(device(root, "mlx5_6"), physical="3: Disabled", rate="0 Gb/sec", **down)
    planes = device(root, "mlx5_7", "40.44.0208", "MT4131")
    for number in (1, 2):
        unused = {"state": "1: DOWN", "physical": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}
        port(planes, number, **unused, **roce)
    port(planes, 3, rate="200 Gb/sec (1X XDR)", **roce)
    device(root, "mlx5_8")
    other = {"layer": "Ethernet", "lid": "0x1", "sm": "0x0"}
    port(device(root, "irdma0", "1.71", ""), rate="100 Gb/sec (4X EDR)", counters=False, **other)
    none = dict.fromkeys((*ERRORS, *DATA), "N/A (no PMA)")
    slow = "10 Gb/sec (4X SDR)"
    port(device(root, "i40iw0", "0.2", "I40IW"), rate=slow, hw=False, **none, **other)


if __name__ == "__main__":
    tree(Path(sys.argv[1]))
