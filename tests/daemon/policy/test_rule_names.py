"""Modes are set for rules that exist: a misspelt one would let the rule that was meant act."""

from __future__ import annotations

import pytest

from daemon.config import Config
from daemon.policy.decisions import Mode
from daemon.policy.limits import Limits
from daemon.settings import ConfigError, validate
from models.rule_table import RULES


@pytest.mark.parametrize("key", ["rules", "absence_rules"])
def test_a_rule_that_does_not_exist_is_refused_for_the_one_that_was_meant_would_act(
    key: str,
) -> None:
    names = {"row_remap_fialed": "shadow"} if key == "rules" else ["row_remap_fialed"]
    with pytest.raises(ConfigError) as refused:
        validate(Config, {"mode": "act", "policy": {key: names}})
    (line,) = refused.value.lines()
    assert line.startswith(f"policy.{key}: ")
    assert 'did you mean "row_remap_failed"?' in line


@pytest.mark.parametrize("rule", [*RULES, "heat", "idle_probe", "risk", "soft"])
def test_every_rule_can_be_kept_back(rule: str) -> None:
    limits = Limits.model_validate({"rules": {rule: "shadow"}})
    assert limits.mode_of(rule, "fact", Mode.ACT) is Mode.SHADOW
