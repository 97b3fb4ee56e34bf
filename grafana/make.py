"""The dashboards as code: ``python grafana/make.py`` writes ``grafana/dashboards/*.json``.

Grafana's JSON says the same thing many times over; here each panel is one line. All queries
are InfluxQL, the one language that InfluxDB 1, 2 and 3 share.
"""

# Queries are fixed text, made of names in this file; a query is read best on one line.
# ruff: noqa: S608, E501

from __future__ import annotations

import json
from pathlib import Path

from panels import (
    BLUE,
    GREEN,
    NODE,
    ORANGE,
    PURPLE,
    RED,
    Panel,
    board,
    decisions_as_annotations,
    growth,
    lines,
    newest,
    over_time,
    rows,
    skew,
    stat,
    total,
    total_now,
    variable,
)

HERE = Path(__file__).parent

GPU = '"node", "gpu", "uuid"'
TOLD = "\"kind\" = 'version'"
PART_CODES = "^(vbios|nic_firmware|nic_board)$"
NODE_CODES = "^(driver|nvml|kernel|bios|product|nic_board)$"
PARTS = '"node", "component"'
SOURCES = '"node", "source"'
GPU_WHERE = f'{NODE} AND "gpu" =~ /^$gpu$/'
ALARM = ((None, GREEN), (1, RED))


def fleet() -> Panel:
    """The whole fleet on one page."""
    share = (
        'SELECT sum("held") / sum("all") FROM (SELECT last("gpus_allocated") AS "held", '
        'last("gpus_configured") AS "all" FROM "slurm_node" WHERE $timeFilter GROUP BY "node")'
    )
    events = over_time('count("severity")', "event", '"kind"', '"severity" >= 2')
    return board(
        "tocsin-fleet",
        "tocsin: fleet",
        [
            stat("GPUs held by jobs", share, unit="percentunit"),
            stat("nodes drained", total_now("drain", "slurm_node", '"node"'),
                 steps=((None, GREEN), (1, PURPLE))),
            stat("nodes down", total_now("down", "slurm_node", '"node"'), steps=ALARM),
            stat("GPUs lost", total_now("lost", "gpu", GPU), steps=ALARM),
            stat("highest risk", 'SELECT max("probability") FROM '
                 f'({newest("probability", "risk", PARTS)})',
                 unit="percentunit", steps=((None, GREEN), (0.2, ORANGE), (0.5, RED)),
                 about="probability of a failure within the horizon"),
            stat("power", total_now("power_watts", "gpu", GPU), unit="watt"),
            stat("energy in the time shown", 'SELECT integral("sum", 1h) FROM "fleet" WHERE '
                 "$timeFilter AND \"metric\" = 'gpu.power_watts'", unit="watth",
                 about="power of all GPUs over time, by the head's points of the fleet"),
            *(stat(title, f'SELECT last("{name}") FROM "fleet" WHERE $timeFilter AND "metric" = '
                   f"'gpu.{metric}'", unit=unit)
              for title, name, metric, unit in (
                  ("GPU utilisation, mean", "mean", "utilization_ratio", "percentunit"),
                  ("GPU utilisation, median", "p50", "utilization_ratio", "percentunit"),
                  ("hottest GPU", "maximum", "temperature_celsius", "celsius"),
                  ("hottest GPU memory", "maximum", "memory_temperature_celsius", "celsius"),
                  ("most power of a GPU", "maximum", "power_watts", "watt"),
              )),
            lines("nodes by state", *((total(state, "slurm_node", '"node"'), state)
                  for state in ("allocated", "mixed", "idle", "drain", "down")), width=12),
            lines("GPU temperature over the fleet",
                  (over_time('percentile("temperature_celsius", 50)', "gpu"), "median"),
                  (over_time('percentile("temperature_celsius", 99)', "gpu"), "99th percentile"),
                  (over_time('max("temperature_celsius")', "gpu"), "hottest"),
                  unit="celsius", width=12),
            lines("errors and critical events", (events, "$tag_kind"), width=12,
                  about="severity error or critical, by kind"),
            lines("GPU utilisation and power",
                  (over_time('mean("utilization_ratio")', "gpu"), "mean utilisation"),
                  unit="percentunit", width=6),
            lines("power of all GPUs", (total("power_watts", "gpu", GPU), "GPUs"), unit="watt",
                  width=6),
            skew("driver, kernel, BIOS: nodes by version", f'SELECT last("text") AS "version" FROM '
                 f'"event" WHERE $timeFilter AND {TOLD} AND "code" !~ /{PART_CODES}/ '
                 'GROUP BY "node", "code"'),
            skew("VBIOS and card firmware: nodes by version", 'SELECT distinct("text") AS "version" '
                 f'FROM "event" WHERE $timeFilter AND {TOLD} AND "code" !~ /{NODE_CODES}/ '
                 'GROUP BY "node", "code"', about="a node with two versions counts for both; after "
                 "a change the older one stays for two days. tocsin nodes --versions compares "
                 "within one model"),
            rows("riskiest parts", 'SELECT last("probability") AS "probability", "model" FROM "risk" '
                 'WHERE $timeFilter GROUP BY "node", "component"',
                 about="sort by probability; a click on a column's head does it"),
            rows("XIDs", 'SELECT "node", "code", "device", "text" FROM "event" WHERE $timeFilter AND '
                 '("kind" = \'xid\' OR "kind" = \'sxid\') ORDER BY time DESC LIMIT 200'),
        ],
        annotations=[decisions_as_annotations()],
    )  # fmt: skip


def node() -> Panel:
    """One node: GPUs, links, chassis, host."""
    name = "gpu $tag_gpu"

    def gpu(field: str, function: str = "mean") -> tuple[str, str]:
        return over_time(f'{function}("{field}")', "gpu", '"gpu"', GPU_WHERE), name

    def grew(field: str, alias: str = name) -> tuple[str, str]:
        return growth(field, "gpu", '"gpu"', GPU_WHERE), alias

    def port(field: str) -> tuple[str, str]:
        return growth(field, "ib_port", '"device", "port"', NODE), "$tag_device/$tag_port " + field

    def sensor(kind: str) -> tuple[str, str]:
        where = f"{NODE} AND \"kind\" = '{kind}'"
        return over_time('mean("value")', "bmc", '"sensor"', where), "$tag_sensor"

    return board(
        "tocsin-node",
        "tocsin: node and GPUs",
        [
            stat("risk", f'SELECT max("probability") FROM "risk" WHERE $timeFilter AND {NODE}',
                 unit="percentunit", steps=((None, GREEN), (0.2, ORANGE), (0.5, RED)),
                 about="highest within the time shown"),
            stat("drained", f'SELECT last("drain") FROM "slurm_node" WHERE $timeFilter AND {NODE}',
                 steps=((None, GREEN), (1, PURPLE))),
            stat("GPUs held by jobs", 'SELECT last("gpus_allocated") FROM "slurm_node" WHERE '
                 f"$timeFilter AND {NODE}"),
            stat("sources down", 'SELECT count("up") FROM (SELECT last("up") AS "up" FROM "source" '
                 f'WHERE $timeFilter AND {NODE} GROUP BY "source") WHERE "up" = 0', steps=ALARM),
            stat("GPUs lost", 'SELECT sum("lost") FROM (SELECT last("lost") AS "lost" FROM "gpu" '
                 f'WHERE $timeFilter AND {NODE} GROUP BY "gpu", "uuid")', steps=ALARM),
            stat("booted", f'SELECT last("boot_time_seconds") * 1000 FROM "host" WHERE $timeFilter '
                 f"AND {NODE}", unit="dateTimeFromNow"),
            stat("GPUs' energy in the time shown", 'SELECT sum("grown") / 3600 FROM (SELECT '
                 'non_negative_difference(last("energy_joules_total")) AS "grown" FROM "gpu" WHERE '
                 f'$timeFilter AND {NODE} GROUP BY time($__interval), "gpu", "uuid")', unit="watth",
                 about="by the GPUs' own counters"),
            *(stat(title, f'SELECT {how}("{name}") FROM (SELECT last("{name}") AS "{name}" FROM '
                   f'"gpu" WHERE $timeFilter AND {NODE} GROUP BY "gpu", "uuid")', unit=unit)
              for title, how, name, unit in (
                  ("GPUs' power", "sum", "power_watts", "watt"),
                  ("GPU utilisation, mean", "mean", "utilization_ratio", "percentunit"),
                  ("hottest GPU", "max", "temperature_celsius", "celsius"),
                  ("hottest GPU memory", "max", "memory_temperature_celsius", "celsius"),
                  ("GPU memory used", "sum", "memory_used_bytes", "bytes"),
              )),
            lines("temperature", gpu("temperature_celsius"), unit="celsius"),
            lines("memory temperature", gpu("memory_temperature_celsius"), unit="celsius"),
            lines("power", gpu("power_watts"), unit="watt"),
            lines("utilisation", gpu("utilization_ratio"), unit="percentunit"),
            lines("graphics and SM activity",
                  (gpu("graphics_activity_ratio")[0], name + " graphics"),
                  (gpu("sm_activity_ratio")[0], name + " SM"), unit="percentunit",
                  about="where DCGM counts its fields 1001 and 1002"),
            lines("SM clock", gpu("sm_clock_hertz"), unit="hertz"),
            lines("memory used", gpu("memory_used_bytes"), unit="bytes"),
            lines("corrected ECC errors", grew("ecc_corrected_total")),
            lines("uncorrected ECC errors", grew("ecc_uncorrected_total")),
            lines("remapped rows",
                  grew("remapped_rows_corrected_total", name + " corrected"),
                  grew("remapped_rows_uncorrected_total", name + " uncorrected"),
                  (over_time('max("row_remap_failed")', "gpu", '"gpu"', GPU_WHERE), name + " failed")),
            lines("NVLink errors", grew("nvlink_crc_errors_total", name + " CRC"),
                  grew("nvlink_replays_total", name + " replays"),
                  grew("nvlink_recoveries_total", name + " recoveries")),
            lines("PCIe width and replays", gpu("pcie_link_width", "min"),
                  grew("pcie_replays_total", name + " replays")),
            lines("throttled by hardware or heat",
                  (over_time('max("throttle_hw_slowdown")', "gpu", '"gpu"', GPU_WHERE), name + " slowdown"),
                  (over_time('max("throttle_hw_thermal")', "gpu", '"gpu"', GPU_WHERE), name + " heat")),
            lines("InfiniBand errors", *map(port, ("symbol_errors_total", "link_downs_total",
                  "link_recoveries_total", "receive_errors_total", "transmit_discards_total"))),
            lines("InfiniBand traffic", *map(port, ("receive_bytes_total", "transmit_bytes_total")),
                  unit="bytes"),
            lines("InfiniBand rate", (over_time('min("rate_bits_per_second")', "ib_port",
                  '"device", "port"', NODE), "$tag_device/$tag_port"), unit="bps"),
            lines("chassis temperatures", sensor("celsius"), unit="celsius"),
            lines("fans", sensor("rpm"), unit="rotrpm"),
            lines("chassis power", sensor("watts"), unit="watt"),
            lines("memory errors of the host",
                  (growth("edac_corrected_total", "host", '"node"', NODE), "corrected"),
                  (growth("edac_uncorrected_total", "host", '"node"', NODE), "uncorrected"),
                  (growth("mce_total", "host", '"node"', NODE), "machine checks")),
            lines("load and blocked processes",
                  (over_time('mean("load_1m")', "host", "", NODE), "load"),
                  (over_time('max("blocked_processes")', "host", "", NODE), "blocked"),
                  (over_time('max("zombie_processes")', "host", "", NODE), "zombies"),
                  (over_time('max("stray_processes")', "host", "", NODE), "of users, outside of jobs")),
            lines("disks", (growth("media_errors_total", "disk", '"device"', NODE),
                  "$tag_device media errors"),
                  (over_time('max("critical_warning")', "disk", '"device"', NODE),
                  "$tag_device critical warning")),
            rows("events", 'SELECT "kind", "code", "severity", "device", "text" FROM "event" WHERE '
                 f"$timeFilter AND {NODE} AND \"kind\" != 'inventory' ORDER BY time DESC LIMIT 500",
                 width=24),
        ],
        [
            variable("node", 'SHOW TAG VALUES FROM "source" WITH KEY = "node"', every=False),
            variable("gpu", 'SHOW TAG VALUES FROM "gpu" WITH KEY = "gpu" WHERE "node" =~ /^$node$/',
                     every=True),
        ],
        [decisions_as_annotations(NODE)],
    )  # fmt: skip


# What the drains of the last 30 days came to: the head writes it each hour (tocsin record).
RECORD = (
    ("false drains / 1000 node-days", "wrong_per_1000_node_days", "none",
     "30 days, by people's verdicts; a drain that nobody judged is not counted"),
    ("called right, 30 d", "right", "short", "tocsin verdict ID true"),
    ("called wrong, 30 d", "wrong", "short", "tocsin verdict ID false"),
    ("fault to drain, median", "reaction_median_seconds", "s",
     "from the fault's own time to the drain in Slurm; drains that a person was asked for left out"),
    ("GPU-hours out, 30 d", "out_gpu_hours", "short", "out of service by tocsin's drains"),
    ("GPU-hours saved, 30 d", "saved_gpu_hours", "short",
     "reckoned by policy.cost, for drains that were called right"),
)  # fmt: skip


def drains() -> Panel:
    """Every decision with its reason, score and guard, beside what Slurm did."""
    return board(
        "tocsin-drains",
        "tocsin: drains and decisions",
        [
            stat("drains", 'SELECT count("id") FROM "decision" WHERE $timeFilter AND '
                 "\"action\" = 'drain'", steps=((None, PURPLE),)),
            stat("refused by a guard", 'SELECT count("id") FROM "decision" WHERE $timeFilter AND '
                 "\"action\" = 'hold'", steps=((None, ORANGE),)),
            stat("returned", 'SELECT count("id") FROM "decision" WHERE $timeFilter AND '
                 "\"action\" = 'resume'", steps=((None, GREEN),)),
            stat("nodes drained now, by anybody", total_now("drain", "slurm_node", '"node"'),
                 steps=((None, BLUE),)),
            stat("highest score", 'SELECT max("probability") FROM "decision" WHERE $timeFilter',
                 unit="percentunit"),
            stat("nodes with a decision", 'SELECT count("n") FROM (SELECT count("id") AS "n" FROM '
                 '"decision" WHERE $timeFilter GROUP BY "node")'),
            *(stat(title, f'SELECT last("{name}") FROM "record" WHERE $timeFilter', unit=unit,
                   about=about)
              for title, name, unit, about in RECORD),
            lines("decisions", (over_time('count("id")', "decision", '"action"'), "$tag_action"),
                  width=12),
            lines("risk of the nodes that are at risk", (over_time('max("probability")', "risk",
                  '"node"', '"probability" > 0.1'), "$tag_node"), unit="percentunit", width=12,
                  max=1, min=0),
            rows("decisions: reason, score and guard",
                 'SELECT "node", "action", "reason", "guard", "probability", "id" FROM "decision" '
                 "WHERE $timeFilter ORDER BY time DESC LIMIT 500", width=24, height=11,
                 about="the first four digits of the id go to: tocsin explain"),
            rows("what Slurm's nodes did", 'SELECT "node", "before", "after", "reason", "user", '
                 '"jobs" FROM "slurm_event" WHERE $timeFilter ORDER BY time DESC LIMIT 500', width=24),
        ],
        annotations=[decisions_as_annotations()],
        since="now-7d",
    )  # fmt: skip


def itself() -> Panel:
    """tocsin's own health: what is heard, how long it takes, what it costs."""
    agent = "\"source\" = 'agent'"
    by_node = '"node"'
    up = (
        'SELECT mean("up") FROM "source" WHERE $timeFilter GROUP BY time($__interval), "source" '
        "fill(null)"
    )
    return board(
        "tocsin-itself",
        "tocsin: itself",
        [
            stat("nodes heard", 'SELECT count("up") FROM (SELECT last("up") AS "up" FROM "source" '
                 'WHERE $timeFilter GROUP BY "node")'),
            stat("sources down", 'SELECT count("up") FROM (SELECT last("up") AS "up" FROM "source" '
                 'WHERE $timeFilter GROUP BY "node", "source") WHERE "up" = 0', steps=ALARM),
            stat("oldest good reading", f'SELECT max("age_seconds") FROM '
                 f'({newest("age_seconds", "source", SOURCES)})',
                 unit="s", steps=((None, GREEN), (120, ORANGE), (600, RED))),
            stat("bytes that wait on nodes", 'SELECT sum("spool_bytes") FROM '
                 f'({newest("spool_bytes", "source", by_node, agent)})', unit="bytes"),
            stat("samples dropped", 'SELECT sum("dropped_samples_total") FROM '
                 f'({newest("dropped_samples_total", "source", by_node, agent)})', steps=ALARM),
            stat("largest agent", 'SELECT max("resident_bytes") FROM "source" WHERE $timeFilter AND '
                 f"{agent}", unit="bytes"),
            lines("share of cycles that read something", (up, "$tag_source"), unit="percentunit",
                  width=12, min=0, max=1),
            lines("slowest cycle by source", (over_time('max("duration_seconds")', "source",
                  '"source"'), "$tag_source"), unit="s", width=12),
            lines("age of the last good cycle, worst node", (over_time('max("age_seconds")',
                  "source", '"source"'), "$tag_source"), unit="s", width=12),
            lines("nodes heard", ('SELECT count("up") FROM (SELECT last("up") AS "up" FROM "source" '
                  'WHERE $timeFilter GROUP BY time($__interval), "node") WHERE $timeFilter '
                  "GROUP BY time($__interval) fill(none)", "nodes"), width=12),
            lines("agents: samples sent per interval", ('SELECT sum("grown") FROM (SELECT '
                  'non_negative_difference(last("sent_samples_total")) AS "grown" FROM "source" '
                  f"WHERE $timeFilter AND {agent} GROUP BY time($__interval), \"node\") WHERE "
                  "$timeFilter GROUP BY time($__interval) fill(none)", "samples"), width=12),
            lines("agents: processor time per second", ('SELECT max("used") FROM (SELECT '
                  'non_negative_derivative(last("cpu_seconds_total"), 1s) AS "used" FROM "source" '
                  f"WHERE $timeFilter AND {agent} GROUP BY time($__interval), \"node\") WHERE "
                  "$timeFilter GROUP BY time($__interval) fill(none)", "busiest agent"),
                  unit="percentunit", width=12),
            rows("faults", 'SELECT "node", "source", "fault", "age_seconds" FROM "source" WHERE '
                 '$timeFilter AND "up" = 0 ORDER BY time DESC LIMIT 500', width=24),
        ],
    )  # fmt: skip


BOARDS = {"fleet": fleet, "node": node, "drains": drains, "tocsin": itself}


def rendered() -> dict[str, str]:
    """Every dashboard by the name of its file."""
    return {
        f"{name}.json": json.dumps(make(), indent=2, ensure_ascii=False) + "\n"
        for name, make in BOARDS.items()
    }


if __name__ == "__main__":
    for file_name, text in rendered().items():
        (HERE / "dashboards" / file_name).write_text(text, encoding="utf-8")
