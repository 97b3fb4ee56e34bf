"""The parsers of the InfiniBand tools, on what the real tools printed and on what they did not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from collectors.bmc.points import BMC_METRICS
from collectors.ib.parsers import IB_PARSERS
from collectors.ib.topology import parse_topology
from collectors.ib.units import guid_of, host_of, port_metrics
from collectors.sample import Problem, Sample

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ib"
NOW_NS = 1_760_000_000_000_000_000
METRICS = {
    (metric.measurement, metric.name): metric
    for measurement in ("ib_port", "fabric_port")
    for metric in port_metrics(measurement)
} | {(metric.measurement, metric.name): metric for metric in BMC_METRICS}
Read = tuple[list[Sample], list[Problem]]


def read(tool: str, name: str) -> Read:
    return IB_PARSERS[tool]((FIXTURES / name).read_bytes(), "n7", NOW_NS)


def port(samples: list[Sample], **tags: str) -> Sample:
    found = [one for one in samples if all(one.tag(k) == v for k, v in tags.items())]
    assert len(found) == 1, f"{len(found)} points with {tags}"
    return found[0]


def keeps_the_contract(samples: list[Sample]) -> None:
    seen = set()
    for one in samples:
        key = (one.measurement, one.tags, one.time_ns)
        assert key not in seen
        seen.add(key)
        assert list(one.tags) == sorted(one.tags)
        assert all(value for _, value in one.tags)
        assert one.fields
        for name, value in one.fields.items():
            assert type(value) is float
            assert METRICS[one.measurement, name].accepts(value), (name, value)


def tool_of(name: str) -> str:
    for tool in sorted(IB_PARSERS, key=len, reverse=True):
        if tool in name:
            return tool
    return ""


OUTPUTS = sorted(
    str(path.relative_to(FIXTURES))
    for path in FIXTURES.rglob("*.txt")
    if tool_of(path.name) and path.name != "ibstat-l.txt"
)


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_kept_output_is_read_within_the_contract(name: str) -> None:
    samples, problems = read(tool_of(name), name)
    keeps_the_contract(samples)
    assert not [one for one in problems if "not a line" in one.problem], problems
    if "stderr" in name or name.startswith("no-hardware"):
        assert not samples
        assert problems


# ---- ibstat, ibstatus, rdma link ---------------------------------------------------------


def test_a_healthy_port_is_active_up_and_has_the_rate_that_is_printed() -> None:
    samples, problems = read("ibstat", "sysfs-ibstat.txt")
    assert not problems
    assert port(samples, device="mlx5_0", port="1").fields == {
        "state": 4.0,
        "physical_state": 5.0,
        "rate_bits_per_second": 400e9,
    }
    assert port(samples, device="mlx5_0").tag("node") == "n7"


def test_a_port_without_cable_is_down_and_polling() -> None:
    samples, _ = read("ibstat", "reported/ibstat-ndr-polling.txt")
    one = port(samples, device="mlx5_3")
    assert (one.number("state"), one.number("physical_state")) == (1.0, 2.0)


def test_a_panic_in_the_middle_keeps_what_came_before_and_names_the_device() -> None:
    samples, problems = read("ibstat", "reported/ibstat-partial-then-panic.txt")
    assert port(samples, device="mlx5_7").number("rate_bits_per_second") == 200e9
    assert any("mlx5_8" in one.problem and "missing" in one.problem for one in problems)


def test_one_port_printed_alone_is_read_like_one_of_many() -> None:
    text = "CA: 'mlx5_0'\nPort 1:\nState: Active\nPhysical state: LinkUp\nRate: 200\nBase lid: 3\n"
    samples, problems = IB_PARSERS["ibstat"](text, "n7", NOW_NS)
    assert not problems
    assert port(samples, device="mlx5_0", port="1").number("rate_bits_per_second") == 200e9


def test_a_rate_with_the_name_of_its_speed_is_read() -> None:
    text = "\ufeffCA 'mlx4_0'\r\n\tPort 2:\r\n\t\tState: Active\r\n\t\tRate: 40 (FDR10)\r\n"
    samples, problems = IB_PARSERS["ibstat"](text, "n7", NOW_NS)
    assert not problems
    assert port(samples, device="mlx4_0", port="2").number("rate_bits_per_second") == 40e9


def test_ibstatus_tells_width_and_lane_speed_of_two_lanes() -> None:
    samples, _ = read("ibstatus", "sysfs-ibstatus.txt")
    one = port(samples, device="mlx5_2")
    assert one.number("link_width") == 2.0
    assert one.number("link_speed_bits_per_second") == 106.25e9
    assert one.number("rate_bits_per_second") == 200e9


def test_ibstatus_leaves_out_the_ports_that_it_invents() -> None:
    samples, problems = read("ibstatus", "sysfs-ibstatus-missing-file.txt")
    assert not [one for one in samples if one.tag("device") == "mlx5_8"]
    one = port(samples, device="mlx5_3")
    assert one.number("state") == 2.0
    assert "rate_bits_per_second" not in one.fields
    assert any("rate" in problem.problem for problem in problems)


def test_rdma_link_tells_states_of_infiniband_and_ethernet_links() -> None:
    samples, problems = read("rdma-link", "reported/rdma-link.txt")
    assert not problems
    assert port(samples, device="mlx5_4").number("state") == 4.0
    assert port(samples, device="mlx5_7").number("physical_state") == 2.0


# ---- perfquery -----------------------------------------------------------------------------


def test_counters_of_one_port_are_read_in_our_units() -> None:
    samples, problems = read("perfquery", "perfquery-errors.txt")
    assert not problems
    one = port(samples, device="lid1", port="2")
    assert one.number("symbol_errors_total") == 70.0
    assert one.number("link_downs_total") == 3.0
    assert one.number("transmit_wait_total") == 123456.0
    assert one.number("transmit_bytes_total") == 4 * 720.0


def test_extended_counters_are_64_bits_of_four_octets() -> None:
    samples, _ = read("perfquery", "perfquery-x-errors.txt")
    one = port(samples, port="2")
    assert one.number("transmit_bytes_total") == 20e12
    assert "symbol_errors_total" not in one.fields


def test_all_ports_listed_and_all_ports_summed_are_told_apart() -> None:
    listed, _ = read("perfquery", "perfquery-al.txt")
    assert [one.tag("port") for one in listed] == [str(n) for n in range(7)]
    summed, _ = read("perfquery", "perfquery-a.txt")
    assert [one.tag("port") for one in summed] == ["all"]


def test_a_counter_at_its_ceiling_is_told_and_a_full_data_counter_is_left_out() -> None:
    samples, problems = read("perfquery", "perfquery-saturated.txt")
    one = port(samples, port="2")
    assert one.number("symbol_errors_total") == 65535.0
    assert "transmit_bytes_total" not in one.fields
    told = [problem.problem for problem in problems if "saturated" in problem.problem]
    assert len(told) == 5


def test_at_64_bits_65535_is_a_number_like_any_other() -> None:
    text = (
        "# Port extended counters: Lid 9 port 1 (CapMask: 0x5A00 CapMask2: 0x0000002)\n"
        "PortSelect:......................1\nCounterSelect:...................0x0000\n"
        "PortXmitData:....................4294967295\nSymbolErrorCounter:..............65535\n"
        "LinkDownedCounter:...............300\n"
    )
    samples, problems = IB_PARSERS["perfquery"](text, "n7", NOW_NS)
    assert not problems
    one = port(samples, device="lid9")
    assert one.number("symbol_errors_total") == 65535.0
    assert one.number("link_downs_total") == 300.0
    assert one.number("transmit_bytes_total") == 4.0 * 4294967295


def test_a_number_wider_than_its_counter_is_refused() -> None:
    text = "# Port counters: Lid 9 port 1\nSymbolErrorCounter:..............70000\n"
    samples, problems = IB_PARSERS["perfquery"](text, "n7", NOW_NS)
    assert not samples
    assert "larger than its counter" in problems[0].problem


def test_of_a_port_read_both_ways_the_wide_data_counters_are_kept() -> None:
    both = (FIXTURES / "perfquery-errors.txt").read_text() + (
        FIXTURES / "perfquery-x-errors.txt"
    ).read_text()
    samples, problems = IB_PARSERS["perfquery"](both, "n7", NOW_NS)
    assert not problems
    one = port(samples, port="2")
    assert one.number("transmit_bytes_total") == 20e12
    assert one.number("symbol_errors_total") == 70.0


def test_detail_counters_are_not_mistaken_for_errors() -> None:
    for name in ("perfquery-D.txt", "perfquery-E.txt"):
        samples, problems = read("perfquery", name)
        assert (samples, problems) == ([], [])


# ---- ibqueryerrors ---------------------------------------------------------------------------


def test_errors_of_a_fabric_are_told_by_switch_port_and_by_host() -> None:
    samples, problems = read("ibqueryerrors", "ibqueryerrors-exporter.txt")
    assert not problems
    switch = port(samples, guid="0xfc6a1c0300200000", port="2")
    assert switch.tag("peer_node") == "gpu-0002"
    assert switch.number("link_downs_total") == 3.0
    assert switch.number("rate_bits_per_second") == 100e9
    host = port(samples, guid="0xb8cef60300100011", port="1")
    assert (host.tag("peer_node"), host.number("symbol_errors_total")) == ("gpu-0002", 11.0)


def test_the_sum_over_all_ports_is_not_a_port() -> None:
    samples, _ = read("ibqueryerrors", "ibqueryerrors.txt")
    assert {one.tag("port") for one in samples} == {"1", "2"}


def test_ports_that_did_not_answer_are_counted_as_a_problem() -> None:
    _, problems = read("ibqueryerrors", "ibqueryerrors-one-port-fails.txt")
    assert [one.problem for one in problems] == ["1 ports did not answer"]


def test_a_report_without_its_summary_is_called_cut_off() -> None:
    text = (FIXTURES / "ibqueryerrors.txt").read_text().partition("\n##")[0] + "\n"
    samples, problems = IB_PARSERS["ibqueryerrors"](text, "n7", NOW_NS)
    assert len(samples) == 2
    assert any("no summary" in one.problem for one in problems)


def test_counters_without_the_bracketed_unit_are_the_same() -> None:
    samples, _ = read("ibqueryerrors", "reported/ibqueryerrors-no-human-units.txt")
    assert samples[0].fields == {"symbol_errors_total": 3.0, "transmit_wait_total": 1209.0}


# ---- iblinkinfo, ibnetdiscover ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["iblinkinfo.txt", "iblinkinfo-l.txt"])
def test_a_link_is_told_from_both_ends(name: str) -> None:
    samples, problems = read("iblinkinfo", name)
    assert not problems
    assert len(samples) == 24
    switch = port(samples, guid="0xfc6a1c0300200000", port="3")
    host = port(samples, guid="0xb8cef60300100021")
    assert switch.tag("peer_node") == host.tag("peer_node") == "gpu-0003"
    assert switch.fields == host.fields
    assert switch.number("link_width") == 1.0
    assert switch.number("rate_bits_per_second") == 10e9
    assert not port(samples, guid="0xfc6a1c0300200000", port="5").tag("peer_node")


def test_a_down_port_has_states_and_nothing_else() -> None:
    samples, _ = read("iblinkinfo", "iblinkinfo-down.txt")
    down = port(samples, guid="0xfc6a1c0300200000", port="4")
    assert down.fields == {"state": 1.0, "physical_state": 2.0}


def test_a_host_that_does_not_answer_is_a_problem_and_its_switch_port_is_read() -> None:
    samples, problems = read("iblinkinfo", "iblinkinfo-one-host-dead.txt")
    assert any("did not answer" in one.problem for one in problems)
    assert port(samples, guid="0xfc6a1c0300200010", port="2").number("state") == 4.0


def test_both_forms_of_ibnetdiscover_say_the_same() -> None:
    full, _ = read("ibnetdiscover", "ibnetdiscover.txt")
    short, _ = read("ibnetdiscover", "ibnetdiscover-p.txt")
    assert {(one.tags, tuple(sorted(one.fields.items()))) for one in full} == {
        (one.tags, tuple(sorted(one.fields.items()))) for one in short
    }


def test_the_topology_knows_who_is_at_the_other_end() -> None:
    topology, problems = parse_topology((FIXTURES / "ibnetdiscover.txt").read_bytes())
    assert not problems
    assert len(list(topology.switches())) == 4
    (adapter,) = topology.of_host("gpu-0006")
    leaf, link = topology.peer(adapter.guid, 1) or pytest.fail("no peer")
    assert (leaf.description, leaf.lid, link.port) == ("leaf-0-1", 2, 2)
    assert topology.leaf_of("gpu-0006") == {adapter.guid: leaf.guid}
    assert adapter.links[1].lid == 10


def test_names_and_guids_have_one_form() -> None:
    assert guid_of("B8CE:f603:0010:f950") == "0xb8cef6030010f950"
    assert host_of("node055 HCA-1") == ("node055", "HCA-1")
    assert host_of("MF0;sw-01:MQM8700/U1") == ("", "")
    assert host_of("Mellanox Technologies Aggregation Node") == ("", "")


# ---- bad texts -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_text_cut_anywhere_gives_no_number_that_the_whole_does_not_give(name: str) -> None:
    tool = tool_of(name)
    raw = (FIXTURES / name).read_bytes()
    whole = {
        (one.measurement, one.tag("guid"), one.tag("device"), one.tag("port")): one.fields
        for one in IB_PARSERS[tool](raw, "n7", NOW_NS)[0]
    }
    chance = random.Random(7)
    cuts = range(len(raw)) if len(raw) < 1500 else sorted(chance.sample(range(len(raw)), 60))
    for cut in cuts:
        samples, problems = IB_PARSERS[tool](raw[:cut], "n7", NOW_NS)
        for one in samples:
            key = (one.measurement, one.tag("guid"), one.tag("device"), one.tag("port"))
            assert set(one.fields.items()) <= set(whole[key].items()), raw[:cut][-80:]
        if raw[:cut].rpartition(b"\n")[2].strip():
            assert problems


def told(samples: list[Sample]) -> tuple[set[tuple[object, ...]], dict[tuple[str, str], str]]:
    """Each number with the port that it is of, and whose host hangs at that port."""
    numbers, hosts = set(), {}
    for one in samples:
        tags = tuple((name, value) for name, value in one.tags if name != "peer_node")
        numbers |= {(one.measurement, tags, *field) for field in one.fields.items()}
        if one.tag("peer_node"):
            hosts[one.tag("guid"), one.tag("port")] = one.tag("peer_node")
    return numbers, hosts


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_line_that_is_noise_gives_its_numbers_to_no_other_port_or_host(name: str) -> None:
    """What stands below a heading that nobody can read belongs to nobody."""
    tool, raw = tool_of(name), (FIXTURES / name).read_bytes()
    numbers, hosts = told(IB_PARSERS[tool](raw, "n7", NOW_NS)[0])
    lines = raw.split(b"\n")
    step = 1 + len(lines) // 60
    for number in range(0, len(lines), step):
        line = lines[number]
        indent = line[: len(line) - len(line.lstrip())]
        for noise in (
            b"\x8f\x02#zz%",
            indent + b"~~~~",
            b"Zw" + line[2:],
            indent + b"Zw" + line.lstrip()[2:],
        ):
            text = b"\n".join([*lines[:number], noise, *lines[number + 1 :]])
            got, peers = told(IB_PARSERS[tool](text, "n7", NOW_NS)[0])
            assert got <= numbers, (number, noise, got - numbers)
            assert peers.items() <= hosts.items(), (number, noise)


def test_a_lane_speed_that_is_newer_than_we_costs_only_the_speed() -> None:
    row = '  2  6[  ] ==( 4X  425.0 Gbps Active/  LinkUp)==>  15  1[  ] "gpu-0003 mlx5_0" ( )\n'
    text = "Switch: 0xfc6a1c0300200000 leaf-0:\n" + row
    (one,), problems = IB_PARSERS["iblinkinfo"](text, "", NOW_NS)
    assert problems == []
    assert one.tag("peer_node") == "gpu-0003"
    assert dict(one.fields) == {"state": 4.0, "physical_state": 5.0, "link_width": 4.0}


@pytest.mark.parametrize("tool", sorted(IB_PARSERS))
def test_foreign_text_gives_problems_and_no_points(tool: str) -> None:
    for name in OUTPUTS:
        if tool_of(name) != tool:
            samples, _ = IB_PARSERS[tool]((FIXTURES / name).read_bytes(), "n7", NOW_NS)
            assert not samples, name
    for text in (
        b"<html><body>502 Bad Gateway</body></html>\n",
        b"bash: ibstat: commande introuvable\n",
        bytes(range(256)) * 40 + b"\n",
        b"{" * 100_000 + b"\n",
    ):
        samples, problems = IB_PARSERS[tool](text, "n7", NOW_NS)
        assert not samples
        assert problems


@pytest.mark.parametrize("tool", sorted(IB_PARSERS))
def test_noise_within_real_output_never_raises_and_never_takes_long(tool: str) -> None:
    chance = random.Random(11)
    names = [*OUTPUTS, "made-ibdiagnet2.db_csv"]
    sources = [(FIXTURES / name).read_bytes() for name in names if tool_of(name) == tool]
    for _ in range(150):
        raw = bytearray(chance.choice(sources)[:6000])
        for _ in range(chance.randrange(1, 12)):
            if raw:
                at = chance.randrange(len(raw))
                raw[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        samples, _ = IB_PARSERS[tool](bytes(raw), "n7", NOW_NS)
        keeps_the_contract(samples)


@pytest.mark.parametrize("tool", sorted(IB_PARSERS))
def test_lines_that_invite_backtracking_come_to_an_end(tool: str) -> None:
    # A reader that backtracks on one of these would not end within the test's own time limit.
    lines = [
        b"[1](" + b"a" * 3000,
        b" " * 4000 + b"x",
        b"CA: " + b": " * 2000,
        b'"' * 4000,
        b"Errors for " + b'" ' * 2000,
        b"GUID 0x1 port 1: " + b"[A == 1] " * 440,
        b"1 1[  ] ==(" + b")==" * 1300,
        b"# Port " + b"counters: " * 400,
        b"Switch 1 " + b'"S-1" # ' * 500,
        b"CA 1 1 0x1 4x EDR - " + b"' - '" * 800,
        b"1 1[  ] ==( 4X 2.5 Gbps Down/ " + b"a " * 1900 + b")==> ",
    ]
    for line in lines:
        keeps_the_contract(IB_PARSERS[tool](b"\n".join([line] * 10) + b"\n", "n7", NOW_NS)[0])
