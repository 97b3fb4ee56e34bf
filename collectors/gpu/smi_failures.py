"""What nvidia-smi prints when it fails: which GPU or what part, and what it means.

It prints failures on standard output, its standard error is always empty, and exit codes differ
between versions (the NVML code, or 255): the words are what can be relied on, and the exit code
says something only where there are none. One bad GPU makes most forms of the command print nothing
but a line about that GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collectors.events import CRITICAL, ERROR, WARNING, event
from collectors.node.pci import ADDRESS, address
from collectors.sample import Sample


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure: of the GPU at ``device``, or of the whole tool when that is empty.

    ``code`` is ``lost``, ``reset_required``, ``no_permission`` or ``unreadable`` for a GPU; for
    the tool ``driver_not_loaded``, ``library_missing``, ``version_mismatch``, ``blocked``,
    ``no_permission``, ``no_gpus``, ``unknown_field``, ``usage``, ``unknown``. ``advice`` is for
    people.
    """

    code: str
    text: str
    advice: str = ""
    device: str = ""


# nvidia-smi(1), "RETURN VALUE"; 17 and 18 are NVML's. 255 may be anything.
EXIT_CODES: dict[int, str] = {
    2: "it does not take these options",
    3: "what was asked for is not supported here",
    4: "no permission to use the NVIDIA driver",
    6: "it finds no such GPU",
    8: "a GPU lacks external power: look at its cables",
    9: "the NVIDIA driver is not loaded",
    10: "interrupts of a GPU do not arrive",
    12: "libnvidia-ml.so was not found",
    13: "the library lacks a function: it is older than nvidia-smi",
    14: "the infoROM of a GPU is corrupted",
    15: "a GPU is lost or can't be reached",
    17: "the operating system blocks access to the GPUs",
    18: "driver and library are of different versions",
}

# The first that matches wins.
_TOOL: tuple[tuple[str, str, str], ...] = (
    (
        r"couldn't communicate with the NVIDIA driver|Driver Not Loaded",
        "driver_not_loaded",
        "the NVIDIA driver is not loaded: look for its module and for NVRM lines in dmesg",
    ),
    (
        r"couldn't find libnvidia-ml|NVML Shared Library Not Found",
        "library_missing",
        "libnvidia-ml.so was not found: is the NVIDIA driver installed?",
    ),
    (
        r"Driver/library version mismatch|Mismatch in versions between nvidia-smi and NVML"
        r"|Failed to initialize NVML: Function Not Found",
        "version_mismatch",
        "driver, library and nvidia-smi are of different versions: the driver was upgraded on "
        "disk while the old module stays loaded; reload the module or restart the node",
    ),
    (
        r"GPU access blocked by the operating system",
        "blocked",
        "the operating system blocks access to the GPUs: look at device cgroups and containers",
    ),
    (
        r"Failed to initialize NVML: Insufficient Permissions|do not have suff\w+ permissions",
        "no_permission",
        "no permission to use the NVIDIA driver",
    ),
    (r"No devices (?:were )?found", "no_gpus", "the driver is loaded and finds no GPU"),
    (
        r"is not a valid field to query|Field \"",
        "unknown_field",
        "this version of nvidia-smi does not know a field, and prints nothing at all for it",
    ),
    (
        r"Invalid combination of input arguments|is not a recognized (?:option|argument)",
        "usage",
        "this version of nvidia-smi does not take these options",
    ),
    (
        r"Failed to initialize NVML|Unable to determine the number of GPUs"
        r"|Failed to query device|NVIDIA-SMI has failed",
        "unknown",
        "nvidia-smi cannot speak to the driver: look for NVRM lines in dmesg",
    ),
)
_TOOL_RULES = tuple((re.compile(words, re.I), code, advice) for words, code, advice in _TOOL)

_GPU = re.compile(
    rf"(?:Unable to determine the device handle for GPU|Problem with GPU)\s*({ADDRESS})\s*:\s*(.*)",
    re.I,
)
_GPU_CODES = (
    (re.compile(r"GPU is lost", re.I), "lost"),
    (re.compile(r"reset must occur|requires reset", re.I), "reset_required"),
    # A device cgroup that hides a GPU says the same of a healthy one.
    (re.compile(r"Insufficient Permissions", re.I), "no_permission"),
)


# Printed after a reading that is whole; the exit code is then 14.
_INFOROM = re.compile(rf"infoROM is corrupted at gpu\s*({ADDRESS})", re.I)
INFOROM_ADVICE = (
    "the GPU's own table of board data (infoROM) is damaged; it is read all the same: restart the "
    "node, and if it stays have the GPU replaced"
)


def corrupted_inforom(line: str) -> str:
    """The address of the GPU whose infoROM a line calls corrupted, else empty."""
    found = _INFOROM.search(line)
    return address(found[1]) if found is not None else ""


def failure_of(line: str) -> Failure | None:
    """The failure that a line tells, or None."""
    found = _GPU.search(line)
    if found is not None:
        device, words = address(found[1]), found[2].strip()
        for pattern, code in _GPU_CODES:
            if pattern.search(words):
                return Failure(code, line.strip(), device=device)
        return Failure("unreadable", line.strip(), device=device)
    for pattern, code, advice in _TOOL_RULES:
        if pattern.search(line):
            return Failure(code, line.strip(), advice)
    return None


def failure_event(failure: Failure, node: str, time_ns: int) -> Sample | None:
    """The event of a failure that names a GPU; a failure of the tool is no event of a part."""
    if not failure.device:
        return None
    lost = failure.code == "lost"
    severity = {"lost": CRITICAL, "no_permission": WARNING}.get(failure.code, ERROR)
    return event(
        node,
        "gpu_lost" if lost else "driver",
        "nvidia-smi" if lost else failure.code,
        time_ns,
        text=failure.text,
        severity=severity,
        device=failure.device,
    )
