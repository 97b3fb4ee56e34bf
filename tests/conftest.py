"""Fixtures that every folder of tests may use, and which tests may run side by side."""

from __future__ import annotations

import pytest

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Names each test's group for ``--dist loadgroup``."""
    of_file: dict[str, str] = {}
    for item in items:
        where = item.path.relative_to(config.rootpath).as_posix()
        group = next((name for folder, name in GROUPS.items() if where.startswith(folder)), "")
        for fixture in getattr(item, "fixturenames", ()):
            group = group or FIXTURE_GROUPS.get(fixture, "")
        if group:
            of_file[where] = group
    for item in items:
        where = item.path.relative_to(config.rootpath).as_posix()
        item.add_marker(pytest.mark.xdist_group(of_file.get(where, where)))
