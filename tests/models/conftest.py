"""What the tests of rules share."""

from __future__ import annotations

import pytest

from models.rules import Rules


@pytest.fixture
def rules() -> Rules:
    """Rules that have heard nothing yet."""
    return Rules()
