"""An operator's word becomes a label: verdict -> event -> miner -> examples."""

from __future__ import annotations

from dataclasses import replace

from collectors.events import event
from collectors.lines import decode, encode
from models.labels import HOUR_NS, mine
from models.verdicts import Verdict, newest, sample_of, verdict_of
from models.voices import Entity
from tests.models.test_labels import DAY_NS, found, inventory, slurm, xid

WORD = Verdict("9f2c0011", Entity("gpu", "n1", "gpu4"), "risk", 5 * HOUR_NS, True, 9 * HOUR_NS)


def test_a_word_survives_its_way_through_an_event() -> None:
    assert verdict_of(sample_of(WORD)) == WORD
    ours = replace(WORD, entity=Entity("node", "n1"), right=False, voice="fact")
    assert verdict_of(sample_of(ours)) == ours


def test_a_word_is_a_line_like_any_other() -> None:
    (back,) = decode(encode([sample_of(WORD)]), 0).samples
    assert verdict_of(back) == WORD


def test_other_events_and_garbled_words_are_no_verdicts() -> None:
    assert verdict_of(xid(79)) is None
    for text in ("", "case=xyz voice=risk onset_ns=1", "case=9f voice=risk onset_ns=" + "9" * 40):
        odd = event("n1", "verdict", "right", 1, text=text, severity=0)
        assert verdict_of(odd) is None
        assert mine([inventory(), odd]).failures == ()


def test_a_risk_called_right_is_a_failure_at_its_onset() -> None:
    (failure,) = found(sample_of(WORD)).failures
    assert (failure.entity, failure.onset_ns) == (Entity("gpu", "n1", "gpu4"), 5 * HOUR_NS)
    assert failure.cause == "called right"


def test_a_fault_that_is_known_already_is_not_counted_twice() -> None:
    said = replace(WORD, voice="fact", onset_ns=HOUR_NS)
    (failure,) = found(xid(79), sample_of(said)).failures
    assert failure.cause == "xid 79"


def test_a_fact_called_wrong_takes_its_failure_back() -> None:
    said = replace(WORD, voice="fact", onset_ns=HOUR_NS, right=False)
    later = xid(79, 40 * DAY_NS)
    failures = found(xid(79), sample_of(said), later).failures
    assert [one.onset_ns for one in failures] == [40 * DAY_NS]


def test_a_risk_called_wrong_leaves_the_failure_that_followed() -> None:
    said = replace(WORD, right=False)
    assert [one.cause for one in found(xid(79, 6 * HOUR_NS), sample_of(said)).failures] == [
        "xid 79"
    ]


def test_the_last_word_counts_in_whatever_order_words_arrive() -> None:
    wrong = replace(WORD, right=False, said_ns=10 * HOUR_NS)
    assert newest([wrong, WORD]) == newest([WORD, wrong]) == [wrong]
    assert found(sample_of(WORD), sample_of(wrong)).failures == ()


def test_our_own_drain_stays_censored_beside_the_word() -> None:
    ours = slurm("drain", 5 * HOUR_NS, reason="tocsin:risk gpu4 9f2c; likely; tocsin explain 9f2c")
    labels = found(ours, sample_of(WORD))
    assert [one.cause for one in labels.failures] == ["called right"]
    assert [one.why for one in labels.away] == ["ours"]
