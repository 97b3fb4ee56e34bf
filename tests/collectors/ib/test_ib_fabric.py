"""The ``fabric`` source on a simulated fabric, read by the real library and the real tools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

import collectors.ib.fabric
from collectors.ib import fabric_sweep
from collectors.ib.fabric import FabricSource, Options, SubnetSettings, make
from collectors.ib.fabric_answers import read_answers
from collectors.ib.topology import parse_topology
from collectors.sample import Batch, Context, Sample, Source, SourceUnavailable
from tests.collectors.contract import NOW_NS, SourceContract
from tests.testbed.ib.fabric import Fabric

MINUTE = 60_000_000_000
LEAF_0, LEAF_1 = "0xfc6a1c0300200000", "0xfc6a1c0300200010"


def adapter(number: int) -> str:
    """The GUID of the adapter's port of the host with that number."""
    return f"0x{0xB8CEF60300100001 + 16 * (number - 1):016x}"


FIXTURES = Path(__file__).parents[2] / "fixtures" / "ib"


def attach(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the programs that this process starts see the fabric, as the first host."""
    for name, value in fabric.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(fabric.directory)


@pytest.fixture
def shared(ib_fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fabric]:
    attach(ib_fabric, monkeypatch)
    yield ib_fabric
    monkeypatch.undo()


@pytest.fixture
def own(
    ib_start: Callable[..., Fabric], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Fabric]]:
    """A fabric of the test's own, which it may spoil."""

    def start(*arguments: str) -> Fabric:
        fabric = ib_start(*arguments)
        attach(fabric, monkeypatch)
        return fabric

    yield start
    monkeypatch.undo()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "root").mkdir()
    (tmp_path / "state").mkdir()
    return Context("head", tmp_path / "state", tmp_path / "root", lambda: NOW_NS)


def source_of(context: Context, **options: object) -> FabricSource:
    made = make(Options(**{"rediscover_seconds": 0, "timeout_ms": 100, **options}), context)
    assert isinstance(made, FabricSource)
    return made


def port(batch: Batch, **tags: str) -> Sample:
    found = [
        one
        for one in batch.samples
        if one.measurement == "fabric_port" and all(one.tag(k) == v for k, v in tags.items())
    ]
    assert len(found) == 1, f"{len(found)} points with {tags}"
    return found[0]


def sweep_reading(batch: Batch) -> Sample:
    (found,) = [one for one in batch.samples if one.measurement == "fabric"]
    return found


def events(batch: Batch) -> list[str]:
    return [
        one.tag("code")
        for one in batch.samples
        if one.measurement == "event" and one.tag("kind") == "fabric"
    ]


class TestFabric(SourceContract):
    module = collectors.ib.fabric
    node = ""

    @pytest.fixture
    def healthy(self, context: Context, shared: Fabric) -> Source:
        return make(Options(), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return make(Options(), context)


# ---- what is read ----------------------------------------------------------------------------


def test_every_link_is_read_from_both_ends(shared: Fabric, context: Context) -> None:
    batch = source_of(context).collect(NOW_NS)
    assert not batch.problems
    points = [one for one in batch.samples if one.measurement == "fabric_port"]
    assert len(points) == 24
    switch = port(batch, guid=LEAF_0, port="2")
    assert switch.tag("peer_node") == "gpu-0002"
    assert switch.number("state") == 4.0
    assert switch.number("rate_bits_per_second") == 100e9
    assert switch.number("link_width") == 4.0
    host = port(batch, guid=adapter(2))
    assert host.tag("peer_node") == "gpu-0002"
    assert host.number("symbol_errors_total") == 0.0
    assert not port(batch, guid=LEAF_0, port="5").tag("peer_node")
    cables = [one for one in batch.samples if one.tag("kind") == "inventory"]
    assert len(cables) == 8
    (cable,) = [one for one in cables if one.tag("node") == "gpu-0002"]
    assert cable.text("device") == "mlx5_0/1"
    assert cable.text("text") == (
        f"switch={LEAF_0} switch_port=2 adapter={adapter(2)} adapter_port=1 name=leaf-0-0"
    )
    sweep = sweep_reading(batch)
    assert sweep.number("manager_up") == 1.0
    assert sweep.number("unreachable_nodes") == 0.0
    assert sweep.number("adapters") == 8.0


def test_the_sweep_and_the_tools_say_the_same(shared: Fabric, context: Context) -> None:
    shared.counters("S-leaf-0-1", 3, SymbolErrorCounter=11, PortRcvErrors=7)
    shared.counters("H-gpu-0008-r0", 1, PortXmitWait=99, LocalLinkIntegrityErrors=3)
    swept = source_of(context).collect(NOW_NS)
    tools = source_of(context, method="tools").collect(NOW_NS)
    assert not tools.problems
    assert sweep_reading(tools).number("fallback") == 1.0
    moving = {"receive_bytes_total", "transmit_bytes_total"}
    for one in swept.samples:
        if one.measurement != "fabric_port":
            continue
        other = port(tools, guid=one.tag("guid"), port=one.tag("port"))
        assert other.tags == one.tags
        for name, value in one.fields.items():
            if name not in moving:
                assert other.fields[name] == value, (one.tags, name)
    assert port(swept, guid=LEAF_1, port="3").number("symbol_errors_total") == 11.0
    assert port(swept, guid=adapter(8)).number("local_link_integrity_errors_total") == 3.0
    shared.counters("S-leaf-0-1", 3, SymbolErrorCounter=0, PortRcvErrors=0)
    shared.counters("H-gpu-0008-r0", 1, PortXmitWait=0, LocalLinkIntegrityErrors=0)


def test_no_counter_is_reset_by_reading(shared: Fabric, context: Context) -> None:
    shared.counters("S-leaf-0-0", 1, LinkDownedCounter=5)
    source = source_of(context)
    for turn in range(3):
        batch = source.collect(NOW_NS + turn * MINUTE)
        assert port(batch, guid=LEAF_0, port="1").number("link_downs_total") == 5.0
    assert "LinkDownedCounter:...............5" in shared.run("perfquery", "1", "1").stdout
    shared.counters("S-leaf-0-0", 1, LinkDownedCounter=0)


def test_a_counter_at_its_ceiling_is_told_once(shared: Fabric, context: Context) -> None:
    shared.counters("S-leaf-0-0", 3, SymbolErrorCounter=65535)
    source = source_of(context)
    first = source.collect(NOW_NS)
    assert events(first) == ["saturated"]
    assert port(first, guid=LEAF_0, port="3").number("symbol_errors_total") == 65535.0
    second = source.collect(NOW_NS + MINUTE)
    assert not [one for one in second.samples if one.measurement == "event"]
    shared.counters("S-leaf-0-0", 3, SymbolErrorCounter=0)


# ---- what breaks -----------------------------------------------------------------------------


def test_a_cut_link_keeps_its_nodes_name_also_after_a_restart(
    own: Callable[..., Fabric], context: Context
) -> None:
    fabric = own("--hosts", "8")
    source = source_of(context)
    source.collect(NOW_NS)
    fabric.console('Unlink "H-gpu-0004-r0"[1]')
    batch = source.collect(NOW_NS + MINUTE)
    cut = port(batch, guid=LEAF_0, port="4")
    assert cut.tag("peer_node") == "gpu-0004"
    assert (cut.number("state"), cut.number("physical_state")) == (1.0, 2.0)
    assert "rate_bits_per_second" not in cut.fields
    assert "link_width" not in cut.fields
    assert events(batch) == ["unreachable"]
    again = source_of(context)
    batch = again.collect(NOW_NS + 2 * MINUTE)
    assert port(batch, guid=LEAF_0, port="4").tag("peer_node") == "gpu-0004"
    assert again.groups()["gpu-0004"] == ("leaf leaf-0-0",)
    fabric.console('ReLink "H-gpu-0004-r0"[1]')
    batch = again.collect(NOW_NS + 3 * MINUTE)
    # The subnet manager of the simulator has not configured it again: it is up, not active.
    assert port(batch, guid=LEAF_0, port="4").number("physical_state") == 5.0


def test_lost_lanes_show_as_width_and_rate(own: Callable[..., Fabric], context: Context) -> None:
    fabric = own("--hosts", "4", "--slow", "gpu-0003:1xQDR")
    source = source_of(context)
    batch = source.collect(NOW_NS)
    slow = port(batch, guid=LEAF_0, port="3")
    assert (slow.number("link_width"), slow.number("rate_bits_per_second")) == (1.0, 10e9)
    answer = fabric.run("ibportstate", "1", "4", "width", "1")
    assert answer.returncode == 0, answer.stderr
    narrow = port(source.collect(NOW_NS + MINUTE), guid=LEAF_0, port="4")
    assert (narrow.number("link_width"), narrow.number("rate_bits_per_second")) == (1.0, 25e9)


def test_a_lost_subnet_manager_is_told_and_the_sweep_goes_on(
    own: Callable[..., Fabric], context: Context
) -> None:
    fabric = own("--hosts", "4")
    source = source_of(context)
    source.collect(NOW_NS)
    fabric.manager("stop")
    batch = source.collect(NOW_NS + MINUTE)
    assert "sm_lost" in events(batch)
    assert sweep_reading(batch).number("manager_up") == 0.0
    assert port(batch, guid=adapter(2)).number("symbol_errors_total") == 0.0
    fabric.manager("start")
    assert "sm_back" in events(source.collect(NOW_NS + 2 * MINUTE))


def test_one_switch_that_does_not_answer_costs_only_itself(
    own: Callable[..., Fabric], context: Context
) -> None:
    fabric = own("--hosts", "12", "--down", "4")
    source = source_of(context, topology_seconds=3600)
    source.collect(NOW_NS)
    fabric.console('Error "S-leaf-0-1"[0] 100')
    begin = time.monotonic()
    batch = source.collect(NOW_NS + MINUTE)
    assert time.monotonic() - begin < 30
    assert events(batch) == ["unreachable"]
    assert sweep_reading(batch).number("unreachable_nodes") == 1.0
    assert port(batch, guid=LEAF_0, port="1").number("state") == 4.0
    assert port(batch, guid=adapter(7)).number("symbol_errors_total") == 0.0
    assert not [one for one in batch.samples if one.tag("guid") == LEAF_1]
    fabric.console('Error "S-leaf-0-1"[0] 0')
    assert events(source.collect(NOW_NS + 3 * MINUTE)) == ["reachable"]


def test_what_a_discovery_did_not_reach_is_not_forgotten(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "ibnetdiscover"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    source = source_of(context, topology_seconds=10)

    def discover(turn: int, name: str, errors: str) -> set[str]:
        err = f"cat {FIXTURES / errors} >&2" if errors else ":"
        tool.write_text(f"#!/bin/sh\ncat {FIXTURES / name}\n{err}\n")
        tool.chmod(0o755)
        with pytest.raises(SourceUnavailable):  # no library answers on this machine
            source.collect(NOW_NS + turn * MINUTE)
        topology = source.subnets["ib"].topology
        assert topology is not None
        return {node.host for node in topology.adapters()}

    everyone = {f"gpu-{n:04d}" for n in range(1, 9)}
    assert discover(0, "ibnetdiscover.txt", "") == everyone
    partial = "ibnetdiscover-one-host-dead.txt", "ibnetdiscover-one-host-dead.stderr.txt"
    assert discover(1, *partial) == everyone
    assert discover(2, "ibnetdiscover-down.txt", "") == everyone - {"gpu-0004"}
    assert discover(3, "no-hardware-ibnetdiscover.txt", "") == everyone - {"gpu-0004"}


def test_a_port_whose_counters_time_out_is_counted_and_its_rest_is_read(
    own: Callable[..., Fabric], context: Context
) -> None:
    fabric = own("--hosts", "8")
    fabric.console('Error "H-gpu-0006-r0"[1] 100 18')
    batch = source_of(context).collect(NOW_NS)
    assert sweep_reading(batch).number("unread_ports") == 1.0
    sick = port(batch, guid=adapter(6))
    assert "symbol_errors_total" not in sick.fields
    assert "receive_bytes_total" in sick.fields


def test_a_subnet_that_cannot_be_read_costs_only_itself(shared: Fabric, context: Context) -> None:
    source = source_of(
        context,
        subnets=(SubnetSettings(name="rail0"), SubnetSettings(name="rail1", adapter="mlx5_9")),
    )
    batch = source.collect(NOW_NS)
    assert "rail1" in batch.fault
    assert port(batch, guid=adapter(2))
    assert sweep_reading(batch).tag("subnet") == "rail0"


def test_a_hung_tool_ends_at_the_deadline_and_leaves_nothing_behind(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "ibnetdiscover"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\ntrap '' TERM\nsleep 61.25 & wait\nsleep 61.25\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    source = source_of(context, deadline_seconds=1)
    begin = time.monotonic()
    with pytest.raises(SourceUnavailable, match="did not end"):
        source.collect(NOW_NS)
    assert time.monotonic() - begin < 30
    left = subprocess.run(["pgrep", "-f", "sleep 61.25"], capture_output=True, check=False)
    assert not left.stdout


def test_a_sweep_that_hangs_is_ended_and_the_tools_read_until_it_runs_again(
    shared: Fabric, context: Context
) -> None:
    source = source_of(context)
    source.collect(NOW_NS)
    pid = source.subnets["ib"].worker_pid
    os.kill(pid, signal.SIGSTOP)
    source.deadline_seconds = 3.0
    with pytest.raises(SourceUnavailable, match="did not answer within"):
        source.collect(NOW_NS + MINUTE)
    assert not psutil.pid_exists(pid)
    source.deadline_seconds = 50.0
    batch = source.collect(NOW_NS + 2 * MINUTE)
    assert sweep_reading(batch).number("fallback") == 1.0
    assert port(batch, guid=adapter(2)).number("symbol_errors_total") is not None
    for turn in range(3, 60):
        batch = source.collect(NOW_NS + turn * MINUTE)
        if sweep_reading(batch).number("fallback") == 0.0:
            break
    assert sweep_reading(batch).number("fallback") == 0.0
    source.close()
    assert source.subnets["ib"].worker_pid == 0


def test_descriptions_of_another_form_are_read_by_the_sites_pattern() -> None:
    text = (
        (FIXTURES / "ibnetdiscover.txt").read_text().replace('"gpu-0006 mlx5_0"', '"rack3:n06/A"')
    )
    options = Options(node_description=r"\w+:(?P<node>n\d+)/(?P<device>[A-Z])")
    source = FabricSource(options, Context("head", Path("/nonexistent")), None)  # type: ignore[arg-type]
    pattern = source.subnets["ib"].options.description
    topology, _ = parse_topology(text, pattern)
    assert [node.device for node in topology.of_host("n06")] == ["A"]
    with pytest.raises(ValidationError):
        Options(node_description="(")
    with pytest.raises(ValidationError):
        Options(node_description="(.*)")
    with pytest.raises(ValidationError):
        Options(subnets=())


# ---- whose node it is -------------------------------------------------------------------------


SWEEP = """
import sys
from collectors.ib.fabric_sweep import sweep
sys.stdout.buffer.write(sweep(sys.stdin.read(), timeout_ms=100))
"""


def test_nothing_is_read_of_a_node_that_is_another_than_expected(shared: Fabric) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SWEEP],
        input=b"6 0xb8cef60300100010 1 - ?\n7 0xb8cef60300100010 1 - ?\nnonsense\n",
        env={**os.environ, "PYTHONPATH": str(Path(fabric_sweep.__file__).parents[2])},
        capture_output=True,
        check=True,
        timeout=30,
    )
    answers = read_answers(told.stdout)
    assert answers is not None
    assert list(answers.ports) == [(6, 1)]
    assert answers.strangers == {7}
    assert answers.unread == {7: "0xb8cef60300100020 answers at this LID"}


# ---- over a long time ------------------------------------------------------------------------


def test_nothing_piles_up_over_many_cycles(shared: Fabric, context: Context) -> None:
    source = source_of(context)
    source.collect(NOW_NS)
    before = held()
    for turn in range(1, 12):
        source.collect(NOW_NS + turn * MINUTE)
    source.close()
    assert piled_up(before) <= 2


def test_nothing_piles_up_where_the_tools_are_missing(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    source = source_of(context)
    before = held()
    for turn in range(60):
        with pytest.raises(SourceUnavailable, match="not found"):
            source.collect(NOW_NS + turn * MINUTE)
    assert piled_up(before) <= 2


def piled_up(before: tuple[int, int, int]) -> int:
    """How many more there are now, at most; a thread that just ends may still be counted."""
    return max(now - was for now, was in zip(held(), before, strict=True))


def held() -> tuple[int, int, int]:
    """Open files, threads and children of this process."""
    process = psutil.Process()
    return process.num_fds(), process.num_threads(), len(process.children(recursive=True))


def test_every_rail_of_a_host_has_its_own_cable_in_the_inventory(
    own: Callable[..., Fabric], context: Context
) -> None:
    own("--hosts", "2", "--rails", "2")
    source = source_of(context)
    batch = source.collect(NOW_NS)
    cables = {
        one.text("device"): one.text("text").rpartition("name=")[2]
        for one in batch.samples
        if one.tag("kind") == "inventory" and one.tag("node") == "gpu-0001"
    }
    assert cables == {"mlx5_0/1": "leaf-0-0", "mlx5_1/1": "leaf-1-0"}
    assert source.groups()["gpu-0001"] == ("leaf leaf-0-0", "leaf leaf-1-0")
