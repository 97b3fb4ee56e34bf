"""Reads the table that plain ``nvidia-smi`` prints: what people paste, and scripts should not read.

Two lines a GPU and, since 450, a third for MIG; widths and headings differ from version to version,
so cells are told apart by the bars between them and by what stands in them. The count of *volatile*
ECC errors is left out: ours is that of the board's life. So are MIG instances and processes.
"""

from __future__ import annotations

import re

from collectors.gpu.findings import Text, accepted, lines, without_escapes
from collectors.gpu.smi_places import Means
from collectors.gpu.smi_text import SmiText
from collectors.inventory import Board
from collectors.node.pci import address
from collectors.sample import Problem, Sample, clip, sample

_VERSION = re.compile(r"(?:Driver|KMD) Version:\s*(?P<driver>\d{2,4}(?:\.\d{1,5}){1,3})")
_FIRST = re.compile(r"\s*(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+(?P<persistence>\S+)\s*")
_BUS = re.compile(r"\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b.*")
_SECOND = re.compile(
    r"\s*(?P<fan>\S+)\s+(?P<temperature>\S+)\s+(?P<state>P\d{1,2}|\S+)\s+"
    r"(?P<power>\S+)\s*/\s*(?P<limit>\S+)\s*"
)
_MEMORY = re.compile(r"\s*(?P<used>\S+)\s*/\s*(?P<total>\S+)\s*")
_LOAD = re.compile(r"\s*(?P<load>\S+)\s+\S.*")
_MIG = re.compile(r"\s*(?P<mig>Enabled|Disabled)\*?\s*")
# What a table holds besides its GPUs: rules, headings, processes, MIG's own table.
_FRAME = re.compile(r"[-+=|:\s]*")
_HEADING = re.compile(
    r"\|\s*(?:NVIDIA-SMI\b|GPU\s+Name|Fan\s+Temp|.*MIG M\.|Processes:|GPU\s+(?:GI|PID)|ID\s+ID"
    r"|.*PID\s+Type|MIG devices|.*No running processes|No MIG devices)"
)
_DATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\s*")


def parse(text: Text, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """The GPUs of one table, or of several one after the other. Never raises."""
    table = _Table(SmiText(node, now_ns))
    for raw, whole in lines(text, table.text.findings):
        table.line(without_escapes(raw), whole)
    table.end()
    samples, problems = table.text.close()
    if not samples and not problems:
        problems.append(Problem("no table of nvidia-smi in this text"))
    return samples, problems


class _Table:
    """The table while it is read: one GPU at a time."""

    def __init__(self, text: SmiText) -> None:
        self.text = text
        self._board: Board | None = None
        self._values: dict[str, float] = {}
        self._means = Means()
        self._among_gpus = True

    def line(self, line: str, whole: bool) -> None:
        """Takes one line."""
        if _FRAME.fullmatch(line) or _DATE.fullmatch(line.strip()):
            return
        version = _VERSION.search(line)
        if version is not None:
            self.end()
            self._among_gpus = True
            self.text.versions["driver"] = version["driver"]
            return
        if not line.startswith("|"):
            if not self.text.take_failure(line):
                self.text.findings.problem("not a line of nvidia-smi's table", line)
            return
        if _HEADING.match(line):
            if "MIG devices" in line or "Processes" in line:
                self.end()
                self._among_gpus = False
            return
        if not self._among_gpus:
            return
        cells = line.strip().strip("|").split("|")
        if not whole or len(cells) != 3 or not self._cells(*cells):
            self.text.findings.problem("a line of the table that can't be read", line)

    def _cells(self, left: str, middle: str, right: str) -> bool:
        first, bus = _FIRST.fullmatch(left), _BUS.fullmatch(middle)
        if first is not None and bus is not None:
            self.end()
            index = int(first["index"])
            self._board = Board(
                index, bus=address(bus["bus"]), model=clip(first["name"].rstrip("."), 100)
            )
            return True
        if self._board is None:
            return False
        second = _SECOND.fullmatch(left)
        if second is not None:
            self._readings(second, middle, right)
            return True
        mig = _MIG.fullmatch(right)
        if mig is not None:
            self._values["mig_enabled"] = float(mig["mig"] == "Enabled")
        return not left.strip() and not middle.strip()

    def _readings(self, second: re.Match[str], middle: str, right: str) -> None:
        memory, load = _MEMORY.fullmatch(middle), _LOAD.fullmatch(right)
        cells = (
            ("fan_speed_ratio", second["fan"], "ratio"),
            ("temperature_celsius", second["temperature"], "celsius"),
            ("power_watts", second["power"], "watts"),
            ("power_limit_watts", second["limit"], "watts"),
            ("memory_used_bytes", memory["used"] if memory else None, "bytes"),
            ("memory_total_bytes", memory["total"] if memory else None, "bytes"),
            ("utilization_ratio", load["load"] if load else None, "ratio"),
        )
        for name, cell, kind in cells:
            number = self._means.number(name, cell, kind)
            if number is not None:
                self._values[name] = number
        if memory is None:  # words, of the GPU as a whole where it is lost
            self._means.number("memory_used_bytes", middle, "bytes")

    def end(self) -> None:
        """The GPU that was being read is whole."""
        board, self._board = self._board, None
        values, self._values = self._values, {}
        means, self._means = self._means, Means()
        if board is None:
            return
        where, findings = f"gpu{board.index}", self.text.findings
        self.text.boards[board.index] = board
        values = means.conclude(values)
        if means.lost:
            findings.problem(f"{where}: GPU is lost")
        else:
            for words, names in means.errors.items():
                findings.problem(f"{where}: {', '.join(names)}: {words}")
        fields = accepted(values, findings, where)
        findings.add(
            sample("gpu", self.text.now_ns, fields, node=self.text.node, gpu=str(board.index))
        )
