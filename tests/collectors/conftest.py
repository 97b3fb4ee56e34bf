"""Fixtures that several sources' tests share."""

from __future__ import annotations

import pytest

from tests.collectors.fake_gpus import fake_gpus, nvml_libraries  # noqa: F401
from tests.collectors.freezer import frozen_group
from tests.collectors.recorded_tool import recorded_tool

# A cgroup of the v1 freezer: processes put into it survive SIGKILL until it is thawed.
freezer = pytest.fixture(frozen_group, name="freezer")

# Eight healthy GPUs on the fake NVML library.
gpus = pytest.fixture(fake_gpus, name="gpus")

# A program that prints recorded answers.
tool = pytest.fixture(recorded_tool, name="tool")
