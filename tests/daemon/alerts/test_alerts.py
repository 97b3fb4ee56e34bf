"""Telling on change only, and not again after a restart."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from daemon.alerts.active import Alert
from daemon.alerts.outbox import SendOptions
from daemon.alerts.tell import AlertOptions, Alerts, make_ways
from daemon.alerts.webhook import Webhook, WebhookError

SECOND_NS = 10**9
T0_NS = 1_788_000_000 * SECOND_NS
OPTIONS = AlertOptions(hold_seconds=300, repeat_seconds=600)


class Log:
    """Keeps what the journal would get."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self.lines.append((level, {"event": event, **fields}))


def alert(key: str = "case/1", severity: int = 3, **fields: Any) -> Alert:
    made: dict[str, Any] = {
        "title": f"{key} happened",
        "text": "why",
        "node": "n3",
        "nodes": ("n3",),
    }
    return Alert(key=key, severity=severity, time_ns=T0_NS, **(made | fields))


def make(tmp_path: Path | None = None, webhook: Webhook | None = None) -> tuple[Alerts, Log]:
    log = Log()
    file = tmp_path / "alerts.json" if tmp_path else None
    return Alerts(
        OPTIONS, cluster="c", state_file=file, ways=[webhook] if webhook else [], log=log
    ), log


def events(alerts: Alerts, active: list[Alert], seconds: float) -> list[tuple[str, str]]:
    told = alerts.update(active, T0_NS + int(seconds * SECOND_NS))
    return [(notice.event, notice.alert.key) for notice in told]


def test_an_alert_is_told_once_however_long_it_lasts() -> None:
    alerts, log = make()
    assert events(alerts, [alert()], 0) == [("new", "case/1")]
    for seconds in range(1, 4000, 100):
        assert events(alerts, [alert(text=f"risk moves {seconds}")], seconds) == []
    assert [level for level, _ in log.lines] == ["critical"]


def test_an_alert_is_over_only_after_it_stayed_away() -> None:
    alerts, log = make()
    events(alerts, [alert()], 0)
    assert events(alerts, [], 100) == []
    assert events(alerts, [alert()], 200) == []
    assert events(alerts, [], 450) == []
    assert events(alerts, [], 501) == [("resolved", "case/1")]
    assert log.lines[-1][0] == "info"
    assert events(alerts, [], 900) == []


def test_more_severity_and_a_new_state_are_told_at_once() -> None:
    alerts, _ = make()
    events(alerts, [alert(severity=1, state="waiting")], 0)
    assert events(alerts, [alert(severity=3, state="waiting")], 1) == [("changed", "case/1")]
    assert events(alerts, [alert(severity=3, state="drained")], 2) == [("changed", "case/1")]
    assert events(alerts, [alert(severity=1, state="drained")], 3) == []


def test_a_growing_group_is_told_when_it_doubled_and_not_too_often() -> None:
    alerts, _ = make()

    def group(count: int) -> Alert:
        return alert("guard/caps", 2, nodes=tuple(f"n{i}" for i in range(count)))

    events(alerts, [group(2)], 0)
    assert events(alerts, [group(3)], 700) == []
    assert events(alerts, [group(4)], 701) == [("changed", "guard/caps")]
    assert events(alerts, [group(9)], 800) == []
    assert events(alerts, [group(9)], 1302) == [("changed", "guard/caps")]


def test_what_must_last_is_told_late_or_never() -> None:
    alerts, log = make()
    short = alert("silence/n1", 1, settle_seconds=30)
    assert events(alerts, [short], 0) == []
    assert events(alerts, [], 20) == []
    assert events(alerts, [short], 40) == []
    assert events(alerts, [short], 69) == []
    assert alerts.active() == ()
    assert events(alerts, [short], 71) == [("new", "silence/n1")]
    assert len(log.lines) == 1


def test_a_group_ends_the_single_alerts_it_speaks_for_without_a_word() -> None:
    alerts, _ = make()
    events(alerts, [alert("silence/n1", 1), alert("silence/n2", 1)], 0)
    covers = frozenset({"silence/n1", "silence/n2"})
    group = alert("silence/fleet", 3, covers=covers, nodes=("n1", "n2"))
    assert events(alerts, [group], 10) == [("new", "silence/fleet")]
    assert events(alerts, [group], 1000) == []
    assert [view.key for view in alerts.active()] == ["silence/fleet"]


def test_a_restart_tells_nothing_twice(tmp_path: Path) -> None:
    first, _ = make(tmp_path)
    events(first, [alert()], 0)
    second, log = make(tmp_path)
    assert [view.key for view in second.active()] == ["case/1"]
    assert events(second, [alert()], 5) == []
    assert log.lines == []


def test_after_a_long_absence_nothing_is_over_before_it_was_looked_for(tmp_path: Path) -> None:
    first, _ = make(tmp_path)
    events(first, [alert()], 0)
    second, _ = make(tmp_path)
    assert events(second, [], 100_000) == []
    assert events(second, [alert()], 100_010) == []
    assert events(second, [], 100_400) == [("resolved", "case/1")]


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"format": 9}', '{"format":1,"told":[{}]}'])
def test_an_unreadable_state_is_put_aside_and_said(tmp_path: Path, broken: str) -> None:
    (tmp_path / "alerts.json").write_text(broken)
    alerts, log = make(tmp_path)
    assert log.lines[0][1]["event"] == "alert_state_unreadable"
    assert (tmp_path / "alerts.json.bad").exists()
    assert events(alerts, [alert()], 0) == [("new", "case/1")]


def test_a_disk_that_takes_nothing_does_not_stop_the_telling(tmp_path: Path) -> None:
    log = Log()
    alerts = Alerts(OPTIONS, state_file=tmp_path / "nosuch" / "alerts.json", log=log)
    assert events(alerts, [alert()], 0) == [("new", "case/1")]
    assert log.lines[-1][1]["event"] == "alert_state_not_kept"


def test_the_state_is_whole_json_at_every_moment(tmp_path: Path) -> None:
    alerts, _ = make(tmp_path)
    for number in range(5):
        events(alerts, [alert(f"case/{number}")], number)
        state = json.loads((tmp_path / "alerts.json").read_text())
        assert state["told"]
    assert list(tmp_path.glob("*.new")) == []


def test_the_webhook_gets_what_is_severe_enough() -> None:
    options = SendOptions(least_severity=1)
    webhook = Webhook("http://127.0.0.1:9/", options, monotonic=lambda: 0.0)
    alerts, log = make(webhook=webhook)
    events(alerts, [alert("a", 0), alert("b", 1)], 0)
    (message,) = webhook.pending()
    assert message["key"] == "b"
    assert message["event"] == "new"
    assert message["severity"] == "warning"
    assert message["text"].startswith("[c warning] b happened")
    assert message["since"] == "2026-08-29T10:40:00.000Z"
    assert len(log.lines) == 2


def test_what_the_webhook_has_not_taken_outlives_a_restart(tmp_path: Path) -> None:
    first = Webhook("http://127.0.0.1:9/", monotonic=lambda: 0.0)
    alerts, _ = make(tmp_path, first)
    events(alerts, [alert()], 0)
    second = Webhook("http://127.0.0.1:9/", monotonic=lambda: 0.0)
    make(tmp_path, second)
    assert [message["id"] for message in second.pending()] == [
        message["id"] for message in first.pending()
    ]


def test_no_webhook_without_a_file_and_an_error_without_a_url(tmp_path: Path) -> None:
    assert make_ways(AlertOptions(), lambda: 0.0) == []
    file = tmp_path / "url"
    file.write_text("token-that-nobody-may-see")
    with pytest.raises(WebhookError) as caught:
        make_ways(AlertOptions(webhook_url_file=file), lambda: 0.0)
    assert "token-that" not in str(caught.value)


def test_who_looks_at_the_page_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asks in the event loop, which answers ten thousand agents too."""
    alerts, _ = make(tmp_path)
    hangs, free = threading.Event(), threading.Event()

    def fsync(handle: int) -> None:
        hangs.set()
        free.wait(60)

    monkeypatch.setattr(os, "fsync", fsync)
    hand = threading.Thread(target=alerts.update, args=([alert()], T0_NS))
    hand.start()
    assert hangs.wait(60)
    shown: list[str] = []
    page = threading.Thread(target=lambda: shown.extend(one.key for one in alerts.active()))
    page.start()
    page.join(10)
    free.set()
    assert shown == ["case/1"]
    hand.join()
    page.join()
