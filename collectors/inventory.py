"""Which boards a node has, as events: at the start, at every change, and once a day.

The events are how a PCI address in a kernel line becomes a GPU's index, and how a board that is
no longer there is noticed. A fleet view of versions is made of the ``version`` events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collectors.events import ERROR, INFO, event
from collectors.node.pci import address
from collectors.sample import Sample


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU: where it is and who it is. Empty where it did not say."""

    index: int
    uuid: str = ""
    bus: str = ""
    serial: str = ""
    model: str = ""
    vbios: str = ""

    @classmethod
    def of(cls, index: int, answer: Mapping[str, Any]) -> Board:
        """From the words of NVML or nvidia-smi."""
        return cls(
            index,
            str(answer.get("uuid", "")),
            address(str(answer.get("bus", ""))),
            str(answer.get("serial", "")),
            str(answer.get("name", "")),
            str(answer.get("vbios", "")),
        )

    def text(self) -> str:
        """The text of its inventory event."""
        words = [f"gpu={self.index}"]
        for key, value in (("uuid", self.uuid), ("serial", self.serial), ("model", self.model)):
            if value:
                words.append(f"{key}={value}")
        return " ".join(words)


class Inventory:
    """The boards seen last, and the events that tell of them."""

    def __init__(self, node: str, period_seconds: float) -> None:
        self._node = node
        self._period_ns = int(period_seconds * 1e9)
        self._boards: dict[int, Board] = {}
        self._versions: dict[str, str] = {}
        self._excluded = 0
        self._told_ns: int | None = None

    def known(self, board: Board) -> Board:
        """``board``, completed by what was known of the one at its index if it cannot speak.

        A lost GPU answers nothing, its UUID neither.
        """
        if board.uuid:
            return board
        return self._boards.get(board.index, board)

    def events(
        self, system: Mapping[str, Any], boards: Mapping[int, Board], complete: bool, now_ns: int
    ) -> list[Sample]:
        """The events due now. With ``complete``, a board that is not in ``boards`` is gone.

        Without a ``count`` in ``system`` none is told: how many there are is not known.
        """
        versions = {key: str(system[key]) for key in ("driver", "nvml") if system.get(key)}
        gone = self._gone(boards) if complete else []
        present = dict(boards) if complete else {**self._boards, **boards}
        excluded = int(system.get("excluded", 0))
        changed = (present, versions, excluded) != (self._boards, self._versions, self._excluded)
        due = self._told_ns is None or not 0 <= now_ns - self._told_ns < self._period_ns
        self._boards, self._versions = present, versions
        before, self._excluded = self._excluded, excluded
        told: list[Sample] = [
            event(
                self._node,
                "inventory",
                "gone",
                now_ns,
                text=f"{board.text()} is no longer listed by the driver",
                severity=ERROR,
                device=board.bus,
            )
            for board in gone
        ]
        if not (changed or due):
            return told
        self._told_ns = now_ns
        if excluded or before:
            words = f"gpus={excluded} left out by the driver's own setting (NVreg_ExcludedGpus)"
            told.append(
                event(self._node, "inventory", "excluded", now_ns, text=words, severity=INFO)
            )
        count = None if "count" not in system else int(system["count"])
        listed = [board for _, board in sorted(present.items())]
        return [*told, *board_events(self._node, listed, versions, count, now_ns)]

    def _gone(self, boards: Mapping[int, Board]) -> list[Board]:
        """Boards of before that are in no place now. An index may have passed to another."""
        uuids = {board.uuid for board in boards.values()}
        return [
            board
            for index, board in sorted(self._boards.items())
            if board.uuid
            and board.uuid not in uuids
            and (index not in boards or boards[index].uuid)
        ]


def board_events(
    node: str,
    boards: Iterable[Board],
    versions: Mapping[str, str],
    count: int | None,
    now_ns: int,
) -> list[Sample]:
    """The events that tell which boards and versions there are; ``count`` if that is certain."""

    def info(kind: str, code: str, text: str, device: str = "") -> Sample:
        return event(node, kind, code, now_ns, text=text, severity=INFO, device=device)

    told = [] if count is None else [info("inventory", "count", f"gpus={count}")]
    for board in boards:
        if board.uuid or board.bus:
            told.append(info("inventory", "gpu", board.text(), board.bus))
        if board.vbios:
            told.append(info("version", "vbios", board.vbios, board.bus))
    told += [info("version", key, value) for key, value in sorted(versions.items())]
    return told
