"""The units as systemd's own tools read them, in a root directory of their own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.config import HeadSection

HERE = Path(__file__).resolve().parents[2] / "systemd"
SERVICES = ("tocsin.service", "tocsin-agent.service")
# systemd-analyze(1): 0 is locked up, 10 is open. Ours are as closed as their work allows.
EXPOSURE_LIMITS = {"tocsin.service": 2.0, "tocsin-agent.service": 3.0}

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd's tools are not installed"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine in a folder, with tocsin installed as the README says."""
    for source, place in (
        *((name, f"etc/systemd/system/{name}") for name in SERVICES),
        ("tocsin.sysusers", "usr/lib/sysusers.d/tocsin.conf"),
        ("tocsin.tmpfiles", "usr/lib/tmpfiles.d/tocsin.conf"),
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / source, tmp_path / place)
    for program in ("opt/tocsin/bin/tocsin", "bin/kill"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", tmp_path / program)
    for target in ("sysinit", "basic", "shutdown", "network-online", "multi-user"):
        (tmp_path / f"etc/systemd/system/{target}.target").write_text("[Unit]\n")
    return tmp_path


def ask(root: Path, *words: str) -> str:
    made = subprocess.run(
        [words[0], f"--root={root}", *words[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return made.stdout + made.stderr


def test_systemd_finds_no_fault_in_the_units(root: Path) -> None:
    said = ask(root, "systemd-analyze", "verify", "--man=no", *SERVICES)
    ours = [line for line in said.splitlines() if "tocsin" in line]
    assert ours == []
    unit = root / "etc/systemd/system/tocsin.service"
    unit.write_text(unit.read_text().replace("TasksMax=", "TaskMaximum="))
    assert "TaskMaximum" in ask(root, "systemd-analyze", "verify", "--man=no", *SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_a_unit_has_no_more_rights_than_its_work_needs(root: Path, service: str) -> None:
    said = ask(root, "systemd-analyze", "security", "--offline=true", service)
    level = re.search(r"exposure level for \S+: ([0-9.]+)", said)
    assert level is not None, said
    assert float(level[1]) <= EXPOSURE_LIMITS[service]


def test_operators_have_a_group_that_reads_no_secret(root: Path) -> None:
    ask(root, "systemd-sysusers")
    groups = {
        line.split(":")[0]: line.split(":")[3].split(",")
        for line in (root / "etc/group").read_text().splitlines()
    }
    # The service must be a member: only so may it give the socket to that group.
    assert groups[HeadSection().operators_group] == ["tocsin"]
    secrets = re.findall(r"^[dz] (\S+) \d+ \S+ (\S+)", (HERE / "tocsin.tmpfiles").read_text(), re.M)
    assert {group for _, group in secrets} == {"tocsin"}
    assert HeadSection().operators_group != "tocsin"
