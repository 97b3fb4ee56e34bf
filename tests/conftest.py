"""Fixtures that every folder of tests may use, and which tests may run side by side."""

from __future__ import annotations

import os

import pytest

# Debian puts opensm, ipmi-sensors, munged and others where only root's PATH looks.
os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
# Tests run side by side: on small data a second thread only waits, at the cost of the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = [
    "tests.testbed.slurm.plugin",
    "tests.testbed.bmc.plugin",
    "tests.testbed.store.fixtures",
    "tests.testbed.ib.plugin",
]

# Testbeds that listen at fixed addresses, or are dear to start: all their tests run in one
# process. Folder -> group; tests of any other file stay together too, for their fixtures' sake.
GROUPS = {
    "tests/collectors/bmc": "bmc",
    "tests/daemon/demo": "demo",
    "tests/models/evaluation": "evaluation",
}
FIXTURE_GROUPS = {
    "ib_fabric": "ib",
    "ib_start": "ib",
    "ipmi_bmcs": "bmc",
    "redfish_bmcs": "bmc",
    "influx1": "store",
    "victoria": "store",
}
# What takes longest begins first, else one worker is left alone with it at the end. Tests that
# compute stand between those that wait for processes.
LONGEST = (
    "tests/acceptance/test_away.py",
    "tests/models/test_parts.py",
    "tests/acceptance/test_main_job.py",
    "evaluation",
    "tests/acceptance/test_two_heads.py",
    "tests/acceptance/test_break_restarts.py",
    "tests/slurm/test_drains_on_slurm.py",
    "tests/models/simulate/test_calibration.py",
    "tests/slurm/test_proofs_on_slurm.py",
    "bmc",
    "tests/models/features/test_engine.py",
    "tests/slurm/test_reboots_on_slurm.py",
    "tests/slurm/test_soft_on_slurm.py",
    "ib",
    "tests/acceptance/test_prove.py",
    "demo",
    "tests/acceptance/test_modes.py",
    "tests/slurm/test_interleavings_on_slurm.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Names each test's group for ``--dist loadgroup``, and puts the longest first."""
    of_file: dict[str, str] = {}
    for item in items:
        where = item.path.relative_to(config.rootpath).as_posix()
        group = next((name for folder, name in GROUPS.items() if where.startswith(folder)), "")
        for fixture in getattr(item, "fixturenames", ()):
            group = group or FIXTURE_GROUPS.get(fixture, "")
        if group:
            of_file[where] = group
    place: dict[str, int] = {}
    for item in items:
        where = item.path.relative_to(config.rootpath).as_posix()
        group = of_file.get(where, where)
        item.add_marker(pytest.mark.xdist_group(group))
        place[item.nodeid] = LONGEST.index(group) if group in LONGEST else len(LONGEST)
    items.sort(key=lambda item: place[item.nodeid])
