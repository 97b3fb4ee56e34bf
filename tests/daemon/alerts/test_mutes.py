"""A mute: mail and webhook keep quiet, everything else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.alerts.active import Alert
from daemon.alerts.mutes import Mute, until
from daemon.alerts.outbox import SendOptions
from daemon.alerts.tell import AlertOptions, Alerts
from daemon.alerts.webhook import Webhook
from tests.daemon.alerts.test_alerts import T0_NS, Log, alert

SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS


def make(file: Path | None = None) -> tuple[Alerts, Webhook, Log]:
    webhook, log = Webhook("http://127.0.0.1:9/", SendOptions(), monotonic=lambda: 0.0), Log()
    options = AlertOptions(hold_seconds=300, repeat_seconds=600)
    return Alerts(options, ways=[webhook], state_file=file, log=log), webhook, log


def sent(webhook: Webhook) -> list[tuple[str, str]]:
    return [(one["event"], one["key"]) for one in webhook.pending()]


def test_what_is_muted_is_shown_and_logged_and_sent_to_nobody() -> None:
    alerts, webhook, log = make()
    alerts.mute("n3", T0_NS + HOUR_NS, "ann", "fan on order", T0_NS)
    alerts.update([alert(), alert("case/2", node="n4", nodes=("n4",))], T0_NS + 1)
    assert sent(webhook) == [("new", "case/2")]
    shown = {one.key: one.muted for one in alerts.active()}
    assert shown["case/1"] == "muted by ann until 2026-08-29T11:40Z: fan on order"
    assert shown["case/2"] == ""
    assert [fields.get("muted", "") != "" for _, fields in log.lines] == [True, False]


def test_when_a_mute_ends_what_goes_on_is_sent_and_what_is_over_is_not() -> None:
    alerts, webhook, _ = make()
    alerts.mute("n3", T0_NS + HOUR_NS, "ann", "", T0_NS)
    both = [alert(), alert("case/2")]
    alerts.update(both, T0_NS + 1)
    alerts.update([alert()], T0_NS + 2)
    alerts.update([alert()], T0_NS + 400 * SECOND_NS)  # case/2 is over, unsent
    assert sent(webhook) == []
    alerts.update([alert()], T0_NS + HOUR_NS)
    assert sent(webhook) == [("new", "case/1")]
    alerts.update([alert()], T0_NS + HOUR_NS + SECOND_NS)
    assert sent(webhook) == [("new", "case/1")]


def test_what_was_sent_before_is_ended_and_its_change_comes_after_the_mute() -> None:
    alerts, webhook, _ = make()
    alerts.update([alert(severity=1), alert("case/2")], T0_NS)
    alerts.mute("n3", T0_NS + HOUR_NS, "ann", "", T0_NS)
    alerts.update([alert(severity=3)], T0_NS + SECOND_NS)
    alerts.update([alert(severity=3)], T0_NS + 400 * SECOND_NS)
    assert sent(webhook)[2:] == [("resolved", "case/2")]
    assert alerts.unmute("n3")
    alerts.update([alert(severity=3)], T0_NS + 401 * SECOND_NS)
    assert sent(webhook)[3:] == [("changed", "case/1")]
    assert not alerts.unmute("n3")


@pytest.mark.parametrize(
    ("target", "hidden"),
    [
        ("n3", ["case/1"]),
        ("9f2c", ["case/1"]),
        ("heat", ["case/1", "many/heat"]),
        ("caps", ["guard/caps"]),
        ("n", []),
        ("9f2", []),
    ],
)
def test_what_a_target_means(target: str, hidden: list[str]) -> None:
    alerts = [
        alert("case/1", id="9f2c77", code="heat"),
        alert("many/heat", node="", nodes=("n3", "n4"), code="heat"),
        Alert("guard/caps", 2, "t", "", "", T0_NS, nodes=("n5", "n6")),
    ]
    mute = Mute(target, "ann", T0_NS, T0_NS + HOUR_NS)
    assert [one.key for one in alerts if mute.hides(one, T0_NS)] == hidden
    assert not any(mute.hides(one, T0_NS + HOUR_NS) for one in alerts)


def test_a_mute_outlives_a_restart_and_ends_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "alerts.json"
    alerts, _, _ = make(file)
    alerts.update([], T0_NS)
    alerts.mute("n3", T0_NS + HOUR_NS, "ann", "", T0_NS)
    alerts.update([alert()], T0_NS + 1)
    after, webhook, _ = make(file)
    after.update([alert()], T0_NS + 2 * SECOND_NS)
    assert [one.target for one in after.mutes(T0_NS + 2)] == ["n3"]
    assert sent(webhook) == []
    after.update([alert()], T0_NS + HOUR_NS)
    assert after.mutes(T0_NS + HOUR_NS) == []
    assert sent(webhook) == [("new", "case/1")]


@pytest.mark.parametrize("hours", [0, -1, 721, float("inf"), float("nan")])
def test_a_mute_without_an_end_is_refused(hours: float) -> None:
    with pytest.raises(ValueError, match="at most 720 hours"):
        until(T0_NS, hours)
