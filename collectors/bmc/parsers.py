"""The BMC's part of the table of ``tocsin parse``."""

from __future__ import annotations

from collections.abc import Callable

from collectors.bmc import ipmi_freeipmi, ipmi_power, ipmi_sel, ipmi_sensors, redfish_parse
from collectors.sample import Problem, Sample

BMC_PARSERS: dict[str, Callable[[str | bytes, str, int], tuple[list[Sample], list[Problem]]]] = {
    "ipmitool-sdr": ipmi_sensors.parse,
    "ipmitool-sensor": ipmi_sensors.parse,
    "ipmitool-sel": ipmi_sel.parse_ipmitool,
    "ipmitool-dcmi": ipmi_power.parse_dcmi,
    "ipmitool-chassis": ipmi_power.parse_chassis,
    "ipmi-sensors": ipmi_freeipmi.parse,
    "ipmi-sel": ipmi_sel.parse_freeipmi,
    "ipmi-dcmi": ipmi_power.parse_dcmi,
    "redfish": redfish_parse.parse,
}
