"""Rows of the ledger's tables, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from daemon.policy.cases import Case, State
from daemon.policy.decisions import Action, Decision, Guard, Mode

_CASE_FIELDS = tuple(field.name for field in fields(Case))
_DECISION_FIELDS = tuple(field.name for field in fields(Decision))


def case_from(row: Any) -> Case:
    """The case that one row is."""
    values = {name: row[name] for name in _CASE_FIELDS}
    values["state"] = State(values["state"])
    verdict = values["verdict"]
    values["verdict"] = None if verdict is None else bool(verdict)
    return Case(**values)


def plain_decision(decision: Decision) -> dict[str, Any]:
    """A decision as JSON data."""
    plain: dict[str, Any] = {}
    for name in _DECISION_FIELDS:
        value = getattr(decision, name)
        plain[name] = dict(value) if name == "inputs" else value
    return plain


def decision_from(plain: Mapping[str, Any]) -> Decision:
    """The decision that ``plain_decision`` wrote. A guard of a later version is kept as None."""
    values = {name: plain[name] for name in _DECISION_FIELDS if name in plain}
    values["action"] = Action(values["action"])
    values["mode"] = Mode(values["mode"])
    guard = values.get("guard")
    values["guard"] = Guard(guard) if guard in set(Guard) else None
    values["inputs"] = MappingProxyType(dict(values.get("inputs") or {}))
    return Decision(**values)
