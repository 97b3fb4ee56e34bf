"""A slurmctld that lost its state is no person who lifted our drains: on a real Slurm."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from collectors.slurm.source import Options
from daemon.slurm.adapter import SlurmError
from daemon.slurm.cli import CliAdapter
from tests.daemon.worlds import House, lost
from tests.testbed.slurm.cluster import Cluster, release, wait_for
from tests.testbed.slurm.pair import Pair

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def house() -> House:
    return House(CliAdapter(Options()), now_ns=time.time_ns)


def drained(made: House, slurm: Cluster, node: str) -> str:
    """Drains ``node`` through tocsin, sees it stand, and answers the reason."""
    made.facts = [lost(node, onset_ns=time.time_ns())]
    made.cycle()
    made.facts = []
    made.cycle()
    reason = slurm.reason(node)
    assert reason.startswith("tocsin:x79")
    return reason


def a_second_passes(made: House) -> None:
    """slurmctld tells its start in whole seconds: one that is started in the same second as the
    one before cannot be told from it.
    """
    start_ns = made.adapter.controller_start_ns()
    wait_for(lambda: time.time_ns() - start_ns > 2 * 10**9, "another second")


def settled(made: House) -> bool:
    """A cycle as the head has it: one whose reading fails concludes nothing, and is told."""
    try:
        made.cycle()
    except SlurmError:
        made.drains.not_read()
        return False
    return True


def told(made: House, node: str) -> list[str]:
    """What was done about ``node``, for the words of a failure."""
    return [f"{one.time_ns} {one.verb}: {one.text}" for one in made.ledger.audit(node=node)]


def said(made: House, node: str) -> list[str]:
    return [one.verb for one in made.ledger.audit(node=node)]


@pytest.mark.parametrize("how", ["emptied", "cold"])
def test_a_slurmctld_that_starts_with_nothing_gets_our_drain_again_and_not_anothers(
    slurm_start, how: str
) -> None:  # type: ignore[no-untyped-def]
    slurm = slurm_start(nodes=3)
    made = house()
    reason = drained(made, slurm, "n3")
    slurm.drain("n1", "ann: swapping the PSU")
    made.cycle()
    a_second_passes(made)
    slurm.kill_controller()
    if how == "emptied":
        shutil.rmtree(slurm.directory / "state")
        (slurm.directory / "state").mkdir()
        slurm.start_controller()
    else:
        command = ["slurmctld", "-c", "-f", str(slurm.conf)]
        subprocess.run(command, env=slurm.env, check=True, timeout=60, stdin=subprocess.DEVNULL)

    def again() -> bool:
        settled(made)
        return slurm.reason("n3") == reason

    wait_for(again, "our drain to be back", seen=lambda: (slurm.show(), told(made, "n3")))
    assert "forgotten" in said(made, "n3")
    assert "returned" not in said(made, "n3")
    # Ann's is gone with the state. It is not ours to write; her words stand in the audit.
    assert "DRAIN" not in slurm.words("n1")
    assert any("swapping the PSU" in one.text for one in made.ledger.audit(node="n1"))


@pytest.fixture
def pair(slurm_start, request: pytest.FixtureRequest) -> Iterator[Pair]:  # type: ignore[no-untyped-def]
    if not request.param and release() >= (23, 11):
        pytest.skip("from 23.11 on a backup waits for the first one's heartbeat in a shared folder")
    made = Pair(slurm_start, 3, shared=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("pair", [False], indirect=True)
def test_a_backup_that_takes_over_without_the_state_gets_our_drain_again(pair: Pair) -> None:
    slurm = pair.cluster
    made = house()
    assert any("may run on ctl1, ctl2, and this is" in one for one in made.adapter.describe())
    reason = drained(made, slurm, "n3")
    assert "unwatched" not in said(made, "n3")
    before_ns = made.adapter.controller_start_ns()
    pair.cluster.kill_controller()
    settled(made)
    pair.wait_for_takeover()
    assert "DRAIN" not in slurm.words("n3"), "the backup knows nothing of it"
    # It was started before the drain was made: its start alone says nothing.
    assert made.adapter.controller_start_ns() != before_ns
    made.strict = False  # that it is written with an eye on a log that stands still is told

    def again() -> bool:
        settled(made)
        return slurm.reason("n3") == reason

    wait_for(again, "our drain to be back", seen=lambda: (slurm.show(), told(made, "n3")))
    assert "forgotten" in said(made, "n3")
    assert "returned" not in said(made, "n3")
    assert "unwatched" in said(made, "n3")
    made.cycle()
    # From now on a person's word is one again.
    slurm.update("n3", state="resume")
    made.cycle()
    assert "DRAIN" not in slurm.words("n3")
    assert "returned" in said(made, "n3")
    # The next write looks into the log of the one that answers.
    made.facts = [lost("n2", onset_ns=time.time_ns())]
    wait_for(lambda: settled(made) and "tocsin:x79" in slurm.reason("n2"), "n2 to be drained")
    assert "unwatched" not in said(made, "n2")


@pytest.mark.parametrize("pair", [True], indirect=True)
def test_a_backup_that_takes_over_with_the_state_changes_nothing(pair: Pair) -> None:
    slurm = pair.cluster
    made = house()
    reason = drained(made, slurm, "n3")
    slurm.drain("n1", "ann: swapping the PSU")
    saved = slurm.directory / "state/node_state"
    wait_for(  # slurmctld writes it down some seconds later
        lambda: all(word in saved.read_bytes() for word in (b"swapping", b"tocsin:x79")),
        "both drains to be saved",
    )
    pair.cluster.kill_controller()
    settled(made)
    pair.wait_for_takeover()
    for _ in range(3):
        # A command may still spend its time on the one that is gone.
        wait_for(lambda: settled(made), "a reading of the backup")
    assert slurm.reason("n3") == reason
    assert slurm.reason("n1") == "ann: swapping the PSU"
    assert "forgotten" not in said(made, "n3")
    slurm.update("n3", state="resume")
    made.cycle()
    assert "DRAIN" not in slurm.words("n3")


def test_a_person_who_lifts_our_drain_soon_after_a_reconfigure_is_obeyed(slurm: Cluster) -> None:
    """From 23.11 on it starts slurmctld anew, as a crash does; the drains are not lost."""
    made = house()
    drained(made, slurm, "n3")
    slurm.run("scontrol", "reconfigure")
    wait_for(lambda: "DRAIN" in slurm.words("n3"), "slurmctld to answer again")
    # Slurm tells its start in whole seconds.
    time.sleep(1.1)
    made.cycle()
    slurm.update("n3", state="undrain")
    made.cycle()
    made.cycle()
    assert "DRAIN" not in slurm.words("n3")
    assert "returned" in said(made, "n3")
    assert "forgotten" not in said(made, "n3")


def without_slurmd(slurm: Cluster, node: str) -> None:
    """slurmctld was restarted while the node's slurmd does not run: it stays UNKNOWN."""
    slurm.node("stop-node", node)
    slurm.stop_controller()
    slurm.start_controller()
    wait_for(lambda: "UNKNOWN" in slurm.words(node), f"{node} to be UNKNOWN")


def test_a_return_of_a_node_that_has_not_registered_is_told_as_it_came(slurm: Cluster) -> None:
    """slurmctld answers UNDRAIN (and RESUME) there with an error, and lifts the drain; from 26.05
    on it answers yes.
    """
    made = house()
    drained(made, slurm, "n3")
    without_slurmd(slurm, "n3")
    assert "DRAIN" in slurm.words("n3")
    made.drains.resume("n3", "ann", time.time_ns())
    (last,) = [one for one in made.ledger.audit(node="n3") if one.verb == "returned"]
    assert last.user == "ann"
    words = "though slurmctld answered 'slurm_update error: Invalid node state specified'"
    assert (words in last.text) == (slurm.version < (26, 5)), last.text
    assert "it is UNKNOWN" in last.text
    assert made.ledger.case_of("n3") is None
    begin = slurm.log_size()
    for _ in range(2):
        made.cycle()
    assert slurm.updates_since(begin) == [], "nothing is written after it"
    assert "DRAIN" not in slurm.words("n3")
    slurm.node("start-node", "n3")
    wait_for(lambda: slurm.words("n3") == {"IDLE"}, "n3 to register")
    made.cycle()
    assert said(made, "n3").count("returned") == 1


def test_a_reason_that_such_a_return_replaced_is_put_back(slurm: Cluster) -> None:
    """Its UNDRAIN stands in no log: the answer of slurmctld is all that tells of it."""
    adapter = CliAdapter(window=lambda: slurm.drain("n3", "ann: PSU"))
    slurm.drain("n3", "tocsin:x79 gpu3 9f2c")
    without_slurmd(slurm, "n3")
    outcome = adapter.undrain(["n3"], lambda node: "")
    assert dict(outcome.restored) == {"n3": "ann: PSU"}
    assert slurm.reason("n3") == "ann: PSU"
    assert "DRAIN" in slurm.words("n3")
