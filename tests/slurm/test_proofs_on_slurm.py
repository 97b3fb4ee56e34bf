"""Proof before return on a real Slurm: reservation, job, return or drain, and kills between."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.slurm.source import Options
from daemon.policy.cases import Case, State
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.proofs.proof import Probe, ProofOptions
from daemon.proofs.records import Step
from daemon.slurm.cli import CliAdapter
from daemon.slurm.proving import ProofTools
from daemon.store.database import Database
from tests.daemon.worlds import GENEROUS, House, lost
from tests.testbed.slurm.cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
BUILTIN = {
    "gemm": Probe(command=("builtin:gemm",), minimum={"gemm_flops": 1.0}),
    "loopback": Probe(command=("builtin:loopback",)),
}


def proof(**changes: object) -> ProofOptions:
    values = {"when": "drained", "returns": "passed", "passes": 1, "clean_seconds": 0.0}
    return ProofOptions(**{**values, "probes": BUILTIN, **changes})  # type: ignore[arg-type]


def house(options: ProofOptions, database: Database | None = None) -> House:
    limits = Limits(**{**GENEROUS.model_dump(), "proof": options})
    tools = ProofTools(options, Options())
    return House(
        CliAdapter(Options()), database=database, limits=limits, mode=Mode.ACT,
        now_ns=time.time_ns, prover=tools,
    )  # fmt: skip


def drained(made: House, node: str) -> Case:
    made.facts = [lost(node, onset_ns=time.time_ns())]
    made.cycle()
    case = made.ledger.case_of(node)
    assert case is not None
    return case


def until(made: House, case: Case, *states: State) -> None:
    def reached() -> bool:
        made.cycle()
        return made.ledger.find(case.id).state in states

    wait_for(reached, f"{case.node} to be {states}")


def reservations(slurm: Cluster) -> str:
    return slurm.run("scontrol", "show", "reservation", "-o")


def test_a_node_that_passes_goes_back_and_no_user_ran_there_before(slurm: Cluster) -> None:
    made = house(proof(passes=2))
    case = drained(made, "n3")
    user = slurm.submit("-w", "n3", "-N1")
    until(made, case, State.RETURNED)
    assert "No reservations" in reservations(slurm)
    wait_for(lambda: slurm.jobs()[user][0] == "RUNNING", "the user's job")
    said = {e.verb: e for e in reversed(made.ledger.audit(subject=case.id))}
    returned_ns = said["returned"].time_ns
    begin = slurm.run("squeue", "-h", "-j", user, "-o", "%S").strip()
    begin_ns = time.mktime(time.strptime(begin, "%Y-%m-%dT%H:%M:%S")) * 1e9
    assert begin_ns >= returned_ns - 2e9
    assert "gemm_flops=" in said["proof_job"].text
    assert "loopback_bytes_per_second=" in said["proof_job"].text
    order = [e.verb for e in reversed(made.ledger.audit(subject=case.id))]
    assert order.index("proof_opening") < order.index("proof_running") < order.index("returned")


def test_a_node_that_fails_stays_drained_and_says_why(slurm: Cluster) -> None:
    bad = Probe(command=("/bin/false",))
    made = house(proof(probes={**BUILTIN, "disk": bad}))
    case = drained(made, "n3")
    until(made, case, State.DRAINED)
    made.cycle()
    until(made, case, State.DRAINED)
    assert "proof failed: disk:exit1 failed" in slurm.reason("n3")
    assert "DRAIN" in slurm.words("n3")
    assert "No reservations" in reservations(slurm)
    case = made.ledger.find(case.id)
    assert slurm.reason("n3") == case.reason
    made.drains.resume("n3", "ann", time.time_ns())
    assert "DRAIN" not in slurm.words("n3")


def test_without_automatic_return_a_passed_node_waits_for_a_person(slurm: Cluster) -> None:
    made = house(proof(returns="person", probes={"true": Probe(command=("/bin/true",))}))
    case = drained(made, "n2")
    wait_for(lambda: made.cycle() and "proof passed" in slurm.reason("n2"), "the proof")
    assert made.ledger.find(case.id).state in (State.DRAINED, State.TESTING)
    assert "DRAIN" in slurm.words("n2")


def test_a_person_who_drains_a_node_under_proof_keeps_it(slurm: Cluster) -> None:
    made = house(proof(probes={"slow": Probe(command=("/bin/sleep", "60"))}))
    case = drained(made, "n1")
    wait_for(lambda: made.cycle() and "DRAIN" not in slurm.words("n1"), "the undrain")
    slurm.drain("n1", "ann: it is mine")
    until(made, case, State.FOREIGN)
    assert slurm.reason("n1") == "ann: it is mine"
    assert "No reservations" in reservations(slurm)


def test_a_reservation_that_somebody_deletes_ends_the_proof_with_a_drain(slurm: Cluster) -> None:
    made = house(proof(probes={"slow": Probe(command=("/bin/sleep", "60"))}))
    case = drained(made, "n1")
    wait_for(lambda: made.cycle() and "DRAIN" not in slurm.words("n1"), "the undrain")
    # Slurm lets nobody delete a reservation while a job stands in it.
    slurm.run("scancel", *slurm.jobs())
    name = f"reservationname=tocsin_{case.id[:8]}"
    wait_for(
        lambda: (
            slurm.run("scontrol", "delete", name, check=False) is not None
            and "No reservations" in reservations(slurm)
        ),
        "the reservation to be gone",
    )
    wait_for(lambda: made.cycle() and "DRAIN" in slurm.words("n1"), "the drain")
    until(made, case, State.DRAINED)
    assert "its reservation is gone" in slurm.reason("n1")


def test_kill_9_at_any_moment_of_a_proof_never_opens_the_node_without_a_pass(
    slurm: Cluster, tmp_path: Path
) -> None:
    database = tmp_path / "ledger.db"
    made = house(proof(), Database(database))
    case = drained(made, "n4")
    user = slurm.submit("-w", "n4", "-N1")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.slurm.prove_once", str(database)]
    kills = 0
    while made.ledger.find(case.id).state is not State.RETURNED and kills < 8:
        child = subprocess.Popen(
            command, cwd=root, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.03 * (kills % 7))
        child.kill()
        child.wait()
        kills += 1
        shown = slurm.jobs().get(user, ("", ""))[0]
        if shown == "RUNNING":
            records = [e.verb for e in made.ledger.audit(subject=case.id)]
            assert "proof_releasing" in records, "a user's job ran before the proof had passed"
    until(made, case, State.RETURNED)
    assert kills >= 3
    assert "No reservations" in reservations(slurm)


def test_every_step_is_settled_by_another_head(slurm: Cluster) -> None:
    """A head for each step: what the one before wrote down is all that the next one knows."""
    made = house(proof(returns="person", probes={"true": Probe(command=("/bin/true",))}))
    case = drained(made, "n2")
    seen: list[Step] = []
    end = time.monotonic() + 300
    while time.monotonic() < end:
        new = house(made.limits.proof, made.database)
        new.facts = made.facts
        new.cycle()
        records = new.drains._proofs.records.of_case(case.id)  # type: ignore[union-attr]
        seen.extend(one.step for one in records)
        if records and records[-1].step is Step.OVER:
            break
    assert seen[-1] is Step.OVER
    assert "proof passed 1 of 1" in slurm.reason("n2")


def test_a_reservation_that_is_gone_already_is_no_error(slurm: Cluster) -> None:
    tools = ProofTools(proof(), Options())
    assert tools.reserved_for_us("tocsin_0123abcd", "n1") is None
    tools.release("tocsin_0123abcd")
