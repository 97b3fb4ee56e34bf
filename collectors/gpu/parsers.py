"""The part of GPUs, drives and hosts in the table of ``tocsin parse``."""

from __future__ import annotations

from collections.abc import Callable

from collectors.gpu import (
    dcgm_dmon,
    dcgm_exporter_text,
    dcgm_json,
    smi_csv,
    smi_lists,
    smi_table,
    smi_topo,
    smi_xml,
)
from collectors.kernel import ras_text
from collectors.node import nvme_text
from collectors.sample import Problem, Sample

GPU_PARSERS: dict[str, Callable[[str | bytes, str, int], tuple[list[Sample], list[Problem]]]] = {
    "dcgm-exporter": dcgm_exporter_text.parse,
    "dcgmi-diag": dcgm_json.parse_diag,
    "dcgmi-dmon": dcgm_dmon.parse,
    "dcgmi-health": dcgm_json.parse_health,
    "nvme-smart-log": nvme_text.parse,
    "rasdaemon": ras_text.parse,
    "smartctl": nvme_text.parse,
    "nvidia-smi-xml": smi_xml.parse,
    "nvidia-smi-csv": smi_csv.parse,
    "nvidia-smi-list": smi_lists.parse_list,
    "nvidia-smi-nvlink": smi_lists.parse_nvlink,
    "nvidia-smi": smi_table.parse,
    "nvidia-smi-dmon": smi_lists.parse_dmon,
    "nvidia-smi-topo": smi_topo.parse,
}
