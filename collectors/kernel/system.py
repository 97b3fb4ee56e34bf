"""Kernel lines about the host itself: hung tasks, out of memory, filesystems, disks, NICs.

Sources of the formats: Linux ``kernel/hung_task.c``, ``mm/oom_kill.c``, ``fs/ext4``, ``fs/xfs``,
``fs/btrfs``, ``block/blk-core.c``, ``drivers/nvme/host``, ``drivers/net/ethernet/mellanox/mlx5``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from collectors.kernel.event import CRITICAL, ERROR, INFO, WARNING, KernelEvent
from collectors.node.pci import ADDRESS, address

_HUNG = re.compile(
    r"INFO: task (?P<name>.{1,64}?):(?P<pid>\d+) (?:<\S+> )?blocked (?:in I/O wait )?"
    r"for more than \d+ seconds"
)
_LOCKUP = re.compile(
    r"(?:watchdog: )?(?:BUG: soft lockup - CPU#\d+ stuck|Watchdog detected hard LOCKUP"
    r"|NMI watchdog: .*LOCKUP)(?:.*\[(?P<name>[^\]]{1,64}):(?P<pid>\d+)\])?"
)
_RCU = re.compile(r"(?:rcu|INFO): (?:INFO: )?rcu\w* (?:self-)?detected (?:expedited )?stalls?")
_PANIC = re.compile(r"Kernel panic - not syncing")
# The second row is how arm64 (Grace) says it.
_OOPS = re.compile(
    r"(?:BUG: unable to handle|BUG: kernel NULL pointer|Oops: |kernel BUG at "
    r"|Unable to handle kernel |Internal error: |SError Interrupt on CPU)"
)

_OOM = re.compile(
    r"(?P<cgroup>Memory cgroup out of memory: )?(?:Out of memory(?: \([^)]*\))?: )?"
    r"[Kk]ill(?:ed)? process (?P<pid>\d+),? ?\((?P<name>[^)]*)\)"
)

_EXT4_READONLY = re.compile(r"EXT4-fs \((?P<device>[^)]+)\): Remounting filesystem read-only")
_EXT4_ERROR = re.compile(r"EXT4-fs error \(device (?P<device>[^)]+)\)")
_XFS_DOWN = re.compile(
    r"XFS \((?P<device>[^)]+)\): .*(?:[Ss]hutting down filesystem|Filesystem has been shut down"
    r"|xfs_do_force_shutdown)"
)
_XFS_ERROR = re.compile(r"XFS \((?P<device>[^)]+)\): .*(?:[Cc]orruption|metadata I/O error)")
_BTRFS = re.compile(
    r"BTRFS(?: (?:info|error|critical|warning))? \(device (?P<device>[^)]+)\).*"
    r"(?P<forced>forced readonly)?"
)
_READONLY = re.compile(
    r"(?:\S{1,40} \((?:device )?(?P<inner>[^)]+)\)|(?P<device>\S+)): "
    r".*[Rr]emount(?:ing|ed) (?:filesystem )?(?:as )?read-?only"
)
_IO_ERROR = re.compile(
    r"(?:blk_update_request: |print_req_error: )?(?:critical )?"
    r"(?:I/O|medium|target|nexus) error, dev (?P<device>[^\s,]+)"
)
_BUFFER = re.compile(r"Buffer I/O error on dev(?:ice)? (?P<device>[^\s,]+)")
_NFS = re.compile(r"nfs: server (?P<device>\S+) (?P<what>not responding|OK)")
_LUSTRE = re.compile(r"Lustre(?:Error)?: .*[Cc]onnection (?P<what>to .* was lost|restored)")
_NVME = re.compile(
    r"nvme (?P<device>\S+): .*(?:controller is down|timeout|[Rr]emoving after probe failure"
    r"|Device not ready|Disabling device after reset failure|Abort status: 0x[1-9a-f])"
)

_MLX5 = re.compile(rf"mlx5_core (?P<at>{ADDRESS})(?P<rest>.*)", re.S)
_MODULE = re.compile(
    r"[^:]*: ?Port module event(?P<error>\[error\])?: module (?P<module>\d+), (?P<what>.*)", re.S
)
_LINK = re.compile(r" (?P<netdev>[^\s:]{1,32}): Link (?P<what>up|down)\b")
_MLX5_RULES: tuple[tuple[re.Pattern[str], str, str, float], ...] = (
    (re.compile(r"insufficient power"), "driver", "insufficient_power", WARNING),
    (re.compile(r"[Hh]igh temperature"), "driver", "high_temperature", ERROR),
    (
        re.compile(
            r"health compromised|[Hh]ealth issue observed|[Ff]atal error|assert_var"
            r"|handling bad device|device is in error state|enter_error_state|device alarm"
            r"|firmware (?:fatal|internal) error|PCI slot is unavailable|failed to recover"
        ),
        "driver",
        "nic_health",
        CRITICAL,
    ),
    (re.compile(r"timeout\. Will cause a leak|wait_func.*timeout"), "driver", "nic_timeout", ERROR),
    (re.compile(r"mlx5_cmd_out_err.*failed"), "driver", "nic_command", WARNING),
)
_PID = re.compile(r"\(pid (\d+)\)")


def stuck(text: str) -> KernelEvent | None:
    """A task or processor that does not get on: hung task, lock-up, RCU stall."""
    found = _HUNG.match(text)
    if found:
        return KernelEvent(
            "hung_task", "blocked", WARNING, text, pid=int(found["pid"]), process=found["name"]
        )
    found = _LOCKUP.match(text)
    if found:
        pid = int(found["pid"]) if found["pid"] else None
        return KernelEvent("hung_task", "lockup", ERROR, text, pid=pid, process=found["name"] or "")
    if _RCU.match(text):
        return KernelEvent("hung_task", "rcu_stall", ERROR, text)
    if _PANIC.match(text):
        return KernelEvent("panic", "panic", CRITICAL, text)
    if _OOPS.match(text):
        return KernelEvent("panic", "oops", ERROR, text)
    return None


def out_of_memory(text: str) -> KernelEvent | None:
    """A process that was killed for memory: code ``cgroup`` for a job over its own limit."""
    found = _OOM.match(text)
    if found is None:
        return None
    code, severity = ("cgroup", INFO) if found["cgroup"] else ("host", WARNING)
    return KernelEvent(
        "oom", code, severity, text, pid=int(found["pid"][:10]), process=found["name"]
    )


def filesystem(text: str) -> KernelEvent | None:
    """A filesystem that went read-only or away, a disk that gives errors."""
    for pattern, code, severity in (
        (_EXT4_READONLY, "readonly", CRITICAL),
        (_EXT4_ERROR, "error", ERROR),
        (_XFS_DOWN, "shutdown", CRITICAL),
        (_XFS_ERROR, "error", ERROR),
        (_IO_ERROR, "io_error", ERROR),
        (_BUFFER, "io_error", ERROR),
    ):
        found = pattern.match(text)
        if found:
            return _of_disk(code, severity, text, found["device"])
    found = _BTRFS.match(text)
    if found:
        if "forced readonly" in text:
            return _of_disk("readonly", CRITICAL, text, found["device"])
        if text.startswith(("BTRFS error", "BTRFS critical")):
            return _of_disk("error", ERROR, text, found["device"])
        return None
    found = _READONLY.match(text)
    if found:
        return _of_disk("readonly", CRITICAL, text, found["inner"] or found["device"])
    return _remote(text)


def _of_disk(code: str, severity: float, text: str, device: str) -> KernelEvent | None:
    """None for an image that is mounted as a disk (loop0): containers bring their users' images,
    and a broken one says nothing of the node."""
    if device.removeprefix("/dev/").startswith("loop"):
        return None
    return KernelEvent("filesystem", code, severity, text, device)


def _remote(text: str) -> KernelEvent | None:
    found = _NFS.match(text)
    if found:
        away = found["what"] == "not responding"
        code, severity = ("server_away", WARNING) if away else ("server_back", INFO)
        return KernelEvent("filesystem", code, severity, text, found["device"])
    found = _LUSTRE.match(text)
    if found:
        away = found["what"] != "restored"
        code, severity = ("server_away", WARNING) if away else ("server_back", INFO)
        return KernelEvent("filesystem", code, severity, text)
    found = _NVME.match(text)
    if found:
        return KernelEvent("driver", "nvme", ERROR, text, found["device"])
    return None


def mlx5(text: str) -> KernelEvent | None:
    """What the NVIDIA (Mellanox) network driver says of its port, cable, power and firmware."""
    found = _MLX5.match(text)
    if found is None:
        return None
    device, rest = address(found["at"]), found["rest"]
    module = _MODULE.match(rest)
    if module:
        return _module(text, device, module)
    link = _LINK.match(rest)
    if link:
        severity = WARNING if link["what"] == "down" else INFO
        return KernelEvent("link", link["what"], severity, text, device)
    pid = _PID.search(rest)
    for pattern, kind, code, severity in _MLX5_RULES:
        if pattern.search(rest):
            return KernelEvent(
                kind, code, severity, text, device, pid=int(pid[1][:10]) if pid else None
            )
    return None


def _module(text: str, device: str, module: re.Match[str]) -> KernelEvent:
    what = module["what"].strip().rstrip(".").lower()
    if module["error"] or what.startswith("cable error") or "high temp" in what:
        return KernelEvent("link", "cable_error", ERROR, text, device)
    code = {"cable plugged": "cable_plugged", "cable unplugged": "cable_unplugged"}.get(what)
    severity = WARNING if code == "cable_unplugged" else INFO
    return KernelEvent("link", code or "cable_other", severity, text, device)


MATCHERS: tuple[Callable[[str], KernelEvent | None], ...] = (
    stuck,
    out_of_memory,
    filesystem,
    mlx5,
)
