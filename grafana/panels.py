"""How a panel, a variable and an InfluxQL query of the dashboards are made."""

# Queries are fixed text, made of names in this file; a query is read best on one line.
# ruff: noqa: S608, E501

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Panel = dict[str, Any]

SOURCE = {"type": "influxdb", "uid": "${datasource}"}
NODE = '"node" =~ /^$node$/'

# Safe for the common kinds of colour blindness; the page uses the same hues.
BLUE, ORANGE, RED, PURPLE, GREEN, GREY = (
    "#4f9bd3", "#e69f00", "#d55e00", "#a06cd5", "#1b9e77", "#8d99a8",
)  # fmt: skip


def target(query: str, alias: str = "", *, table: bool = False) -> Panel:
    """One InfluxQL query of a panel."""
    made: Panel = {
        "datasource": SOURCE,
        "query": query,
        "rawQuery": True,
        "resultFormat": "table" if table else "time_series",
    }
    if alias:
        made["alias"] = alias
    return made


def panel(
    kind: str,
    title: str,
    width: int,
    height: int,
    targets: Sequence[Panel],
    *,
    unit: str = "short",
    about: str = "",
    **defaults: Any,
) -> Panel:
    """One panel; its place is given by ``board``."""
    letters = "ABCDEFGH"
    made: Panel = {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": [{**one, "refId": letters[i]} for i, one in enumerate(targets)],
        "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": []},
        "options": {},
    }
    return made


def stat(
    title: str,
    query: str,
    *,
    unit: str = "short",
    steps: Sequence[tuple[Any, str]] = (),
    **more: Any,
) -> Panel:
    """One figure. ``steps`` are (from, colour)."""
    made = panel("stat", title, 4, 4, [target(query)], unit=unit, **more)
    made["fieldConfig"]["defaults"]["thresholds"] = {
        "mode": "absolute",
        "steps": [{"color": color, "value": at} for at, color in steps or ((None, BLUE),)],
    }
    made["options"] = {
        "colorMode": "value",
        "graphMode": "none",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return made


def lines(
    title: str, *queries: tuple[str, str], unit: str = "short", width: int = 8, **more: Any
) -> Panel:
    """A chart over time. ``queries`` are (query, alias)."""
    made = panel(
        "timeseries", title, width, 7, [target(q, a) for q, a in queries], unit=unit, **more
    )
    made["fieldConfig"]["defaults"]["custom"] = {
        "lineWidth": 1,
        "fillOpacity": 4,
        "showPoints": "never",
        "spanNulls": False,  # a gap is a reading that is missing; it is not bridged
    }
    made["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def rows(title: str, query: str, *, width: int = 12, height: int = 9, **more: Any) -> Panel:
    """A table."""
    made = panel("table", title, width, height, [target(query, table=True)], **more)
    made["options"] = {"showHeader": True, "cellHeight": "sm"}
    return made


def variable(name: str, query: str, *, every: bool) -> Panel:
    """A choice above the dashboard, filled by an InfluxQL SHOW TAG VALUES."""
    return {
        "name": name,
        "type": "query",
        "label": name.replace("_", " "),
        "datasource": SOURCE,
        "query": query,
        "definition": query,
        "refresh": 2,
        "sort": 7,  # natural: gpu2 before gpu10
        "multi": every,
        "includeAll": every,
        "allValue": ".*" if every else None,
        "current": {"text": "All", "value": "$__all"} if every else {},
        "options": [],
    }


def decisions_as_annotations(where: str = "") -> Panel:
    """Drains as marks on every chart."""
    more = f" AND {where}" if where else ""
    query = f'SELECT "reason", "action" FROM "decision" WHERE $timeFilter{more} AND "action" = \'drain\''
    return {
        "name": "drains",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": PURPLE,
        "query": query,
        "textColumn": "reason",
        "tagsColumn": "action",
        "target": {"query": query, "rawQuery": True, "resultFormat": "table", "refId": "drains"},
    }


def board(
    uid: str,
    title: str,
    panels: Sequence[Panel],
    variables: Sequence[Panel] = (),
    annotations: Sequence[Panel] = (),
    since: str = "now-6h",
) -> Panel:
    """A dashboard; panels flow from left to right over 24 columns."""
    x = y = tallest = 0
    placed = []
    for number, one in enumerate(panels, 1):
        width, height = one["gridPos"]["w"], one["gridPos"]["h"]
        if x + width > 24:
            x, y, tallest = 0, y + tallest, 0
        placed.append({**one, "id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x, tallest = x + width, max(tallest, height)
    source = {
        "name": "datasource",
        "type": "datasource",
        "label": "store",
        "query": "influxdb",
        "current": {},
        "options": [],
        "refresh": 1,
    }
    return {
        "uid": uid,
        "title": title,
        "tags": ["tocsin"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": since, "to": "now"},
        "timezone": "utc",
        "links": [
            {"type": "dashboards", "tags": ["tocsin"], "title": "tocsin", "asDropdown": True,
             "includeVars": True, "keepTime": True},
        ],
        "templating": {"list": [source, *variables]},
        "annotations": {"list": list(annotations)},
        "panels": placed,
    }  # fmt: skip


def newest(field: str, measurement: str, by: str, where: str = "") -> str:
    """The newest value of each series, as a subquery."""
    more = f" AND {where}" if where else ""
    return (
        f'SELECT last("{field}") AS "{field}" FROM "{measurement}" '
        f"WHERE $timeFilter{more} GROUP BY {by}"
    )


def total_now(field: str, measurement: str, by: str) -> str:
    """The sum over the fleet of each series' newest value."""
    return f'SELECT sum("{field}") FROM ({newest(field, measurement, by)})'


def total(field: str, measurement: str, by: str) -> str:
    """The same over time. A series that is silent keeps its value for one interval only."""
    return (
        f'SELECT sum("{field}") FROM (SELECT last("{field}") AS "{field}" FROM "{measurement}" '
        f"WHERE $timeFilter GROUP BY time($__interval), {by}) "
        "WHERE $timeFilter GROUP BY time($__interval) fill(none)"
    )


def over_time(expression: str, measurement: str, by: str = "", where: str = "") -> str:
    """An aggregate per interval and, if given, per tag."""
    more = f" AND {where}" if where else ""
    tags = f", {by}" if by else ""
    return (
        f'SELECT {expression} FROM "{measurement}" WHERE $timeFilter{more} '
        f"GROUP BY time($__interval){tags} fill(null)"
    )


def growth(field: str, measurement: str, by: str, where: str = "") -> str:
    """How much a counter grew per interval; a reset counts as nothing."""
    return over_time(f'non_negative_difference(last("{field}"))', measurement, by, where)


def skew(title: str, query: str, *, about: str = "") -> Panel:
    """A table of versions with the number of nodes that run each, the rarest first.

    Agents tell versions at their start, at a change and daily: the panel looks back two days.
    """
    made = rows(title, query, about=about, height=7)
    plain = {"aggregations": [], "operation": "groupby"}
    counted = {"aggregations": ["count"], "operation": "aggregate"}
    made["timeFrom"] = "2d"
    made["transformations"] = [
        {
            "id": "groupBy",
            "options": {"fields": {"code": plain, "version": plain, "node": counted}},
        },
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": "node (count)"}]}},
    ]
    return made
