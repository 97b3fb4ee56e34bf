"""Xids as NVML tells them: for nodes whose kernel log cannot be read.

NVML keeps the events of an event set from the moment the GPUs are registered; each reading takes
what came since the last one. One lost GPU makes the whole set fail, which is then made anew
without it. Source: NVML API reference, "Event Handling Methods".
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from typing import Any

import pynvml as nvml

EVENTS_MOST = 256
TIMEOUT = 10
WAIT_MILLISECONDS = 1
XID = 0x8  # nvmlEventTypeXidCriticalError


class XidEvents:
    """The event set, and which GPU each of its handles is."""

    def __init__(self) -> None:
        self._set: Any = None
        self._who: dict[int, int] = {}
        self._registered: set[int] = set()

    def watch(self, handles: Mapping[int, Any]) -> None:
        """Registers GPUs that are not yet; makes the set anew when one of them is gone."""
        if self._registered - set(handles):
            self.close()
        if self._set is None:
            self._set = nvml.nvmlEventSetCreate()
        for index, handle in handles.items():
            if index in self._registered:
                continue
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(handle, XID, self._set)
                self._registered.add(index)
                # NVML answers with the handle; to ask a lost GPU for its name would fail.
                self._who[_place(handle)] = index

    def take(self) -> list[dict[str, int]]:
        """The Xids since the last call: ``{"index", "xid"}``, the oldest first."""
        found: list[dict[str, int]] = []
        while self._set is not None and len(found) < EVENTS_MOST:
            try:
                one = nvml.nvmlEventSetWait(self._set, WAIT_MILLISECONDS)
            except nvml.NVMLError as error:
                if error.value != TIMEOUT:
                    self.close()
                break
            index = self._who.get(_place(one.device))
            if index is not None and one.eventType & XID:
                found.append({"index": index, "xid": int(one.eventData)})
        return found

    def close(self) -> None:
        """Frees the set; events that were not taken are lost."""
        if self._set is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(self._set)
        self._set = None
        self._who.clear()
        self._registered.clear()


def _place(handle: Any) -> int:
    return ctypes.addressof(handle.contents) if handle else 0
