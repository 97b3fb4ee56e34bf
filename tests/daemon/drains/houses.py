"""Houses over a Slurm in memory, for the tests of drains."""

from __future__ import annotations

from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import (
    GENEROUS,
    House,
    simulated,
)


def house(mode: Mode = Mode.ACT, limits: Limits = GENEROUS, count: int = 4) -> House:
    made = House(simulated(count), mode=mode, limits=limits)
    made.clock.pass_seconds(10)
    return made


def slurm(made: House) -> SimulatedSlurm:
    assert isinstance(made.adapter, SimulatedSlurm)
    return made.adapter


def node(made: House, name: str):  # type: ignore[no-untyped-def]
    return made.adapter.nodes([name])[name]


def restarted(made: House) -> House:
    """Another head over the same database and the same Slurm."""
    new = House(made.adapter, database=made.database, limits=made.limits, mode=made.mode)
    new.clock = made.clock
    new.now_ns = made.now_ns
    new.facts = list(made.facts)
    return new
