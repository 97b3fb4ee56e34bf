"""What a model whose gate is off would have drained: decided as ever, and only recorded.

It goes through the same policy, in shadow mode by construction, apart from all that acts: it
fills no cap, opens no breaker, proposes nothing, and no alert tells of it. What is judged here is
the model: so a drain that would cost more than it saves counts, and one that policy would hold for
a cause that many nodes share counts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daemon.policy.candidates import combined, node_risks
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Decision, Guard, Mode
from daemon.policy.limits import Limits
from models.voices import Risk

# The refusals that are alarms of the model all the same.
ALARMS = frozenset({Guard.SHADOW, Guard.COMMON_CAUSE})
# A model that cries wolf over the whole fleet fills no database.
MOST_AT_ONCE = 100


def would_drain(
    situation: Situation,
    risks: Sequence[Risk],
    threshold: float,
    limits: Limits,
    ledger: LedgerView,
    now_ns: int,
) -> list[Decision]:
    """The alarms of a model as refusals, for the nodes that are most at risk. Pure."""
    loud = [held for held in node_risks(risks).values() if combined(held) >= threshold]
    loud.sort(key=lambda held: (-combined(held), held[0].entity))
    kept = tuple(one for held in loud[:MOST_AT_ONCE] for one in held)
    if not kept:
        return []
    seen = replace(situation, facts=(), silences=situation.silences, risks=kept)
    cost = limits.cost.model_copy(update={"weigh": False})
    asked = limits.model_copy(update={"risk_threshold": threshold, "cost": cost})
    return [
        one
        for one in decide(seen, asked, ledger, Mode.SHADOW, now_ns)
        if one.action is Action.HOLD and one.guard in ALARMS and one.rule.startswith("risk:")
    ]
