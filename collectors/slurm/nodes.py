"""What Slurm says about nodes: ``NodeState`` and the readers of its texts.

Reads, of Slurm 22.05 to 26.05:

- ``scontrol show nodes --json`` and slurmrestd's ``/nodes`` (``nodes``, state a list of words);
- ``sinfo --json`` of 22.05 (``nodes``, one record a node, state and ``state_flags``);
- ``sinfo --json`` of 23.02 on (``sinfo``, records that stand for *groups* of nodes);
- ``scontrol show nodes`` as text, with or without ``-o`` and ``-d``.

A value that cannot be read is left at its empty default and told as a Problem; no input makes
a reader raise.
"""

from __future__ import annotations

from collectors.sample import Problem
from collectors.slurm.json_nodes import from_json, json_begin
from collectors.slurm.state import SECOND_NS, Nodes, NodeState, gpu_count, with_jobs
from collectors.slurm.text_nodes import from_text, local_ns

__all__ = ["SECOND_NS", "NodeState", "Nodes", "gpu_count", "local_ns", "parse_nodes", "with_jobs"]

# Problems kept of one text; the rest is counted in the last one.
PROBLEM_LIMIT = 100


def parse_nodes(text: str | bytes) -> tuple[Nodes, list[Problem]]:
    """The nodes in any of the texts above, by name, and what could not be read."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    problems: list[Problem] = []
    begin = json_begin(text)
    nodes = from_text(text, problems) if begin is None else from_json(text[begin:], problems)
    if len(problems) > PROBLEM_LIMIT:
        left = len(problems) - PROBLEM_LIMIT
        problems = [*problems[:PROBLEM_LIMIT], Problem(f"{left} more problems of this text")]
    return nodes, problems
