"""Readings in any Redfish resource: whatever JSON a BMC gave, as ``bmc`` and ``sel`` points.

Resources are those of DMTF's Redfish schemas (DSP8010): Thermal and Power, ThermalSubsystem with
ThermalMetrics and Fan, PowerSubsystem with PowerSupply, Sensor, EnvironmentMetrics, LeakDetection,
MemoryMetrics, ProcessorMetrics, MetricReport, LogEntry and Event, alone, in collections or
several in one text. A null is no reading. A sensor of a part that is absent or off has no
reading either, whatever number stands there. ``ReadingBasis`` Headroom is a distance to a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.bmc.ipmi_text import decode
from collectors.bmc.points import Readings
from collectors.bmc.redfish_logs import entries, error_words
from collectors.bmc.redfish_metrics import Known, metric_values, report_time
from collectors.bmc.redfish_parts import PARTS, Node
from collectors.events import spaced
from collectors.sample import Problem, Sample

RESOURCES_LIMIT = 100_000
DEPTH_LIMIT = 6

# Resources that are rightly without readings.
_EMPTY = frozenset(
    {"ServiceRoot", "Session", "SessionCollection", "LogService", "TelemetryService", "Port"}
)


def documents(text: str) -> Iterator[Any]:
    """Each JSON document in ``text``; ValueError at the first that is none."""
    decoder = json.JSONDecoder()
    place, end = 0, len(text)
    while place < end:
        while place < end and text[place].isspace():
            place += 1
        if place < end:
            document, place = decoder.raw_decode(text, place)
            yield document


def parse(text: str | bytes, node: str, now_ns: int) -> tuple[list[Sample], list[Problem]]:
    """``bmc`` and ``event`` points of one BMC from Redfish JSON. Never raises."""
    found = Readings(sensors_limit=1_000_000)
    events: list[Sample] = []
    timed: list[Sample] = []
    whole = decode(text).lstrip("\ufeff")
    if not whole.strip():
        found.problem("the answer is empty", "")
    try:
        for document in documents(whole):
            one = Walk(found, node, now_ns)
            one.document(document)
            events.extend(one.events)
            timed.extend(one.timed)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(whole.rstrip()) - 1 or "Unterminated" in error.msg
        words = "JSON that ends too early" if cut else f"no JSON: {error.msg}"
        found.problem(words, whole[max(0, error.pos - 40) : error.pos + 40])
    except RecursionError:
        found.problem("JSON nested deeper than any resource", whole[:80])
    except ValueError as error:  # a number of thousands of digits
        found.problem(f"no JSON: {error}", whole[:80])
    samples = found.samples(now_ns) + timed
    if len(found) and not samples and not events and not found.problems:
        found.problem("every reading in it is null", whole[:80])
    return spaced([*samples, *events]), found.problems


class Walk:
    """Reads one resource and the members that stand in it.

    ``known`` is what is known of sensors by their address, for MetricReports, which do not say
    what unit a value has.
    """

    def __init__(
        self,
        found: Readings,
        node: str,
        now_ns: int,
        known: Mapping[str, Known] | None = None,
    ) -> None:
        self.found = found
        self.node = node
        self.now_ns = now_ns
        self.known = known or {}
        self.events: list[Sample] = []
        self.timed: list[Sample] = []
        self.odd_times = 0  # values of reports that are of no time that can be
        self._left = RESOURCES_LIMIT

    def document(self, document: Any) -> None:
        """One whole answer; says so when nothing in it is a reading."""
        before = (len(self.found), len(self.found.problems))
        if isinstance(document, list):
            for item in document[:RESOURCES_LIMIT]:
                self.resource(item, 1)
        else:
            self.resource(document, 0)
        after = (len(self.found), len(self.found.problems))
        if before == after and not self.events and not self.timed:
            self.found.problem("no readings in this resource", _address(document))

    def fresh(self, seconds: float) -> bool:
        """Whether a value of the reports is no older than ``seconds``."""
        oldest_ns = self.now_ns - int(seconds * 1e9)
        return any(one.time_ns >= oldest_ns for one in self.timed)

    def resource(self, body: Any, depth: int) -> None:
        """One resource; ``depth`` bounds members within members."""
        self._left -= 1
        if self._left < 0 or depth > DEPTH_LIMIT:
            return
        if not isinstance(body, dict):
            self.found.problem("a resource that is no JSON object", str(body)[:80])
            return
        if isinstance(body.get("error"), dict):
            self.found.problem(error_words(body), _address(body))
            return
        kind = type_of(body)
        if kind in _EMPTY:
            return
        if kind in ("LogEntry", "Event") or _is_log(body):
            self.events.extend(entries(body, self.node, self.now_ns, self.found))
            return
        if kind == "MetricReport" or isinstance(body.get("MetricValues"), list):
            self._report(body)
        read = PARTS.get(kind) or _by_shape(body)
        if read is not None:
            read(Node(self.found, self.node), body)
        members = body.get("Members")
        if isinstance(members, list):
            for member in members:
                if isinstance(member, dict) and set(member) != {"@odata.id"}:
                    self.resource(member, depth + 1)

    def _report(self, body: dict[str, Any]) -> None:
        """A MetricReport: each value has a time of its own."""
        groups: dict[int, Readings] = {}
        odd: set[str] = set()
        times: dict[str, int | None] = {}  # most values of a report have one time
        for reading, stamp in metric_values(body, self.node, self.known, self.found):
            if stamp not in times:
                times[stamp] = report_time(stamp, body, self.now_ns)
            time_ns = times[stamp]
            if time_ns is None:
                self.odd_times += 1
                if stamp not in odd:
                    odd.add(stamp)
                    words = "a metric value of days ago or of the future"
                    self.found.problem(words, reading.sensor)
                continue
            group = groups.get(time_ns)
            if group is None:
                group = groups[time_ns] = Readings(self.found.problems)
            group.add(reading)
        self.found.stands = self.found.stands or any(one.stands for one in groups.values())
        for time_ns, group in sorted(groups.items()):
            self.timed.extend(group.samples(time_ns))


def type_of(body: Mapping[str, Any]) -> str:
    """``#Thermal.v1_7_1.Thermal`` -> ``Thermal``; empty without a type."""
    text = body.get("@odata.type")
    return text.lstrip("#").split(".", 1)[0] if isinstance(text, str) else ""


def _address(body: Any) -> str:
    if isinstance(body, dict):
        for key in ("@odata.id", "@odata.type", "Name", "Id"):
            if isinstance(body.get(key), str):
                return str(body[key])
    return ""


def _is_log(body: Mapping[str, Any]) -> bool:
    """A log entry without type, or one Event of a stream."""
    if isinstance(body.get("Events"), list):
        return True
    return "Message" in body and ("Created" in body or "EntryType" in body)


def _by_shape(body: Mapping[str, Any]) -> Any:
    """The reader for a resource whose type is missing or not known, told by its members."""
    if isinstance(body.get("Temperatures"), list) or isinstance(body.get("Fans"), list):
        return PARTS["Thermal"]
    if any(
        isinstance(body.get(key), list) for key in ("PowerSupplies", "PowerControl", "Voltages")
    ):
        return PARTS["Power"]
    if "TemperatureReadingsCelsius" in body:
        return PARTS["ThermalMetrics"]
    if "LeakDetectorGroups" in body:
        return PARTS["LeakDetection"]
    if "Reading" in body and ("ReadingUnits" in body or "ReadingType" in body):
        return PARTS["Sensor"]
    return None
