"""A write whose moment slurmctld's log did not tell of is told to people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from daemon.slurm.adapter import Check, Outcome
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import Clock, House, cluster, lost

BLIND = "/var/log/slurmctld.log does not show what slurmctld has just done"
ABOUT = "look into slurmctld's log"


class Blind(SimulatedSlurm):
    """A Slurm whose log is another's, until ``sees``."""

    sees = False

    def drain(self, reasons: Mapping[str, str], check: Check) -> Outcome:
        outcome = super().drain(reasons, check)
        return outcome if self.sees else replace(outcome, unwatched=dict.fromkeys(reasons, BLIND))


def house() -> tuple[House, Blind]:
    blind = Blind(cluster(4).values(), Clock().now_ns)
    made = House(blind)
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
