"""Slurm is upgraded under a head that runs: the form of answer that it had learnt may be gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collectors.command import Result, Runner
from collectors.slurm.faults import SlurmTrouble
from collectors.slurm.reader import SlurmReader, Tools

RECORD = {"name": "n1", "state": ["IDLE"], "partitions": ["batch"]}
GROUP = {
    "nodes": {"nodes": ["n1", "n2"]},
    "node": {"state": ["DRAIN"]},
    "reason": {"description": "ann"},
    "partition": {"name": "batch"},
}


class Upgraded(Runner):
    """``new`` False answers as 22.05 does where its text is not clear, True as 24.05 does."""

    def __init__(self) -> None:
        super().__init__()
        self.new = False
        self.speaks = True

    def run(self, argv: Any, **more: Any) -> Result:
        del more
        tool, is_json = argv[0], "--json" in argv
        if not self.speaks:
            return Result(tuple(argv), "ended", 1, b"", b"unrecognized option\n")
        if tool == "scontrol" and is_json and not self.new:
            return Result(tuple(argv), "ended", 1, b"", b"scontrol: unrecognized option '--json'\n")
        if tool == "sinfo":
            told = {"sinfo": [GROUP]} if self.new else {"nodes": [RECORD]}
        elif is_json:
            told = {"nodes": [RECORD, {**RECORD, "name": "n2"}]}
        else:
            return Result(tuple(argv), "ended", 0, b"NodeName=n1 State=IDLE Comment=a State=DOWN\n")
        return Result(tuple(argv), "ended", 0, json.dumps(told).encode())


def test_the_form_that_the_new_release_speaks_is_found_without_a_restart() -> None:
    slurm = Upgraded()
    reader = SlurmReader(Tools(), slurm)
    assert set(reader.nodes()[0]) == {"n1"}
    assert reader.form == "sinfo"
    slurm.new = True
    assert set(reader.nodes()[0]) == {"n1", "n2"}
    assert reader.form == "scontrol"
    slurm.new = False  # and back, for the upgrade went wrong
    assert set(reader.nodes()[0]) == {"n1"}
    assert reader.form == "sinfo"


def test_a_release_that_speaks_no_form_is_a_failure_and_asked_again() -> None:
    slurm = Upgraded()
    reader = SlurmReader(Tools(), slurm)
    reader.nodes()
    slurm.speaks = False
    for _ in range(2):
        with pytest.raises(SlurmTrouble):
            reader.nodes()
    slurm.speaks = True
    assert set(reader.nodes()[0]) == {"n1"}
