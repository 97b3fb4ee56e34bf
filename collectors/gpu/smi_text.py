"""What one text of nvidia-smi gave: readings, problems, boards, versions and failures."""

from __future__ import annotations

from dataclasses import dataclass, field

from collectors.events import WARNING, event
from collectors.gpu.fabric import fault
from collectors.gpu.findings import Findings
from collectors.gpu.smi_failures import (
    INFOROM_ADVICE,
    Failure,
    corrupted_inforom,
    failure_event,
    failure_of,
)
from collectors.inventory import Board, board_events
from collectors.sample import Problem, Sample

FAILURES_MOST = 256


@dataclass
class SmiText:
    """Filled by a parser; a live source takes its parts, ``tocsin parse`` all of it at once.

    ``incomplete`` says why GPUs may be missing in ``boards`` though the node has them: the text was
    cut off, or lists fewer than it counts. Empty where the list is whole. ``mixed`` says why GPUs
    were left out that may be words of a user: each can be asked for by itself.
    """

    node: str
    now_ns: int
    findings: Findings = field(default_factory=Findings)
    boards: dict[int, Board] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    incomplete: str = ""
    mixed: str = ""
    fabric: dict[int, int] = field(default_factory=dict)  # state by index: collectors.gpu.fabric

    def take_failure(self, line: str) -> bool:
        """Whether ``line`` is a failure in nvidia-smi's words; if so it is kept and told.

        A warning of a GPU that is read all the same is told and no failure of the reading.
        """
        device = corrupted_inforom(line)
        if device:
            self.findings.problem(INFOROM_ADVICE, line)
            self.findings.add(
                event(
                    self.node,
                    "repair",
                    "inforom_corrupted",
                    self.now_ns,
                    text=line.strip(),
                    severity=WARNING,
                    device=device,
                )
            )
            return True
        failure = failure_of(line)
        if failure is None:
            return False
        if len(self.failures) < FAILURES_MOST:
            self.failures.append(failure)
        self.findings.problem(
            failure.advice or "nvidia-smi reports a GPU that it cannot read", line
        )
        return True

    def close(self) -> tuple[list[Sample], list[Problem]]:
        """Everything, with the events of failures, boards and versions."""
        if any(one.number("mig_enabled") == 1.0 for one in self.findings.samples):
            self.findings.problem("MIG is on: boards are scored, their instances are not")
        for failure in self.failures:
            told = failure_event(failure, self.node, self.now_ns)
            if told is not None:
                self.findings.add(told)
        for index, state in sorted(self.fabric.items()):
            bad = fault(self.boards.get(index, Board(index)), state, self.node, self.now_ns)
            if bad is not None:
                self.findings.add(bad)
        for one in board_events(self.node, self.boards.values(), self.versions, None, self.now_ns):
            self.findings.add(one)
        return self.findings.close()
