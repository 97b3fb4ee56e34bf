"""The source ``slurm``: the shared contract over recorded answers, and the real testbed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import collectors.slurm.source
from collectors.command import Runner
from collectors.sample import Context, Cycle, Source, SourceUnavailable
from collectors.slurm.faults import SlurmTrouble
from collectors.slurm.reader import SlurmReader, Tools
from collectors.slurm.source import Options, SlurmSource, make
from tests.collectors.contract import NOW_NS, SourceContract, check_samples
from tests.testbed.slurm.cluster import Cluster, wait_for

RECORD = {
    "name": "n7",
    "state": ["MIXED", "DRAIN"],
    "reason": "a person: swap the PSU",
    "reason_set_by_user": "ann",
    "gres": "gpu:h200:8",
    "gres_used": "gpu:h200:2(IDX:0-1)",
    "boot_time": {"set": True, "infinite": False, "number": 1795995569},
}


def write_tools(folder: Path, nodes: list[dict[str, object]]) -> Path:
    """Commands that answer what was recorded of a real controller."""
    folder.mkdir(exist_ok=True)
    (folder / "nodes.json").write_text(json.dumps({"nodes": nodes, "errors": []}))
    (folder / "scontrol").write_text(f"#!/bin/sh\ncat {folder}/nodes.json\n")
    (folder / "squeue").write_text(  # each line behind what its format begins with
        '#!/bin/sh\necho "${SQUEUE_FORMAT%%|*}|4|4|RUNNING|ann|N/A|1:00|N/A|batch|n7|"\n'
    )
    for name in ("scontrol", "squeue"):
        (folder / name).chmod(0o755)
    return folder


class TestContract(SourceContract):
    module = collectors.slurm.source

    @pytest.fixture(autouse=True)
    def no_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SLURM_CONF", raising=False)

    @pytest.fixture
    def healthy(self, context: Context, tmp_path: Path) -> Source:
        return make(Options(binaries=write_tools(tmp_path / "bin", [RECORD])), context)

    @pytest.fixture
    def unavailable(self, context: Context, tmp_path: Path) -> Source:
        return make(Options(binaries=tmp_path / "none"), context)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(node="head", state_dir=tmp_path)


def events(source: Source, now_ns: int = NOW_NS) -> list[tuple[str, str]]:
    batch = source.collect(now_ns)
    return [
        (one.tag("node"), one.tag("code"))
        for one in batch.samples
        if one.measurement == "slurm_event"
    ]


def test_a_transition_is_told_once_and_not_again_after_a_restart(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    tools = write_tools(tmp_path / "bin", [{**RECORD, "state": ["IDLE"], "reason": ""}])
    options = Options(binaries=tools)
    source = make(options, context)
    assert events(source) == []
    write_tools(tools, [RECORD])
    assert events(source) == [("n7", "drain")]
    assert events(source) == []
    source = make(options, context)
    assert events(source) == []
    write_tools(tools, [{**RECORD, "state": ["DOWN", "DRAIN"], "reason": "other"}])
    assert events(source) == [("n7", "down"), ("n7", "reason")]


def test_a_cluster_of_no_nodes_is_a_failure_and_not_an_empty_cluster(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    source = make(Options(binaries=write_tools(tmp_path / "bin", [])), context)
    with pytest.raises(SourceUnavailable):
        source.collect(NOW_NS)


def test_a_slurm_conf_that_does_not_exist_is_named_at_once(context: Context) -> None:
    source = make(Options(conf=Path("/nonexistent/slurm.conf")), context)
    begin = time.monotonic()
    with pytest.raises(SlurmTrouble, match=r"/nonexistent/slurm\.conf") as caught:
        source.collect(NOW_NS)
    assert caught.value.kind == "unconfigured"
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("slurm_load_node error: Incompatible versions of client and server code", "version"),
        ("error: slurm_unpack_received_msg: Insane message length", "version"),
        ("slurm_load_node error: Unable to contact slurm controller (connect failure)", "stopped"),
        ("slurm_load_node error: Socket timed out on send/recv operation", "hung"),
        ("error: Munge encode failed: Failed to access munge.socket", "authentication"),
        ("sinfo: fatal: Could not establish a configuration source", "unconfigured"),
        ("slurm_load_node error: Access/permission denied", "refused"),
        ("Segmentation fault", "garbage"),
    ],
)
def test_what_slurm_says_becomes_a_named_error(
    said: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    tools = write_tools(tmp_path / "bin", [])
    (tools / "scontrol").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    reader = SlurmReader(Tools(binaries=tools), Runner())
    with pytest.raises(SlurmTrouble) as caught:
        reader.nodes()
    assert caught.value.kind == kind
    assert "\n" not in str(caught.value)


# ---- the real thing ---------------------------------------------------------------------------

pytest_slurm = pytest.mark.slurm


@pytest_slurm
def test_the_real_cluster_is_read_in_two_requests(slurm: Cluster, context: Context) -> None:
    job = slurm.start_job("n2", "--gres=gpu:3")
    slurm.drain("n3", "ask Zoë: a=b [x@y]")
    source = make(Options(), context)
    assert isinstance(source, SlurmSource)
    source.collect(NOW_NS)  # learns which form this Slurm speaks
    before = source.reader.reads_total
    batch = Cycle(source, "head").run(NOW_NS)
    assert source.reader.reads_total - before == 2
    assert batch.up
    check_samples(
        collectors.slurm.source, [s for s in batch.samples if s.measurement != "source"], node=""
    )
    reading = source.latest
    assert reading is not None
    assert set(reading.nodes) == {"n1", "n2", "n3", "n4"}
    assert reading.nodes["n2"].gpus_allocated == 3
    assert reading.nodes["n2"].jobs == (job,)
    assert reading.jobs[job].nodes == ("n2",)
    assert reading.nodes["n3"].drained
    assert reading.nodes["n3"].reason == "ask Zoë: a=b [x@y]"
    assert reading.nodes["n3"].reason_user == "root"
    assert reading.nodes["n1"].registered
    assert reading.nodes["n1"].gpus_configured == 8


@pytest_slurm
def test_one_node_is_read_alone_and_unknown_names_are_left_out(slurm: Cluster) -> None:
    reader = SlurmReader(Tools(), Runner())
    nodes, _ = reader.nodes(["n1", "n4"])
    assert set(nodes) == {"n1", "n4"}
    nodes, _ = reader.nodes(["n1", "n99"])
    assert set(nodes) <= {"n1"}
    assert reader.nodes(["n99"])[0] == {}
    with pytest.raises(ValueError, match="ALL"):
        reader.nodes(["ALL"])


@pytest_slurm
def test_each_trouble_of_the_real_controller_has_its_name(slurm: Cluster, context: Context) -> None:
    source = make(Options(), context)
    source.collect(NOW_NS)

    def kind() -> str:
        with pytest.raises(SlurmTrouble) as caught:
            source.collect(NOW_NS)
        return caught.value.kind

    slurm.freeze_controller()
    try:
        assert kind() == "hung"
    finally:
        slurm.thaw_controller()
    slurm.stop_controller()
    try:
        assert kind() == "stopped"
    finally:
        slurm.start_controller()
    munge = int((slurm.directory / "run/munged.pid").read_text())
    socket = slurm.directory / "run/munge.sock"
    os.kill(munge, signal.SIGSTOP)
    moved = socket.rename(socket.with_suffix(".away"))
    try:
        assert kind() == "authentication"
    finally:
        moved.rename(socket)
        os.kill(munge, signal.SIGCONT)
    wait_for(lambda: Cycle(source, "head").run(NOW_NS).up, "the source to read again")
