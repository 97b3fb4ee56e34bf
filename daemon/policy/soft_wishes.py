"""Which nodes a risk makes less wanted, short of a drain. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from daemon.drains.soft import Wish
from daemon.policy.candidates import Candidate, node_chances, of_risks
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation, scene_of
from daemon.policy.decisions import Guard, Mode
from daemon.policy.guards import GUARDS, ask_all
from daemon.policy.limits import Limits
from models.voices import Remedy

# What must let a soft step pass. The others are about drains: their cost, their cap, their yes.
# A node that is held out is only watched: were it spared work, nobody could say what came of it.
_ASKED = frozenset(
    {
        Guard.SLURM_AWAY, Guard.UNKNOWN_NODE, Guard.OURS, Guard.FOREIGN, Guard.NOT_REGISTERED,
        Guard.MAINTENANCE, Guard.LOCKED, Guard.TOOL_FAULT, Guard.COVERAGE,
        Guard.COMMON_CAUSE, Guard.BREAKER, Guard.HELD_OUT,
    }
)  # fmt: skip
# A reservation keeps new jobs away as a drain does: it is not to close a partition either.
_CAPS = frozenset({Guard.CAP_CLUSTER, Guard.CAP_PARTITION, Guard.CAP_GROUP})
assert {guard for guard, _ in GUARDS} >= _ASKED | _CAPS


def soft_mode(limits: Limits, mode: Mode) -> Mode:
    """How far soft steps may go: the daemon's mode, or ``soft`` of ``[policy.rules]``."""
    return limits.mode_of("soft", "fact", mode)


def wishes(
    situation: Situation,
    limits: Limits,
    ledger: LedgerView,
    mode: Mode,
    now_ns: int,
    reserved: frozenset[str] = frozenset(),
) -> list[Wish]:
    """The nodes to make less wanted now, the likeliest first. ``reserved``: by steps that stand.

    Many likely nodes at once are bounded by the cap and not taken for one cause: a risk lasts for
    days, and to be taken last hurts nobody. A rack with an event of its own is left alone.
    """
    if limits.soft.step == "none":
        return []
    likely = of_risks(situation.risks, limits.soft.threshold, ledger, now_ns)
    scene = scene_of(situation, limits, ledger, mode, now_ns, ())
    reserves = limits.soft.step == "reservation"
    asked = _ASKED | _CAPS if reserves else _ASKED
    scene.planned.extend(reserved)
    found: dict[str, Wish] = {}
    for one in sorted(likely, key=lambda one: (-one.probability, one.node)):
        if one.node in found:
            continue
        said = [verdict for verdict in ask_all(scene, one) if verdict.guard in asked]
        if all(verdict.passed for verdict in said):
            found[one.node] = Wish(one.node, one.probability, one.text)
            if reserves:
                scene.planned.append(one.node)
    return list(found.values())


def too_many(
    situation: Situation,
    limits: Limits,
    ledger: LedgerView,
    mode: Mode,
    now_ns: int,
    reserved: frozenset[str],
) -> frozenset[str]:
    """Those of ``reserved`` that must give way, the least likely to fail first.

    A drain never waits for a reservation of ours: it is written at once, and where both together
    keep more nodes from a cluster, partition or rack than the caps allow, reservations end.
    """
    if not reserved:
        return frozenset()
    scene = scene_of(situation, limits, ledger, mode, now_ns, ())
    held = scene.held()
    likely = chances(situation)
    caps = [ask for guard, ask in GUARDS if guard in _CAPS]
    found = set()
    for name in sorted(reserved - held, key=lambda name: (-likely.get(name, 0.0), name)):
        if all(ask(scene, _only_named(name))[0] for ask in caps):
            scene.planned.append(name)
        else:
            found.add(name)
    return frozenset(found)


def _only_named(node: str) -> Candidate:
    """Caps look at the node alone."""
    return Candidate("", node, "", "node", "soft", "", "risk", 0, 0, Remedy.NONE, 0.0, "", "")


def chances(situation: Situation) -> Mapping[str, float]:
    """The highest risk of each node that has one."""
    return node_chances(situation.risks)
