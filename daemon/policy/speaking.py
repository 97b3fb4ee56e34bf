"""Which of the causes that stand against a node speaks for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daemon.policy.candidates import Candidate
from daemon.policy.cases import State
from daemon.policy.decisions import Guard
from daemon.policy.guards import GUARDS, Scene

# What is said of one cause and not of the node. A common cause is not among them: what shows in
# several ways at once is still one.
_OF_A_CAUSE = tuple(
    (guard, ask)
    for guard, ask in GUARDS
    if guard
    in (
        Guard.SPENT, Guard.DENIED, Guard.TOOL_FAULT, Guard.COVERAGE, Guard.SHADOW, Guard.APPROVAL,
    )
)  # fmt: skip


def speaks(scene: Scene, own: Sequence[Candidate]) -> Candidate:
    """The gravest of ``own``, which are of one node and in order, with the others beside it.

    One that can't drain the node, because its rule only watches or a person said no to it, keeps
    no other from doing so: else a rule in shadow would change what is done. What stood there when
    the person said no to the gravest is covered by that word.
    """
    first = own[0]
    case = scene.ledger.cases.get(first.id)
    said_ns = case.updated_ns if case is not None and case.state is State.DENIED else 0
    refused: dict[str, str] = {}
    chosen = first
    if len(own) > 1:
        for one in own:
            why = _why_not(scene, one)
            if not why and (one is first or one.onset_ns > said_ns):
                chosen = one
                break
            refused[one.id] = why or "no was said to what it stood beside"
        else:
            refused.clear()
    return replace(
        chosen,
        beside=tuple(
            f"{one.code} {one.device}: {one.text}"
            + (f" (not drained for it: {refused[one.id]})" if one.id in refused else "")
            for one in own
            if one is not chosen
        ),
    )


def _why_not(scene: Scene, one: Candidate) -> str:
    """Why this cause alone drains no node, or empty."""
    for guard, ask in _OF_A_CAUSE:
        passed, text = ask(scene, one)
        if not passed:
            return f"{guard.value}, {text}"
    return ""
