"""Ports for what a test starts."""

from __future__ import annotations

import os
import socket

# Below the range from which the kernel gives outgoing connections theirs (32768 on): a port there
# may be taken by any connection of any test, also while a head that is killed starts again. The
# Slurm testbed has 20000 to 29999.
FIRST, LAST = 10_000, 19_999
_given = 0


def free_port() -> int:
    """A TCP port on loopback that nobody listens on, and that this process has not given yet.

    Each process begins somewhere else, so that two that ask at the same time get different ones.
    """
    global _given
    for _ in range(LAST - FIRST):
        port = FIRST + (os.getpid() * 7919 + _given) % (LAST - FIRST + 1)
        _given += 1
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
