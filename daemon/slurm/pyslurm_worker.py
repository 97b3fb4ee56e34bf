"""The inside of pyslurm's process: calls that hang, exit or crash do so here and nowhere else.

pyslurm is GPL-2 and bound to one release of Slurm; nothing of tocsin but this file imports it,
and only in a process of its own. libslurm ends its process when it finds no usable slurm.conf
(after 60 s), and waits MessageTimeout for a slurmctld that is stopped.

Written for pyslurm 22.5 to 25.11: ``Nodes.load``, ``Nodes.modify`` and ``RPCError`` are alike in
all of them; only the configuration is reached by another way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from collectors.worker_serve import CallError, Emit, serve

# Nodes told in one message; a message is at most 8 MiB.
NODES_PER_PART = 500
# What a node is asked for, and the name of it in Slurm's own JSON.
_FIELDS = (
    ("name", "name"),
    ("reason", "reason"),
    ("reason_user", "reason_set_by_user"),
    ("reason_time", "reason_changed_at"),
    ("partitions", "partitions"),
    ("boot_time", "boot_time"),
    ("slurmd_start_time", "slurmd_start_time"),
    ("comment", "comment"),
    ("extra", "extra"),
    ("active_features", "active_features"),
    ("address", "address"),
    ("slurm_version", "version"),
    ("total_cpus", "cpus"),
    ("allocated_cpus", "alloc_cpus"),
    ("weight", "weight"),
)


def main() -> None:
    """Serves until the pipe closes."""
    serve({"about": about, "nodes": nodes, "change": change})


def about(arguments: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """pyslurm's version; slurmctld's version, start (seconds) and log file."""
    pyslurm = _pyslurm()
    if hasattr(getattr(pyslurm.slurmctld, "Config", None), "slurmctld_boot_time"):
        config = _asked(pyslurm.slurmctld.Config.load)
        told = (config.version, config.slurmctld_boot_time, config.slurmctld_log_file)
    else:
        settings = _asked(pyslurm.config().get)
        told = tuple(settings.get(key) for key in ("version", "boot_time", "slurmctld_logfile"))
    return {
        "pyslurm": str(getattr(pyslurm, "__version__", "?")),
        "slurm": str(told[0] or ""),
        "start_seconds": int(told[1] or 0),
        "log": str(told[2] or ""),
    }


def nodes(arguments: dict[str, Any], emit: Emit) -> None:
    """The nodes of ``names``, or all, as records like Slurm's own JSON, some at a time."""
    pyslurm = _pyslurm()
    wanted = arguments.get("names")
    loaded = _asked(pyslurm.Nodes.load)
    # A collection speaks of the local cluster; a federated one must not lend us its names.
    found = [
        loaded[name] for name in (loaded.keys() if wanted is None else wanted) if name in loaded
    ]
    for begin in range(0, len(found), NODES_PER_PART):
        emit([_record(node) for node in found[begin : begin + NODES_PER_PART]])


def change(arguments: dict[str, Any], emit: Emit) -> None:
    """One request that sets ``values`` (state, reason, comment) on all ``names``."""
    pyslurm = _pyslurm()
    changes = pyslurm.Node(**{key: str(value) for key, value in arguments["values"].items()})
    _asked(lambda: pyslurm.Nodes(list(arguments["names"])).modify(changes))


def _record(node: Any) -> dict[str, Any]:
    record = {told: _plain(_of(node, asked)) for asked, told in _FIELDS}
    record["state"] = _state(node)
    record["gres"] = _gres(_of(node, "configured_gres"))
    record["gres_used"] = _gres(_of(node, "allocated_gres"))
    following = _of(node, "next_state")
    if following:
        record["next_state_after_reboot"] = [str(following)]
    return record


def _state(node: Any) -> list[str]:
    """The state's words. Whether jobs hold part of the node or all of it is for the client to
    see (scontrol does it as well): pyslurm 22.5 calls both ALLOCATED.
    """
    words = str(_of(node, "state") or "").split("+")
    held, of = _of(node, "allocated_cpus"), _of(node, "effective_cpus") or _of(node, "total_cpus")
    if words[0] in ("ALLOCATED", "IDLE") and isinstance(held, int) and isinstance(of, int):
        words[0] = "MIXED" if 0 < held < of else words[0]
    return words


def _of(node: Any, name: str) -> Any:
    """One property, or None: a uid without a name must not cost the node."""
    try:
        return getattr(node, name, None)
    except (KeyError, ValueError, TypeError, OSError):
        return None


def _plain(value: Any) -> Any:
    """``value`` as JSON takes it: text, a whole number or a list of texts."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [str(part) for part in value]
    return "" if value is None else str(value)


def _gres(value: Any) -> str:
    """``{"gpu:h200": 8}`` as Slurm writes it: ``gpu:h200:8``."""
    if isinstance(value, dict):
        return ",".join(f"{name}:{count}" for name, count in value.items())
    return str(value or "")


def _asked(call: Callable[[], Any]) -> Any:
    """What ``call`` answers; what Slurm says against it becomes a CallError of kind ``slurm``."""
    try:
        return call()
    except Exception as error:
        names = {kind.__name__ for kind in type(error).__mro__}
        # The older calls raise ValueError(text, errno).
        if not names & {"PyslurmError", "ValueError"}:
            raise
        raise CallError("slurm", str(error.args[0] if error.args else error)) from error


def _pyslurm() -> Any:
    try:
        import pyslurm
    except ImportError as error:
        kind = "missing" if re.search("No module named '?pyslurm", str(error)) else "unusable"
        raise CallError(kind, f"pyslurm cannot be imported: {error}") from error
    # libslurm prints its errors; the caller keeps only the end of them.
    os.environ.setdefault("SLURM_TIME_FORMAT", "standard")
    return pyslurm


if __name__ == "__main__":
    main()
