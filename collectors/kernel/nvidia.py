"""Kernel lines of the NVIDIA drivers: Xid, SXid, lost GPUs, a driver that does not start.

The formats follow the driver's own format strings (open-gpu-kernel-modules, ``nvidia/nv.c``,
``kernel/gpu/rc``, ``nvswitch``) as they changed from R390 to R590. Codes are taken as they
stand; what a code means is the business of ``models``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from collectors.kernel.event import CRITICAL, ERROR, INFO, WARNING, KernelEvent
from collectors.node.pci import ADDRESS, address

# NVIDIA's own numbers of the recovery action (nvmlDeviceGpuRecoveryAction_t; NVML field 230 and
# Xid 154). The word in brackets is what people read; the number is what we trust.
RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}

# How bad one Xid is by its number alone. Everything that is named nowhere is a WARNING.
XID_CRITICAL = frozenset({48, 79, 95, 140})
XID_ERROR = frozenset(
    {46, 54, 62, 64, 74, 92, 94, 109, 110, 119, 120, 121, 136, 143, 151, 155, 156, 157, 158}
    | {161, 165, 167, 168, 169, 171, 172, 173, 175}
)
XID_INFO = frozenset({14, 106, 107, 162})
XID_NVLINK5 = range(144, 151)

_XID = re.compile(
    r"NVRM:\s+(?:GPU\s?\d+\s+)?Xid\s*\((?:PCI:)?"
    rf"(?P<pci>{ADDRESS}|[0-9A-Fa-f]{{4}}:[0-9A-Fa-f]{{2}})(?P<mig>[^)\[\]]{{0,40}})\):?\s*"
    r"(?P<code>\d{1,7})(?!\d)(?P<rest>.*)",
    re.S,
)
_MIG = re.compile(r"GPU-I:\s*(\d+)(?:\s+GPU-CI:\s*(\d+))?")
_PID = re.compile(r",\s*pid=(?P<pid>'[^']*'|\"[^\"]*\"|<[^>]*>|[^,\s]*)", re.S)
_NAME = re.compile(r",\s*name=", re.S)
_UNKNOWN = re.compile(r"""['"]?<unknown>['"]?""")
# A process name has at most 15 characters (TASK_COMM_LEN), and may hold ", " itself; then
# the message begins where one of the driver's own openings stands.
_NAME_LIMIT = 15
_OPENING = re.compile(
    r"Ch(?:annel)?\b|GPU\b|Graphics|MMU|Timeout|Row Remapper|Row remapping|Contained|Uncontained"
    r"|An? |NVLink|ROBUST|CE\d|PBDMA|errorString|Internal|Failed"
    r"|[A-Z][A-Z0-9_/]{2,} +(?:Non-?)?[Ff]atal"
)

_RECOVERY = re.compile(
    r"recovery action changed from\s+0x(?P<before>[0-9A-Fa-f]+)\s*(?:\([^)]*\))?\s+to\s+"
    r"0x(?P<after>[0-9A-Fa-f]+)\s*(?:\((?P<word>[^)]*)\)?)?"
)
_NVLINK = re.compile(
    r"(?P<unit>[A-Z][A-Za-z0-9_]*(?:[/ ][A-Z][A-Za-z0-9_]*)*)\s+(?P<fatal>Fatal|Non-?fatal)\s+"
    r"XC(?P<xc>\d+)\s+i(?P<instance>\d+)\s+Link\s+(?P<link>-?\d+)\s*\((?P<words>[^)]*)"
)
_WORD = re.compile(r"0x([0-9A-Fa-f]{8})\b")

_SXID = re.compile(
    rf"nvidia-nvswitch(?P<switch>\d+): SXid \((?:PCI:)?(?P<pci>{ADDRESS})\):?\s*"
    r"(?P<code>\d{1,7})(?!\d)(?P<rest>.*)",
    re.S,
)
_SXID_SEVERITY = re.compile(r",?\s*(?P<word>Fatal|Non-?fatal|Corrected)\b", re.I)
_SXID_DETAIL = re.compile(r",?\s*(?:Severity\s+\d+\s+Engine|Data\s*\{|Engine instance)", re.I)

_LOST = re.compile(r"NVRM:.*?fallen off the bus", re.S)
_ANY_ADDRESS = re.compile(rf"(?:(?<=PCI:)|(?<![0-9A-Fa-f:])){ADDRESS}(?![0-9A-Fa-f:])")
_VERSION = re.compile(r"NVRM: loading NVIDIA UNIX .*?\s(?P<version>\d{3,4}\.\d+(?:\.\d+)?)\b")


@dataclass(frozen=True, slots=True)
class XidLine:
    """The parts of one Xid line. ``pid`` and ``process`` are absent where the driver did not
    know them; ``gi`` and ``ci`` number the MIG instance; ``message`` is what follows them."""

    code: int
    pci: str
    pid: int | None = None
    process: str = ""
    gi: int | None = None
    ci: int | None = None
    message: str = ""
    whole: bool = True  # False: the line ends right after the digits, so the code may be cut


@dataclass(frozen=True, slots=True)
class NvlinkLine:
    """The parts of one NVLink 5 line (Xid 144 to 150). ``link`` is -1 for none; ``words`` are
    the registers as printed, the first is IntrInfo, the second the error status."""

    unit: str
    fatal: bool
    link: int
    words: tuple[int, ...]


def xid_line(text: str) -> XidLine | None:
    """The parts of an Xid line, or None if ``text`` is none.

    >>> xid_line("NVRM: Xid (PCI:0000:3B:00): 79, pid=7, name=a,b, GPU has fallen off").process
    'a,b'
    """
    found = _XID.match(text)
    if found is None:
        return None
    mig = _MIG.search(found["mig"])
    pid, process, message = _process(found["rest"])
    return XidLine(
        int(found["code"]),
        address(found["pci"]),
        pid,
        process,
        int(mig[1]) if mig else None,
        int(mig[2]) if mig and mig[2] else None,
        message,
        bool(found["rest"].strip()),
    )


def _process(rest: str) -> tuple[int | None, str, str]:
    """(pid, process name, message) of what follows the code."""
    pid: int | None = None
    process = ""
    found = _PID.match(rest)
    if found:
        word = found["pid"].strip("'\"")
        # A pid has at most 7 digits (PID_MAX_LIMIT is 4194304).
        pid = int(word) if word.isascii() and word.isdigit() and len(word) <= 10 else None
        rest = rest[found.end() :]
    found = _NAME.match(rest)
    if found:
        process, rest = _name(rest[found.end() :])
    return pid, process, rest.lstrip(", ").rstrip()


def _name(rest: str) -> tuple[str, str]:
    """Splits ``NAME, MESSAGE``, where NAME may hold commas."""
    unknown = _UNKNOWN.match(rest)
    if unknown:
        return "", rest[unknown.end() :]
    cuts = [at.start() for at in re.finditer(r",\s", rest[:200])]
    if not cuts:
        return rest.strip().rstrip(","), ""
    near = [cut for cut in cuts if cut <= _NAME_LIMIT]
    for cut in reversed(near):
        if _OPENING.match(rest[cut + 1 :].lstrip()):
            return rest[:cut], rest[cut:]
    return rest[: cuts[0]], rest[cuts[0] :]


def recovery_action(message: str) -> str:
    """The action that an Xid 154 line asks for: a value of RECOVERY_ACTIONS.

    ``none`` when it says that nothing is needed any more, ``unknown`` for a number that is
    not known, empty when the line does not tell.
    """
    found = _RECOVERY.search(message)
    if found is None:
        return ""
    return RECOVERY_ACTIONS.get(int(found["after"], 16), "unknown")


def nvlink_line(message: str) -> NvlinkLine | None:
    """The parts of an NVLink 5 message, or None. A cut-off line gives what it still holds."""
    found = _NVLINK.search(message)
    if found is None:
        return None
    return NvlinkLine(
        found["unit"],
        found["fatal"] == "Fatal",
        int(found["link"]),
        tuple(int(word, 16) for word in _WORD.findall(found["words"])),
    )


def xid_severity(code: int, message: str = "") -> float:
    """How bad one Xid is: by its code, and by its own words where the code says too little."""
    if code == 154:
        action = recovery_action(message)
        if action in ("node_reboot", "system_reboot"):
            return CRITICAL
        return INFO if action == "none" else ERROR
    if code in XID_NVLINK5:
        line = nvlink_line(message)
        return WARNING if line is None or not line.fatal else ERROR
    if code in XID_CRITICAL:
        return CRITICAL
    if code in XID_ERROR:
        return ERROR
    return INFO if code in XID_INFO else WARNING


# ---- matchers: message in, event out ------------------------------------------------------


def xid(text: str) -> KernelEvent | None:
    """``NVRM: Xid (PCI:0000:3b:00): 79, pid=..., name=..., ...``"""
    line = xid_line(text)
    if line is None or not line.pci:
        return None
    severity = xid_severity(line.code, line.message)
    return KernelEvent("xid", str(line.code), severity, text, line.pci, line.pid, line.process)


def sxid(text: str) -> KernelEvent | None:
    """``nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 ...``

    The lines that follow (``Severity 1 Engine ...``, ``Data {...}``) carry the same code
    without its severity: they are detail, not a second error.
    """
    found = _SXID.match(text)
    if found is None:
        return None
    word = _SXID_SEVERITY.match(found["rest"])
    if word:
        severity = CRITICAL if word["word"].lower() == "fatal" else WARNING
    else:
        severity = INFO if _SXID_DETAIL.match(found["rest"]) else WARNING
    return KernelEvent("sxid", str(int(found["code"])), severity, text, address(found["pci"]))


def lost(text: str) -> KernelEvent | None:
    """``GPU has fallen off the bus`` in a line that is no Xid."""
    if not _LOST.match(text):
        return None
    return KernelEvent("gpu_lost", "lost", CRITICAL, text, _device(text))


def version(text: str) -> KernelEvent | None:
    """``NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01 ...``"""
    found = _VERSION.match(text)
    if found is None:
        return None
    return KernelEvent("version", "driver", INFO, found["version"])


def _driver(pattern: str, code: str, severity: float) -> Callable[[str], KernelEvent | None]:
    compiled = re.compile(pattern)

    def match(text: str) -> KernelEvent | None:
        if not compiled.match(text):
            return None
        return KernelEvent("driver", code, severity, text, _device(text))

    return match


def _device(text: str) -> str:
    for found in _ANY_ADDRESS.finditer(text):
        here = address(found[0])
        if here:
            return here
    return ""


MATCHERS: tuple[Callable[[str], KernelEvent | None], ...] = (
    # The first of all: it holds words of a client, who may be any user.
    _driver(r"NVRM: API mismatch", "api_mismatch", ERROR),
    xid,
    sxid,
    lost,
    version,
    _driver(r"NVRM:.*(?:RmInitAdapter failed|rm_init_adapter failed)", "init_failed", ERROR),
    _driver(r"NVRM:.*(?:NV_ERR_RESET_REQUIRED|Reset required)", "reset_required", ERROR),
    _driver(r"NVRM:.*The GPU likely needs to be reset", "reset_likely", ERROR),
    _driver(r"NVRM:.*rpcSendMessage failed", "gsp_rpc", WARNING),
    _driver(
        r"NVRM:.*(?:probe routine (?:failed|was not called)"
        r"|None of the NVIDIA (?:devices|graphics adapters) were initialized"
        r"|No NVIDIA (?:GPU|graphics adapter|device)s? (?:found|probed))",
        "probe_failed",
        ERROR,
    ),
    _driver(
        r"nvidia-nvswitch\d*: ?(?:Failed (?:to (?:initialize|enable|request|map|register|create"
        r"|schedule)|during device)|failed to get IRQ|Interrupts disabled to avoid a storm)",
        "nvswitch",
        ERROR,
    ),
    _driver(r"NVRM:.*Assertion failed", "assertion", WARNING),
    _driver(r"NVRM:.*GPU is (?:lost|inaccessible)", "inaccessible", ERROR),
    _driver(
        r"nvidia .*(?:Unable to change power state .*inaccessible|device inaccessible)",
        "inaccessible",
        ERROR,
    ),
)
