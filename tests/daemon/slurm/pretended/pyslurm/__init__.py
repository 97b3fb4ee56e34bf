"""A pretended pyslurm that misbehaves on demand: the real one runs in test_adapters.py."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__version__ = "22.5.0"
_FILE = Path(os.environ["PRETENDED_PYSLURM_NODES"])


class PyslurmError(Exception):
    pass


class RPCError(PyslurmError):
    pass


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def _babble() -> None:
    for descriptor in range(3, 32):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"\xff" * 64)


def _raise(error: Exception) -> None:
    raise error


_FAULTS: dict[str, Callable[[], object]] = {
    "freeze": lambda: time.sleep(600),
    "deaf": _deaf,
    "exit": lambda: os._exit(1),
    "segfault": lambda: ctypes.string_at(0),
    "babble": _babble,
    "chatter": lambda: print("slurm_load_node: hello", flush=True),
    "unbuilt": lambda: _raise(ImportError("libslurm.so.38: cannot open shared object file")),
    "refuse": lambda: _raise(RPCError("Access/permission denied")),
    "bug": lambda: _raise(AttributeError("no attribute 'load'")),
}


def _misbehave(place: str) -> None:
    where, _, what = os.environ.get("PRETENDED_PYSLURM_FAULT", "").partition(":")
    if where == place and what in _FAULTS:
        _FAULTS[what]()


class Node:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Nodes(dict[str, Node]):
    def __init__(self, names: list[str] | None = None) -> None:
        super().__init__({name: Node(name=name) for name in names or []})

    @staticmethod
    def load() -> Nodes:
        _misbehave("load")
        nodes = Nodes()
        if os.environ.get("PRETENDED_PYSLURM_FAULT") == "load:empty":
            return nodes
        for name, values in _read().items():
            nodes[name] = Node(name=name, **values)
        if os.environ.get("PRETENDED_PYSLURM_FAULT") == "load:garbage":
            nodes["n1"] = Node(name=7, state=3.5, reason=b"x", boot_time="soon", weight=object())
        return nodes

    def modify(self, changes: Node) -> None:
        nodes = _read()
        for name in self:
            nodes[name]["reason"] = getattr(changes, "reason", nodes[name]["reason"])
            nodes[name]["state"] = {"DRAIN": "IDLE+DRAIN", "UNDRAIN": "IDLE"}[changes.state]
        before = os.environ.get("PRETENDED_PYSLURM_FAULT", "").endswith(("refuse", "bug"))
        if before:
            _misbehave("modify")
        _FILE.write_text(json.dumps(nodes))
        _misbehave("modify")


class _Controller:
    class Config:
        version = "22.05.8"
        slurmctld_boot_time = 1_700_000_000
        slurmctld_log_file = None

        @staticmethod
        def load() -> Any:
            return _Controller.Config


slurmctld = _Controller


def _read() -> dict[str, dict[str, Any]]:
    if _FILE.exists():
        return dict(json.loads(_FILE.read_text()))
    return {f"n{i}": {"state": "IDLE", "reason": "", "partitions": ["batch"]} for i in range(1, 5)}


_misbehave("import")
