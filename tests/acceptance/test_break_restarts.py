"""What a restart of slurmctld or a step of a node's clock must not make tocsin believe."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.acceptance.house import TOKEN, XID79, House, post_lines
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

HOUR_NS = 3600 * 10**9


def _unsure(words: frozenset[str]) -> bool:
    return bool(words & {"UNKNOWN", "NOT_RESPONDING"})


def test_a_resume_soon_after_a_clean_restart_of_slurmctld_is_a_persons(house: House) -> None:
    slurm = house.cluster
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "n3 is drained")
    house.looks()  # the ledger has stamped it; it is stamped again a minute later only
    slurm.stop_controller()
    slurm.start_controller()
    house.looks(4)  # the new slurmctld still shows the drain
    # It refuses to resume a node that has not registered again.
    wait_for(lambda: not _unsure(slurm.words("n3")), "n3 has registered")
    assert house.drained("n3")
    slurm.update("n3", state="resume")
    house.looks(4)
    assert not house.drained("n3"), slurm.reason("n3")


def test_one_reading_from_the_future_takes_no_gpu_away(house: House) -> None:
    house.looks()
    ahead_ns = time.time_ns() + HOUR_NS
    line = f"gpu,node=n1,gpu=0 temperature_celsius=40 {ahead_ns}"
    assert post_lines(house.port, TOKEN + "n1", line.encode())[0] == 204
    house.looks(4)
    assert not house.decisions("n1")
    assert not house.drained("n1")


@pytest.mark.parametrize("why", ["shadow", "locked"])
def test_no_note_for_a_rule_in_shadow_or_on_a_locked_node(
    build_house: Callable[..., House], why: str
) -> None:
    house = build_house(policy='rules = {xid = "shadow"}' if why == "shadow" else "")
    house.start()
    slurm = house.cluster
    if why == "locked":
        assert house.tocsin("lock", "n1").returncode == 0
    slurm.drain("n1", "swap PSU")
    house.kernel_says("n1", XID79)
    wait_for(lambda: house.decisions("n1"), "the refusal is recorded")
    house.looks()
    assert "Comment=" not in slurm.run("scontrol", "show", "node", "n1")


def test_a_node_that_a_person_took_down_and_resumed_is_not_drained_for_what_was(
    house: House,
) -> None:
    slurm = house.cluster
    slurm.update("n2", state="down", reason="swap GPU 4")
    house.kernel_says("n2", XID79)
    wait_for(lambda: house.decisions("n2"), "the refusal is recorded")
    house.looks()
    slurm.update("n2", state="resume")
    house.looks(4)
    assert not house.drained("n2"), slurm.reason("n2")
