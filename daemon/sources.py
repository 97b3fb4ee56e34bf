"""Which sources run where: those of every compute node, and those of the head node alone.

One line in a table adds a source; that of the agent stands in :mod:`daemon.agent.sources`.
"""

from __future__ import annotations

from collectors.bmc.ipmi import Options as IpmiOptions
from collectors.bmc.redfish import Options as RedfishOptions
from collectors.gpu.dcgm_exporter import Options as DcgmExporterOptions
from collectors.ib.fabric import Options as FabricOptions
from daemon.agent.sources import DEVICES, AgentSources, make_all
from daemon.settings import Section

__all__ = ["DEVICES", "AgentSources", "HeadSources", "make_all"]


class HeadSources(Section):
    """Section ``[head.sources]``: what the head polls itself. Naming one switches it on."""

    fabric: FabricOptions = FabricOptions(enabled=False)
    redfish: RedfishOptions = RedfishOptions(enabled=False)
    ipmi: IpmiOptions = IpmiOptions(enabled=False)
    dcgm_exporter: DcgmExporterOptions = DcgmExporterOptions(enabled=False)
