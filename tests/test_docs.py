"""Each test that the documentation names is there: a promise without its test is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
PAGES = sorted(
    path
    for folder in ("", "docs", "daemon", "collectors", "tests")
    for path in (ROOT / folder).glob("*.md" if folder in ("", "docs") else "**/*.md")
)
# In backquotes, alone or in a longer command: a file (`test_soft`, `drains/test_soft.py`), one test
# of it (`test_soft::test_kills`), or one of the file that was named before (`..::test_kills`).
_NAMED = re.compile(r"(?:((?:[\w-]+/)*test_\w+)(?:\.py)?|\.\.)(?:::(test_\w+))?")
_QUOTED = re.compile(r"`([^`\n]+)`")


def named(text: str) -> Iterator[tuple[str, str]]:
    """File, as it is written, and test (or empty), in order."""
    last = ""
    for quoted in _QUOTED.findall(text):
        for found in _NAMED.finditer(quoted):
            file, test = found[1] or last, found[2] or ""
            if not found[1] and not test:
                continue  # two dots that mean something else
            last = file
            yield file, test


def missing(file: str, test: str) -> str:
    """What is not there, or empty."""
    wanted = file.removeprefix("tests/")
    paths = [
        path
        for path in TESTS.rglob(f"{Path(wanted).name}.py")
        if path.relative_to(TESTS).with_suffix("").as_posix().endswith(wanted)
    ]
    if not paths:
        return f"there is no {file}.py"
    if test and not any(
        re.search(rf"\bdef {test}\b", path.read_text(encoding="utf-8")) for path in paths
    ):
        return f"{file} has no {test}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    wrong = {missing(*one) for one in named(page.read_text(encoding="utf-8"))} - {""}
    assert not wrong


def test_each_case_of_a_drains_life_names_a_test() -> None:
    text = (ROOT / "docs/slurm-lifecycle.md").read_text(encoding="utf-8")
    table = text.partition("## Cases")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 50
    assert [row for row in rows if not list(named(row))] == []


def test_it_would_find_one_that_is_gone() -> None:
    text = "`drains/test_setback` and `..::test_that_never_was`, also `test_of_nothing::test_a`"
    told = [missing(*one) for one in named(text)]
    assert told == [
        "",
        "drains/test_setback has no test_that_never_was",
        "there is no test_of_nothing.py",
    ]
