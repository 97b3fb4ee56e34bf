"""Event streams of BMCs: entries come at once, and once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.bmc import redfish
from collectors.bmc.redfish_events import Heard
from collectors.sample import Context, Sample
from tests.testbed.bmc.bmcs import RedfishBmcs

Start = Callable[..., redfish.Redfish]


@pytest.fixture
def start(tmp_path: Path, bmc_password: Path, redfish_bmcs: RedfishBmcs) -> Iterator[Start]:
    made: list[redfish.Redfish] = []

    def make(number: int, **more: object) -> redfish.Redfish:
        (tmp_path / "bmcs").write_text(f"n1 {redfish_bmcs.addresses[number - 1]}\n")
        given: dict[str, object] = {
            "file": str(tmp_path / "bmcs"),
            "user": "admin",
            "password_file": str(bmc_password),
            "ca_file": str(redfish_bmcs.certificate),
            "check_name": False,
            "timeout_seconds": 2.0,
            "events": True,
            "log_backlog": 0,
        }
        options = redfish.Options(**{**given, **more})
        state = tmp_path / "head" / "redfish"
        state.mkdir(parents=True, exist_ok=True)
        made.append(redfish.make(options, Context("head", state)))
        return made[-1]

    yield make
    for source in made:
        source.close()
    redfish_bmcs.fault("all", "clear")


def entries(source: redfish.Redfish) -> list[Sample]:
    samples = source.collect(time.time_ns()).samples
    return [one for one in samples if one.measurement == "event"]


def wait_for(source: redfish.Redfish, count: int) -> list[Sample]:
    found: list[Sample] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += entries(source)
        time.sleep(0.03)
    return found


def until_it_listens(source: redfish.Redfish) -> None:
    """Reads once, and gives the stream a moment to stand."""
    deadline = time.monotonic() + 60
    while source._visitors == [] or source._visitors[0]._stream is None:
        source.collect(time.time_ns())
        assert time.monotonic() < deadline
    time.sleep(0.3)


def test_an_entry_comes_by_the_stream_between_two_visits_and_not_again_by_the_log(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(1, "sel=119")
    source = start(1, period_seconds=6.0)
    assert source.period_seconds == 0.5, "what comes between visits is fetched in turns"
    until_it_listens(source)
    redfish_bmcs.fault(1, "sel=121")
    found = wait_for(source, 2)
    texts = [one.text("text") for one in found]
    assert ["Sample entry 120" in texts[0], "Sample entry 121" in texts[1]] == [True, True]
    assert [one.number("severity") for one in found] == [3.0, 0.0]
    visitor = source._visitors[0]
    before = visitor._cursors
    assert not any(one.highest == 121 for one in before.values()), "it came by the log"
    deadline = time.monotonic() + 60
    while not any(cursor.highest == 121 for cursor in before.values()):
        assert entries(source) == [], "told twice"
        assert time.monotonic() < deadline, "the log was never read"
        time.sleep(0.05)
    assert entries(source) == []


def test_what_happens_while_the_stream_is_down_comes_by_the_log(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start(2, period_seconds=1.0)
    until_it_listens(source)
    visitor = source._visitors[0]
    assert visitor._stream is not None
    redfish_bmcs.fault(2, "drop=1")
    time.sleep(0.3)
    redfish_bmcs.fault(2, "clear")
    redfish_bmcs.fault(2, "sel=123")
    found = wait_for(source, 3)
    assert [
        f"entry {number}" in one.text("text")
        for number, one in zip((121, 122, 123), found, strict=True)
    ] == [True] * 3


def test_where_the_log_was_first_the_stream_tells_nothing() -> None:
    heard = Heard()
    address = {"@odata.id": "/redfish/v1/Systems/1/LogServices/SEL/Entries/7"}
    assert heard.from_log({**address, "Message": "x"})
    assert not heard.from_stream({"Message": "another word", "LogEntry": address})
    plain = {"Message": "x", "MessageId": "A.1.B", "Created": "2026-11-30T04:00:00Z"}
    assert heard.from_log(plain)
    assert heard.from_log(plain), "two entries alike in one log are two"
    event = {"Message": "x", "MessageId": "A.1.B", "EventTimestamp": "2026-11-30T04:00:00+00:00"}
    assert not heard.from_stream(event)
    assert heard.from_stream({**event, "EventTimestamp": "2026-11-30T04:00:05Z"})


def test_closing_ends_the_stream(redfish_bmcs: RedfishBmcs, start: Start) -> None:
    source = start(3, period_seconds=1.0)
    until_it_listens(source)
    stream = source._visitors[0]._stream
    assert stream is not None
    assert stream.open
    source.close()
    assert not stream.open
