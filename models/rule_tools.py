"""Facts in the words of other programs: nvidia-smi, DCGM, the audit, the kernel's softer lines.

All of them only tell people. What is certain enough to drain has rules of its own; a program's
verdict (DCGM's, say) is hearsay beside it. What such a program says of *itself* (an internal error,
no permission, a time-out) is never a fact about a node.

Left silent on purpose: ``driver`` ``assertion``, ``insufficient_power``, ``nic_command`` and
``no_permission`` and ``hung_task`` ``blocked``, which healthy machines print as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from collectors.sample import Sample
from models.rule_table import Finding
from models.voices import Remedy

Maker = Callable[[str, float, str], Finding | None]

_ERROR = 2.0
_CRITICAL = 3.0


def _alert(
    rule: str, code: str, severity: int, text: str, advice: str, least: float = 0.0
) -> Maker:
    """Tells people of each event of at least the severity ``least``."""
    finding = Finding(rule, code, Remedy.ALERT, severity, text, advice)
    return lambda _code, at, _text: finding if at >= least else None


def _health(code: str, severity: float, text: str) -> Finding | None:
    if severity < _ERROR or "internal error" in text.lower():
        return None
    words = f"DCGM health: {code.replace('_', ' ')} failed"
    return Finding("dcgm_health", f"dcgm-{code}"[:20], Remedy.ALERT, 2, words[:80], _ASK_DCGM)


def _diag(code: str, severity: float, text: str) -> Finding | None:
    if code == "summary" or severity < _ERROR:
        return None
    grave = severity >= _CRITICAL  # DCGM asks to isolate or reset the GPU
    words = f"DCGM diagnostic: {code.replace('_', ' ')} failed"
    return Finding(
        "dcgm_diag", f"diag-{code}"[:20], Remedy.ALERT, 3 if grave else 2, words[:80], _ASK_DCGM
    )


def _topology(code: str, severity: float, text: str) -> Finding | None:
    # Missing lanes and devices are states with rules of their own (pcie_width, pcie_gone).
    if code in ("lanes", "gone") or severity < 1:
        return None
    return Finding(
        "topology", f"topo-{code}"[:20], Remedy.ALERT, 1, text[:80], "tocsin audit on the node"
    )


def _check(code: str, severity: float, text: str) -> Finding | None:
    """A check of the site's own: its words are the site's, and so is the advice."""
    if severity < 1:
        return None
    grave = severity >= _ERROR
    return Finding(
        "check", _check_code(code), Remedy.ALERT, 2 if grave else 1, text[:80],
        "see what the site's check looks at",
    )  # fmt: skip


def _check_code(code: str) -> str:
    """What the reason shows.

    >>> _check_code("scratch-mount")
    'chk-scratch-mount'
    """
    return f"chk-{code}"[:20]


_REPAIR_ADVICE = {
    "unrepairable_memory": "replace the GPU",
    "inforom_corrupted": "restart the node; replace the GPU if it stays",
}


def _repair(code: str, severity: float, text: str) -> Finding | None:
    if severity < 1:
        return None
    unrepairable = code == "unrepairable_memory"
    advice = _REPAIR_ADVICE.get(code, "reset the GPU when it is idle")
    words = code.replace("_", " ")
    severity_told = 3 if unrepairable else 1
    return Finding("repair", _repair_code(code), Remedy.ALERT, severity_told, words, advice)


def _repair_code(code: str) -> str:
    """What the reason shows: ``channel_repair_pending`` is too long for it.

    >>> _repair_code("channel_repair_pending"), _repair_code("unrepairable_memory")
    ('repair-channel', 'repair-unrepairable')
    """
    return f"repair-{code.split('_', 1)[0]}"[:20]


_ASK_DCGM = "dcgmi health -c -j and dcgmi diag -r 3 on the node"
_LOOK = "look at the hardware, then restart the node"
EVENTS: Mapping[tuple[str, str], Maker] = {
    ("inventory", "gone"): _alert(
        "gpu_unlisted", "unlisted", 2, "the driver no longer lists the GPU", "look in the log"
    ),
    ("driver", "unreadable"): _alert(
        "gpu_unreadable", "unread", 2, "nvidia-smi can't read the GPU", "reset the GPU"
    ),
    ("driver", "gsp_rpc"): _alert(
        "driver", "gsp", 1, "the GPU's firmware did not answer", "look for Xid 119 or 120"
    ),
    ("driver", "nvswitch"): _alert(
        "driver", "nvswitch", 2, "the driver can't run an NVSwitch", "restart the node"
    ),
    ("driver", "nic_timeout"): _alert(
        "nic", "nictime", 2, "network adapter does not answer", _LOOK
    ),
    ("driver", "high_temperature"): _alert(
        "nic", "nichot", 2, "network adapter or its cable is too hot", "look at fans and cables"
    ),
    ("driver", "nvme"): _alert(
        "nvme", "nvme", 2, "NVMe drive does not answer", "look at the drive"
    ),
    ("repair", "*"): _repair,
    # The other codes of this kind are of the InfiniBand fabric, and no GPU's.
    ("fabric", "fabric"): _alert(
        "fabric",
        "fabric",
        2,
        "the GPU's NVLink fabric is not set up",
        "look at nvidia-fabricmanager or nvidia-imex on the node",
        least=1,
    ),
    ("dcgm_health", "*"): _health,
    ("dcgm_diag", "*"): _diag,
    ("topology", "*"): _topology,
    ("check", "*"): _check,
    ("mce", "memory_failure"): _alert(
        "machine_check", "memfail", 2, "a page of memory failed", "look for the DIMM"
    ),
    ("mce", "panic"): _alert("machine_check", "mcepanic", 3, "fatal machine check", _LOOK),
    ("panic", "panic"): _alert("kernel", "panic", 3, "kernel panic", "look in the kernel log"),
    ("panic", "oops"): _alert("kernel", "oops", 2, "kernel oops", "restart the node"),
    ("hung_task", "lockup"): _alert("kernel", "lockup", 2, "a processor was locked up", _LOOK),
    ("hung_task", "rcu_stall"): _alert("kernel", "stall", 2, "a processor stalled", _LOOK),
}


def over_key(sample: Sample, where: str) -> tuple[str, str, str] | None:
    """The fact about ``where`` that an event without a finding takes back, None if none.

    A recovery action of none (Xid 154), a BMC that says that its event is over, a report that no
    longer names what it named.
    """
    kind, code = sample.tag("kind"), sample.tag("code")
    if kind == "xid":
        return ("xid", "x154", where) if code == "154" else None
    if kind == "sel":
        return "sel", code[:20], sample.text("device")
    if sample.number("severity") != 0.0:
        return None
    if kind == "repair":
        return "repair", _repair_code(code), where
    if kind == code == "fabric":
        return "fabric", "fabric", where
    prefix = {"dcgm_health": "dcgm", "topology": "topo", "check": "chk"}.get(kind)
    return None if prefix is None else (kind, f"{prefix}-{code}"[:20], where)
