"""Fixtures that every folder of tests may use."""

pytest_plugins = [
    "tests.testbed.slurm.plugin",
    "tests.testbed.bmc.plugin",
    "tests.testbed.store.fixtures",
    "tests.testbed.ib.plugin",
]
