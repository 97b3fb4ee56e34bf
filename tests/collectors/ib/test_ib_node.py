"""The ``infiniband`` source on trees of /sys/class/infiniband, healthy, sick and changing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import collectors.ib.infiniband
from collectors.ib.infiniband import Options, make
from collectors.ib.memory import PortMemory, load_memory
from collectors.sample import Context, Source
from tests.collectors.contract import NOW_NS, SourceContract
from tests.collectors.ib.node_help import SECOND, learned, link_events, ports
from tests.testbed.ib import fake_sysfs


class TestInfiniband(SourceContract):
    module = collectors.ib.infiniband

    @pytest.fixture
    def healthy(self, context: Context) -> Source:
        fake_sysfs.tree(context.root / "sys")
        return make(Options(), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return make(Options(), context)


# ---- what is read ----------------------------------------------------------------------------


def test_every_kind_of_port_of_the_tree_is_read_in_our_units(
    context: Context, sys_root: Path
) -> None:
    fake_sysfs.tree(sys_root)
    batch = make(Options(), context).collect(NOW_NS)
    found = ports(batch)
    assert set(found) == {
        "mlx5_0/1",
        "mlx5_1/1",
        "mlx5_2/1",
        "mlx5_3/1",
        "mlx5_4/1",
        "mlx5_5/1",
        "mlx5_6/1",
        "mlx5_7/3",
        "irdma0/1",
    }
    healthy = found["mlx5_0/1"]
    assert healthy.number("rate_bits_per_second") == 400e9
    assert healthy.number("receive_bytes_total") == 4.0 * (10**12 + 13)
    assert found["mlx5_2/1"].number("link_width") == 2.0
    assert found["mlx5_2/1"].number("link_downs_total") == 1.0
    assert found["mlx5_3/1"].number("state") == 2.0
    assert found["mlx5_4/1"].number("out_of_sequence_total") == 7.0
    assert found["irdma0/1"].number("rate_bits_per_second") == 100e9
    assert "symbol_errors_total" not in found["irdma0/1"].fields


def test_a_full_counter_is_told_once_and_an_unreadable_one_is_absent(
    context: Context, sys_root: Path
) -> None:
    fake_sysfs.tree(sys_root)
    source = make(Options(), context)
    first = source.collect(NOW_NS)
    assert ("saturated", "mlx5_5/1") in link_events(first)
    assert "vl15_drops_total" not in ports(first)["mlx5_5/1"].fields
    assert [p for p in first.problems if "VL15_dropped" in p.problem]
    assert not link_events(source.collect(NOW_NS + SECOND))


def test_a_full_32_bit_data_counter_is_left_out(context: Context, sys_root: Path) -> None:
    fake_sysfs.port(fake_sysfs.device(sys_root, "qib0"), port_xmit_data=4294967295)
    point = ports(make(Options(), context).collect(NOW_NS))["qib0/1"]
    assert "transmit_bytes_total" not in point.fields
    assert "receive_bytes_total" in point.fields


@pytest.mark.parametrize(
    "text", ["N/A (no PMA)", "", "-1", "99999999999999999999999", "0x", "\x00"]
)
def test_words_in_place_of_a_counter_are_no_number(
    context: Context, sys_root: Path, text: str
) -> None:
    fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_0"), symbol_error=text)
    point = ports(make(Options(), context).collect(NOW_NS))["mlx5_0/1"]
    assert "symbol_errors_total" not in point.fields
    assert point.number("link_downs_total") == 0.0


def test_a_full_32_bit_data_counter_is_asked_of_perfquery_where_it_is_there(
    context: Context, sys_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "perfquery"
    tool.parent.mkdir()
    fixture = Path(__file__).parents[2] / "fixtures" / "ib" / "perfquery-x-errors.txt"
    tool.write_text(f"#!/bin/sh\n[ \"$*\" = '-x -C qib0 -P 1' ] && cat {fixture}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    full = {"port_xmit_data": 4294967295, "port_rcv_data": 4294967295}
    fake_sysfs.port(fake_sysfs.device(sys_root, "qib0"), **full)
    point = ports(make(Options(), context).collect(NOW_NS))["qib0/1"]
    assert point.number("transmit_bytes_total") == 20e12
    point = ports(make(Options(perfquery=False), context).collect(NOW_NS))["qib0/1"]
    assert "transmit_bytes_total" not in point.fields


def test_the_guid_of_each_port_is_told_at_the_start_and_daily(
    context: Context, one_port: Path
) -> None:
    source = make(Options(), context)

    def told(seconds: int) -> list[str]:
        batch = source.collect(NOW_NS + seconds * SECOND)
        return [one.text("text") for one in batch.samples if one.tag("kind") == "inventory"]

    guid = (one_port.parents[1] / "node_guid").read_text().strip().replace(":", "")
    assert told(0) == [f"guid=0x{guid}"]
    assert told(3700) == []
    assert told(86_500) == [f"guid=0x{guid}"]


# ---- which ports are watched -----------------------------------------------------------------


def test_bonded_management_slow_and_virtual_ports_are_left_out(
    context: Context, sys_root: Path
) -> None:
    roce = {"layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)"}
    for name in ("bonded0", "mgmt0", "keep0"):
        folder = fake_sysfs.device(sys_root, name)
        fake_sysfs.port(folder, **roce)
        net = fake_sysfs.interface(sys_root, folder, f"eth{name[0]}", ipoib=False)
        if name == "bonded0":
            (net / "master" / "bonding").mkdir(parents=True)
    folder = fake_sysfs.device(sys_root, "virtual0")
    fake_sysfs.port(folder)
    (folder / "device" / "physfn").mkdir(parents=True)
    fake_sysfs.port(
        fake_sysfs.device(sys_root, "slow0"), layer="Ethernet", rate="25 Gb/sec (1X EDR)"
    )
    fake_sysfs.put(
        context.root / "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "ethk\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
        "ethm\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\n",
    )
    assert set(ports(make(Options(), context).collect(NOW_NS))) == {"keep0/1"}
    wide = Options(bonded=True, ethernet_rate_bits_per_second=1e9, ignore=("keep*",))
    assert set(ports(make(wide, context).collect(NOW_NS))) == {"bonded0/1", "slow0/1"}
    declared = Options(expected=("virtual0", "mgmt0/1"))
    assert {"virtual0/1", "mgmt0/1"} <= set(ports(make(declared, context).collect(NOW_NS)))


def test_a_roce_port_that_was_fast_stays_watched_when_it_goes_down(
    context: Context, sys_root: Path
) -> None:
    place = fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_4"), layer="Ethernet")
    source = learned(context)
    fake_sysfs.put(place / "state", "1: DOWN")
    fake_sysfs.put(place / "rate", "10 Gb/sec (4X SDR)")
    batch = source.collect(NOW_NS + 710 * SECOND)
    assert link_events(batch) == [("down", "mlx5_4/1")]
    assert ports(batch)["mlx5_4/1"].number("state") == 1.0


# ---- what changes ----------------------------------------------------------------------------


def test_a_port_that_was_never_active_says_nothing(context: Context, sys_root: Path) -> None:
    fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_1"), state="1: DOWN", physical="2: Polling")
    source = learned(context)
    assert not link_events(source.collect(NOW_NS + 800 * SECOND))


def test_a_declared_port_that_is_down_at_the_start_is_told(
    context: Context, sys_root: Path
) -> None:
    fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_1"), state="1: DOWN", physical="2: Polling")
    batch = make(Options(expected=("mlx5_1",)), context).collect(NOW_NS)
    assert link_events(batch) == [("down", "mlx5_1/1")]


def test_down_and_up_again_are_told_once_each(context: Context, one_port: Path) -> None:
    source = learned(context)
    fake_sysfs.put(one_port / "state", "1: DOWN")
    fake_sysfs.put(one_port / "phys_state", "2: Polling")
    batch = source.collect(NOW_NS + 710 * SECOND)
    assert link_events(batch) == [("down", "mlx5_0/1")]
    (told,) = [one for one in batch.samples if one.measurement == "event"]
    assert told.text("text") == "mlx5_0/1 is Down/Polling, was active at 400 Gb/s"
    assert told.number("severity") == 2.0
    assert not link_events(source.collect(NOW_NS + 720 * SECOND))
    fake_sysfs.put(one_port / "state", "4: ACTIVE")
    fake_sysfs.put(one_port / "phys_state", "5: LinkUp")
    assert link_events(source.collect(NOW_NS + 730 * SECOND)) == [("up", "mlx5_0/1")]


def test_a_drop_between_two_readings_is_told_by_its_counter(
    context: Context, one_port: Path
) -> None:
    source = learned(context)
    fake_sysfs.put(one_port / "counters/link_downed", 2)
    assert link_events(source.collect(NOW_NS + 710 * SECOND)) == [("flap", "mlx5_0/1")]
    assert not link_events(source.collect(NOW_NS + 720 * SECOND))


def test_a_drop_while_the_agent_was_away_is_told_after_its_restart(
    context: Context, one_port: Path
) -> None:
    learned(context).close()
    fake_sysfs.put(one_port / "counters/link_downed", 1)
    again = make(Options(), context)
    assert link_events(again.collect(NOW_NS + 900 * SECOND)) == [("flap", "mlx5_0/1")]
    once_more = make(Options(), context)
    assert not link_events(once_more.collect(NOW_NS + 910 * SECOND))


def test_counters_that_grew_over_a_reboot_are_no_drop(context: Context, one_port: Path) -> None:
    learned(context).close()
    fake_sysfs.put(one_port / "counters/link_downed", 1)
    fake_sysfs.put(context.root / "proc/sys/kernel/random/boot_id", "second-boot")
    source = make(Options(), context)
    assert not link_events(source.collect(NOW_NS + 900 * SECOND))
    assert not link_events(source.collect(NOW_NS + 910 * SECOND))


def test_a_drop_is_told_by_the_carrier_where_there_is_no_counter(
    context: Context, sys_root: Path
) -> None:
    folder = fake_sysfs.device(sys_root, "irdma0")
    fake_sysfs.port(folder, counters=False)
    net = fake_sysfs.interface(sys_root, folder, "ens1", ipoib=False, carrier_down_count=1)
    source = learned(context)
    fake_sysfs.put(net / "carrier_down_count", 3)
    assert link_events(source.collect(NOW_NS + 710 * SECOND)) == [("flap", "irdma0/1")]


def test_fewer_lanes_are_told_and_their_return_too(context: Context, one_port: Path) -> None:
    source = learned(context)
    fake_sysfs.put(one_port / "rate", "200 Gb/sec (2X NDR)")
    batch = source.collect(NOW_NS + 710 * SECOND)
    assert link_events(batch) == [("rate", "mlx5_0/1")]
    (told,) = [one for one in batch.samples if one.measurement == "event"]
    assert told.text("text") == "mlx5_0/1 runs at 2X NDR (200 Gb/s), has run at 400 Gb/s"
    fake_sysfs.put(one_port / "rate", "400 Gb/sec (4X NDR)")
    batch = source.collect(NOW_NS + 720 * SECOND)
    assert [one.number("severity") for one in batch.samples if one.measurement == "event"] == [0.0]


def test_a_link_without_subnet_manager_is_told(context: Context, one_port: Path) -> None:
    source = learned(context)
    fake_sysfs.put(one_port / "state", "2: INIT")
    assert link_events(source.collect(NOW_NS + 710 * SECOND)) == [("no_sm", "mlx5_0/1")]


def test_another_subnet_manager_and_ipoib_going_down_are_told(
    context: Context, sys_root: Path
) -> None:
    folder = fake_sysfs.device(sys_root, "mlx5_0")
    place = fake_sysfs.port(folder)
    net = fake_sysfs.interface(sys_root, folder, "ib0", ipoib=True, operstate="up")
    source = learned(context)
    fake_sysfs.put(net / "operstate", "down")
    fake_sysfs.put(place / "sm_lid", "0x7")
    codes = [code for code, _ in link_events(source.collect(NOW_NS + 710 * SECOND))]
    assert codes == ["sm_changed", "ipoib_down"]
    fake_sysfs.put(net / "operstate", "up")
    assert link_events(source.collect(NOW_NS + 720 * SECOND)) == [("ipoib_up", "mlx5_0/1")]


def test_an_adapter_that_vanishes_is_told_once_and_its_return_too(
    context: Context, sys_root: Path, one_port: Path
) -> None:
    source = learned(context)
    device = sys_root / "class/infiniband/mlx5_0"
    away = context.root / "away"
    device.rename(away)
    assert link_events(source.collect(NOW_NS + 710 * SECOND)) == [("missing", "mlx5_0/1")]
    assert not link_events(source.collect(NOW_NS + 720 * SECOND))
    away.rename(device)
    assert link_events(source.collect(NOW_NS + 730 * SECOND)) == [("up", "mlx5_0/1")]


def test_a_spoilt_state_file_costs_only_what_it_remembered(
    context: Context, one_port: Path
) -> None:
    learned(context)
    state = context.state_dir / "ports.json"
    for text in (
        "",
        "{",
        "[]",
        '{"ports": 3}',
        '{"boot_id": "first-boot", "ports": {"a": {"x": 1}}}',
    ):
        state.write_text(text)
        batch = make(Options(), context).collect(NOW_NS)
        assert ports(batch)
        assert not link_events(batch)
    assert load_memory({"state": "4"}) is None
    memory = PortMemory(state=4.0, saturated=("a",), expected=True)
    assert load_memory(memory.dump()) == memory


# ---- a device that hangs ---------------------------------------------------------------------


# ---- cables ----------------------------------------------------------------------------------
