"""A child process for tests: one head's drain path over a real Slurm, cycle after cycle.

``python -m tests.slurm.drain_once DATABASE NODE ...`` reads, reconciles, decides and carries
out for XID 79 on each NODE until it is killed; it prints one line a cycle.
"""

from __future__ import annotations

import sys
import time

from collectors.slurm.source import Options
from daemon.slurm.cli import CliAdapter
from daemon.store.database import Database
from tests.daemon.worlds import GENEROUS, House, lost


def main() -> None:
    database, *nodes = sys.argv[1:]
    house = House(
        CliAdapter(Options(deadline_seconds=5)),
        database=Database(database),
        limits=GENEROUS,
        now_ns=time.time_ns,
    )
    # The onset is that of a line in a log: the same in every life of this process.
    house.facts = [lost(node) for node in nodes]
    while True:
        print("cycle", *(f"{one.node}:{one.guard or 'drain'}" for one in house.cycle()), flush=True)


if __name__ == "__main__":
    main()
