"""A few nodes asked for by name: an answer in which nothing can be read says nothing of them."""

from __future__ import annotations

from typing import Any

import pytest

from collectors.command import Result, Runner
from collectors.slurm.faults import SlurmTrouble
from collectors.slurm.reader import SlurmReader, Tools


class Says(Runner):
    """A Slurm whose commands end well and print ``stdout``."""

    def __init__(self, stdout: str, stderr: str = "", returncode: int = 0) -> None:
        super().__init__()
        self.answer = (returncode, stdout.encode(), stderr.encode())

    def run(self, argv: Any, **more: Any) -> Result:
        del more
        return Result(tuple(argv), "ended", *self.answer)


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        "\n",
        "scontrol: warning: something is odd\n",
        '{"nodes": [{"name": "n1", "state": ["IDLE"',
        '{"meta": {}}',
        '{"errors": [{"error": "Unable to contact slurm controller"}], "nodes": []}',
    ],
)
def test_an_answer_without_any_node_is_a_failure_and_no_word_that_they_are_gone(
    stdout: str,
) -> None:
    with pytest.raises(SlurmTrouble):
        SlurmReader(Tools(), Says(stdout)).nodes(["n1"])


@pytest.mark.parametrize(
    "runner",
    [
        Says("Node n1 not found\n", returncode=1),
        Says("", "slurm_load_node error: Node n1 not found\n", returncode=1),
        Says("Node n1 not found\n"),
        Says('{"errors": [], "nodes": []}'),
    ],
)
def test_a_node_that_slurm_says_it_does_not_know_is_none(runner: Says) -> None:
    assert SlurmReader(Tools(), runner).nodes(["n1"])[0] == {}
