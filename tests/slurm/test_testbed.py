"""The testbed itself behaves as its README says, for other tests lean on it."""

import pytest

from tests.testbed.slurm.cluster import Cluster, wait_for

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
