"""The fabric read by ibqueryerrors and iblinkinfo, for where libibumad cannot be used.

Slower than the sweep, and one hung part holds all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collectors.command import Result
from collectors.ib.errors import parse_ibqueryerrors
from collectors.ib.links import parse_iblinkinfo
from collectors.ib.topology import Topology
from collectors.ib.units import COUNTERS, DATA_FIELDS
from collectors.sample import Problem, Sample

_ERROR_FIELDS = tuple(counter.field for counter in COUNTERS if counter.field not in DATA_FIELDS)
_FOUND_ERRORS = 1  # ibqueryerrors ends with 1 when some port has errors


@dataclass(slots=True)
class ToolReading:
    """Fields by (node GUID, port), and what went wrong."""

    ports: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def read_by_tools(
    tool: Callable[[str, Sequence[str], float], Result],
    topology: Topology,
    now_ns: int,
    deadline_seconds: float,
) -> ToolReading:
    """States, speeds and counters of the ports of ``topology``; three programs in a row.

    ``tool(name, arguments, deadline_seconds)`` runs one. With no thresholds, a port that
    ibqueryerrors checked and does not list has no errors: its error counters are 0. That is
    concluded only from a whole report in which every port answered, and only for ports that told
    their data counters.
    """
    reading = ToolReading()
    nothing = ["--skip-sl", "--threshold-file", "/dev/null"]
    errors = tool("ibqueryerrors", nothing, deadline_seconds)
    data = tool("ibqueryerrors", ["--skip-sl", "--counters"], deadline_seconds)
    links = tool("iblinkinfo", ["-l"], deadline_seconds)
    for result in (errors, data, links):
        if result.status != "ended" or result.returncode not in (0, _FOUND_ERRORS):
            reading.faults.append(result.fault)
    told, problems = parse_ibqueryerrors(errors.text(), "", now_ns)
    counted, data_problems = parse_ibqueryerrors(data.text(), "", now_ns)
    linked, link_problems = parse_iblinkinfo(links.text(), "", now_ns)
    reading.problems += [*problems, *data_problems, *link_problems]
    clean = errors.status == "ended" and errors.returncode in (0, _FOUND_ERRORS) and not problems
    aliases = _port_guids(topology)
    for one in counted:
        fields = dict.fromkeys(_ERROR_FIELDS, 0.0) if clean else {}
        _add(reading, topology, aliases, one, fields)
    for one in [*told, *linked]:
        _add(reading, topology, aliases, one, {})
    return reading


def _add(
    reading: ToolReading,
    topology: Topology,
    aliases: dict[str, str],
    one: Sample,
    usual: dict[str, float],
) -> None:
    guid, port = one.tag("guid"), int(one.tag("port"))
    guid = aliases.get(guid, guid)
    if guid not in topology.nodes or port == 0:
        return
    fields = reading.ports.setdefault((guid, port), usual)
    fields.update({k: v for k, v in one.fields.items() if isinstance(v, float)})


def _port_guids(topology: Topology) -> dict[str, str]:
    """Port GUID -> node GUID of the adapters: the tools name a port by either."""
    return {
        link.port_guid: node.guid
        for node in topology.adapters()
        for link in node.links.values()
        if link.port_guid
    }
