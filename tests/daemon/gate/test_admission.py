"""What one sender may bring in: bounded names, bounded texts, and nobody else's budget."""

from __future__ import annotations

import pytest

from collectors.events import event
from collectors.sample import TEXT_LIMIT_CHARACTERS, Sample, sample
from daemon.gate.admission import Admission, AdmissionOptions, cut

DAY_NS = 86_400 * 10**9
NOW_NS = 20_000 * DAY_NS


def test_a_sender_that_invents_measurements_is_cut_and_costs_no_other() -> None:
    admission = Admission(AdmissionOptions(measurements_per_node_limit=3))

    def bring(node: str, measurement: str, now_ns: int = NOW_NS) -> str:
        refusal = admission.judge(sample(measurement, now_ns, {"a": 1.0}, node=node), node, now_ns)
        return refusal.problem if refusal else ""

    assert [bring("n1", f"m{number}") for number in range(3)] == ["", "", ""]
    assert "measurement budget: n1 has 3 measurements already" in bring("n1", "m3")
    assert bring("n1", "m0") == ""
    assert bring("n2", "m3") == ""
    # Names that were not used for a whole day give their place back.
    assert bring("n1", "m0", NOW_NS + DAY_NS) == ""
    assert bring("n1", "m7", NOW_NS + 2 * DAY_NS) == ""


def test_a_long_text_is_cut_and_numbers_are_left_alone() -> None:
    long = sample("event", NOW_NS, {"text": "x" * 50_000, "severity": 2.0}, node="n1")
    short = cut(long)
    assert len(short.text("text")) == TEXT_LIMIT_CHARACTERS
    assert short.number("severity") == 2.0
    assert short.tags == long.tags
    plain = sample("event", NOW_NS, {"text": "fell off the bus"}, node="n1")
    assert cut(plain) is plain


@pytest.mark.parametrize(
    ("kind", "code", "alone"),
    [
        ("verdict", "wrong", True),
        ("inventory", "replaced", True),
        ("inventory", "link", True),
        ("inventory", "gpu", False),
        ("xid", "79", False),
    ],
)
def test_no_node_may_say_what_only_the_head_may(kind: str, code: str, alone: bool) -> None:
    said = sample("event", NOW_NS, {"text": "case=9f2c"}, node="n1", kind=kind, code=code)
    refusal = Admission(AdmissionOptions()).judge(said, "n1", NOW_NS)
    assert ("alone" in refusal.problem) if refusal is not None else not alone


@pytest.mark.parametrize(
    ("measurement", "tag", "refused"),
    [
        ("gpu", "power_watts", True),
        ("gpu", "power_watts_max", True),
        ("event", "device", True),
        ("gpu", "uuid", False),
        ("cpu", "power_watts", False),
    ],
)
def test_no_tag_may_hide_a_column_of_ours(measurement: str, tag: str, refused: bool) -> None:
    said = sample(measurement, NOW_NS, {"a": 1.0}, node="n1", **{tag: "x"})
    refusal = Admission(AdmissionOptions()).judge(said, "n1", NOW_NS)
    assert (refusal is not None) == refused


@pytest.mark.parametrize("measurement", ["\u00e9" * 43, "a\x1b[2J", "x" * 100 + "/" * 60])
def test_a_measurement_must_be_a_folder_name_and_a_word_for_a_journal(measurement: str) -> None:
    said = sample(measurement, NOW_NS, {"a": 1.0}, node="n1")
    refusal = Admission(AdmissionOptions()).judge(said, "n1", NOW_NS)
    assert refusal is not None
    assert refusal.problem.startswith("measurement ")


def test_a_field_name_must_be_printable() -> None:
    said = sample("cpu", NOW_NS, {"a\x1b[2J": 1.0}, node="n1")
    refusal = Admission(AdmissionOptions()).judge(said, "n1", NOW_NS)
    assert refusal is not None
    assert "unprintable" in refusal.problem


@pytest.mark.parametrize(
    ("measurement", "field", "refused"),
    [("source", "up", True), ("event", "severity", True), ("source", "fault", False)],
)
def test_one_text_does_not_turn_a_number_of_all_nodes_into_texts(
    measurement: str, field: str, refused: bool
) -> None:
    said = sample(measurement, NOW_NS, {field: "x"}, node="n1")
    assert (Admission(AdmissionOptions()).judge_text(said) is not None) == refused


def test_a_body_that_is_judged_over_midnight_gives_nobody_a_new_budget() -> None:
    """Large bodies are judged piece by piece, and others' between: times of arrival take turns."""
    made = Admission(AdmissionOptions(events_per_node_limit=1, series_per_node_limit=2))
    night_ns = NOW_NS // DAY_NS * DAY_NS + DAY_NS
    before_ns, after_ns = night_ns - 1, night_ns + 1

    def host(name: str) -> Sample:
        return sample("host", before_ns, {"load_1m": 1.0}, node="n1", place=name)

    def one_event(number: int) -> Sample:
        return event("n1", "xid", "79", after_ns + number, text="x", severity=3)

    assert [made.judge(host(name), "n1", before_ns) for name in "ab"] == [None, None]
    assert made.judge(one_event(0), "n1", after_ns) is None
    for turn in range(1, 4):
        assert made.judge(host("a"), "n1", before_ns) is None
        assert made.judge(one_event(turn), "n1", after_ns) is not None
        assert made.judge(host("c"), "n1", after_ns) is not None


def of(measurement: str, node: str, count: int, now_ns: int = NOW_NS) -> list[Sample]:
    """``count`` series of a node."""
    return [
        sample(measurement, now_ns, {"a": 1.0}, node=node, part=str(number))
        for number in range(count)
    ]


def refused(admission: Admission, samples: list[Sample], sender: str, now_ns: int = NOW_NS) -> int:
    return sum(1 for one in samples if admission.judge(one, sender, now_ns) is not None)


def explode(admission: Admission, now_ns: int = NOW_NS) -> None:
    """40 nodes that send more than one node may: 40 series of 3 measurements each."""
    for number in range(40):
        for measurement in range(3):
            refused(
                admission,
                of(f"m{measurement}", f"bad{number}", 50, now_ns),
                f"bad{number}",
                now_ns,
            )


def narrow() -> Admission:
    options = AdmissionOptions(series_limit=1_000, series_per_node_limit=40, series_share=20)
    return Admission(options, is_known_node=lambda name: name.startswith("slurm"))


def test_forty_nodes_that_explode_take_no_place_of_honest_nodes() -> None:
    admission = narrow()
    early = [f"early{number}" for number in range(20)]
    assert sum(refused(admission, of("gpu", node, 15), node) for node in early) == 0
    explode(admission)
    assert admission.series <= 1_000 + 40 * 20
    # Who was known stays so, and newcomers have a place as well: today, tomorrow and after.
    late = [f"late{number}" for number in range(20)]
    for day in range(4):
        now_ns = NOW_NS + day * DAY_NS
        honest = early + late[: 5 * (day + 1)]
        if day == 2:
            honest = late  # those that were away for longer than a day come back
        explode(admission, now_ns)
        assert (
            sum(refused(admission, of("gpu", node, 15, now_ns), node, now_ns) for node in honest)
            == 0
        )
        assert set(admission.cut) == {f"bad{number}" for number in range(40)}
        assert admission.series <= 1_000 + 80 * 20
    # More than its share has none of them while others have used up the rest.
    assert refused(admission, of("gpu", "late0", 25, now_ns), "late0", now_ns) == 5


def test_through_a_relay_only_nodes_of_slurms_have_a_share() -> None:
    admission = narrow()
    explode(admission)
    before = admission.series
    assert refused(admission, of("gpu", "slurm7", 15), "*") == 0
    assert refused(admission, of("gpu", "invented", 15), "*") == 15
    assert refused(admission, [sample("gpu", NOW_NS, {"a": 1.0}, part="0")], "*") == 1
    assert admission.series == before + 15


def test_a_series_counts_once_on_the_first_day_and_on_the_next() -> None:
    admission = narrow()
    for day in range(3):
        now_ns = NOW_NS + day * DAY_NS
        assert refused(admission, of("gpu", "n1", 30, now_ns), "n1", now_ns) == 0
        assert admission.series == 30
