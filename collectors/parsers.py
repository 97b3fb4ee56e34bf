"""The table of ``tocsin parse``: the name of an outside text, and the function that reads it.

Every entry is ``parse(text, node, now_ns) -> (samples, problems)``. It never raises, whatever
it is fed, and takes memory and time in proportion to its input. A new parser adds one line.
"""

from __future__ import annotations

from collections.abc import Callable

from collectors.bmc.parsers import BMC_PARSERS
from collectors.gpu.parsers import GPU_PARSERS
from collectors.ib.parsers import IB_PARSERS
from collectors.kernel import lines as kernel_lines
from collectors.sample import Problem, Sample
from collectors.slurm import source as slurm

Text = str | bytes
Parser = Callable[[Text, str, int], tuple[list[Sample], list[Problem]]]

PARSERS: dict[str, Parser] = {
    **BMC_PARSERS,
    **GPU_PARSERS,
    **IB_PARSERS,
    "slurm-nodes": slurm.parse,
    "kernel-log": kernel_lines.parse,
}

# For people: what prints the text of each.
PRINTED_BY: dict[str, str] = {
    "dcgm-exporter": "curl -s http://NODE:9400/metrics",
    "dcgmi-diag": "dcgmi diag -r 1 -j (needs an idle node)",
    "dcgmi-dmon": "dcgmi dmon -e 140,150,155,203,230 -c 1",
    "dcgmi-health": "dcgmi health -c -j",
    "ibdiagnet": "ibdiagnet: its file /var/tmp/ibdiagnet2/ibdiagnet2.db_csv",
    "iblinkinfo": "iblinkinfo -l",
    "ibnetdiscover": "ibnetdiscover",
    "ibqueryerrors": "ibqueryerrors --skip-sl --data",
    "ibstat": "ibstat",
    "ibstatus": "ibstatus",
    "ipmi-dcmi": "ipmi-dcmi --get-system-power-statistics",
    "ipmi-sel": "ipmi-sel",
    "ipmi-sensors": "ipmi-sensors",
    "ipmitool-chassis": "ipmitool chassis status",
    "ipmitool-dcmi": "ipmitool dcmi power reading",
    "ipmitool-sdr": "ipmitool sdr elist all",
    "ipmitool-sel": "ipmitool sel elist",
    "ipmitool-sensor": "ipmitool sensor",
    "kernel-log": "dmesg, journalctl -k -o export, or a file of syslog",
    "nvidia-smi": "nvidia-smi",
    "nvidia-smi-csv": "nvidia-smi --query-gpu=index,uuid,... --format=csv",
    "nvidia-smi-dmon": "nvidia-smi dmon -c 1",
    "nvidia-smi-list": "nvidia-smi -L",
    "nvidia-smi-nvlink": "nvidia-smi nvlink -s, or -e",
    "nvidia-smi-topo": "nvidia-smi topo -m",
    "nvidia-smi-xml": "nvidia-smi -q -x",
    "nvme-smart-log": "nvme smart-log /dev/nvme0 -o json",
    "perfquery": "perfquery -x",
    "rasdaemon": "ras-mc-ctl --errors",
    "rdma-link": "rdma link",
    "redfish": "curl -s -u USER 'https://BMC/redfish/v1/Chassis/1/Sensors?$expand=.'",
    "slurm-nodes": "scontrol show nodes --json, or without --json",
    "smartctl": "smartctl -a -j /dev/nvme0",
}
