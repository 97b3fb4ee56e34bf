"""Kernel lines of the hardware's own error reports: AER, machine checks, EDAC, GHES.

Sources of the formats: Linux ``drivers/pci/pcie/aer.c`` and ``dpc.c`` (wordings of 4.x, 5.x
and 6.x), ``arch/x86/kernel/cpu/mce``, ``drivers/edac``, ``drivers/firmware/efi/cper.c``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from collectors.kernel.event import CRITICAL, ERROR, INFO, WARNING, KernelEvent
from collectors.node.pci import ADDRESS, address, requester

_AER_SEVERITY = {"corrected": WARNING, "nonfatal": ERROR, "fatal": CRITICAL}

# "pcieport 0000:37:01.0: AER: Corrected error received: 0000:3b:00.0" (5.x), "...: id=00e5"
# (4.x), "AER: Multiple Correctable error message received from 0000:3b:00.0" (6.8 on).
_AER_RECEIVED = re.compile(
    rf"\S+ (?P<port>{ADDRESS}): AER: (?:Multiple )?"
    r"(?P<word>Correct(?:ed|able)|Uncorrect(?:ed|able)) (?:\((?P<fatal>Non-?Fatal|Fatal)\) )?"
    r"error (?:message )?received"
    rf"(?:: id=(?P<id>[0-9A-Fa-f]{{4}})|(?:: | from )(?P<from>{ADDRESS}))?",
    re.I,
)
# "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
_AER_BUS_ERROR = re.compile(
    rf"\S+ (?P<at>{ADDRESS}): (?:AER: )?PCIe Bus Error: severity="
    r"(?P<word>Correct(?:ed|able)|Uncorrect(?:ed|able))(?: \((?P<fatal>Non-?Fatal|Fatal)\))?",
    re.I,
)
_AER_AFTER = re.compile(rf"\S+ (?P<at>{ADDRESS}): AER: (?P<what>.*)", re.S)
_AER_UNRECOVERED = re.compile(r"can't recover|[Dd]evice recovery failed")
_DPC = re.compile(rf"\S+ (?P<at>{ADDRESS}): DPC: (?:containment event|.*ERR_(?:FATAL|NONFATAL))")
_PCIEHP = re.compile(
    rf"\S+ (?P<at>{ADDRESS}): pciehp: Slot\((?P<slot>[^)]*)\): "
    r"(?P<what>Link Down|Link Up|Card not present|Card present)"
)
_INACCESSIBLE = re.compile(
    rf"\S+ (?P<at>{ADDRESS}): (?:Unable to change power state .*inaccessible"
    r"|not ready .* after .*giving up)"
)

_MCE_BANK = re.compile(
    r"(?:mce: )?(?:\[Hardware Error\]: )?CPU (?P<cpu>\d+): Machine Check(?P<exc> Exception)?: "
    r"[0-9a-fA-F]+ Bank (?P<bank>\d+): (?P<status>[0-9a-fA-F]{1,16})"
)
_MCE_AMD = re.compile(
    r"(?:mce: )?\[Hardware Error\]: CPU:(?P<cpu>\d+).*?MC(?P<bank>\d+)_STATUS\[[^\]]*\]: "
    r"0x(?P<status>[0-9a-fA-F]{1,16})"
)
_MCE_LOGGED = re.compile(r"(?:mce: )?\[Hardware Error\]: Machine check events logged")
_MCE_PANIC = re.compile(
    r"(?:Kernel panic - not syncing: )?(?:Fatal )?[Mm]achine check: "
    r"|(?:\[<[0-9a-f]+>\] )?(?:RIP: \w+:)?(?:\? )?mce_panic[.+]"
)
_MEMORY_FAILURE = re.compile(r"Memory failure: 0x[0-9a-f]+: ")
_THERMAL = re.compile(r"(?:mce: )?CPU\d+: (?:Core|Package) temperature.* above threshold")
# MCi_STATUS: bit 61 says "uncorrected" (Intel SDM 3B 17.3.2.2, AMD APM 2 9.3.2.3).
_STATUS_UNCORRECTED = 1 << 61

_EDAC = re.compile(
    r"EDAC (?P<mc>[A-Za-z0-9_ ]*?MC\d+): (?P<count>\d+) (?P<word>CE|UE)(?P<what> .{0,300}?\bon .*)",
    re.S,
)
_EDAC_LABEL = re.compile(r"\bon (?P<label>.+?) \((?:channel|page|branch|node|csrow|slot)")
_EDAC_PANIC = re.compile(r"EDAC (?P<mc>\w+): (?:UE|Uncorrected) (?:memory )?error", re.I)


def aer(text: str) -> KernelEvent | None:
    """A PCIe error report: code ``corrected``, ``nonfatal``, ``fatal``; then what came of it.

    Where the port above says whose error it is, that device is meant, not the port.
    """
    found = _AER_RECEIVED.match(text)
    if found:
        code = _aer_code(found["word"], found["fatal"])
        port = address(found["port"])
        device = port
        if found["from"]:
            device = address(found["from"]) or port
        elif found["id"]:
            device = requester(int(found["id"], 16), port.split(":")[0])
        return KernelEvent("aer", code, _AER_SEVERITY[code], text, device)
    found = _AER_BUS_ERROR.match(text)
    if found:
        code = _aer_code(found["word"], found["fatal"])
        return KernelEvent("aer", code, _AER_SEVERITY[code], text, address(found["at"]))
    found = _AER_AFTER.match(text)
    if found:
        if _AER_UNRECOVERED.search(found["what"]):
            return KernelEvent("aer", "unrecovered", ERROR, text, address(found["at"]))
        if "ecovery successful" in found["what"]:
            return KernelEvent("aer", "recovered", INFO, text, address(found["at"]))
    return None


def _aer_code(word: str, fatal: str | None) -> str:
    if word.lower().startswith("correct"):
        return "corrected"
    # "Uncorrected" without a word in brackets does not say; the milder is assumed.
    return "fatal" if fatal and fatal.lower() == "fatal" else "nonfatal"


def port_events(text: str) -> KernelEvent | None:
    """What the port above a device did: DPC containment, hot-plug link and presence."""
    found = _DPC.match(text)
    if found:
        return KernelEvent("aer", "dpc", CRITICAL, text, address(found["at"]))
    found = _PCIEHP.match(text)
    if found:
        code = "pcie_" + found["what"].lower().replace(" ", "_")
        severity = ERROR if found["what"] in ("Link Down", "Card not present") else INFO
        return KernelEvent("link", code, severity, text, address(found["at"]))
    found = _INACCESSIBLE.match(text)
    if found:
        return KernelEvent("link", "pcie_inaccessible", ERROR, text, address(found["at"]))
    return None


def machine_check(text: str) -> KernelEvent | None:
    """A machine check. Code ``corrected`` or ``uncorrected`` by the status register's own bit."""
    found = _MCE_BANK.match(text) or _MCE_AMD.match(text)
    if found:
        wrong = int(found["status"], 16) & _STATUS_UNCORRECTED
        exception = found.groupdict().get("exc")
        code = "uncorrected" if wrong or exception else "corrected"
        severity = CRITICAL if code == "uncorrected" else WARNING
        return KernelEvent("mce", code, severity, text, f"cpu{found['cpu']} bank{found['bank']}")
    if _MCE_LOGGED.match(text):
        return KernelEvent("mce", "logged", WARNING, text)
    if _MEMORY_FAILURE.match(text):
        return KernelEvent("mce", "memory_failure", ERROR, text)
    if _THERMAL.match(text):
        return KernelEvent("mce", "thermal", WARNING, text)
    if _MCE_PANIC.match(text):
        return KernelEvent("mce", "panic", CRITICAL, text)
    return None


def edac(text: str) -> KernelEvent | None:
    """``EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 ...)``"""
    found = _EDAC.match(text)
    if found:
        label = _EDAC_LABEL.search(found["what"])
        device = label["label"] if label else found["mc"].split()[-1]
        wrong = found["word"] == "UE"
        return KernelEvent(
            "edac",
            "uncorrected" if wrong else "corrected",
            CRITICAL if wrong else WARNING,
            text,
            device,
            count=max(1, int(found["count"][:9])),
        )
    if _EDAC_PANIC.match(text):
        return KernelEvent("edac", "uncorrected", CRITICAL, text)
    return None


MATCHERS: tuple[Callable[[str], KernelEvent | None], ...] = (aer, port_events, machine_check, edac)


_GHES_LINE = re.compile(r"\{(?P<number>\d+)\}\[Hardware Error\]:\s*(?P<what>.*)", re.S)
_GHES_LIMIT_LINES = 64
_GHES_SEVERITY = {
    "corrected": ("corrected", WARNING),
    "info": ("info", INFO),
    "recoverable": ("uncorrected", ERROR),
    "fatal": ("fatal", CRITICAL),
}


class Ghes:
    """Joins the lines of one firmware-first error record (``{35}[Hardware Error]: ...``).

    Such a record says its severity, the kind of its section and the DIMM on lines of their
    own, tied by the number in braces. One record gives one event: kind ``edac`` for memory
    (EDAC does not count these), ``aer`` for PCIe, ``mce`` for the rest.
    """

    def __init__(self) -> None:
        self._number = ""
        self._said: list[str] = []

    @property
    def busy(self) -> bool:
        """Whether a record is held that has not ended yet."""
        return bool(self._said)

    def feed(self, text: str) -> tuple[bool, KernelEvent | None]:
        """(whether the line is of such a record, the record that this line ended)."""
        found = _GHES_LINE.match(text)
        if found is None:
            return False, self.flush()
        ended = self.flush() if found["number"] != self._number else None
        self._number = found["number"]
        if len(self._said) < _GHES_LIMIT_LINES:
            self._said.append(found["what"].strip())
        return True, ended

    def flush(self) -> KernelEvent | None:
        """The record that is held, as an event; None when it says no severity."""
        said, self._said, self._number = self._said, [], ""
        parts: dict[str, str] = {}
        for line in said:
            for name in ("event severity", "section_type", "fru_text", "device_id"):
                mark = f"{name}: "
                if mark in line and name not in parts:
                    parts[name] = line.split(mark, 1)[1].strip()
        known = _GHES_SEVERITY.get(parts.get("event severity", "").lower())
        if known is None:
            return None
        code, severity = known
        section = parts.get("section_type", "").lower()
        text = "; ".join(said)
        if "memory" in section:
            code = "uncorrected" if code == "fatal" else code
            return KernelEvent("edac", code, severity, text, parts.get("fru_text", ""))
        if "pcie" in section:
            code = "nonfatal" if code == "uncorrected" else code
            return KernelEvent("aer", code, severity, text, address(parts.get("device_id", "")))
        code = "uncorrected" if code == "fatal" else code
        return KernelEvent("mce", code, severity, text, parts.get("fru_text", ""))
