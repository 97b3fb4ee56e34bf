"""Reads ``dcgmi dmon``: columns by its header, which it prints again every 14 rows.

The columns have fixed widths, values are cut to them, a value may be missing (blank) and a
name may hold blanks, so a row is cut where the header's columns begin. Where a value runs over
that border (older versions), the row is read word by word if the number of words fits.
"""

from __future__ import annotations

import re

from collectors.events import event
from collectors.gpu.dcgm_failures import failure_words
from collectors.gpu.dcgm_fields import BY_SHORT, DcgmField
from collectors.gpu.dcgm_values import BoardValues
from collectors.gpu.fabric import fault
from collectors.gpu.findings import Findings, Text, accepted, lines, printable
from collectors.gpu.smi_values import meaning_of
from collectors.inventory import Board, board_events
from collectors.kernel.nvidia import xid_severity
from collectors.sample import Problem, Sample, clip, sample

COLUMNS_MOST = 256

_HEADER = re.compile(r"\s*#\s*Entity\b")
_UNITS = re.compile(r"\s*I[Dd]\b")
_ENTITY = re.compile(
    r"\s*(?P<group>GPU[-_]C?I|GPU|v?GPU|CPU(?:[-_ ]?CORE)?|SW|Switch|ConnectX|CX)\s+"
    r"(?P<number>\d{1,5})(?P<link>\s+LINK\s+\d{1,3})?(?=\s|$)"
)
_NUMBER = re.compile(r"[-+]?\d{1,30}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?")
_STOPPED = re.compile(r"\s*dmon was stopped")


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """Samples and problems of one text of dcgmi dmon. Never raises."""
    findings, boards, fabric = read_dmon(text, node, now_ns)
    for index, state in sorted(fabric.items()):
        bad = fault(boards.get(index, Board(index)), state, node, now_ns)
        if bad is not None:
            findings.add(bad)
    for one in board_events(node, boards.values(), {}, None, now_ns):
        findings.add(one)
    return findings.close()


def read_dmon(
    text: Text, node: str, now_ns: int
) -> tuple[Findings, dict[int, Board], dict[int, int]]:
    """The same in parts, for the live source: findings, boards, states of the fabric."""
    findings = Findings()
    table = _Table(node, now_ns, findings)
    for line, whole in lines(text, findings):
        table.line(line, whole)
    table.end()
    return findings, table.boards, table.fabric


class _Table:
    """The table while it is read."""

    def __init__(self, node: str, now_ns: int, findings: Findings) -> None:
        self.boards: dict[int, Board] = {}
        self.fabric: dict[int, int] = {}
        self._links: dict[int, BoardValues] = {}
        self._told: set[tuple[int, str]] = set()  # (GPU, field) that its own rows told
        self._uuids: dict[int, str] = {}
        self._node = node
        self._now_ns = now_ns
        self._findings = findings
        self._columns: list[tuple[str, int]] = []  # short name, where it begins

    def line(self, line: str, whole: bool) -> None:
        """Takes one line."""
        if _HEADER.match(line):
            rest = line.index("Entity") + len("Entity")
            names = re.finditer(r"\S+", line[rest:])
            self._columns = [(word[0], rest + word.start()) for word in names][:COLUMNS_MOST]
            return
        entity = _ENTITY.match(line)
        if entity is None or not self._columns:
            if not _UNITS.match(line) and not _STOPPED.match(line):
                words = failure_words(line) or "not a line that dcgmi dmon prints"
                self._findings.problem(words, line)
            return
        if not whole or not printable(line):
            self._findings.problem("cut off or damaged, and left out", line)
            return
        if entity["group"] != "GPU":
            self._findings.problem(
                f"rows of {entity['group']} are left out: whole boards are scored", line, once=True
            )
            return
        cells = self._cells(line, entity.end())
        if cells is None:
            self._findings.problem("its values do not fit under the header: left out", line)
        elif entity["link"]:
            self._link_row(int(entity["number"]), entity["link"].split()[-1], cells)
        else:
            self._row(int(entity["number"]), cells)

    def _cells(self, line: str, after: int) -> list[str] | None:
        """The text under each column; None where that cannot be told."""
        starts = [start for _, start in self._columns]
        borders_clear = all(
            start > len(line) or line[start - 1].isspace() for start in starts if start > after
        )
        if starts[0] > after and borders_clear:
            ends = [*starts[1:], len(line)]
            return [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        words = line[after:].split()
        return words if len(words) == len(self._columns) else None

    def _link_row(self, index: int, link: str, cells: list[str]) -> None:
        """Counters of one NVLink of a GPU: summed over its links at the end of the table."""
        board = self._links.setdefault(index, BoardValues())
        for (column, _), cell in zip(self._columns, cells, strict=True):
            field = BY_SHORT.get(column)
            if field is not None and field.ours.startswith("nvlink_") and _NUMBER.fullmatch(cell):
                board.put_link(field.ours, field.short, link, float(cell))

    def end(self) -> None:
        """Tells the sums over links, of GPUs whose own rows told none."""
        for index, board in sorted(self._links.items()):
            sums = {
                name: value
                for name, value in board.values().items()
                if (index, name) not in self._told
            }
            fields = accepted(sums, self._findings, f"gpu{index}")
            self._findings.add(
                sample("gpu", self._now_ns, fields, node=self._node, gpu=str(index),
                       uuid=self._uuids.get(index, ""))
            )  # fmt: skip

    def _row(self, index: int, cells: list[str]) -> None:
        board = BoardValues()
        uuid = name = ""
        where = f"gpu{index}"
        for (column, _), cell in zip(self._columns, cells, strict=True):
            field = BY_SHORT.get(column)
            if column == "UUID#" and cell.startswith("GPU-"):
                uuid = clip(cell, 80)
            elif column == "DVNAM" and meaning_of(cell) is None:
                name = clip(cell, 100)
            elif field is not None:
                self._value(board, field, cell, where)
        if board.fabric is not None:
            self.fabric[index] = board.fabric
        if uuid or name:
            self.boards[index] = Board(index, uuid=uuid, model=name)
        fields = accepted(board.values(), self._findings, where)
        self._told.update((index, name) for name in fields if name.startswith("nvlink_"))
        self._uuids[index] = uuid
        if not fields and board.fabric is None:
            self._findings.problem(f"{where}: DCGM has no value of it at all", once=True)
        self._findings.add(
            sample("gpu", self._now_ns, fields, node=self._node, gpu=str(index), uuid=uuid)
        )
        told = last_xid(board, self._node, self._now_ns, index, "")
        if told is not None:
            self._findings.add(told)

    def _value(self, board: BoardValues, field: DcgmField, cell: str, where: str) -> None:
        if _NUMBER.fullmatch(cell):
            board.put(field, float(cell))
            return
        meaning = meaning_of(cell)
        if meaning is None or meaning.meaning != "absent":
            self._findings.problem(f"{where}: {field.ours or field.tag}: {clip(cell, 60)}")


def last_xid(board: BoardValues, node: str, time_ns: int, index: int, device: str) -> Sample | None:
    """The event of the Xid that DCGM remembers as the last one of a board."""
    xid = board.xid
    if xid is None or not 0 < xid < 1e6 or xid != int(xid):
        return None
    code = int(xid)
    return event(
        node,
        "xid",
        str(code),
        time_ns,
        text=f"gpu{index}: DCGM names Xid {code} as the last one of this GPU",
        severity=xid_severity(code),
        device=device or f"gpu{index}",
    )
