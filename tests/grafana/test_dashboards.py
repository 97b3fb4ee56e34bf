"""The dashboards ask only for what is stored, in words that InfluxDB understands."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import collectors
from collectors.sample import Metric
from daemon import fleet
from daemon import metrics as daemon_metrics
from daemon.drains import record

ROOT = Path(__file__).parents[2] / "grafana"
FILES = sorted((ROOT / "dashboards").glob("*.json"))

# Tags by measurement, as the schema has them.
TAGS = {
    "gpu": {"node", "gpu", "uuid"},
    "ib_port": {"node", "device", "port"},
    "fabric_port": {"guid", "port", "peer_node"},
    "bmc": {"node", "sensor", "kind"},
    "host": {"node"},
    "disk": {"node", "device"},
    "pcie": {"node", "address"},
    "event": {"node", "kind", "code"},
    "source": {"node", "source"},
    "slurm_node": {"node"},
    "slurm_event": {"node"},
    "risk": {"node", "component"},
    "decision": {"node", "action"},
    "record": {"cluster"},
    "fleet": {"metric"},
    "fleet_top": {"metric", "node", "device"},
    "fleet_histogram": {"metric", "below"},
}

# Of measurements that no source in this tree declares yet.
UNDECLARED = {
    "host": {
        "edac_corrected_total", "edac_uncorrected_total", "mce_total", "boot_time_seconds",
        "load_1m", "blocked_processes",
    },
    "disk": {"critical_warning", "media_errors_total"},
}  # fmt: skip

# Words in double quotes that a query may use beside names of the schema: its own AS names.
_AS = re.compile(r'AS "([a-z_]+)"')
_QUOTED = re.compile(r'"([a-zA-Z_]+)"')
_FROM = re.compile(r'FROM "([a-z_]+)"')


def schema() -> dict[str, set[str]]:
    """Fields by measurement, from every METRICS in the tree."""
    declared: list[Metric] = [*daemon_metrics.METRICS, *record.METRICS, *fleet.METRICS]
    for info in pkgutil.walk_packages(collectors.__path__, "collectors."):
        module = importlib.import_module(info.name)
        found = getattr(module, "METRICS", ())
        declared += [metric for metric in found if isinstance(metric, Metric)]
    fields: dict[str, set[str]] = {}
    for metric in declared:
        fields.setdefault(metric.measurement, set()).add(metric.name)
    return {**UNDECLARED, **fields}


def load(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(where, query) of every panel, annotation and variable."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["query"]
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], annotation["query"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]


def make_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    spec = importlib.util.spec_from_file_location("tocsin_grafana_make", ROOT / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_there_is_a_board_for_fleet_node_drains_and_tocsin_itself() -> None:
    assert [file.stem for file in FILES] == ["drains", "fleet", "node", "tocsin"]


def test_the_files_are_what_make_py_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {file.name: file.read_text(encoding="utf-8") for file in FILES}
    assert written == make_module(monkeypatch).rendered(), "run: python grafana/make.py"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_query_names_only_what_the_schema_has(file: Path) -> None:
    fields = schema()
    wrong = []
    for where, query in queries(load(file)):
        measurements = set(_FROM.findall(query))
        assert measurements, where
        allowed = measurements | set(_AS.findall(query))
        for measurement in measurements:
            assert measurement in fields, f"{where}: {measurement}"
            allowed |= fields[measurement] | TAGS[measurement]
        wrong += [(where, word) for word in _QUOTED.findall(query) if word not in allowed]
    assert wrong == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_alias_names_a_tag_that_the_query_groups_by(file: Path) -> None:
    for panel in load(file)["panels"]:
        for target in panel["targets"]:
            for tag in re.findall(r"\$tag_([a-z]+)", target.get("alias", "")):
                groups = target["query"].rpartition("GROUP BY")[2]
                assert f'"{tag}"' in groups, panel["title"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_panels_do_not_overlap_and_ids_are_unique(file: Path) -> None:
    taken: set[tuple[int, int]] = set()
    panels = load(file)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_time_range_is_the_viewers_and_nothing_is_flux() -> None:
    for file in FILES:
        board = load(file)
        assert board["timezone"] == "utc"
        for where, query in queries(board):
            if query.startswith("SHOW"):
                continue
            assert "$timeFilter" in query, (file.stem, where)
            assert "|>" not in query


def test_provisioning_points_at_these_boards_and_keeps_the_secret_out() -> None:
    sources = yaml.safe_load((ROOT / "provisioning/datasources/tocsin.yaml").read_text())
    (source,) = sources["datasources"]
    assert source["type"] == "influxdb"
    assert source["jsonData"]["version"] == "InfluxQL"
    assert source["secureJsonData"]["httpHeaderValue1"] == "Token $TOCSIN_INFLUX_TOKEN"
    boards = yaml.safe_load((ROOT / "provisioning/dashboards/tocsin.yaml").read_text())
    assert boards["providers"][0]["type"] == "file"


def plain(query: str) -> str:
    """The query as Grafana would send it for one node over an hour."""
    sent = query.replace("$timeFilter", "time > now() - 1h").replace("$__interval", "60s")
    return sent.replace("/^$node$/", "/^n1$/").replace("/^$gpu$/", "/^.*$/")


# Values of tags that queries ask for by name.
VALUES = {
    "kind": {"event": ("xid", "driver", "version"), "bmc": ("celsius", "rpm", "watts")},
    "source": {"source": ("nvml", "agent")},
    "action": {"decision": ("drain", "hold", "resume")},
    "metric": {
        "fleet": tuple(
            f"gpu.{name}"
            for name in (
                "power_watts",
                "utilization_ratio",
                "temperature_celsius",
                "memory_temperature_celsius",
            )
        )
    },
}
TEXT = {"text", "fault", "model", "reason", "guard", "id", "before", "after", "user", "process"}


def seeded(now_ns: int) -> bytes:
    """Ten minutes of every measurement with all its fields, as line protocol."""
    lines = []
    for measurement, names in schema().items():
        tags = TAGS.get(measurement, {"node"})
        varied = next((tag for tag in VALUES if measurement in VALUES[tag]), "")
        for value in VALUES[varied][measurement] if varied else ("",):
            fixed = {tag: "n1" if tag == "node" else "0" for tag in tags} | {varied: value}
            head = measurement + "".join(f",{k}={v}" for k, v in sorted(fixed.items()) if k)
            for minute in range(10):
                fields = ",".join(field(measurement, name, value, minute) for name in sorted(names))
                lines.append(f"{head} {fields} {now_ns - (10 - minute) * 60 * 10**9}")
    return "\n".join(lines).encode()


def field(measurement: str, name: str, value: str, minute: int) -> str:
    text = name in TEXT or (name == "device" and measurement == "event")
    if text or (name == "jobs" and measurement == "slurm_event"):
        return f'{name}="x"'
    if name == "severity":
        return "severity=3"
    if name == "up":
        return "up=0" if value == "nvml" else "up=1"
    return f"{name}={minute + 1}"


def test_a_real_influxdb_answers_every_query_with_data(influx1: Any) -> None:
    influx1.create("boards")
    try:
        assert influx1.write("boards", seeded(time.time_ns())) == 204
        silent = []
        for file in FILES:
            for where, query in queries(load(file)):
                (result,) = influx1.query("boards", plain(query))["results"]
                assert "error" not in result, f"{file.stem}/{where}: {result}\n{query}"
                if "series" not in result:
                    silent.append((file.stem, where, query))
        assert silent == []
    finally:
        influx1.drop("boards")
