"""Fixtures that several sources' tests share."""

from __future__ import annotations

import pytest

from tests.collectors.freezer import frozen_group

# A cgroup of the v1 freezer: processes put into it survive SIGKILL until it is thawed.
freezer = pytest.fixture(frozen_group, name="freezer")
