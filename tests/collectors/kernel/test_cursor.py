from hypothesis import given
from hypothesis import strategies as st

from collectors.kernel.cursor import Unacknowledged


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=60))
def test_no_position_is_given_before_every_batch_up_to_it_is_safe(
    limit: int, steps: list[bool]
) -> None:
    waiting = Unacknowledged(limit)
    added = safe = 0
    for add in steps:
        if add:
            added += 1
            waiting.add({"batch": added})
            continue
        safe = min(safe + 1, added)
        position = waiting.acknowledge()
        if position is not None:
            assert position["batch"] <= safe
    for _ in range(added - safe):
        position = waiting.acknowledge()
    assert not waiting
    if added > safe:
        assert position == {"batch": added}


def test_a_word_that_no_batch_waits_for_changes_nothing() -> None:
    waiting = Unacknowledged(2)
    assert waiting.acknowledge() is None
    waiting.add({"batch": 1})
    assert waiting.acknowledge() == {"batch": 1}
    assert waiting.acknowledge() is None
