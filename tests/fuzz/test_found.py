"""What was found once, by fuzzing or by hand, is fed to its parser in every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.parsers import PARSERS
from tests.collectors.parser_check import check

FOUND = Path(__file__).resolve().parents[1] / "fixtures/found"
CASES = sorted(path for path in FOUND.rglob("*") if path.is_file())
NOW_NS = 1_796_007_000_000_000_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_case_that_was_found_stays_mended(path: Path) -> None:
    check(*PARSERS[path.parent.name](path.read_bytes(), "n1", NOW_NS))
