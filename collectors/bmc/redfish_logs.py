"""Redfish log entries, events and error bodies as ``event`` points and words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from collectors.bmc.ipmi_sel_entry import TIME_UNKNOWN, iso_time, sane_time
from collectors.bmc.ipmi_words import meaning, slug
from collectors.bmc.points import Readings
from collectors.bmc.redfish_parts import rows, text
from collectors.events import CRITICAL, INFO, WARNING, event
from collectors.sample import Sample, clip

_SEVERITY = {"ok": INFO, "warning": WARNING, "critical": CRITICAL}

RECORDS_LIMIT = 200  # of one Event
SESSIONS_FULL = "the BMC has no session left"
WITH_ERROR = "the BMC answers with an error: "
NO_WORDS = "an error without words"


def error_words(body: Mapping[str, Any]) -> str:
    """What an error body says, in one line."""
    held = body.get("error")
    if not isinstance(held, dict):
        return NO_WORDS
    said = [text(item.get("Message")) for _, item in rows(held, "@Message.ExtendedInfo")]
    said = [words for words in said if words] or [text(held.get("message")), text(held.get("code"))]
    words = next((one for one in said if one), NO_WORDS)
    low = words.lower()
    if "session" in low and ("maximum" in low or "limit" in low or "exceed" in low):
        return f"{SESSIONS_FULL}: {clip(words, 200)}"
    return f"{WITH_ERROR}{clip(words, 200)}"


def entry_id(body: Mapping[str, Any]) -> int | None:
    """The record number of a log entry, where it has one."""
    for key in ("SensorRecordId", "Id", "EventId"):
        word = text(body.get(key))
        if word.isdecimal() and len(word) < 16:
            return int(word)
    return None


def entries(body: Mapping[str, Any], node: str, now_ns: int, found: Readings) -> Iterator[Sample]:
    """The events in one LogEntry, or in one Event with several records."""
    listed = body.get("Events")
    if isinstance(listed, list):
        if len(listed) > RECORDS_LIMIT:
            found.problem(f"an event of over {RECORDS_LIMIT} records: the rest is left out", "")
        for _, item in islice(rows(body, "Events"), RECORDS_LIMIT):
            record = {key: value for key, value in item.items() if key != "Events"}
            yield from entries({**record, "EntryType": "Event"}, node, now_ns, found)
        return
    words = text(body.get("Message"))
    message_id = text(body.get("MessageId"))
    if not words and not message_id:
        found.problem("a log entry without message", text(body.get("@odata.id")))
        return
    yield _sample(body, node, now_ns, words or message_id, message_id)


def _sample(body: Mapping[str, Any], node: str, now_ns: int, words: str, message_id: str) -> Sample:
    sensor_type = text(body.get("SensorType"))
    entry_code = text(body.get("EntryCode"))
    found = meaning(sensor_type, f"{words} {entry_code}".strip())
    code = found.code
    if code in ("sensor", slug(sensor_type)):
        last = message_id.rsplit(".", 1)[-1]
        code = slug(last) or "log_entry"
    word = (text(body.get("Severity")) or text(body.get("MessageSeverity"))).lower()
    severity = _SEVERITY.get(word, found.severity)
    resolved = body.get("Resolved") is True or entry_code.lower() in ("deassert", "deasserted")
    if resolved:
        severity = INFO
    stamp = text(body.get("Created")) or text(body.get("EventTimestamp"))
    said_ns = iso_time(stamp) if stamp else None
    time_ns, clock = sane_time(said_ns, now_ns)
    name = text(body.get("Id")) or text(body.get("EventId"))
    log = _log_name(text(body.get("@odata.id")))
    head = f"{log} {name}".strip()
    parts = [f"{head}: {words}" if head else words]
    unknown = TIME_UNKNOWN if clock or said_ns is None else ""
    message_id = message_id if message_id != words else ""
    parts += [part for part in (message_id, clock, unknown) if part]
    if resolved:
        parts.append("resolved")
    return event(
        node,
        "sel",
        code,
        time_ns,
        text="; ".join(parts),
        severity=severity,
        device=_device(body, sensor_type),
    )


def cleared_log(address: str, node: str, before: int, now: int, now_ns: int) -> Sample:
    """The event that somebody cleared the log whose entries are at ``address``."""
    name = _log_name(address) or "log"
    words = f"{name}: somebody cleared the log: {before} entries before, {now} now"
    return event(node, "sel", "log_cleared", now_ns, text=words, severity=WARNING, device=name)


def _log_name(address: str) -> str:
    parts = address.split("/")
    if "LogServices" in parts:
        place = parts.index("LogServices") + 1
        if place < len(parts):
            return parts[place]
    return ""


def _device(body: Mapping[str, Any], sensor_type: str) -> str:
    """The part that the entry is about: its origin's last word, else its sensor."""
    links = body.get("Links")
    origin = links.get("OriginOfCondition") if isinstance(links, dict) else None
    if not isinstance(origin, dict):
        origin = body.get("OriginOfCondition")
    if isinstance(origin, dict):
        address = text(origin.get("@odata.id")).rstrip("/")
        if address:
            return address.rsplit("/", 1)[-1]
    sensor_number = text(body.get("SensorNumber"))
    return f"{sensor_type} #{sensor_number}".strip() if sensor_number else sensor_type
