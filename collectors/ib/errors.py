"""Reads what ``ibqueryerrors`` prints of a whole fabric, as ``fabric_port`` points.

``peer_node`` is the host on the link: of a switch's port the one at the other end, where the
report names it, of an adapter's own port that adapter's host. Ports that are not listed had no
counter above its threshold: they get no point, and no zero either.
"""

from __future__ import annotations

import re

from collectors.ib.links import link_fields
from collectors.ib.text import (
    OTHER_NAMES,
    Points,
    Problems,
    counter_value,
    known_counter,
    whole_lines,
)
from collectors.ib.units import guid_of, host_of
from collectors.sample import Problem, Sample

_NODE = re.compile(r'(?:Errors|Data Counters) for (?:(0x[0-9a-fA-F]{1,16}) )?"(.*)"\s*\Z')
_PORT = re.compile(r"\s*GUID (0x[0-9a-fA-F]{1,16}) port (ALL|\d{1,3}):\s*(.*)\Z")
_COUNTER = re.compile(r"\[(\w{1,60}) == (\d{1,20})(?: \([^()\[\]]{1,40}\))?\]\s*")
_LINK_INFO = re.compile(
    r"\s*Link info:\s+\d+\s+\d+\[[^\]]*\]\s+==\((?P<link>.*?)\)==>\s*(?P<rest>.*)\Z"
)
_PEER = re.compile(r'(?:0x[0-9a-fA-F]{1,16})\s+\d+\s+\d+\[[^\]]*\]\s+"(.*)"\s*(?:\(.*\))?\s*\Z')
_FAILURES = re.compile(r"##\s+(\d{1,9}) PMA query failures")


def parse_ibqueryerrors(
    text: str | bytes, node: str, now_ns: int
) -> tuple[list[Sample], list[Problem]]:
    """``ibqueryerrors`` with any of --data, --counters, --details, --report-port, --verbose.

    ``node`` is not used: the text speaks of the whole fabric. The lines ``port ALL`` are sums of
    the lines after them and are left out.
    """
    del node
    reader = _Reader()
    for line in whole_lines(text, reader.problems):
        reader.line(line)
    reader.flush()
    if not reader.summary and (reader.points.found or reader.ports):
        reader.problems.add("no summary at the end: cut off, ports may be missing")
    return reader.points.samples(now_ns), reader.problems.all()


class _Reader:
    def __init__(self) -> None:
        self.problems = Problems()
        self.points = Points(self.problems)
        self.summary = False
        self.ports = 0
        self._host = ""
        self._tags: dict[str, str] = {}
        self._fields: dict[str, float] = {}

    def line(self, line: str) -> None:
        if not line.strip():
            return
        if line.startswith("##"):
            self.summary = True
            if (failed := _FAILURES.match(line)) and int(failed.group(1)):
                self.problems.add(f"{failed.group(1)} ports did not answer", line)
        elif node := _NODE.match(line.strip()):
            self.flush()
            host, device = host_of(node.group(2))
            # Switches have names of one word too: only a description that names an adapter,
            # or the form without a GUID, which is an adapter's, is a host.
            is_host = bool(device) or node.group(1) is None
            self._host = host if is_host else ""
        elif port := _PORT.match(line):
            self.flush()
            self._port(port.group(1), port.group(2), port.group(3), line)
        elif info := _LINK_INFO.match(line):
            self._link(info.group("link"), info.group("rest"), line)
        else:
            self.flush()
            if self.problems.unknown(line, "ibqueryerrors") and not line[0].isspace():
                self._host = ""

    def _port(self, guid: str, port: str, rest: str, line: str) -> None:
        self.ports += 1
        end = 0
        found: list[tuple[str, str]] = []
        while match := _COUNTER.match(rest, end):
            found.append((match.group(1), match.group(2)))
            end = match.end()
        if end != len(rest):
            self.problems.add("counters after this point are not understood", rest[end:])
        if port == "ALL":
            return
        tags = {"guid": guid_of(guid), "port": str(int(port)), "peer_node": self._host}
        fields: dict[str, float] = {}
        where = f"{tags['guid']} port {tags['port']}"
        for name, text in found:
            counter = known_counter(name)
            if counter is None:
                if name not in OTHER_NAMES:
                    self.problems.add(f"counter {name} is not known, left out", line)
                continue
            value = counter_value(counter, text, where, self.problems, None)
            if value is not None:
                fields[counter.field] = value
        self._tags, self._fields = tags, fields

    def _link(self, link: str, rest: str, line: str) -> None:
        fields = link_fields(link)
        if fields is None:
            self.problems.unknown(line, "ibqueryerrors")
        elif self._tags:
            self._fields |= fields
            peer = _PEER.match(rest)
            host, device = host_of(peer.group(1)) if peer else ("", "")
            if device and not self._tags["peer_node"]:
                self._tags["peer_node"] = host

    def flush(self) -> None:
        """Puts the port that was being read."""
        if self._tags:
            self.points.put("fabric_port", self._tags, self._fields)
        self._tags, self._fields = {}, {}
