"""Tells people, on change only: to the journal, and to one webhook if there is one.

``update`` gets what is active now and finds what is new, changed or over. What was told is
kept in a file, together with what the webhook has not taken yet, so that a head that is
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
from daemon.alerts.webhook import Webhook, WebhookOptions, read_url
from daemon.clock import NANOSECONDS
from daemon.page.view import AlertView, iso
from daemon.policy.decisions import decision_id

__all__ = ["Alert", "AlertOptions", "Alerts", "Notice", "WebhookOptions", "make_webhook"]

SEVERITIES = ("info", "warning", "error", "critical")
_FORMAT = 1
_FILE_LIMIT_BYTES = 64 * 1024 * 1024


class AlertOptions(GroupOptions):
    """Section ``[alerts]``. ``webhook_url_file`` holds the URL, which is a secret."""

    webhook_url_file: Path | None = None
    webhook_deadline_seconds: float = 10.0
    webhook_queue_limit: int = 1000
    webhook_give_up_seconds: float = 86_400.0
    least_severity: int = 1  # of what the webhook gets: 0 info ... 3 critical
    hold_seconds: float = 300.0  # an alert that is gone so long is over
    repeat_seconds: float = 600.0  # a change without more severity is told at most so often


@dataclass(frozen=True, slots=True)
class Notice:
    """One telling: ``event`` is ``new``, ``changed`` or ``resolved``."""

    event: str
    alert: Alert
    since_ns: int
    time_ns: int

    def message(self, cluster: str) -> dict[str, Any]:
        """The webhook's body. ``text`` says all in one string, which chat services show;
        ``id`` is the same when the same notice comes twice."""
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


class Alerts:
    """``update`` once a cycle, from any one thread; it only writes a small file on change."""

    def __init__(
        self,
        options: AlertOptions,
        *,
        cluster: str = "",
        state_file: Path | None = None,
        webhook: Webhook | None = None,
        log: Any = None,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._file = state_file
        self._webhook = webhook
        self._log = structlog.get_logger("tocsin.alerts") if log is None else log
        self._known: dict[str, _Told] = {}
        self._lock = threading.RLock()
        self._saving = threading.Lock()
        self._just_loaded = False
        if webhook is not None:
            webhook.on_settled = self._save
        self._load()

    def update(self, active: Sequence[Alert], now_ns: int) -> list[Notice]:
        """Tells what is new, changed or over at ``now_ns``; gives back what it told."""
        with self._lock:
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
        # Not with the lock in hand: who looks at the page must not wait for a disk.
        if notices or absorbed:
            self._save()
        return notices

    def active(self) -> tuple[AlertView, ...]:
        """What has been told and is not over, loudest first, for the page."""
        with self._lock:
            told = [one for one in self._known.values() if one.shape]
        told.sort(key=lambda one: (-one.alert.severity, -one.since_ns, one.alert.key))
        return tuple(
            AlertView(
                one.alert.key,
                one.alert.severity,
                one.alert.title,
                one.alert.text,
                one.alert.node,
                one.since_ns,
            )
            for one in told
        )

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
                notices.append(Notice("resolved", told.alert, told.since_ns, now_ns))
        return notices

    def _tell(self, notice: Notice) -> None:
        alert = notice.alert
        level = ("info", "warning", "error", "critical")[max(0, min(3, alert.severity))]
        if notice.event == "resolved":
            level = "info"
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
        )
        if self._webhook is not None and alert.severity >= self._options.least_severity:
            self._webhook.offer(notice.message(self._cluster))

    # What outlives a restart -----------------------------------------------------------

    def _save(self) -> None:
        if self._file is None:
            return
        with self._saving:  # what is put together last is written last
            with self._lock:
                state = {
                    "format": _FORMAT,
                    "told": [_dump(one) for one in self._known.values() if one.shape],
                    "queue": list(self._webhook.pending()) if self._webhook is not None else [],
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
            queue = [message for message in state["queue"] if isinstance(message, dict)]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._known = {}
            self._log.warning(
                "alert_state_unreadable", file=str(self._file), why=type(error).__name__
            )
            with contextlib.suppress(OSError):
                self._file.replace(self._file.with_name(self._file.name + ".bad"))
            return
        self._just_loaded = True
        if self._webhook is not None:
            self._webhook.restore(queue)


def make_webhook(options: AlertOptions, monotonic: Callable[[], float]) -> Webhook | None:
    """The webhook of the configuration, or None. Raises WebhookError."""
    if options.webhook_url_file is None:
        return None
    return Webhook(
        read_url(options.webhook_url_file),
        WebhookOptions(
            deadline_seconds=options.webhook_deadline_seconds,
            queue_limit=options.webhook_queue_limit,
            give_up_seconds=options.webhook_give_up_seconds,
        ),
        monotonic=monotonic,
    )


def _dump(told: _Told) -> dict[str, Any]:
    alert = asdict(replace(told.alert, covers=frozenset()))
    alert["covers"] = []
    return {
        "alert": alert,
        "since_ns": told.since_ns,
        "shape": told.shape,
        "severity": told.severity,
        "told_ns": told.told_ns,
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
    )
