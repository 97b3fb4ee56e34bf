"""The kinds of entity that tocsin keeps features of. Each line names unit and meaning.

XIDs are grouped after NVIDIA's public XID catalogue by what they say about the *part*;
what should be done about a code is the business of models/rules.py.
"""

from __future__ import annotations

from models.features.spec import Counter, EntitySpec, Gauge, Group, Peer, Stream

U32 = 2.0**32

# fmt: off
HARDWARE_XIDS = frozenset({
    "48", "54", "61", "62", "64", "74", "79", "95", "109", "110", "119", "120",
    "121", "122", "123", "124", "126", "129", "136", "140", "142", "143", "144", "145",
    "146", "147", "148", "149", "150", "151", "155", "156", "158", "160",
})
# fmt: on
APPLICATION_XIDS = frozenset({"8", "13", "31", "43", "45", "68", "69", "70"})
MEMORY_XIDS = frozenset({"48", "63", "64", "92", "94", "95", "140", "160"})
LINK_XIDS = frozenset({"74", "137", *(str(code) for code in range(144, 151))})

SUPPLY_CODES = frozenset(
    {
        "power_supply_predictive",
        "power_supply_failure",
        "power_supply_input_lost",
        "power_supply_configuration",
        "power_supply_removed",
    }
)

_XID = frozenset({"xid"})
_SEL = frozenset({"sel"})

FAILURE = Group(
    "failure",
    "failures of this part",
    frozenset({"xid", "gpu_lost", "slurm_fail"}),
    frozenset({*HARDWARE_XIDS, "lost", "DOWN", "FAIL"}),
)

GPU_GROUPS = (
    FAILURE,
    Group("memory_xid", "XIDs about GPU memory", _XID, MEMORY_XIDS),
    Group("link_xid", "XIDs about NVLink", _XID, LINK_XIDS),
    Group("application_xid", "XIDs that a program causes", _XID, APPLICATION_XIDS),
    Group("any_xid", "XIDs of any code", _XID),
    Group("pcie_error", "PCIe errors", frozenset({"aer"})),
)

GPU = EntitySpec(
    "gpu",
    streams=(
        Stream(
            "gpu",
            "gpu",
            device_tags=("gpu",),
            prefix="gpu",
            identity="uuid",
            presence=True,
            gauges=(
                Gauge(
                    "temperature", "temperature_celsius", "celsius", "GPU temperature", lively=True
                ),
                Gauge(
                    "memory_temperature",
                    "memory_temperature_celsius",
                    "celsius",
                    "memory temperature",
                ),
                Gauge("power", "power_watts", "watts", "power draw", lively=True),
                Gauge("utilization", "utilization_ratio", "ratio", "utilisation", lively=True),
                Gauge(
                    "sm_clock",
                    "sm_clock_hertz",
                    "ratio",
                    "SM clock over its maximum",
                    over="sm_clock_max_hertz",
                    lively=True,
                ),
                Gauge(
                    "throttle_thermal",
                    "throttle_hw_thermal",
                    "ratio",
                    "share of time slowed down by heat",
                ),
                Gauge(
                    "throttle_slowdown",
                    "throttle_hw_slowdown",
                    "ratio",
                    "share of time in hardware slowdown",
                ),
                Gauge("remap_pending", "row_remap_pending", "flag", "row remap pending"),
                Gauge("remap_failed", "row_remap_failed", "flag", "row remap failed"),
                Gauge("recovery_action", "recovery_action", "code", "recovery action asked for"),
                Gauge("nvlinks", "nvlink_links_active", "links", "active NVLinks"),
                Gauge(
                    "pcie_width",
                    "pcie_link_width",
                    "ratio",
                    "PCIe width over its maximum",
                    over="pcie_link_width_max",
                ),
                Gauge("lost", "lost", "flag", "the driver calls the GPU lost"),
            ),
            counters=(
                Counter("ecc_corrected", "ecc_corrected_total", "corrected memory errors"),
                Counter("ecc_uncorrected", "ecc_uncorrected_total", "uncorrected memory errors"),
                Counter(
                    "remapped_corrected",
                    "remapped_rows_corrected_total",
                    "rows remapped after corrected errors",
                ),
                Counter(
                    "remapped_uncorrected",
                    "remapped_rows_uncorrected_total",
                    "rows remapped after uncorrected errors",
                ),
                Counter("pcie_replays", "pcie_replays_total", "PCIe replays", wrap=U32),
                Counter("nvlink_crc", "nvlink_crc_errors_total", "NVLink CRC errors"),
                Counter("nvlink_replays", "nvlink_replays_total", "NVLink replays"),
                Counter("nvlink_recoveries", "nvlink_recoveries_total", "NVLink recoveries"),
            ),
            peers=(
                Peer(
                    "temperature_over_siblings",
                    "temperature",
                    "power",
                    0.15,
                    5.0,
                    "celsius",
                    "temperature above sibling GPUs at like power",
                ),
                Peer(
                    "sm_clock_over_siblings",
                    "sm_clock",
                    "utilization",
                    0.15,
                    0.05,
                    "ratio",
                    "SM clock above sibling GPUs at like utilisation",
                ),
                Peer(
                    "power_over_siblings",
                    "power",
                    "utilization",
                    0.10,
                    0.05,
                    "watts",
                    "power above sibling GPUs at like utilisation",
                ),
            ),
        ),
    ),
    groups=GPU_GROUPS,
    inherit=(
        "failure.episodes_28d",
        "failure.episodes_ever",
        "failure.days_since",
        "reboots.count_7d",
        "reboots.age_days",
        "nvml_up.mean_1h",
        "nvml_duration.mean_10m",
    ),
)

# What a part is told of its node: a node that has failed lately fails again, whatever the part.
OF_NODE = ("failure.episodes_28d", "failure.days_since", "reboots.count_7d", "reboots.age_days")

MEMORY_COUNTERS = (
    Counter("edac_corrected", "edac_corrected_total", "corrected main-memory errors"),
    Counter("edac_uncorrected", "edac_uncorrected_total", "uncorrected main-memory errors"),
    Counter("mce", "mce_total", "machine-check events"),
)
MEMORY_ERROR = Group("memory_error", "machine-check and EDAC events", frozenset({"mce", "edac"}))
BMC_EVENT = Group("bmc_event", "entries of the BMC's event log", frozenset({"sel"}))

NODE = EntitySpec(
    "node",
    streams=(
        Stream(
            "host",
            "host",
            presence=True,
            gauges=(
                Gauge("load", "load_1m", "processes", "load average of a minute"),
                Gauge("blocked", "blocked_processes", "processes", "blocked processes"),
                Gauge("readonly", "filesystem_readonly", "flag", "a file system is read-only"),
                Gauge("pressure_memory", "pressure_memory_ratio", "ratio", "memory pressure"),
                Gauge("pressure_io", "pressure_io_ratio", "ratio", "I/O pressure"),
            ),
            counters=(
                *MEMORY_COUNTERS,
                Counter("oom_kills", "oom_kills_total", "processes killed for want of memory"),
                Counter("reboots", "boot_time_seconds", "reboots", changes=True),
            ),
        ),
        Stream(
            "nvml",
            "source",
            only=("source", "nvml"),
            gauges=(
                Gauge("nvml_up", "up", "ratio", "share of time that the GPU source answers"),
                Gauge("nvml_duration", "duration_seconds", "seconds", "time NVML takes to answer"),
            ),
        ),
    ),
    groups=(
        FAILURE,
        Group("any_xid", "XIDs of any code", _XID),
        Group("application_xid", "XIDs that a program causes", _XID, APPLICATION_XIDS),
        MEMORY_ERROR,
        Group("hung_task", "hung tasks", frozenset({"hung_task"})),
        Group("link_event", "network link events", frozenset({"link"})),
        Group("disk_event", "file system and disk events", frozenset({"filesystem"})),
        BMC_EVENT,
        Group("repair", "returns to service", frozenset({"slurm_resume"})),
    ),
    gather={
        "gpu": (
            "temperature_over_siblings.mean_1h",
            "temperature_over_siblings.mean_1d",
            "ecc_corrected.count_1d",
            "remapped_uncorrected.count_7d",
            "nvlink_crc.count_1d",
            "throttle_thermal.mean_1h",
            "presence.frozen_seconds",
            "presence.vanished_fields",
            "presence.losses_28d",
            "presence.behind_node_seconds",
        ),
        # A link that goes down is a failure of its node: what the link shows belongs here.
        "link": (
            "symbol_errors.count_1h",
            "symbol_errors.count_1d",
            "link_recoveries.count_1d",
            "receive_errors.count_1d",
            "link_downs.count_7d",
        ),
        "disk": (
            "critical_warning.now",
            "media_errors.count_1d",
            "media_errors.count_7d",
            "spare.drop_1d",
        ),
    },
    stand_out={"fan": ("fan_speed.drop_1d",)},
)

LINK = EntitySpec(
    "link",
    streams=(
        Stream(
            "ib_port",
            "ib_port",
            device_tags=("device", "port"),
            presence=True,
            gauges=(
                Gauge("link_state", "state", "code", "port state (4 = active)"),
                Gauge("link_rate", "rate_bits_per_second", "bits per second", "link rate"),
                Gauge(
                    "optic_temperature",
                    "transceiver_temperature_celsius",
                    "celsius",
                    "transceiver temperature",
                ),
            ),
            counters=(
                Counter("symbol_errors", "symbol_errors_total", "symbol errors", wrap=U32),
                Counter("link_recoveries", "link_recoveries_total", "link recoveries"),
                Counter("link_downs", "link_downs_total", "times the link went down"),
                Counter("receive_errors", "receive_errors_total", "receive errors"),
            ),
        ),
    ),
    groups=(Group("link_event", "link events of this port", frozenset({"link"})),),
    inherit=OF_NODE,
)

# Each sensor of a BMC. What a sensor is worth to its node is gathered by the chassis.
SENSOR = EntitySpec(
    "sensor",
    streams=(
        Stream(
            "bmc",
            "bmc",
            device_tags=("sensor",),
            presence=True,
            gauges=(
                Gauge("sensor", "value", "as the sensor", "the sensor's value"),
                Gauge("sensor_critical", "critical", "flag", "the BMC calls the sensor critical"),
                Gauge("sensor_present", "present", "flag", "the part is present"),
            ),
        ),
    ),
)

# Fans once more, by themselves: only among fans does the middle one say what is usual.
FAN = EntitySpec(
    "fan",
    streams=(
        Stream(
            "fan",
            "bmc",
            device_tags=("sensor",),
            only=("kind", "rpm"),
            presence=True,
            gauges=(Gauge("fan_speed", "value", "rpm", "fan speed"),),
        ),
    ),
)

# One for a node: its fans, supplies and sensors together, and what its BMC writes down.
CHASSIS = EntitySpec(
    "chassis",
    streams=(Stream("chassis", "bmc", presence=True),),
    groups=(
        BMC_EVENT,
        Group("supply_event", "entries of the BMC's log about power supplies", _SEL, SUPPLY_CODES),
    ),
    inherit=OF_NODE,
    gather={
        "sensor": ("sensor_critical.now", "sensor_critical.mean_1d"),
        "fan": ("fan_speed.drop_1d", "fan_speed.trend_1d"),
        "gpu": ("temperature.mean_1h", "throttle_thermal.mean_1h"),
    },
    stand_out={"fan": ("fan_speed.drop_1d",)},
)

# The modules that events name. A module of which nobody ever complained has no row.
DIMM = EntitySpec(
    "dimm",
    streams=(),
    groups=(
        Group(
            "corrected",
            "corrected errors of this module",
            frozenset({"edac", "mce"}),
            frozenset({"corrected", "deferred"}),
        ),
    ),
)

# One for a node: the counters know no modules, events do; the worst module is gathered.
MEMORY = EntitySpec(
    "memory",
    streams=(Stream("memory", "host", presence=True, counters=MEMORY_COUNTERS),),
    groups=(MEMORY_ERROR,),
    inherit=OF_NODE,
    gather={"dimm": ("corrected.events_1h", "corrected.events_1d", "corrected.episodes_7d")},
)

DISK = EntitySpec(
    "disk",
    streams=(
        Stream(
            "disk",
            "disk",
            device_tags=("device",),
            presence=True,
            gauges=(
                Gauge("critical_warning", "critical_warning", "flags", "NVMe critical warning"),
                Gauge("spare", "available_spare_ratio", "ratio", "spare blocks left"),
                Gauge("wear", "percentage_used_ratio", "ratio", "wear"),
                Gauge("disk_temperature", "temperature_celsius", "celsius", "disk temperature"),
            ),
            counters=(Counter("media_errors", "media_errors_total", "media errors"),),
        ),
    ),
    groups=(Group("disk_event", "errors of this disk", frozenset({"filesystem"})),),
    inherit=OF_NODE,
)

CATALOGUE: tuple[EntitySpec, ...] = (GPU, NODE, LINK, SENSOR, FAN, CHASSIS, DIMM, MEMORY, DISK)
