"""A child process for tests: one head over a real Slurm that only tests what it holds.

``python -m tests.slurm.prove_once DATABASE`` prints a line when it is ready, then cycles until
it is killed.
"""

from __future__ import annotations

import sys

from daemon.store.database import Database


def main() -> None:
    from tests.slurm.test_proofs_on_slurm import house, proof

    made = house(proof(), Database(sys.argv[1]))
    print("ready", flush=True)
    while True:
        made.cycle()


if __name__ == "__main__":
    main()
