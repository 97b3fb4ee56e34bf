"""The house stands as designed: names are free, imports run one way, the agent stays light."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURE_GROUPS, GROUPS, LONGEST

ROOT = Path(__file__).parent.parent
PACKAGES = ("collectors", "daemon", "models")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_brings_our_top_level_names(package: str) -> None:
    owners = importlib.metadata.packages_distributions().get(package, [])
    assert set(owners) <= {"tocsin"}, f"{package} is also installed by {owners}"


@pytest.mark.parametrize("package", PACKAGES)
def test_our_top_level_names_come_from_this_checkout(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert Path(module.__file__).parent == ROOT / package


def test_standard_library_does_not_have_our_names() -> None:
    assert not set(PACKAGES) & set(sys.stdlib_module_names)


def test_imports_run_one_way() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_agent_does_not_load_what_only_the_head_needs() -> None:
    code = (
        "import sys, daemon.cli.agent, daemon.agent.cycle\n"
        "heavy = {'numpy', 'pyarrow', 'sklearn', 'scipy', 'influxdb_client', 'pynvml', 'skops'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_head_without_influxdb_and_training_does_not_load_them() -> None:
    code = (
        "import sys, daemon.head, daemon.cli.run\n"
        "print(sorted({'influxdb_client', 'sklearn', 'skops', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_is_begun_first_is_there() -> None:
    groups = {*GROUPS.values(), *FIXTURE_GROUPS.values()}
    assert not [one for one in LONGEST if one not in groups and not (ROOT / one).is_file()]


def test_no_file_is_too_long_to_hold_in_the_head() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in (*PACKAGES, "tests", "grafana")
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 500
    }
    assert not long
