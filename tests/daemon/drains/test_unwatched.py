"""A write whose moment slurmctld's log did not tell of is told to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from daemon.policy.limits import Limits
from daemon.proofs.proof import ProofOptions
from daemon.slurm.adapter import Check, Outcome
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.proving import SimulatedProving
from tests.daemon.worlds import GENEROUS, Clock, House, cluster, lost

BLIND = "/var/log/slurmctld.log does not show what slurmctld has just done"
ABOUT = "look into slurmctld's log"


class Blind(SimulatedSlurm):
    """A Slurm whose log is another's, until ``sees``."""

    sees = False

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        return self._told(super().drain(reasons, check))

    def undrain(self, names: Iterable[str], check: Check) -> Outcome:
        return self._told(super().undrain(names, check))

    def _told(self, outcome: Outcome) -> Outcome:
        return (
            outcome if self.sees else replace(outcome, unwatched=dict.fromkeys(outcome.done, BLIND))
        )


def house(limits: Limits = GENEROUS) -> tuple[House, Blind]:
    blind = Blind(cluster(4).values(), Clock().now_ns)
    made = House(blind, limits=limits, prover=SimulatedProving(blind, lambda _: None))
    made.strict = False
    made.facts = [lost("n3")]
    made.cycle()
    return made, blind


def told(made: House) -> str:
    """What people are alerted to after one more cycle."""
    made.clock.pass_seconds(10)
    made.cycle()
    return made.stages.faults.get(ABOUT, "")


def test_it_stands_in_the_audit_and_people_are_alerted_for_an_hour() -> None:
    made, _ = house()
    (said,) = [one for one in made.ledger.audit(node="n3") if one.verb == "unwatched"]
    assert BLIND in said.text
    (case,) = made.ledger.held()
    assert said.subject == case.id
    assert told(made) == BLIND
    made.clock.pass_seconds(3600)
    assert told(made) == ""


def test_the_next_write_that_the_log_shows_takes_it_back() -> None:
    made, blind = house()
    assert told(made) == BLIND
    blind.sees = True
    made.facts.append(lost("n4"))
    made.clock.pass_seconds(10)
    made.cycle()
    assert told(made) == ""


def unwatched(made: House) -> int:
    return sum(one.verb == "unwatched" for one in made.ledger.audit(node="n3"))


def test_a_return_and_the_drains_of_a_proof_are_told_too() -> None:
    made, _ = house()
    assert unwatched(made) == 1
    made.drains.resume("n3", "ann", made.now_ns())
    assert unwatched(made) == 2
    proof = ProofOptions(when="drained", returns="passed", passes=1, clean_seconds=0)
    made, blind = house(Limits(**{**GENEROUS.model_dump(), "proof": proof}))
    made.facts = []
    for _ in range(10):
        made.clock.pass_seconds(15)
        made.cycle()
    assert not blind.nodes(["n3"])["n3"].drain, "it was tested and is back"
    assert unwatched(made) == 2
