"""Which adapter writes to Slurm here, and why: for the head and for ``tocsin check``."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from collectors.command import Runner
from collectors.slurm.source import Options
from daemon.slurm.adapter import SlurmAdapter
from daemon.slurm.cli import CliAdapter
from daemon.slurm.pyslurm_adapter import PyslurmAdapter, installed
from daemon.slurm.rest import RestAdapter


def choose(
    options: Options,
    runner: Runner | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> tuple[SlurmAdapter, str]:
    """The adapter, and the reason in words. Asks Slurm nothing, so that it works while Slurm
    is away. Slurm's own commands come first: they fit the cluster's release by themselves. pyslurm,
    then slurmrestd, are taken only where they are asked for or the commands are not here.
    """
    if options.adapter == "rest":
        if not options.rest_url:
            raise ValueError("slurm.adapter is rest: slurm.rest_url must name a slurmrestd")
        return RestAdapter(options), "slurmrestd: slurm.adapter says so"
    if options.adapter == "pyslurm":
        return PyslurmAdapter(options), "pyslurm: slurm.adapter says so"
    cli = CliAdapter(options, runner or Runner())
    if options.adapter == "cli":
        return cli, "Slurm's own commands: slurm.adapter says so"
    folder = options.binaries
    missing = [
        tool
        for tool in ("scontrol", "sinfo")
        if which(str(folder / tool) if folder else tool) is None
    ]
    if not missing:
        return (
            cli,
            "Slurm's own commands: they are here, and tell what falls between look and write",
        )
    if installed(options):
        return PyslurmAdapter(options), f"pyslurm: there is no {' and no '.join(missing)} here"
    if options.rest_url:
        return RestAdapter(options), f"slurmrestd: there is no {' and no '.join(missing)} here"
    return cli, f"Slurm's own commands, though {' and '.join(missing)} is not found and no rest_url"
