"""Reads CSV of nvidia-smi: ``--query-gpu`` and its siblings for remapped rows, pages, processes.

Columns are known by the header, or by a first line ``# asked: index,uuid,...`` that names what
was asked for, in order: nvidia-smi may head a column by another name than it was asked by. A
text without either is told apart by shape only as far as that is certain: UUID and PCI address.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from collectors.gpu.fabric import state_of
from collectors.gpu.findings import Text, accepted, lines, printable
from collectors.gpu.smi_columns import (
    FIELD_COLUMNS,
    IDENTITY_COLUMNS,
    KNOWN,
    MASK_BITS,
    MASK_COLUMNS,
    SECOND_CHOICE,
    TEXT_COLUMNS,
    plain,
)
from collectors.gpu.smi_places import Means
from collectors.gpu.smi_text import SmiText
from collectors.gpu.smi_values import meaning_of, quantity, read
from collectors.inventory import Board
from collectors.node.pci import address
from collectors.sample import Problem, Sample, clip, sample

ASKED = re.compile(r"#\s*asked:\s*(.+)", re.I)
COLUMNS_MOST = 512
BOARDS_MOST = 1024

PAGE_CAUSES = {
    "single bit ecc": "retired_pages_single_total",
    "double bit ecc": "retired_pages_double_total",
}

# A column's name, with its unit: no cell of a row looks like one of the names that are known.
_NAME = re.compile(r"[A-Za-z][\w.]{0,80}(?:\s*\[[^\]]{0,20}\])?")
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{8,64}")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """Samples and problems of one CSV text. Never raises."""
    return read_csv(text, node, now_ns).close()


def read_csv(text: Text, node: str, now_ns: int, asked: Sequence[str] = ()) -> SmiText:
    """The same in parts; ``asked`` are the columns of a query of our own, in order."""
    result = SmiText(node, now_ns)
    table = _Table(result, [plain(name) for name in asked])
    for line, whole in lines(text, result.findings):
        table.line(line, whole)
    table.close()
    return result


class _Table:
    """One table while it is read."""

    def __init__(self, result: SmiText, asked: list[str]) -> None:
        self.findings = result.findings
        self._result = result
        self._node = result.node
        self._now_ns = result.now_ns
        self._columns = asked
        self._asked = bool(asked)
        self._headed = False
        self._rows = 0
        self._counted: float | None = None  # how many GPUs there are, by the column ``count``
        self._pages: Counter[tuple[str, str]] = Counter()
        self._places: dict[str, int] = {}  # of addresses, where rows tell no index

    def line(self, line: str, whole: bool) -> None:
        """Takes one line."""
        if not line.strip() or self._result.take_failure(line):
            return
        asked = ASKED.match(line)
        if asked is not None:
            self._columns = [plain(name) for name in asked[1].split(",")][:COLUMNS_MOST]
            self._asked = True
            return
        if not printable(line):
            self._left_out("not text that nvidia-smi prints", line)
            return
        cells = [cell.strip() for cell in line.split(",", COLUMNS_MOST)]
        if self._is_header(cells):
            if not self._asked:
                self._columns = [plain(cell) for cell in cells]
            self._headed = True
        elif not whole:
            self._left_out("cut off in this line, which is left out", line)
        else:
            self._row(cells, line)

    def close(self) -> None:
        """Adds what only the whole table tells."""
        for (uuid, name), count in self._pages.items():
            fields = accepted({name: float(count)}, self.findings, uuid)
            self.findings.add(sample("gpu", self._now_ns, fields, node=self._node, uuid=uuid))
        if self._counted is not None:
            listed = len(self._result.boards)
            whole = self._counted <= listed
            words = f"{self._counted:.0f} GPUs are there and {listed} are listed"
            self._result.incomplete = "" if whole else words
        found = self.findings.samples or self._result.boards
        if not found and not self.findings.problems:
            words = "no row of nvidia-smi CSV in this text"
            if self._rows:
                words = f"{self._rows} rows, and none holds a value that is kept"
            self.findings.problem(words)

    # ---- inside ----------------------------------------------------------------------------

    def _left_out(self, words: str, line: str) -> None:
        """A row that can't be read: whose it was is not known."""
        self.findings.problem(words, line)
        self._result.incomplete = self._result.incomplete or f"of its rows, one is {words}"

    def _is_header(self, cells: list[str]) -> bool:
        """Whether a line names columns: only known names, or some of them on a first line."""
        names = [plain(cell) for cell in cells]
        known = sum(name in KNOWN for name in names)
        if known == len(names) and known:
            return True
        return (
            not self._headed
            and not self._rows
            and known > 0
            and (known * 2 >= len(names) or all(map(_NAME.fullmatch, cells)))
        )

    def _row(self, cells: list[str], line: str) -> None:
        self._rows += 1
        if not self._columns:
            self._shapes(cells, line)
            return
        if len(cells) > len(self._columns):
            cells = _joined(cells, self._columns)
        if len(cells) != len(self._columns):
            self._left_out(f"{len(cells)} cells under {len(self._columns)} columns: left out", line)
            return
        row = dict(zip(self._columns, cells, strict=True))
        board = self._board(row)
        if board is None:
            self._left_out("a row that names no GPU: left out", line)
            return
        counted = quantity(row.get("count", ""), "count").number
        self._counted = counted if self._counted is None else self._counted
        if "retired_pages.address" in row:
            self._page(board, row)
        else:
            self._fields(board, row)

    def _page(self, board: Board, row: Mapping[str, str]) -> None:
        """One retired page. A row without an address is a board without page retirement."""
        name = PAGE_CAUSES.get(row.get("retired_pages.cause", "").lower())
        if name and row["retired_pages.address"].lower().startswith("0x"):
            self._pages[board.uuid, name] += 1

    def _board(self, row: Mapping[str, str]) -> Board | None:
        """Who the row is about; -1 as index when it gives none."""
        answer: dict[str, str] = {}
        for column, key in IDENTITY_COLUMNS.items():
            text = row.get(column, "")
            if text and meaning_of(text) is None and "?" not in text:
                answer.setdefault(key, clip(text, 200))
        index = quantity(answer.pop("index", ""), "plain").number
        if index is not None and not 0 <= index < BOARDS_MOST:
            index = None
        uuid, bus = answer.get("uuid", ""), address(answer.get("bus", ""))
        if index is None and not uuid:
            index = self._place(bus)
            if index is None:
                return None
        driver = answer.pop("driver", "")
        if driver:
            self._result.versions["driver"] = driver
        board = Board.of(-1 if index is None else int(index), answer)
        # Rows of other queries name a GPU by its UUID only: no inventory can be made of that.
        if index is not None and (uuid or bus):
            self._result.boards[board.index] = board
        return board

    def _place(self, bus: str) -> float | None:
        """The index of a GPU that only its address names: nvidia-smi lists them in that order."""
        if not bus or (bus not in self._places and len(self._places) >= BOARDS_MOST):
            return None
        self.findings.problem(
            "rows without index and uuid: GPUs are numbered as they come, from 0", once=True
        )
        return float(self._places.setdefault(bus, len(self._places)))

    def _fields(self, board: Board, row: Mapping[str, str]) -> None:
        means = Means()
        values: dict[str, float] = {}
        if "fabric.state" in row and board.index >= 0:
            status = row.get("fabric.status", "")
            self._result.fabric[board.index] = state_of(row["fabric.state"], status)
        for column, text in row.items():
            if column in MASK_COLUMNS:
                number = means.number("throttle reasons", text, "mask")
                if number is not None:
                    bits = int(number)
                    values.update(
                        {name: float(bool(bits & bit)) for name, bit in MASK_BITS.items()}
                    )
            elif column in FIELD_COLUMNS:
                name, kind = FIELD_COLUMNS[column]
                number = means.number(name, text, kind)
                if number is not None and not (column in SECOND_CHOICE and name in values):
                    values[name] = number
        where = f"gpu{board.index}" if board.index >= 0 else board.uuid or board.bus
        values = means.conclude(values)
        for words, names in means.errors.items():
            self.findings.problem(f"{where}: {', '.join(names)}: {words}")
        self.findings.add(
            sample(
                "gpu",
                self._now_ns,
                accepted(values, self.findings, where),
                node=self._node,
                gpu=str(board.index) if board.index >= 0 else "",
                uuid=board.uuid,
            )
        )

    def _shapes(self, cells: list[str], line: str) -> None:
        """A row without header: its GPU by shape, its numbers by nothing."""
        uuid = next((cell for cell in cells if _UUID.fullmatch(cell)), "")
        bus = next((cell for cell in cells if _BUS.fullmatch(cell)), "")
        if len(cells) < 2:
            self.findings.problem("not a line of nvidia-smi CSV", line)
            return
        index = read(cells[0], "plain").number if cells[0].isdigit() else None
        self.findings.problem(
            "no header: which numbers these are cannot be known; give the query's columns as a "
            "first line '# asked: index,uuid,...'",
            line,
            once=True,
        )
        if index is not None and index < BOARDS_MOST and (uuid or bus):
            self._result.boards[int(index)] = Board(int(index), uuid, address(bus))


def _joined(cells: list[str], columns: list[str]) -> list[str]:
    """``cells`` with the surplus joined into the one column whose text may hold commas."""
    places = [at for at, column in enumerate(columns) if column in TEXT_COLUMNS]
    surplus = len(cells) - len(columns)
    if len(places) != 1:
        return cells
    at = places[0]
    return [*cells[:at], ", ".join(cells[at : at + surplus + 1]), *cells[at + surplus + 1 :]]
