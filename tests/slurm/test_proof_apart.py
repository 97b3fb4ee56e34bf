"""A node under proof is shut to jobs of other reservations that hold it too, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from daemon.policy.cases import State
from daemon.proofs.proof import Probe
from tests.slurm.test_proofs_on_slurm import drained, house, proof
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture
def reserved(slurm: Cluster) -> Iterator[Cluster]:
    """``n1`` is in a user's reservation that may overlap others; newer ones take no ``nobody``."""
    slurm.run(
        "scontrol", "create", "reservation", "ReservationName=ann_1", "StartTime=now",
        "Duration=60", "Users=daemon", "Nodes=n1", "Flags=OVERLAP",
    )  # fmt: skip
    yield slurm
    slurm.run("scancel", *slurm.jobs(), check=False)
    wait_for(
        lambda: (
            slurm.run("scontrol", "delete", "ReservationName=ann_1", check=False) is not None
            and "ann_1" not in slurm.run("scontrol", "show", "reservation")
        ),
        "the reservation to be gone",
    )


def test_a_job_that_waits_in_a_users_reservation_of_the_node_waits_for_the_proof(
    reserved: Cluster,
) -> None:
    slurm = reserved
    begin = slurm.submit("--uid=daemon", "--chdir=/tmp", "--reservation=ann_1", "-w", "n1")
    wait_for(lambda: slurm.jobs()[begin][0] == "RUNNING", "the user's first job")
    made = house(proof(passes=2, probes={"slow": Probe(command=("/bin/sleep", "1"))}))
    case = drained(made, "n1")
    job = slurm.submit("--uid=daemon", "--chdir=/tmp", "--reservation=ann_1", "-w", "n1")
    slurm.run("scancel", begin)
    seen: set[tuple[str, str]] = set()

    def returned() -> bool:
        made.cycle()
        # The job is looked at first: the node may come back between the two looks.
        state = slurm.jobs()[job][0]
        seen.add((made.ledger.find(case.id).state.value, state))
        return made.ledger.find(case.id).state is State.RETURNED

    wait_for(returned, "the node to be back")
    assert ("testing", "PENDING") in seen
    assert ("testing", "RUNNING") not in seen
    # slurmctld looks at waiting jobs once a minute, and at new ones at once.
    late = slurm.submit("--uid=daemon", "--chdir=/tmp", "--reservation=ann_1", "-w", "n1")
    open_again = lambda: "RUNNING" in {slurm.jobs()[one][0] for one in (job, late)}  # noqa: E731
    wait_for(open_again, "a job of the user", 90)
