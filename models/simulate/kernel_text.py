"""Kernel log lines as the NVIDIA driver, EDAC and mlx5 write them, as ``event`` samples.

The wording follows public captures of these drivers; pids and addresses are invented.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.events import event
from collectors.sample import Sample

# text after "NVRM: Xid (PCI:<address>): <code>, pid=<pid>, name=<process>, "
XID_TEXT: Mapping[int, str] = {
    13: "Graphics Exception: ESR 0x504730=0x20009 0x504734=0x0 0x504728=0x4c1eb72",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted "
    "@ 0x7f3c_12000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000010",
    45: "Ch 00000010",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer "
    "at partition 6, subpartition 0.",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: All reserved rows for bank are remapped",
    74: "NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU GSP! "
    "Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x0).",
}
_SEVERITY = {13: 1.0, 31: 1.0, 43: 1.0, 45: 1.0, 63: 1.0, 94: 2.0, 74: 2.0}
_OF_A_PROCESS = frozenset({13, 31, 43, 45, 94, 119})


def xid(node: str, address: str, code: int, time_ns: int, pid: int, process: str) -> Sample:
    """One XID line of the GPU at ``address`` (``0000:9b:00``)."""
    owned = code in _OF_A_PROCESS
    who = f"pid={pid}, name={process}" if owned else "pid='<unknown>', name=<unknown>"
    return event(
        node,
        "xid",
        str(code),
        time_ns,
        text=f"NVRM: Xid (PCI:{address}): {code}, {who}, {XID_TEXT[code]}",
        severity=_SEVERITY.get(code, 3.0),
        device=address,
        pid=float(pid) if owned else None,
        process=process if owned else "",
    )


def bus_lost(node: str, address: str, time_ns: int) -> list[Sample]:
    """What the driver writes when a GPU falls off the bus: the XID and a plain line."""
    return [
        xid(node, address, 79, time_ns, 0, ""),
        event(
            node,
            "gpu_lost",
            "lost",
            time_ns + 1,
            text=f"NVRM: GPU {address}.0: GPU has fallen off the bus.",
            severity=3.0,
            device=address,
        ),
    ]


def inventory(node: str, gpu: int, uuid: str, model: str, address: str, time_ns: int) -> Sample:
    """The inventory event of one GPU, as the nvml source emits it."""
    text = f"gpu={gpu} uuid={uuid} serial=16500{gpu:08d} model={model}"
    return event(node, "inventory", "gpu", time_ns, text=text, severity=0.0, device=address)
