"""The ``infiniband`` source on trees of /sys/class/infiniband, healthy, sick and changing."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import collectors.ib.infiniband
from collectors.ib.infiniband import Infiniband, Options, make
from collectors.ib.memory import PortMemory, load_memory
from collectors.ib.readers import Readers
from collectors.ib.transceiver import module_fields
from collectors.sample import Batch, Context, Sample, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract
from tests.testbed.ib import fake_sysfs

SECOND = 1_000_000_000


def link_events(batch: Batch) -> list[tuple[str, str]]:
    return [
        (one.tag("code"), one.text("device"))
        for one in batch.samples
        if one.measurement == "event" and one.tag("kind") == "link"
    ]


def ports(batch: Batch) -> dict[str, Sample]:
    return {
        f"{one.tag('device')}/{one.tag('port')}": one
        for one in batch.samples
        if one.measurement == "ib_port"
    }


class TestInfiniband(SourceContract):
    module = collectors.ib.infiniband

    @pytest.fixture
    def healthy(self, context: Context) -> Source:
        fake_sysfs.tree(context.root / "sys")
        return make(Options(), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return make(Options(), context)


@pytest.fixture
def sys_root(context: Context) -> Path:
    return context.root / "sys"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "root" / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "root" / "sys").mkdir()
    (tmp_path / "state").mkdir()
    fake_sysfs.put(tmp_path / "root/proc/sys/kernel/random/boot_id", "first-boot")
    return Context(NODE, tmp_path / "state", tmp_path / "root", lambda: NOW_NS)


@pytest.fixture
def one_port(sys_root: Path) -> Path:
    """The folder of the only port, active at 4X NDR."""
    return fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_0"))


def learned(context: Context, **options: object) -> Infiniband:
    """A source that has seen its ports active for longer than it takes to expect them."""
    source = make(Options(**options), context)
    assert isinstance(source, Infiniband)
    source.collect(NOW_NS)
    source.collect(NOW_NS + 700 * SECOND)
    return source


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


def test_a_device_that_does_not_answer_costs_only_its_own_readings(
    context: Context, sys_root: Path
) -> None:
    for name in ("mlx5_0", "mlx5_1", "mlx5_2"):
        fake_sysfs.port(fake_sysfs.device(sys_root, name))
    blocked = sys_root / "class/infiniband/mlx5_1/ports/1/state"
    blocked.unlink()
    os.mkfifo(blocked)  # reading waits until somebody writes, as for a driver in trouble
    source = make(Options(hung_seconds=0.2), context)
    begin = time.monotonic()
    batch = source.collect(NOW_NS)
    assert time.monotonic() - begin < 2
    assert set(ports(batch)) == {"mlx5_0/1", "mlx5_2/1"}
    assert batch.up
    assert "mlx5_1" in batch.fault
    threads = threading.active_count()
    for turn in range(5):
        begin = time.monotonic()
        assert set(ports(source.collect(NOW_NS + turn * SECOND))) == {"mlx5_0/1", "mlx5_2/1"}
        assert time.monotonic() - begin < 0.15, "a hung device is asked once, not every cycle"
    assert threading.active_count() <= threads
    with open(blocked, "w") as pipe:
        pipe.write("4: ACTIVE\n")
    end = time.monotonic() + 5
    blocked.unlink()
    fake_sysfs.put(blocked, "4: ACTIVE")
    while "mlx5_1/1" not in ports(source.collect(NOW_NS + 60 * SECOND)):
        assert time.monotonic() < end
    source.close()


def test_when_all_devices_hang_the_source_says_so(context: Context, sys_root: Path) -> None:
    blocked = fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_0")) / "state"
    blocked.unlink()
    os.mkfifo(blocked)
    source = make(Options(hung_seconds=0.1), context)
    with pytest.raises(SourceUnavailable, match="mlx5_0 hang"):
        source.collect(NOW_NS)
    with open(blocked, "w") as pipe:
        pipe.write("4: ACTIVE\n")


def test_an_adapter_that_is_gone_is_told_also_where_the_others_hang(
    context: Context, sys_root: Path
) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        fake_sysfs.port(fake_sysfs.device(sys_root, name))
    source = learned(context, hung_seconds=0.1)
    (sys_root / "class/infiniband/mlx5_0").rename(context.root / "away")
    blocked = sys_root / "class/infiniband/mlx5_1/ports/1/state"
    blocked.unlink()
    os.mkfifo(blocked)
    batch = source.collect(NOW_NS + 710 * SECOND)
    assert link_events(batch) == [("missing", "mlx5_0/1")]
    assert not batch.up
    assert "mlx5_1 hang" in batch.fault
    with open(blocked, "w") as pipe:
        pipe.write("4: ACTIVE\n")


def test_an_error_in_one_device_is_told_and_the_others_are_read() -> None:
    def read(name: str) -> str:
        if name == "b":
            raise OSError("Input/output error")
        return name.upper()

    answers, errors = Readers(read, 1.0).ask(["a", "b", "c"], 5.0)
    assert answers == {"a": "A", "c": "C"}
    assert str(errors["b"]) == "Input/output error"


def test_nothing_piles_up_over_a_week_of_readings(context: Context, sys_root: Path) -> None:
    fake_sysfs.tree(sys_root)
    source = make(Options(learn_seconds=0), context)
    source.collect(NOW_NS)
    process = psutil.Process()
    files, threads = process.num_fds(), process.num_threads()
    for turn in range(1, 101):
        source.collect(NOW_NS + turn * 6048 * SECOND)
    assert process.num_fds() <= files
    assert process.num_threads() <= threads + 1  # the last reader may just be ending
    assert [path.name for path in context.state_dir.iterdir()] == ["ports.json"]


def test_a_perfquery_that_hangs_at_each_reading_leaves_nothing_behind(
    context: Context, sys_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_0"))
    for name in ("port_rcv_data", "port_xmit_data"):
        fake_sysfs.put(place / "counters" / name, str(2**32 - 1))
    script = tmp_path / "bin" / "perfquery"
    script.parent.mkdir()
    # It ignores being ended, and has a child that does.
    script.write_text("#!/bin/sh\ntrap '' TERM\nsleep 600 &\nwait\nsleep 600\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    source = make(Options(learn_seconds=0, deadline_seconds=0.4), context)
    source.collect(NOW_NS)
    process = psutil.Process()
    before = process.num_fds(), process.num_threads()
    for turn in range(1, 4):
        batch = source.collect(NOW_NS + turn * 2000 * SECOND)
        (port,) = [one for one in batch.samples if one.measurement == "ib_port"]
        assert "receive_bytes_total" not in port.fields, "a saturated counter is no number"
    assert process.num_fds() <= before[0]
    assert process.num_threads() <= before[1] + 1
    left = [one for one in process.children(recursive=True) if one.status() != "zombie"]
    assert [one for one in left if "sleep" in one.name() or "perfquery" in one.name()] == []


# ---- cables ----------------------------------------------------------------------------------

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
