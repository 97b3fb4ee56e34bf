"""Tells people, on change only: to the journal, and by mail and webhook where they are set up.

``update`` gets what is active now and finds what is new, changed or over. What was told is
kept in a file, together with what was not delivered yet and with mutes, so that a head that is
killed and started again neither repeats an alert nor loses one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from daemon.alerts.active import Alert, GroupOptions
from daemon.alerts.mail import Mail, MailOptions
from daemon.alerts.mutes import MUTES_MOST, Mute, muted, restored
from daemon.alerts.outbox import Outbox, SendOptions
from daemon.alerts.webhook import Form, Webhook, read_url
from daemon.clock import NANOSECONDS
from daemon.page.view import AlertView, iso
from daemon.policy.decisions import decision_id

__all__ = ["Alert", "AlertOptions", "Alerts", "Notice", "make_ways"]

SEVERITIES = ("info", "warning", "error", "critical")
_FORMAT = 1
_FILE_LIMIT_BYTES = 64 * 1024 * 1024


class AlertOptions(GroupOptions):
    """Section ``[alerts]``. ``webhook_url_file`` holds the URL, which is a secret."""

    webhook_url_file: Path | None = None
    webhook_form: Form = "json"  # slack: for Slack, Mattermost, Teams and the like
    webhook_deadline_seconds: float = 10.0
    webhook_queue_limit: int = 1000
    webhook_give_up_seconds: float = 86_400.0
    least_severity: int = 1  # of what the webhook gets: 0 info ... 3 critical
    hold_seconds: float = 300.0  # an alert that is gone so long is over
    repeat_seconds: float = 600.0  # a change without more severity is told at most so often
    mail: MailOptions = MailOptions()


@dataclass(frozen=True, slots=True)
class Notice:
    """One telling: ``event`` is ``new``, ``changed`` or ``resolved``."""

    event: str
    alert: Alert
    since_ns: int
    time_ns: int
    sent: bool = False  # of one that is over: whether it was ever sent

    def message(self, cluster: str) -> dict[str, Any]:
        """The webhook's body, and what a letter is made of. ``text`` says all in one string,
        which chat services show; ``id`` is the same when the same notice comes twice."""
        alert = self.alert
        sign = {"new": "", "changed": "changed: ", "resolved": "resolved: "}[self.event]
        severity = SEVERITIES[max(0, min(3, alert.severity))]
        return {
            "version": _FORMAT,
            "id": decision_id(alert.key, self.event, alert.shape, self.time_ns),
            "event": self.event,
            "key": alert.key,
            "severity": severity,
            "cluster": cluster,
            "title": alert.title,
            "text": f"[{cluster} {severity}] {sign}{alert.title}\n{alert.text}".strip(),
            "node": alert.node,
            "nodes": list(alert.nodes),
            "jobs": [{"job": job, "user": user} for job, user in alert.jobs],
            "decision": alert.id,
            "code": alert.code,
            "since": iso(self.since_ns),
            "time": iso(self.time_ns),
        }


@dataclass(slots=True)
class _Told:
    """What is known of one key."""

    alert: Alert
    since_ns: int
    seen_ns: int
    shape: str = ""  # as last told; empty: not told yet
    severity: int = -1
    told_ns: int = 0
    sent: bool = False  # to mail and webhook
    withheld: bool = False  # something of it was not sent, for it was muted


class Alerts:
    """``update`` once a cycle, from any one thread; it only writes a small file on change."""

    def __init__(
        self,
        options: AlertOptions,
        *,
        cluster: str = "",
        state_file: Path | None = None,
        ways: Sequence[Outbox] = (),
        log: Any = None,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._file = state_file
        self._ways = tuple(ways)
        self._log = structlog.get_logger("tocsin.alerts") if log is None else log
        self._known: dict[str, _Told] = {}
        self._mutes: dict[str, Mute] = {}
        self._now_ns = 0
        self._lock = threading.RLock()
        self._saving = threading.Lock()
        self._just_loaded = False
        for way in self._ways:
            way.on_settled = self._save
        self._load()

    def update(self, active: Sequence[Alert], now_ns: int) -> list[Notice]:
        """Tells what is new, changed or over at ``now_ns``; gives back what it told."""
        with self._lock:
            self._now_ns = now_ns
            if self._just_loaded:
                # The head was away: nothing is over only because nobody looked.
                for told in self._known.values():
                    told.seen_ns = now_ns
                self._just_loaded = False
            absorbed = self._absorb(active)
            notices = [notice for alert in active if (notice := self._see(alert, now_ns))]
            notices += self._over({alert.key for alert in active}, now_ns)
            for notice in notices:
                self._tell(notice)
            # Counted last: what a mute that has just ended had kept back.
            notices += self._catch_up(now_ns)
        # Not with the lock in hand: who looks at the page must not wait for a disk.
        if notices or absorbed:
            self._save()
        return notices

    def active(self) -> tuple[AlertView, ...]:
        """What has been told and is not over, loudest first, for the page."""
        with self._lock:
            told = [one for one in self._known.values() if one.shape]
            mutes, now_ns = list(self._mutes.values()), self._now_ns
        told.sort(key=lambda one: (-one.alert.severity, -one.since_ns, one.alert.key))
        return tuple(
            AlertView(
                one.alert.key,
                one.alert.severity,
                one.alert.title,
                one.alert.text,
                one.alert.node,
                one.since_ns,
                muted(mutes, one.alert, now_ns),
            )
            for one in told
        )

    def mute(self, target: str, until_ns: int, user: str, text: str, now_ns: int) -> Mute:
        """Nothing of ``target`` is sent until then. Raises ValueError when there are too many."""
        with self._lock:
            self._mutes = {key: one for key, one in self._mutes.items() if one.until_ns > now_ns}
            if len(self._mutes) >= MUTES_MOST and target not in self._mutes:
                raise ValueError(f"{MUTES_MOST} are muted already: tocsin mute lists them")
            made = self._mutes[target] = Mute(target, user, now_ns, until_ns, text)
            self._now_ns = max(self._now_ns, now_ns)
        self._save()
        return made

    def unmute(self, target: str) -> bool:
        """Ends a mute; False when there was none. What goes on is sent at the next ``update``."""
        with self._lock:
            found = self._mutes.pop(target, None)
        self._save()
        return found is not None

    def mutes(self, now_ns: int) -> list[Mute]:
        """What is muted, the next to end first."""
        with self._lock:
            found = [one for one in self._mutes.values() if one.until_ns > now_ns]
        return sorted(found, key=lambda one: (one.until_ns, one.target))

    # How it is decided -----------------------------------------------------------------

    def _absorb(self, active: Iterable[Alert]) -> bool:
        """Ends, without a word, what a grouped alert now speaks for."""
        found = False
        for alert in active:
            for key in alert.covers:
                if key != alert.key and self._known.pop(key, None) is not None:
                    found = True
        return found

    def _see(self, alert: Alert, now_ns: int) -> Notice | None:
        told = self._known.get(alert.key)
        if told is None:
            told = _Told(alert, min(alert.time_ns or now_ns, now_ns), now_ns)
            told.told_ns = now_ns  # until it is told: when it was first seen
            self._known[alert.key] = told
        told.alert = alert
        told.seen_ns = now_ns
        if not told.shape:
            lasted_seconds = (now_ns - told.told_ns) / NANOSECONDS
            event = "new" if lasted_seconds >= alert.settle_seconds else ""
        else:
            waited_seconds = (now_ns - told.told_ns) / NANOSECONDS
            due = alert.severity > told.severity or waited_seconds >= self._options.repeat_seconds
            turned = alert.state != told.shape.partition("/")[0]
            event = "changed" if alert.shape != told.shape and (due or turned) else ""
        if not event:
            return None
        told.shape, told.severity, told.told_ns = alert.shape, alert.severity, now_ns
        return Notice(event, alert, told.since_ns, now_ns)

    def _over(self, keys: set[str], now_ns: int) -> list[Notice]:
        notices = []
        for key in [key for key in self._known if key not in keys]:
            told = self._known[key]
            gone_seconds = (now_ns - told.seen_ns) / NANOSECONDS
            if not told.shape:
                del self._known[key]  # never told: it did not last
            elif gone_seconds >= self._options.hold_seconds:
                del self._known[key]
                notices.append(Notice("resolved", told.alert, told.since_ns, now_ns, told.sent))
        return notices

    def _tell(self, notice: Notice) -> None:
        alert = notice.alert
        level = ("info", "warning", "error", "critical")[max(0, min(3, alert.severity))]
        if notice.event == "resolved":
            level = "info"
        told = self._known.get(alert.key)
        hush = muted(self._mutes.values(), alert, notice.time_ns)
        getattr(self._log, level)(
            "alert",
            state=notice.event,
            key=alert.key,
            title=alert.title,
            text=alert.text,
            node=alert.node,
            nodes=len(alert.nodes),
            decision=alert.id,
            code=alert.code,
            since=iso(notice.since_ns),
            **({"muted": hush} if hush else {}),
        )
        if told is not None and hush:
            told.withheld = True
        elif told is not None:
            self._send(notice, told)
        elif notice.sent:  # over: who was told of it is told that too, muted or not
            self._offer(notice)

    def _send(self, notice: Notice, told: _Told) -> None:
        told.sent, told.withheld = True, False
        self._offer(notice)

    def _offer(self, notice: Notice) -> None:
        for way in self._ways:
            if notice.alert.severity >= way.options.least_severity:
                way.offer(notice.message(self._cluster))

    def _catch_up(self, now_ns: int) -> list[Notice]:
        """Sends what was kept back by mutes that are over, where it is still the case."""
        made = []
        for told in self._known.values():
            if told.withheld and not muted(self._mutes.values(), told.alert, now_ns):
                event = "changed" if told.sent else "new"
                notice = Notice(event, told.alert, told.since_ns, now_ns)
                self._send(notice, told)
                made.append(notice)
        return made

    # What outlives a restart -----------------------------------------------------------

    def _save(self) -> None:
        if self._file is None:
            return
        with self._saving:  # what is put together last is written last
            with self._lock:
                state = {
                    "format": _FORMAT,
                    "told": [_dump(one) for one in self._known.values() if one.shape],
                    "queues": {way.name: way.pending() for way in self._ways},
                    "mutes": [asdict(one) for one in self._mutes.values()],
                }
            temporary = self._file.with_name(self._file.name + ".new")
            try:
                with temporary.open("w", encoding="utf-8") as handle:
                    json.dump(state, handle)
                    handle.flush()
                    os.fsync(handle.fileno())
                temporary.replace(self._file)
            except OSError as error:
                # Worse than a repeated alert would be a head that stops for one.
                self._log.error("alert_state_not_kept", file=str(self._file), why=error.strerror)

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            if self._file.stat().st_size > _FILE_LIMIT_BYTES:
                raise ValueError("too large")
            state = json.loads(self._file.read_text(encoding="utf-8"))
            if state["format"] != _FORMAT:
                raise ValueError("format")
            self._known = {one.alert.key: one for one in map(_restore, state["told"])}
            old = {"webhook": state.get("queue", ())}  # as earlier versions wrote it
            queues = dict(state.get("queues", old))
            self._mutes = restored(state.get("mutes", ()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._known, self._mutes = {}, {}
            self._log.warning(
                "alert_state_unreadable", file=str(self._file), why=type(error).__name__
            )
            with contextlib.suppress(OSError):
                self._file.replace(self._file.with_name(self._file.name + ".bad"))
            return
        self._just_loaded = True
        for way in self._ways:
            way.restore(one for one in queues.get(way.name, ()) if isinstance(one, dict))


def make_ways(options: AlertOptions, monotonic: Callable[[], float]) -> list[Outbox]:
    """Mail and webhook, as configured. Raises WayError."""
    ways: list[Outbox] = []
    if options.webhook_url_file is not None:
        send = SendOptions(
            deadline_seconds=options.webhook_deadline_seconds,
            queue_limit=options.webhook_queue_limit,
            give_up_seconds=options.webhook_give_up_seconds,
            least_severity=options.least_severity,
        )
        url = read_url(options.webhook_url_file)
        ways.append(Webhook(url, send, monotonic=monotonic, form=options.webhook_form))
    if options.mail.to:
        send = SendOptions(
            deadline_seconds=options.mail.deadline_seconds,
            queue_limit=options.webhook_queue_limit,
            give_up_seconds=options.webhook_give_up_seconds,
            least_severity=options.mail.least_severity,
        )
        ways.append(Mail(options.mail, send, monotonic=monotonic))
    return ways


def _dump(told: _Told) -> dict[str, Any]:
    alert = asdict(replace(told.alert, covers=frozenset()))
    alert["covers"] = []
    return {
        "alert": alert,
        "since_ns": told.since_ns,
        "shape": told.shape,
        "severity": told.severity,
        "told_ns": told.told_ns,
        "sent": told.sent,
        "withheld": told.withheld,
    }


def _restore(row: Mapping[str, Any]) -> _Told:
    raw = dict(row["alert"])
    raw["nodes"] = tuple(raw["nodes"])
    raw["jobs"] = tuple((str(job), str(user)) for job, user in raw.get("jobs", ()))
    raw["covers"] = frozenset()
    return _Told(
        Alert(**raw),
        int(row["since_ns"]),
        0,
        str(row["shape"]),
        int(row["severity"]),
        int(row["told_ns"]),
        bool(row.get("sent", True)),
        bool(row.get("withheld", False)),
    )
