"""The checkpoint's words are written by a fast writer, and by a patient one where that gives up."""

import json
from pathlib import Path

import pytest

from collectors.events import event
from collectors.sample import sample
from daemon.checkpoint import Words, save
from daemon.recovery import _load
from models import turns
from models.features import FeatureEngine
from models.rules import Rules
from models.silence import SilenceTracker
from models.watch import Watch

NOW_NS = 1_800_000_000_000_000_000


def new_watch() -> Watch:
    return Watch(Rules(), SilenceTracker(), FeatureEngine())


@pytest.mark.parametrize("text", ["fell off the bus", "half a letter: \ud800", 'é "\\\x00\u2028'])
def test_what_is_written_down_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    watch, again = new_watch(), new_watch()
    one = event("n1", "xid", "79", NOW_NS, text=text, severity=3.0, device="0000:9b:00")
    watch.ingest([one], NOW_NS)
    save(tmp_path, watch, NOW_NS)
    assert _load(tmp_path, again) == (NOW_NS, None)
    assert again.dump() == watch.dump()
    assert [fact.evidence for fact in again.judge(NOW_NS, {"n1": 8}).facts] == [
        fact.evidence for fact in watch.judge(NOW_NS, {"n1": 8}).facts
    ]


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_the_words_of_all_turns_are_those_of_the_whole(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "NODES_AT_ONCE", at_once)
    monkeypatch.setattr(turns, "ROWS_AT_ONCE", at_once)
    watch = new_watch()
    for node in ("n1", "n2", "n3"):
        text = "peer_guid=0x1;peer_port=2;peer_name=leaf1"
        port = {"node": node, "device": "mlx5_0", "port": "1"}
        fan = {"node": node, "sensor": "Fan 1", "kind": "fan"}
        watch.ingest(
            [
                sample("source", NOW_NS, {"up": 1.0}, node=node, source="host"),
                sample("ib_port", NOW_NS, {"state": 4.0, "physical_state": 5.0}, **port),
                sample("bmc", NOW_NS, {"reading": 9000.0, "state": "ok"}, **fan),
                event(
                    node, "inventory", "link", NOW_NS, text=text, severity=0.0, device="mlx5_0/1"
                ),
                event(node, "xid", "79", NOW_NS, text="x", severity=3.0, device="0000:9b:00"),
            ],
            NOW_NS,
        )
    words = Words()
    for place, piece in watch.dump_turns():
        words.add(place, piece)
    told = json.loads(words.text())
    assert told == json.loads(json.dumps(watch.dump()))
    assert set(told["rules"]["nodes"]) == {"n1", "n2", "n3"}
    assert len(told["rules"]["links"]["ports"]) == 3
    empty = Words()
    for place, piece in new_watch().dump_turns():
        empty.add(place, piece)
    assert json.loads(empty.text()) == new_watch().dump()
