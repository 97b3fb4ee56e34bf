"""What lets a reading of a healthy GPU pass quickly must never let a finding pass."""

from hypothesis import given
from hypothesis import strategies as st

from collectors.sample import Value
from models import rulebook
from models.rulebook import Finding

NAMES = ["lost", "recovery_action", "row_remap_failed", "row_remap_pending"]
NAMES += ["retired_pages_pending", "ecc_sram_threshold_exceeded", "temperature_celsius"]
values = st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.0, 9.0, float("nan"), "", "1"])


@given(st.dictionaries(st.sampled_from(NAMES), values))
def test_where_no_field_tells_anything_no_rule_finds_anything(fields: dict[str, Value]) -> None:
    found = [state(fields) for state in rulebook.GPU_STATES]
    if not rulebook.may_tell(fields):
        assert not any(isinstance(one, Finding) for one in found)


def test_every_rule_of_a_gpus_state_is_asked_when_its_field_is_set() -> None:
    found = set()
    for name in NAMES:
        for value in (1.0, 2.0):
            findings = [state({name: value}) for state in rulebook.GPU_STATES]
            found |= {one.rule for one in findings if isinstance(one, Finding)}
            if any(isinstance(one, Finding) for one in findings):
                assert rulebook.may_tell({name: value})
    assert found == set(rulebook.GPU_STATE_RULES)
