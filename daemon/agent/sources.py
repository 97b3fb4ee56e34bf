"""Which sources run on a compute node, and how sources are made from their options.

Apart from the head's, so that the agent loads no reader that only the head has. One line in the
table adds a source.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path

from collectors.bmc.ipmi_inband import Options as IpmiInbandOptions
from collectors.gpu.dcgm import Options as DcgmOptions
from collectors.gpu.nvidia_smi import Options as NvidiaSmiOptions
from collectors.gpu.nvml import Options as NvmlOptions
from collectors.ib.infiniband import Options as InfinibandOptions
from collectors.kernel.log import Options as KernelLogOptions
from collectors.kernel.rasdaemon import Options as RasdaemonOptions
from collectors.node.checks import Options as ChecksOptions
from collectors.node.host import Options as HostOptions
from collectors.node.nvme import Options as NvmeOptions
from collectors.node.pcie import Options as PcieOptions
from collectors.options import Options as SourceOptions
from collectors.sample import Context, Source
from daemon.settings import Section


class AgentSources(Section):
    """Section ``[agent.sources]``: what the agent reads, the fastest witness first.

    ``infiniband`` and ``nvme`` are left out where the machine has no such device and the file
    does not name them. ``nvidia_smi`` and ``dcgm`` are for nodes where NVML cannot be used,
    ``ipmi_inband`` for nodes whose BMC the head cannot reach, ``rasdaemon`` for those where it
    runs, ``checks`` for programs of the site's own: naming one switches it on.
    """

    kernel_log: KernelLogOptions = KernelLogOptions()
    pcie: PcieOptions = PcieOptions()
    host: HostOptions = HostOptions()
    nvml: NvmlOptions = NvmlOptions()
    infiniband: InfinibandOptions = InfinibandOptions()
    nvme: NvmeOptions = NvmeOptions()
    nvidia_smi: NvidiaSmiOptions = NvidiaSmiOptions(enabled=False)
    dcgm: DcgmOptions = DcgmOptions(enabled=False)
    ipmi_inband: IpmiInbandOptions = IpmiInbandOptions(enabled=False)
    rasdaemon: RasdaemonOptions = RasdaemonOptions(enabled=False)
    checks: ChecksOptions = ChecksOptions(enabled=False)


# Sources of a device that not every machine has: where it would be.
DEVICES = {"infiniband": "sys/class/infiniband", "nvme": "sys/class/nvme"}


def make_all(
    sources: Section,
    node: str,
    state_dir: Path,
    root: Path = Path("/"),
    now_ns: Callable[[], int] = time.time_ns,
) -> list[Source]:
    """The enabled sources, in the order of their table; each gets a state folder of its own."""
    made: list[Source] = []
    for name in type(sources).model_fields:
        options: SourceOptions = getattr(sources, name)
        asked_for = name in sources.model_fields_set
        missing = name in DEVICES and not (root / DEVICES[name]).exists()
        if not options.enabled or (missing and not asked_for):
            continue
        folder = state_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        # A source is made where its options are defined.
        module = importlib.import_module(type(options).__module__)
        source: Source = module.make(options, Context(node, folder, root, now_ns))
        made.append(source)
    return made
