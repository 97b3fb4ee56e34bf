"""What the fabric sweep says, read without a fabric; and the memory of cables."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path

import pytest

from collectors.command import Runner
from collectors.ib import fabric_sweep
from collectors.ib.fabric_answers import read_answers
from collectors.ib.fabric_cabling import Cable, Cabling, load_cabling, save_cabling
from collectors.ib.fabric_subnet import Subnet, SubnetOptions, parse_sminfo
from collectors.ib.topology import parse_topology
from collectors.worker import Worker, WorkerError

LEAF_0, LEAF_1 = "0xfc6a1c0300200000", "0xfc6a1c0300200010"
FIXTURES = Path(__file__).parents[2] / "fixtures" / "ib"


# ---- the sweep's own words -------------------------------------------------------------------


def test_without_an_adapter_the_sweep_says_so() -> None:
    worker = Worker("fabric", "collectors.ib.fabric_worker")
    try:
        with pytest.raises(WorkerError, match="fabric_sweep: no usable InfiniBand port"):
            worker.call("sweep", {"lines": ""}, deadline_seconds=30.0)
    finally:
        worker.close()


def record(lid: int, port: int, kind: int, data: bytes) -> bytes:
    return fabric_sweep.RECORD.pack(lid, port, kind, len(data)) + data


DONE = record(0, 0, fabric_sweep.DONE, b'{"done":true,"sent":2,"timeouts":0,"seconds":0.1}')
GOOD = record(1, 2, fabric_sweep.EXTENDED, (1).to_bytes(8, "big") + (2).to_bytes(8, "big"))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (fabric_sweep.INFO, b"short"),
        (fabric_sweep.COUNTERS, b""),
        (fabric_sweep.EXTENDED, b"x" * 15),
        (fabric_sweep.WIDER, b"x" * 100),
        (fabric_sweep.FAILED, b""),
        (fabric_sweep.MASKS, b"x"),
        (fabric_sweep.SILENT, b""),
        (99, b"ibwarn: x"),
        (0, b""),
    ],
)
def test_records_that_are_none_of_ours_are_told_and_cost_nothing_else(
    kind: int, data: bytes
) -> None:
    answers = read_answers(record(9, 9, kind, data) + GOOD + DONE)
    assert answers is not None
    assert (1, 2) in answers.ports
    assert answers.problems


def test_output_that_was_cut_off_is_no_answer() -> None:
    answers = read_answers(GOOD + DONE)
    assert answers is not None
    assert answers.ports[1, 2] == {"transmit_bytes_total": 4.0, "receive_bytes_total": 8.0}
    for size in range(len(GOOD + DONE)):
        assert read_answers((GOOD + DONE)[:size]) is None


def test_noise_is_no_answer_and_no_crash() -> None:
    noise = random.Random(4)
    for _ in range(300):
        told = read_answers(GOOD + noise.randbytes(noise.randrange(400)) + DONE)
        if told is not None:
            assert (1, 2) in told.ports or told.problems


def plain(errors: list[int], data: list[int]) -> bytes:
    """PortCounters from its symbol errors on."""
    return struct.pack(">HBBHHHHBBxBHHIIIII", *errors, *data)


def fields_of(*records: bytes) -> tuple[dict[str, float], tuple[str, ...]]:
    answers = read_answers(b"".join(records) + DONE)
    assert answers is not None
    assert answers.problems == []
    ((key, fields),) = answers.ports.items()
    return fields, answers.saturated.get(key, ())


def test_wide_error_counters_replace_full_narrow_ones() -> None:
    errors = [65535, 255, 3, 0, 0, 0, 0, 0, 0, 0xF1, 0, 0]
    narrow = record(3, 1, fabric_sweep.COUNTERS_WAIT, plain(errors, [2**32 - 1, 5, 0, 0, 7]))
    fields, saturated = fields_of(narrow)
    assert saturated == (
        "link_recoveries_total",
        "local_link_integrity_errors_total",
        "symbol_errors_total",
        "transmit_bytes_total",
    )
    assert "transmit_bytes_total" not in fields
    assert fields["receive_bytes_total"] == 20.0
    assert fields["excessive_buffer_overruns_total"] == 1.0
    assert fields["transmit_wait_total"] == 7.0
    wide = [100, 200, 70000, 300, 4, 0, 0, 0, 0, 0, 0, 20, 1, 0, 9]
    wider = record(3, 1, fabric_sweep.WIDER, struct.pack(">15Q", *wide))
    for records in ((narrow, wider), (wider,)):
        fields, saturated = fields_of(*records)
        assert saturated == ()
        assert fields["symbol_errors_total"] == 70000.0
        assert fields["transmit_bytes_total"] == 400.0
        assert fields["transmit_wait_total"] == 9.0
        assert fields["local_link_integrity_errors_total"] == 20.0


@pytest.mark.parametrize(
    ("places", "rate", "speed"),
    [
        ((4, 5, 2, 0, 8, 0), 400e9, 106.25e9),  # 4X NDR
        ((4, 5, 1, 0, 0, 1), 200e9, 212.5e9),  # 1X XDR: a plane
        ((4, 5, 2, 0, 8, 1), 800e9, 212.5e9),  # the newer place counts
        ((4, 5, 2, 0, 0, 2), None, None),  # a speed of the future
    ],
)
def test_the_speed_of_a_link_is_read_up_to_xdr(
    places: tuple[int, ...], rate: float | None, speed: float | None
) -> None:
    state, physical, width, plain, extended, extended2 = places
    data = bytearray(64)
    data[31], data[32], data[33] = width, state, physical << 4
    data[35], data[62], data[56] = plain << 4, extended << 4, extended2 << 5
    answers = read_answers(record(3, 1, fabric_sweep.INFO, bytes(data)) + DONE)
    assert answers is not None
    assert answers.ports[3, 1].get("rate_bits_per_second") == rate
    assert answers.ports[3, 1].get("link_speed_bits_per_second") == speed


def test_ticks_of_waiting_are_read_only_where_the_port_counts_them() -> None:
    data = plain([0] * 12, [0, 0, 0, 0, 12])
    assert "transmit_wait_total" not in fields_of(record(3, 1, fabric_sweep.COUNTERS, data))[0]
    told = fields_of(record(3, 1, fabric_sweep.COUNTERS_WAIT, data))[0]
    assert told["transmit_wait_total"] == 12.0


def test_the_state_of_the_subnet_manager_is_read() -> None:
    manager = parse_sminfo((FIXTURES / "sminfo.txt").read_text())
    assert manager is not None
    assert (manager.lid, manager.activity, manager.state) == (5, 242, 3)
    assert parse_sminfo((FIXTURES / "sminfo-no-sm.txt").read_text()) is None


# ---- cabling ---------------------------------------------------------------------------------


def test_a_cable_that_was_moved_leaves_its_old_place(tmp_path: Path) -> None:
    text = (FIXTURES / "ibnetdiscover.txt").read_text()
    cabling = Cabling()
    topology, _ = parse_topology(text)
    assert cabling.learn(topology)
    assert not cabling.learn(topology)
    assert cabling.cables[LEAF_1, 2].node == "gpu-0006"
    moved = text.replace(
        '[1](b8cef60300100051) \t"S-fc6a1c0300200010"[2]',
        '[1](b8cef60300100051) \t"S-fc6a1c0300200000"[9]',
    )
    assert cabling.learn(parse_topology(moved)[0])
    assert (LEAF_1, 2) not in cabling.cables
    assert cabling.cables[LEAF_0, 9] == Cable("gpu-0006", "mlx5_0", "0xb8cef60300100051", 1)
    path = tmp_path / "cabling.json"
    save_cabling(path, {"ib": cabling})
    assert load_cabling(path, "ib").cables == cabling.cables
    assert load_cabling(path, "other").cables == {}
    path.write_text("[1")
    assert load_cabling(path, "ib").cables == {}


def test_switches_of_one_name_are_no_group() -> None:
    """Out of the box all switches of one make are called alike: they are not one leaf."""
    text = (FIXTURES / "ibnetdiscover.txt").read_text()
    named = re.sub(r'"(leaf|spine)-[0-9-]+"', '"Quantum Mellanox Technologies"', text)
    cabling = Cabling()
    cabling.learn(parse_topology(named)[0])
    groups = cabling.groups()
    assert groups["gpu-0001"] == (f"leaf Quantum Mellanox Technologies {LEAF_0}",)
    assert groups["gpu-0005"] == (f"leaf Quantum Mellanox Technologies {LEAF_1}",)
    # Nor are those of two rails.
    rails = Cabling()
    rails.learn(parse_topology(text)[0])
    assert rails.groups()["gpu-0001"] == ("leaf leaf-0-0",)
    others = {guid.replace("0xfc", "0xfd"): name for guid, name in rails.names.items()}
    assert rails.groups({**rails.names, **others})["gpu-0001"] == (f"leaf leaf-0-0 {LEAF_0}",)


PLANAR = """\
Switch 64 "S-fc6a1c0300300001" # "leaf-p1" enhanced port 0 lid 21 lmc 0
[17] "H-b8cef60300100fa0"[1](b8cef60300100fa1) # "gpu-0001 mlx5_0" lid 5 1xXDR

Switch 64 "S-fc6a1c0300300002" # "leaf-p2" enhanced port 0 lid 22 lmc 0
[17] "H-b8cef60300100fa0"[2](b8cef60300100fa1) # "gpu-0001 mlx5_0" lid 5 1xXDR

Ca 2 "H-b8cef60300100fa0" # "gpu-0001 mlx5_0"
[1](b8cef60300100fa1) "S-fc6a1c0300300001"[17] # lid 5 lmc 0 "leaf-p1" lid 21 1xXDR
[2](b8cef60300100fa1) "S-fc6a1c0300300002"[17] # lid 5 lmc 0 "leaf-p2" lid 22 1xXDR
"""


def test_the_planes_of_a_link_are_known_by_their_guid_and_asked_at_one_lid(tmp_path: Path) -> None:
    topology, problems = parse_topology(PLANAR)
    assert problems == []
    cabling = Cabling()
    cabling.learn(topology)
    labels = {cable.port: cabling.label(cable) for cable in cabling.cables.values()}
    assert labels == {1: "mlx5_0/1.1", 2: "mlx5_0/1.2"}
    assert cabling.groups() == {"gpu-0001": ("leaf leaf-p1", "leaf leaf-p2")}
    subnet = Subnet(SubnetOptions(), Runner(), cabling)
    lines = {lid: line for lid, (_, line) in subnet._targets(topology).items()}
    assert lines[5] == "5 0xb8cef60300100fa0 1,2 - ?"
    path = tmp_path / "cabling.json"
    save_cabling(path, {"ib": cabling})
    again = load_cabling(path, "ib")
    assert {again.label(cable) for cable in again.cables.values()} == set(labels.values())


def test_two_ports_of_a_card_that_are_links_of_their_own_are_no_planes() -> None:
    text = PLANAR.replace("[2](b8cef60300100fa1)", "[2](b8cef60300100fa2)")
    cabling = Cabling()
    cabling.learn(parse_topology(text)[0])
    labels = {cabling.label(cable) for cable in cabling.cables.values()}
    assert labels == {"mlx5_0/1", "mlx5_0/2"}
