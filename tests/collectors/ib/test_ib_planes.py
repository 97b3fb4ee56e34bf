"""Links of several planes on trees of /sys/class/infiniband: XDR with a sub-device, and RoCE."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.ib.infiniband import Options, make
from collectors.ib.planes import fold, planar
from collectors.ib.sysfs import read_device
from collectors.sample import Batch, Context, Sample
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.ib.node_help import learned, link_events, ports
from tests.testbed.ib import fake_sysfs

SECOND = 1_000_000_000
GUID = "b8ce:f603:0010:f950"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    for folder in ("root/proc/sys/kernel/random", "root/sys", "state"):
        (tmp_path / folder).mkdir(parents=True)
    fake_sysfs.put(tmp_path / "root/proc/sys/kernel/random/boot_id", "first-boot")
    return Context(NODE, tmp_path / "state", tmp_path / "root", lambda: NOW_NS)


def xdr(context: Context, *, tells_sm: bool = True) -> tuple[Path, Path]:
    """An adapter of four planes at 800 Gb/s: the folders of its device and of the sub-device."""
    return fake_sysfs.planes(context.root / "sys", "mlx5_0", "smi1", GUID, tells_sm=tells_sm)


def lose(smi: Path, number: int) -> None:
    down = {"state": "1: DOWN", "physical": "2: Polling", "rate": "2.5 Gb/sec (1X SDR)"}
    fake_sysfs.port(smi, number, guid=GUID, link_downed=1, **down)


def of_planes(batch: Batch) -> dict[str, Sample]:
    return {one.tag("plane"): one for one in batch.samples if one.measurement == "ib_plane"}


@pytest.mark.parametrize("tells_sm", [True, False])
def test_an_adapter_of_four_planes_is_one_link(context: Context, tells_sm: bool) -> None:
    xdr(context, tells_sm=tells_sm)
    batch = make(Options(), context).collect(NOW_NS)
    assert list(ports(batch)) == ["mlx5_0/1"]
    link = ports(batch)["mlx5_0/1"]
    assert link.number("rate_bits_per_second") == 800e9
    assert (link.number("planes"), link.number("planes_active")) == (4.0, 4.0)
    assert sorted(of_planes(batch)) == ["1", "2", "3", "4"]
    assert {one.tag("device") for one in of_planes(batch).values()} == {"mlx5_0"}
    guids = [one.text("device") for one in batch.samples if one.tag("code") == "port"]
    assert guids == ["mlx5_0/1"], "the GUID of the link belongs to nobody else"


def test_a_lost_plane_makes_the_link_slower_and_not_down(context: Context) -> None:
    _, smi = xdr(context)
    source = learned(context)
    lose(smi, 3)
    batch = source.collect(NOW_NS + 701 * SECOND)
    link = ports(batch)["mlx5_0/1"]
    assert link.number("state") == 4.0
    assert (link.number("planes"), link.number("planes_active")) == (4.0, 3.0)
    assert link.number("rate_bits_per_second") == 600e9
    assert link_events(batch) == [("rate", "mlx5_0/1"), ("plane_down", "mlx5_0/1")]
    (told,) = [one for one in batch.samples if one.tag("code") == "plane_down"]
    assert told.text("text").startswith("mlx5_0/1.3 is Down/Polling")
    assert told.number("severity") == 1.0
    assert of_planes(batch)["3"].number("state") == 1.0
    fake_sysfs.port(smi, 3, guid=GUID, rate="200 Gb/sec (1X XDR)", link_downed=1)
    back = source.collect(NOW_NS + 702 * SECOND)
    assert ports(back)["mlx5_0/1"].number("rate_bits_per_second") == 800e9
    assert link_events(back) == [("rate", "mlx5_0/1"), ("plane_up", "mlx5_0/1")]


def test_firmware_that_lowers_the_rate_itself_is_believed(context: Context) -> None:
    device, smi = xdr(context)
    source = learned(context)
    lose(smi, 3)
    fake_sysfs.port(device, guid=GUID, no_sm=True, rate="600 Gb/sec (4X XDR)")
    batch = source.collect(NOW_NS + 701 * SECOND)
    assert ports(batch)["mlx5_0/1"].number("rate_bits_per_second") == 600e9


def test_a_link_that_goes_down_with_all_its_planes_is_told_once(context: Context) -> None:
    device, smi = xdr(context)
    source = learned(context)
    down = {"state": "1: DOWN", "physical": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}
    fake_sysfs.port(device, guid=GUID, no_sm=True, link_downed=1, **down)
    for number in range(1, 5):
        lose(smi, number)
    batch = source.collect(NOW_NS + 701 * SECOND)
    assert link_events(batch) == [("down", "mlx5_0/1")]
    assert ports(batch)["mlx5_0/1"].number("planes_active") == 0.0


def test_a_plane_that_was_down_between_two_readings_is_told_as_that_plane(context: Context) -> None:
    _, smi = xdr(context)
    source = learned(context)
    fake_sysfs.port(smi, 2, guid=GUID, rate="200 Gb/sec (1X XDR)", link_downed=2)
    batch = source.collect(NOW_NS + 701 * SECOND)
    assert link_events(batch) == [("plane_flap", "mlx5_0/1")]
    assert ports(batch)["mlx5_0/1"].number("link_downs_total") == 0.0


def test_a_device_of_planes_alone_is_no_link(context: Context) -> None:
    """The link's own device hangs or is gone: its planes are no links of their own."""
    _, smi = xdr(context)
    source = learned(context)
    found = fold(read_device(context.root, "smi1"))
    assert found == []
    for path in sorted(smi.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    smi.rmdir()
    batch = source.collect(NOW_NS + 701 * SECOND)
    assert link_events(batch) == [], "a sub-device that was taken away is no fault of the link"
    assert "planes" not in ports(batch)["mlx5_0/1"].fields


def test_ports_of_one_guid_on_devices_of_their_own_stay_links(context: Context) -> None:
    """Two cards to which somebody gave one GUID: nothing says that they are planes."""
    for name in ("mlx5_0", "mlx5_1"):
        fake_sysfs.port(fake_sysfs.device(context.root / "sys", name), guid=GUID)
    batch = make(Options(), context).collect(NOW_NS)
    assert sorted(ports(batch)) == ["mlx5_0/1", "mlx5_1/1"]
    assert not of_planes(batch)
    assert not planar(context.root)


def test_what_is_known_of_planes_outlives_a_restart(context: Context) -> None:
    _, smi = xdr(context)
    learned(context)
    lose(smi, 1)
    batch = make(Options(), context).collect(NOW_NS + 800 * SECOND)
    assert ports(batch)["mlx5_0/1"].number("rate_bits_per_second") == 600e9
    assert ("plane_down", "mlx5_0/1") in link_events(batch)


def test_an_adapter_of_planes_is_known_without_asking_its_firmware(context: Context) -> None:
    xdr(context)
    fake_sysfs.port(fake_sysfs.device(context.root / "sys", "mlx5_9"))
    assert planar(context.root)
    assert planar(context.root, "mlx5_0")
    assert planar(context.root, "smi1")
    assert not planar(context.root, "mlx5_9")
    assert not planar(context.root / "nowhere")


# ---- RoCE ------------------------------------------------------------------------------------


def roce(context: Context, used: tuple[int, ...] = (3, 6, 9, 12)) -> Path:
    """A card whose planes are some of the ports of one device."""
    folder = fake_sysfs.device(context.root / "sys", "mlx5_0", kind="MT4131")
    for number in range(1, 13):
        put(folder, number, up=number in used)
    return folder


def put(folder: Path, number: int, *, up: bool, **values: object) -> None:
    layer = {"layer": "Ethernet", "lid": "0x0", "sm": "0x0"}
    if up:
        fake_sysfs.port(folder, number, rate="200 Gb/sec (2X NDR)", **layer, **values)
    else:
        down = {"state": "1: DOWN", "physical": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}
        fake_sysfs.port(folder, number, **down, **layer, **values)


def test_roce_ports_are_links_of_their_own_unless_declared(context: Context) -> None:
    roce(context)
    batch = make(Options(), context).collect(NOW_NS)
    assert sorted(ports(batch)) == ["mlx5_0/12", "mlx5_0/3", "mlx5_0/6", "mlx5_0/9"]


def test_declared_roce_planes_are_one_link(context: Context) -> None:
    folder = roce(context)
    source = learned(context, planes=("mlx5_*",))
    put(folder, 9, up=False)
    batch = source.collect(NOW_NS + 701 * SECOND)
    assert list(ports(batch)) == ["mlx5_0/0"]
    link = ports(batch)["mlx5_0/0"]
    assert link.number("state") == 4.0
    assert (link.number("planes"), link.number("planes_active")) == (4.0, 3.0)
    assert link.number("rate_bits_per_second") == 600e9
    assert link_events(batch) == [("rate", "mlx5_0/0"), ("plane_down", "mlx5_0/0")]
    for number in (3, 6, 12):
        put(folder, number, up=False)
    gone = source.collect(NOW_NS + 702 * SECOND)
    assert link_events(gone) == [("down", "mlx5_0/0")]
    assert ports(gone)["mlx5_0/0"].number("state") == 1.0


# ---- hardware that lies ----------------------------------------------------------------------


def test_a_rate_that_a_plane_shows_once_makes_its_link_no_slower_for_ever(
    context: Context,
) -> None:
    """Its best rate would never be reached again, and the node be drained for a slow link."""
    _, smi = xdr(context)
    source = learned(context)
    right = (smi / "ports/3/rate").read_text().strip()
    fake_sysfs.put(smi / "ports/3/rate", "1600 Gb/sec (8X XDR)")
    source.collect(NOW_NS + 701 * SECOND)
    fake_sysfs.put(smi / "ports/3/rate", right)
    for turn in range(2, 5):
        link = ports(source.collect(NOW_NS + (700 + turn) * SECOND))["mlx5_0/1"]
        assert link.number("rate_bits_per_second") == 800e9
    lose(smi, 3)
    link = ports(source.collect(NOW_NS + 706 * SECOND))["mlx5_0/1"]
    assert link.number("rate_bits_per_second") == 600e9


def test_of_a_counter_that_one_plane_does_not_tell_there_is_no_sum(context: Context) -> None:
    folder = roce(context)
    source = learned(context, planes=("mlx5_*",))
    batch = source.collect(NOW_NS + 701 * SECOND)
    assert ports(batch)["mlx5_0/0"].number("transmit_discards_total") is not None
    (folder / "ports/6/counters/port_xmit_discards").unlink()
    link = ports(source.collect(NOW_NS + 702 * SECOND))["mlx5_0/0"]
    assert link.number("transmit_discards_total") is None
    assert link.number("symbol_errors_total") is not None
    # Nor is there a rate of the link where one of them does not even say whether it is up.
    fake_sysfs.put(folder / "ports/6/state", "???")
    assert ports(source.collect(NOW_NS + 703 * SECOND))["mlx5_0/0"].number("state") == 4.0
    link = ports(source.collect(NOW_NS + 704 * SECOND))["mlx5_0/0"]
    assert link.number("rate_bits_per_second") is None
