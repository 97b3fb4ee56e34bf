"""What a node's InfiniBand cables tell of themselves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.ib.infiniband import Options, make
from collectors.ib.transceiver import module_fields
from collectors.sample import Context
from tests.collectors.contract import NOW_NS
from tests.collectors.ib.node_help import SECOND, ports
from tests.testbed.ib import fake_sysfs

QSFP = """\
\tIdentifier                                : 0x11 (QSFP28)
\tModule temperature                        : 45.12 degrees C / 113.22 degrees F
\tModule voltage                            : 3.2843 V
\tRcvr signal avg optical power(Channel 1)  : 0.9720 mW / -0.12 dBm
\tRcvr signal avg optical power(Channel 2)  : 0.4000 mW / -3.98 dBm
\tRcvr signal avg optical power(Channel 3)  : 0.0000 mW / -inf dBm
\tModule temperature high alarm threshold   : 75.00 degrees C / 167.00 degrees F
"""
MLXLINK = """\
Module Info
-----------
Temperature [C]                    : 54 [-5..75]
Rx Power Current [dBm]             : 1.886,-3.0,2.281,1.976 [-10.41..6]
"""
COPPER = """\
Temperature [C]                    : 0 [0..0]
Rx Power Current [dBm]             : 0,0,0,0 [0..0]
"""


def test_the_weakest_lane_that_receives_light_is_told() -> None:
    assert module_fields(QSFP) == {
        "transceiver_temperature_celsius": 45.12,
        "receive_power_watts": pytest.approx(0.4e-3),
    }
    assert module_fields(MLXLINK) == {
        "transceiver_temperature_celsius": 54.0,
        "receive_power_watts": pytest.approx(10**-0.3 * 1e-3),
    }


def test_a_copper_cable_has_no_temperature_and_no_light() -> None:
    assert module_fields(COPPER) == {}
    assert module_fields("netlink error: Operation not supported\n") == {}
    assert module_fields("Temperature [C]    : N/A\nRx Power Current [dBm]  : N/A\n") == {}


def test_one_cable_is_asked_a_cycle_by_the_tool_of_the_configuration(
    context: Context, sys_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(2):
        folder = fake_sysfs.device(sys_root, f"mlx5_{n}")
        fake_sysfs.port(folder)
        fake_sysfs.interface(sys_root, folder, f"ib{n}", ipoib=True)
    tool = tmp_path / "bin" / "ethtool"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n[ $1 = -m ] && cat <<'END'\n{QSFP}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    source = make(Options(transceivers="ethtool"), context)
    told = []
    for turn in range(4):
        batch = source.collect(NOW_NS + turn * SECOND)
        told.append(
            [
                name
                for name, one in ports(batch).items()
                if "transceiver_temperature_celsius" in one.fields
            ]
        )
    assert told == [["mlx5_0/1"], ["mlx5_1/1"], [], []]


def test_a_missing_cable_tool_costs_nothing_else(context: Context, one_port: Path) -> None:
    source = make(Options(transceivers="mlxlink"), replace(context))
    assert ports(source.collect(NOW_NS))
