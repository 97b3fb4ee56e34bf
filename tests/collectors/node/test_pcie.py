"""PCIe links and devices, read from a tree that looks like sysfs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import collectors.node.pcie as pcie
from collectors.node.pci_tree import devices, errors_of
from collectors.node.pcie import Pcie
from collectors.node.topology import faults, placed, signature
from collectors.sample import Batch, Context, Sample, Source
from tests.collectors.contract import NODE, NOW_NS, SourceContract

SECOND = 1_000_000_000
COUNTS = "RxErr 1\nBadTLP 2\nTOTAL_ERR_{0} {1}\n"


class Tree:
    """A sysfs of PCI devices below ports, with the links of the real one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.list = root / "sys/bus/pci/devices"
        self.list.mkdir(parents=True)
        self.boot("first")

    def boot(self, boot_id: str) -> None:
        file = self.root / "proc/sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(boot_id + "\n")

    def add(self, name: str, class_code: str, vendor: str = "0x10de", **files: str) -> Path:
        """A device below a port of its own, gen 5 with 16 lanes unless ``files`` says else."""
        port = self.root / f"sys/devices/pci0000:00/0000:00:{len(list(self.list.iterdir())):02x}.0"
        folder = port / name
        folder.mkdir(parents=True)
        (self.list / name).symlink_to(folder)
        given = {"class": class_code, "vendor": vendor, "device": "0x2330", **files}
        for where in (folder, port):
            self.link(where, "16", "32.0 GT/s PCIe")
        for file, text in given.items():
            (folder / file).write_text(text + "\n")
        return folder

    def link(self, folder: Path, width: str, speed: str) -> None:
        for file, text in (
            ("current_link_width", width),
            ("current_link_speed", speed),
            ("max_link_width", "16"),
            ("max_link_speed", "32.0 GT/s PCIe"),
        ):
            (folder / file).write_text(text + "\n")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    root, state = tmp_path / "root", tmp_path / "state"
    root.mkdir()
    state.mkdir()
    return Context(node=NODE, state_dir=state, root=root, now_ns=lambda: NOW_NS)


@pytest.fixture
def tree(context: Context) -> Tree:
    return Tree(context.root)


def source(context: Context) -> Pcie:
    return pcie.make(pcie.Options(), context)


def by_address(batch: Batch) -> dict[str, dict[str, float | str]]:
    return {
        one.tag("address"): dict(one.fields) for one in batch.samples if one.measurement == "pcie"
    }


def told(batch: Batch) -> list[tuple[str, str]]:
    found: list[Sample] = [one for one in batch.samples if one.tag("kind") == "pcie"]
    return [(one.tag("code"), one.text("device")) for one in found]


class TestContract(SourceContract):
    module = pcie

    @pytest.fixture
    def healthy(self, tree: Tree, context: Context) -> Source:
        tree.add("0000:1b:00.0", "0x030200")
        tree.add("0000:2c:00.0", "0x020700", "0x15b3")
        return source(context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return source(context)


def test_a_link_stands_beside_the_most_that_both_ends_can_do(tree: Tree, context: Context) -> None:
    gpu = tree.add("0000:1b:00.0", "0x030200")
    tree.link(gpu, "8", "2.5 GT/s PCIe")
    (gpu.parent / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    assert by_address(source(context).collect(NOW_NS))["0000:1b:00"] == {
        "present": 1.0,
        "link_width": 8.0,
        "link_width_max": 16.0,
        "link_speed_bits_per_second": 2.5e9,
        "link_speed_max_bits_per_second": 16e9,
    }


def test_errors_of_both_ends_are_counted_together(tree: Tree, context: Context) -> None:
    gpu = tree.add("0000:1b:00.0", "0x030200")
    (gpu / "aer_dev_correctable").write_text(COUNTS.format("COR", 40))
    (gpu.parent / "aer_dev_correctable").write_text(COUNTS.format("COR", 2))
    (gpu.parent / "aer_dev_fatal").write_text(COUNTS.format("FATAL", 1))
    fields = by_address(source(context).collect(NOW_NS))["0000:1b:00"]
    assert fields["aer_correctable_total"] == 42.0
    assert fields["aer_fatal_total"] == 1.0
    assert "aer_nonfatal_total" not in fields


def test_older_kernels_give_no_total(tmp_path: Path) -> None:
    (tmp_path / "aer_dev_correctable").write_text("RxErr 1\nBadTLP 2\n")
    assert errors_of(tmp_path) == {"correctable": 3.0}


def test_only_gpus_cards_switches_and_drives_are_watched(tree: Tree, context: Context) -> None:
    tree.add("0000:1b:00.0", "0x030200")
    tree.add("0000:1c:00.0", "0x020700", "0x15b3")
    tree.add("0000:1c:00.1", "0x020700", "0x15b3")  # the second port of the same card
    tree.add("0000:1d:00.0", "0x010802", "0x144d")
    tree.add("0000:1e:00.0", "0x020000", "0x8086")
    tree.add("0000:1f:00.0", "0x060400", "0x8086")
    tree.add("0000:20:00.0", "0x068000", "0x10de")
    virtual = tree.add("0000:21:00.0", "0x020700", "0x15b3")
    (virtual / "physfn").mkdir()
    found = [(one.address, one.kind) for one in devices(context.root)]
    assert found == [
        ("0000:1b:00", "gpu"),
        ("0000:1c:00", "nic"),
        ("0000:1d:00", "nvme"),
        ("0000:20:00", "switch"),
    ]


@pytest.mark.parametrize("how", ["registers", "config"])
def test_a_device_that_reads_all_ones_is_not_present_and_has_no_link(
    tree: Tree, context: Context, how: str
) -> None:
    gpu = tree.add("0000:1b:00.0", "0x030200")
    made = source(context)
    assert told(made.collect(NOW_NS)) == []
    if how == "registers":
        tree.link(gpu, "63", "Unknown")
    else:
        (gpu / "config").write_bytes(b"\xff" * 64)
    batch = made.collect(NOW_NS + SECOND)
    assert by_address(batch)["0000:1b:00"] == {"present": 0.0}
    assert told(batch) == [("gone", "0000:1b:00")]
    assert told(made.collect(NOW_NS + 2 * SECOND)) == []
    tree.link(gpu, "16", "32.0 GT/s PCIe")
    (gpu / "config").write_bytes(b"\xde\x10\x30\x23")
    batch = made.collect(NOW_NS + 3 * SECOND)
    assert by_address(batch)["0000:1b:00"]["present"] == 1.0
    assert told(batch) == [("back", "0000:1b:00")]


def test_a_device_that_vanishes_is_missed_even_by_an_agent_that_was_restarted(
    tree: Tree, context: Context
) -> None:
    for name in ("0000:1b:00.0", "0000:2c:00.0"):
        tree.add(name, "0x030200")
    source(context).collect(NOW_NS)
    (tree.list / "0000:2c:00.0").unlink()
    batch = source(context).collect(NOW_NS + SECOND)
    assert by_address(batch)["0000:2c:00"] == {"present": 0.0}
    assert told(batch) == [("gone", "0000:2c:00")]


def test_after_a_restart_of_the_node_hardware_may_have_changed(
    tree: Tree, context: Context
) -> None:
    for name in ("0000:1b:00.0", "0000:2c:00.0"):
        tree.add(name, "0x030200")
    made = source(context)
    made.collect(NOW_NS)
    (tree.list / "0000:2c:00.0").unlink()
    tree.boot("second")
    assert list(by_address(made.collect(NOW_NS + SECOND))) == ["0000:1b:00"]
    assert list(by_address(source(context).collect(NOW_NS + 2 * SECOND))) == ["0000:1b:00"]


def test_a_state_that_cannot_be_kept_costs_no_reading(tree: Tree, context: Context) -> None:
    tree.add("0000:1b:00.0", "0x030200")
    shutil.rmtree(context.state_dir)
    assert by_address(source(context).collect(NOW_NS))


def test_a_port_that_is_down_has_no_width(tree: Tree, context: Context) -> None:
    gpu = tree.add("0000:1b:00.0", "0x030200")
    tree.link(gpu, "0", "Unknown")
    fields = by_address(source(context).collect(NOW_NS))["0000:1b:00"]
    assert "link_width" not in fields
    assert fields["link_width_max"] == 16.0


def audit(batch: Batch) -> list[tuple[str, str]]:
    return [
        (one.tag("code"), one.text("device"))
        for one in batch.samples
        if one.tag("kind") == "topology"
    ]


def built(batch: Batch) -> list[str]:
    return [one.text("text") for one in batch.samples if one.tag("code") == "topology"]


def test_how_a_node_is_built_is_told_at_the_start_on_change_and_daily(
    tree: Tree, context: Context
) -> None:
    tree.add("0000:1b:00.0", "0x030200")
    made = source(context)
    first = built(made.collect(NOW_NS))
    assert first[0].startswith("1x gpu 10de:2330; tree ")
    assert built(made.collect(NOW_NS + 1800 * SECOND)) == []
    assert built(made.collect(NOW_NS + 3601 * SECOND)) == []
    tree.add("0000:2c:00.0", "0x020700", "0x15b3")
    (changed,) = built(made.collect(NOW_NS + 7202 * SECOND))
    assert changed != first[0]
    assert built(made.collect(NOW_NS + 7202 * SECOND + 86_401 * SECOND)) == [changed]


def test_nodes_built_alike_have_one_signature_whatever_their_addresses_and_loads(
    tmp_path: Path,
) -> None:
    texts = []
    places = (("0000:1b:00.0", "0000:1c:00.0"), ("0000:9b:00.0", "0000:9c:00.0"))
    for number, addresses in enumerate(places):
        tree = Tree(tmp_path / str(number))
        gpu = tree.add(addresses[0], "0x030200")
        tree.add(addresses[1], "0x020700", "0x15b3")
        tree.link(gpu, "16", ("2.5 GT/s PCIe", "32.0 GT/s PCIe")[number])
        texts.append(signature(placed(tree.root)))
    assert texts[0] == texts[1]
    weaker = Tree(tmp_path / "weaker")
    gpu = weaker.add("0000:1b:00.0", "0x030200")
    weaker.add("0000:1c:00.0", "0x020700", "0x15b3")
    (gpu.parent / "max_link_width").write_text("8\n")
    assert signature(placed(weaker.root)) != texts[0]


def test_too_few_lanes_are_a_fault_and_a_slow_idle_link_is_none(
    tree: Tree, context: Context
) -> None:
    narrow = tree.add("0000:1b:00.0", "0x030200")
    tree.link(narrow, "8", "32.0 GT/s PCIe")
    tree.link(tree.add("0000:2c:00.0", "0x030200"), "16", "2.5 GT/s PCIe")
    made = source(context)
    assert audit(made.collect(NOW_NS)) == [("lanes", "0000:1b:00")]
    assert audit(made.collect(NOW_NS + 3601 * SECOND)) == []  # told before
    tree.link(narrow, "16", "32.0 GT/s PCIe")
    over = [
        one for one in made.collect(NOW_NS + 7202 * SECOND).samples if one.tag("kind") == "topology"
    ]
    assert [(one.tag("code"), one.number("severity")) for one in over] == [("lanes", 0.0)]


def test_a_slot_weaker_than_those_of_its_peers_is_a_fault(tree: Tree) -> None:
    for name in ("0000:1b:00.0", "0000:2c:00.0", "0000:3d:00.0"):
        gpu = tree.add(name, "0x030200")
    (gpu.parent / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    (fault,) = faults(placed(tree.root))
    assert (fault.code, fault.device) == ("slot", "0000:3d:00")
    assert fault.text == (
        "gpu at 0000:3d:00 sits in a slot of 16 lanes at 16 GT/s where its peers have "
        "16 lanes at 32 GT/s"
    )


def test_a_gpu_away_from_its_network_cards_memory_is_a_fault(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    gpu = tree.add("0000:1b:00.0", "0x030200", numa_node="1")
    card = gpu.parent / "0000:1c:00.0"
    card.mkdir()
    (tree.list / card.name).symlink_to(card)
    for file, text in (("class", "0x020700"), ("vendor", "0x15b3"), ("numa_node", "0")):
        (card / file).write_text(text + "\n")
    (fault,) = faults(placed(tree.root))
    assert (fault.code, fault.device) == ("numa", "0000:1b:00")
