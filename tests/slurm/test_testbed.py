"""The testbed itself behaves as its README says, for other tests lean on it."""

import os
from pathlib import Path

import pytest

from tests.testbed.slurm.cluster import ANOTHER, Cluster, use_named, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_a_job_runs_on_a_draining_node_and_the_node_comes_back(slurm: Cluster) -> None:
    job = slurm.start_job("n2", "--gres=gpu:1")
    slurm.drain("n2", "a person: swap the PSU")
    assert slurm.words("n2") == {"MIXED", "DRAIN"}
    assert slurm.jobs()[job] == ("RUNNING", "n2")
    assert slurm.reason("n2") == "a person: swap the PSU"
    slurm.reset()
    assert slurm.show()["n2"] == (frozenset({"IDLE"}), "")


def test_a_frozen_controller_does_not_answer_and_a_thawed_one_does(slurm: Cluster) -> None:
    slurm.freeze_controller()
    try:
        assert slurm.run("timeout", "0.5", "sinfo", check=False) == ""
    finally:
        slurm.thaw_controller()
    assert set(slurm.show()) == set(slurm.nodes)


def test_a_killed_controller_keeps_a_drain_through_its_restart(slurm: Cluster) -> None:
    slurm.drain("n3", "kept")
    # slurmctld saves its state within some seconds; the restart must not lose the drain.
    slurm.stop_controller()
    slurm.start_controller()
    wait_for(lambda: slurm.show()["n3"][1] == "kept", "the drain of n3")


def test_a_named_slurm_is_the_first_in_the_path_and_a_wrong_name_is_no_silent_run_against_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv(ANOTHER, str(tmp_path))
    with pytest.raises(ValueError, match=r"there is no .*/bin/scontrol"):
        use_named()
    for tool in ("bin/scontrol", "sbin/slurmctld"):
        (tmp_path / tool).parent.mkdir()
        (tmp_path / tool).write_text("#!/bin/sh\necho slurm 99.05.1\n")
        (tmp_path / tool).chmod(0o755)
    for _ in range(2):  # a second time, as in a worker of pytest-xdist, changes nothing
        assert use_named() == f"slurm 99.05.1 in {tmp_path}"
        assert os.environ["PATH"] == f"{tmp_path}/bin:{tmp_path}/sbin:/usr/bin:/bin"
    (tmp_path / "sbin/slurmctld").write_text("#!/bin/sh\necho no libslurm >&2; exit 1\n")
    with pytest.raises(ValueError, match="does not run: no libslurm"):
        use_named()
    monkeypatch.delenv(ANOTHER)
    assert use_named() == ""
