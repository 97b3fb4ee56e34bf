"""What is let in at a glance is what would be let in sample by sample, and teaches nothing."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sample import Sample, sample
from daemon.gate.admission import Admission, AdmissionOptions

DAY_NS = 86_400 * 10**9
NOW = 20_000 * DAY_NS + DAY_NS // 2
OPTIONS = AdmissionOptions(
    series_per_node_limit=4, fields_limit=3, past_days_limit=2.0, future_hours_limit=1.0
)

times = st.sampled_from(
    [NOW, NOW - 2 * DAY_NS, NOW - 2 * DAY_NS - 1, NOW + 3600 * 10**9, NOW + 3600 * 10**9 + 1]
)
readings = st.builds(
    lambda measurement, node, gpu, names, time_ns: sample(
        measurement, time_ns, dict.fromkeys(names, 1.0), node=node, gpu=gpu
    ),
    st.sampled_from(["gpu", "host", "event", "risk", "own"]),
    st.sampled_from(["n1", "n2", ""]),
    st.sampled_from(["", "0", "1"]),
    st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4, unique=True),
    times,
)
writes = st.lists(readings, max_size=6)
senders = st.sampled_from(["n1", "n2", "*"])
moments = st.sampled_from([NOW, NOW - DAY_NS, NOW + DAY_NS, NOW - 2 * DAY_NS])


def state(gate: Admission) -> object:
    """Whatever a gate remembers."""
    columns = vars(gate._columns)
    return copy.deepcopy({**vars(gate), "_columns": columns, "is_known_node": None})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(senders, writes, moments), max_size=4), senders, writes, moments)
def test_what_is_known_as_a_whole_is_let_in_one_by_one(
    before: list[tuple[str, list[Sample], int]], node: str, write: list[Sample], now_ns: int
) -> None:
    gate = Admission(OPTIONS)
    for sender, some, then_ns in before:
        for one in some:
            gate.judge(one, sender, then_ns)
    # What was let in just now is known in the main, so that the glance is taken.
    again = [one for one in write if gate.judge(one, node, now_ns) is None]
    for some in (again, write, again[::-1], [*again, *again]):
        remembered = state(gate)
        known = gate.knows_all(some, node, now_ns)
        assert state(gate) == remembered
        if known:
            assert [gate.judge(one, node, now_ns) for one in some] == [None] * len(some)
            assert state(gate) == remembered


def test_the_readings_of_an_agent_are_known_at_a_glance() -> None:
    """Else all of this would be for nothing, and nobody would notice."""
    gate = Admission()
    gpus = [sample("gpu", NOW, {"power_watts": 1.0}, node="n1", gpu=str(n)) for n in range(8)]
    write = [*gpus, sample("host", NOW, {"load_1m": 1.0}, node="n1")]
    assert not gate.knows_all(write, "n1", NOW)
    assert [gate.judge(one, "n1", NOW) for one in write] == [None] * 9
    assert gate.knows_all(write, "n1", NOW)
    assert gate.knows_all(write, "*", NOW)
    assert not gate.knows_all(write, "n2", NOW)
