"""Whether each GPU has joined the NVLink fabric, which Fabric Manager (or IMEX) sets up.

On machines with NVSwitches no program can use a GPU before it has. The driver tells a state, which
is told to people once it has been bad for some time: after a start it takes a while to be good.

Sources: nvml.h (nvmlGpuFabricInfo_t), dcgm_structs.h (dcgmFabricManagerStatus_t) and ``nvidia-smi
-q``. The numbers here are NVML's, and one more for a fabric that was set up with an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.events import ERROR, event
from collectors.inventory import Board
from collectors.sample import Sample
from collectors.told import Told

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED, FAILED = range(5)
PATIENCE_SECONDS = 300.0

_WORDS = {NOT_STARTED: "not started", IN_PROGRESS: "in progress", FAILED: "failed"}
_STATES = {"not started": NOT_STARTED, "in progress": IN_PROGRESS, "completed": COMPLETED}
_DONE = {"success", "n/a", "", "unknown"}


def state_of(state: str, status: str) -> int:
    """nvidia-smi's two words as one number; NOT_SUPPORTED for words that say nothing.

    >>> state_of("Completed", "Success"), state_of("In Progress", "N/A"), state_of("N/A", "N/A")
    (3, 2, 0)
    >>> state_of("Completed", "Unknown Error")
    4
    """
    known = _STATES.get(state.strip().lower(), NOT_SUPPORTED)
    failed = known == COMPLETED and status.strip().strip("[]").lower() not in _DONE
    return FAILED if failed else known


def fault(board: Board, state: int, node: str, now_ns: int, seconds: float = 0.0) -> Sample | None:
    """The event of a GPU that is not in its fabric, for ``seconds`` as far as that is known."""
    words = _WORDS.get(state)
    if words is None:
        return None
    since = f" for {seconds:.0f} s" if seconds else ""
    return event(
        node,
        "fabric",
        "fabric",
        now_ns,
        text=f"gpu{board.index}: its NVLink fabric is not set up{since} ({words}): does "
        "nvidia-fabricmanager (or nvidia-imex) run?",
        severity=ERROR,
        device=board.bus or f"gpu{board.index}",
    )


class FabricWatch:
    """Since when each GPU is not in its fabric, and what was told of it."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._bad_since_ns: dict[str, int] = {}
        self._told = Told("its NVLink fabric is set up again")

    def events(
        self, states: Mapping[int, int], boards: Mapping[int, Board], now_ns: int
    ) -> list[Sample]:
        """What is new, given the states that were read now, by the GPUs' indices."""
        lasting = []
        read = set()
        for index, state in states.items():
            board = boards.get(index, Board(index))
            device = board.bus or f"gpu{index}"
            read.add(device)
            if state not in _WORDS:
                self._bad_since_ns.pop(device, None)
                continue
            since_ns = min(self._bad_since_ns.setdefault(device, now_ns), now_ns)
            seconds = (now_ns - since_ns) / 1e9
            one = fault(board, state, self._node, now_ns, seconds)
            if one is not None and seconds >= PATIENCE_SECONDS:
                lasting.append(one)
        return self._told.changes(lasting, read, now_ns) if read else []
