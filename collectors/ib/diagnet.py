"""Reads ``ibdiagnet2.db_csv``: what one run of ``ibdiagnet`` (NVIDIA's) has seen of a fabric.

The file is a row of tables, ``START_PM_INFO`` to ``END_PM_INFO`` and the like, each with a line of
column names. Versions differ in their columns, so only names are relied upon. Counters come under
their plain name (of PortCounters) and with ``Ext`` or ``Extended`` behind it (64 bits); where both
are there the wide ones count. What switches say of their own fans, supplies and temperature becomes
``bmc`` points under the switch's description.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping

from collectors.bmc.ipmi_text import TEXT_RECORDS_LIMIT
from collectors.bmc.points import Reading, Readings
from collectors.ib.text import Points, Problems, counter_value, known_counter, whole_lines
from collectors.ib.units import guid_of, host_of
from collectors.sample import Problem, Sample

Row = Mapping[str, str]
Port = tuple[str, str]
_COLUMNS_LIMIT = 400
_ADAPTER = "1"  # NodeType: 1 channel adapter, 2 switch, 3 router


def parse_ibdiagnet(
    text: str | bytes, node: str, now_ns: int
) -> tuple[list[Sample], list[Problem]]:
    """``fabric_port`` points of the ports, ``bmc`` points of the switches. ``node`` is unused."""
    del node
    reader = _Reader()
    for line in whole_lines(text, reader.problems):
        reader.line(line)
    return reader.done(now_ns)


class _Reader:
    """Takes the file in line by line. What needs names of nodes is put together at its end."""

    def __init__(self) -> None:
        self.problems = Problems()
        self.section = ""
        self._columns: list[str] = []
        self._names: dict[str, tuple[str, bool]] = {}  # GUID -> description, whether an adapter
        self._ports: dict[Port, dict[str, float]] = {}
        self._peers: dict[Port, str] = {}  # port -> GUID at its other end
        self._own: list[tuple[str, str, str, float | None, bool | None, bool | None]] = []
        self._tables: dict[str, Callable[[Row], None]] = {
            "NODES": self._node,
            "LINKS": self._link,
            "PORTS": self._state,
            "PM_INFO": self._counters,
            "CABLE_INFO": self._cable,
            "TEMP_SENSING": self._temperature,
            "FANS_SPEED": self._fan,
            "POWER_SUPPLIES": self._supply,
        }

    def line(self, line: str) -> None:
        """One line: a mark, the names of columns, or a row."""
        mark = line.strip()
        if mark.startswith(("START_", "END_")) and "," not in mark:
            if mark.startswith("START_") and self.section:
                self.problems.add(f"the table {self.section} has no end", line)
            self.section = mark.removeprefix("START_") if mark.startswith("START_") else ""
            self._columns = []
        elif self.section in self._tables and mark:
            cells = _cells(line)
            if not self._columns:
                self._columns = [cell.strip().lower() for cell in cells[:_COLUMNS_LIMIT]]
            elif len(cells) != len(self._columns):
                self.problems.add(f"a row of {self.section} with other columns than it says", line)
            else:
                row = {k: cell.strip() for k, cell in zip(self._columns, cells, strict=True)}
                self._tables[self.section](row)
        elif not self.section and mark and not mark.startswith("#") and "," not in mark:
            self.problems.unknown(line, "ibdiagnet")

    def done(self, now_ns: int) -> tuple[list[Sample], list[Problem]]:
        """All that was read."""
        if self.section:
            self.problems.add(f"the table {self.section} has no end: cut off?")
        points = Points(self.problems)
        for (guid, number), fields in self._ports.items():
            name, is_adapter = self._names.get(guid, ("", False))
            if not is_adapter:
                name, is_adapter = self._names.get(self._peers.get((guid, number), ""), ("", False))
            host = host_of(name)[0] if is_adapter else ""
            points.put("fabric_port", {"guid": guid, "port": number, "peer_node": host}, fields)
        found = Readings(sensors_limit=TEXT_RECORDS_LIMIT)
        for guid, sensor, kind, value, critical, present in self._own:
            name = self._names.get(guid, ("", False))[0] or guid
            found.add(Reading(name, sensor, kind, value, critical, present))
        for one in found.problems:
            self.problems.add(one.problem, one.line)
        return points.samples(now_ns) + found.samples(now_ns), self.problems.all()

    # ---- one table each --------------------------------------------------------------------

    def _node(self, row: Row) -> None:
        guid = guid_of(row.get("nodeguid", ""))
        if guid:
            self._names[guid] = row.get("nodedesc", "").strip('"'), row.get("nodetype") == _ADAPTER

    def _link(self, row: Row) -> None:
        one, other = guid_of(row.get("nodeguid1", "")), guid_of(row.get("nodeguid2", ""))
        first, second = _port(row.get("portnum1", "")), _port(row.get("portnum2", ""))
        if one and other and first and second:
            self._peers[one, first], self._peers[other, second] = other, one

    def _state(self, row: Row) -> None:
        key = self._key(row)
        for column, name, high in (
            ("portstate", "state", 5),
            ("portphystate", "physical_state", 7),
        ):
            word = row.get(column, "")
            if key and word.isdecimal() and 1 <= int(word[:9]) <= high:
                self._ports.setdefault(key, {})[name] = float(word)

    def _counters(self, row: Row) -> None:
        key = self._key(row)
        if not key:
            return
        fields = self._ports.setdefault(key, {})
        where = f"{key[0]} port {key[1]}"
        # The wide ones first: a narrow one that is full says nothing beside them.
        for column in sorted(row, key=lambda name: not name.endswith(("ext", "extended"))):
            name = column.removesuffix("extended").removesuffix("ext")
            counter = known_counter(_SPELT.get(name, ""))
            if counter is None or row[column] in ("", "NA", "N/A") or counter.field in fields:
                continue
            bits = 64 if name != column else counter.bits
            value = counter_value(counter, row[column], where, self.problems, bits)
            if value is not None:
                fields[counter.field] = value

    def _cable(self, row: Row) -> None:
        key, value = self._key(row), _degrees(row.get("temperature", ""))
        if key and value is not None:
            self._ports.setdefault(key, {})["transceiver_temperature_celsius"] = value

    def _temperature(self, row: Row) -> None:
        value = _degrees(row.get("currenttemperature", ""))
        if value is not None:
            self._mine(row, "Temperature", "celsius", value, None, True)

    def _fan(self, row: Row) -> None:
        word = row.get("fanspeed", "")
        if word.isdecimal() and len(word) < 7:
            name = f"FAN{row.get('sensorindex', '')}"
            self._mine(row, name, "rpm", float(word), None, True)

    def _supply(self, row: Row) -> None:
        present = {"1": True, "yes": True, "0": False, "no": False}.get(
            row.get("ispresent", "").lower()
        )
        states = [row.get(name, "").lower() for name in ("dcstate", "acinput", "alertstate")]
        critical: bool | None = None
        if present and any(word in _BAD for word in states):
            critical = True
        elif present and set(states) <= {"", "ok"} and any(states):
            critical = False
        if present is not None:
            self._mine(row, f"PSU{row.get('psuindex', '')}", "state", None, critical, present)

    def _mine(
        self,
        row: Row,
        sensor: str,
        kind: str,
        value: float | None,
        critical: bool | None,
        present: bool | None,
    ) -> None:
        guid = guid_of(row.get("nodeguid", ""))
        if guid:
            self._own.append((guid, sensor, kind, value, critical, present))

    def _key(self, row: Row) -> Port | None:
        guid = guid_of(row.get("nodeguid", ""))
        port = _port(row.get("portnumber") or row.get("portnum") or "")
        if not guid or not port:
            self.problems.add(f"a row of {self.section} without its port", ",".join(row.values()))
            return None
        return guid, port


_BAD = frozenset({"error", "fail", "failed", "critical", "not ok"})
_SPELT = {
    name.lower(): name
    for name in (
        *("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors"),
        *("PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors", "PortXmitDiscards"),
        *("LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "VL15Dropped"),
        *("PortXmitWait", "PortXmitData", "PortRcvData"),
    )
}


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []  # a carriage return in its midst: noise


def _port(word: str) -> str:
    return str(int(word)) if word.isdecimal() and len(word) <= 4 else ""


def _degrees(word: str) -> float | None:
    """``42C``, ``42`` or ``-3C``; None for what is none (``NA``, ``0xff``)."""
    plain = word.strip().rstrip("cC").strip()
    number = plain.removeprefix("-")
    if not number.isdecimal() or len(number) > 3:
        return None
    return float(plain) if -40.0 <= float(plain) <= 130.0 else None
