"""What a model whose gate is off would have drained: decided as ever, and only recorded.

It goes through the same policy, in shadow mode by construction, apart from all that acts: it
fills no cap, opens no breaker, proposes nothing, and no alert tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daemon.candidates import combined, node_risks
from daemon.cases import LedgerView
from daemon.decisions import Action, Decision, Guard, Mode
from daemon.limits import Limits
from daemon.policy import Situation, decide
from models.voices import Risk

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
    """The refusals that nothing but shadow makes, for the nodes at most at risk. Pure."""
    loud = [held for held in node_risks(risks).values() if combined(held) >= threshold]
    loud.sort(key=lambda held: (-combined(held), held[0].entity))
    kept = tuple(one for held in loud[:MOST_AT_ONCE] for one in held)
    if not kept:
        return []
    seen = replace(situation, facts=(), silences=situation.silences, risks=kept)
    asked = limits.model_copy(update={"risk_threshold": threshold})
    return [
        one
        for one in decide(seen, asked, ledger, Mode.SHADOW, now_ns)
        if one.action is Action.HOLD and one.guard is Guard.SHADOW and one.rule.startswith("risk:")
    ]
