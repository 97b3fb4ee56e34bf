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
