"""The InfiniBand texts that ``tocsin parse`` reads, by the tool's name."""

from __future__ import annotations

from collections.abc import Callable

from collectors.ib.diagnet import parse_ibdiagnet
from collectors.ib.errors import parse_ibqueryerrors
from collectors.ib.links import parse_iblinkinfo
from collectors.ib.perf import parse_perfquery
from collectors.ib.stat import parse_ibstat, parse_ibstatus, parse_rdma_link
from collectors.ib.topology import parse_ibnetdiscover
from collectors.sample import Problem, Sample

IB_PARSERS: dict[str, Callable[[str | bytes, str, int], tuple[list[Sample], list[Problem]]]] = {
    "ibstat": parse_ibstat,
    "ibstatus": parse_ibstatus,
    "perfquery": parse_perfquery,
    "ibqueryerrors": parse_ibqueryerrors,
    "iblinkinfo": parse_iblinkinfo,
    "ibnetdiscover": parse_ibnetdiscover,
    "ibdiagnet": parse_ibdiagnet,
    "rdma-link": parse_rdma_link,
}
