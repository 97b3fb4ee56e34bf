"""The process in which the fabric is swept: kept between rounds, ended when the kernel holds it.

Run as ``python -m collectors.ib.fabric_worker`` by collectors.worker. An interpreter that starts
takes longer than the sweep of a small fabric; the port is opened anew for each.
"""

from __future__ import annotations

import base64
from typing import Any

from collectors.ib.fabric_sweep import sweep
from collectors.worker_serve import CallError, Emit, serve

PART_BYTES = 3 * 1024 * 1024


def _sweep(arguments: dict[str, Any], emit: Emit) -> None:
    try:
        told = sweep(**arguments)
    except OSError as error:
        raise CallError("port", f"fabric_sweep: {error}") from error
    for place in range(0, len(told), PART_BYTES):
        emit(base64.b64encode(told[place : place + PART_BYTES]).decode("ascii"))


if __name__ == "__main__":
    serve({"sweep": _sweep})
