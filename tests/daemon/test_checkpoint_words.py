"""The checkpoint's words are written by a fast writer, and by a patient one where that gives up."""

from pathlib import Path

import pytest

from collectors.events import event
from daemon.checkpoint import save
from daemon.recovery import _load
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
