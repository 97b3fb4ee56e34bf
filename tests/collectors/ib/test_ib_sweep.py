"""What the fabric sweep says, read without a fabric; and the memory of cables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from collectors.ib import fabric_sweep
from collectors.ib.fabric_answers import port_fields, read_answers
from collectors.ib.fabric_cabling import Cable, Cabling, load_cabling, save_cabling
from collectors.ib.fabric_subnet import beyond_ndr, parse_sminfo
from collectors.ib.topology import parse_topology

LEAF_0, LEAF_1 = "0xfc6a1c0300200000", "0xfc6a1c0300200010"
FIXTURES = Path(__file__).parents[2] / "fixtures" / "ib"


# ---- the sweep's own words -------------------------------------------------------------------


def test_without_the_library_or_an_adapter_the_sweep_says_so() -> None:
    answer = subprocess.run(
        [sys.executable, "-I", "-S", fabric_sweep.__file__],
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert "fabric_sweep: no usable InfiniBand port" in answer.stderr


def test_lines_that_are_none_of_ours_are_told_and_cost_nothing_else() -> None:
    good = '{"l":1,"p":2,"x":[1,2]}\n{"done":true,"sent":2,"timeouts":0,"seconds":0.1}\n'
    for bad in ("{}", "[]", "3", '{"l":null}', '{"l":1,"m":[]}', '{"l":1,"p":"x"}', "ibwarn: x"):
        answers = read_answers(f"{bad}\n{good}")
        assert answers is not None
        assert (1, 2) in answers.ports
        assert answers.problems, bad


def test_output_that_was_cut_off_is_no_answer() -> None:
    whole = '{"l":1,"p":2,"x":[1,2]}\n{"done":true,"sent":2,"timeouts":0,"seconds":0.1}\n'
    answers = read_answers(whole)
    assert answers is not None
    assert answers.ports[1, 2] == {"transmit_bytes_total": 4.0, "receive_bytes_total": 8.0}
    assert read_answers(whole[:30]) is None
    assert read_answers("") is None


def test_wide_error_counters_replace_full_narrow_ones() -> None:
    plain = [65535, 255, 3, 0, 0, 0, 0, 0, 0, 0xF1, 0, 0, 2**32 - 1, 5, 0, 0, 7]
    fields, saturated = port_fields({"c": plain, "w": True})
    assert saturated == (
        "link_recoveries_total",
        "local_link_integrity_errors_total",
        "symbol_errors_total",
        "transmit_bytes_total",
    )
    assert "transmit_bytes_total" not in fields
    assert fields["receive_bytes_total"] == 20.0
    assert fields["excessive_buffer_overruns_total"] == 1.0
    wide = [70000, 300, 4, 0, 0, 0, 0, 0, 0, 20, 1, 0, 9]
    fields, saturated = port_fields({"c": plain, "w": True, "x": [100, 200], "y": wide})
    assert saturated == ()
    assert fields["symbol_errors_total"] == 70000.0
    assert fields["transmit_bytes_total"] == 400.0


def test_an_xdr_link_has_the_speed_that_discovery_told(tmp_path: Path) -> None:
    text = (FIXTURES / "ibnetdiscover.txt").read_text().replace("4xEDR", "4xXDR")
    topology, problems = parse_topology(text)
    assert not problems
    leaf = topology.nodes[LEAF_0]
    told = {"state": 4.0, "link_width": 2.0, "link_speed_bits_per_second": 106.25e9}
    fields = beyond_ndr(told, leaf, 1)
    assert fields["link_speed_bits_per_second"] == 212.5e9
    assert fields["rate_bits_per_second"] == 400e9
    down = {"state": 1.0, "physical_state": 2.0}
    assert beyond_ndr(down, leaf, 1) == down
    assert beyond_ndr(told, leaf, 3) == told  # a link of another speed


def test_ticks_of_waiting_are_read_only_where_the_port_counts_them() -> None:
    plain = [0] * 16 + [12]
    assert "transmit_wait_total" not in port_fields({"c": plain, "w": False})[0]
    assert port_fields({"c": plain, "w": True})[0]["transmit_wait_total"] == 12.0


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
