"""pyslurm's process: what it does to tocsin when it hangs, ends, crashes or talks nonsense."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.slurm.nodes import NodeState
from collectors.slurm.source import Options
from collectors.worker import WorkerLimits
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable
from daemon.slurm.choose import choose
from daemon.slurm.cli import CliAdapter
from daemon.slurm.pyslurm_adapter import PyslurmAdapter
from daemon.slurm.writing import Change
from tests.daemon.slurm.pyslurms import pretended_pyslurm, real_pyslurm
from tests.testbed.slurm.cluster import Cluster

OURS = "tocsin:x79 gpu3 9f2c; fell off the bus; tocsin explain 9f2c"
LIMITS = WorkerLimits(term_seconds=0.2, kill_seconds=0.5, backoff_seconds=0.01)


def free(node: NodeState) -> str:
    return "has a reason" if node.drain or node.reason else ""


class Pretended:
    """An adapter over the pretended pyslurm, whose fault can be changed between processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._folder = folder
        self.adapter = self._made("")

    def _made(self, fault: str, deadline_seconds: float = 30.0) -> PyslurmAdapter:
        folder = pretended_pyslurm(self._monkeypatch, self._folder, fault)
        options = Options(pyslurm_folder=folder, deadline_seconds=deadline_seconds)
        return PyslurmAdapter(options, limits=LIMITS)

    def fails_with(self, fault: str, deadline_seconds: float = 30.0) -> PyslurmAdapter:
        """The same Slurm; from the next process on pyslurm misbehaves so."""
        self.adapter.close()
        self.adapter = self._made(fault, deadline_seconds)
        return self.adapter

    def well(self) -> None:
        """From the next process on it is well again; the adapter stays."""
        pretended_pyslurm(self._monkeypatch, self._folder)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pretended]:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    made = Pretended(monkeypatch, tmp_path)
    yield made
    made.adapter.close()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("exit", "exit code 1"),
        ("segfault", "SIGSEGV"),
        ("babble", "nonsense"),
    ],
)
@pytest.mark.parametrize("place", ["import", "load"])
def test_a_process_that_ends_or_babbles_before_a_write_means_nothing_was_written(
    pretended: Pretended, place: str, what: str, words: str
) -> None:
    adapter = pretended.fails_with(f"{place}:{what}")
    with pytest.raises(SlurmUnavailable, match=words):
        adapter.drain({"n1": OURS}, free)
    pretended.well()
    time.sleep(0.05)  # the next process is started after a back-off
    assert adapter.nodes(["n1"])["n1"].reason == ""


@pytest.mark.parametrize("what", ["freeze", "deaf"])
@pytest.mark.parametrize("place", ["import", "load"])
def test_a_process_that_hangs_before_a_write_is_ended_and_nothing_was_written(
    pretended: Pretended, place: str, what: str
) -> None:
    adapter = pretended.fails_with(f"{place}:{what}", deadline_seconds=0.7)
    with pytest.raises(SlurmUnavailable) as caught:
        adapter.drain({"n1": OURS}, free)
    assert caught.value.kind == "hung"
    assert adapter.worker.pid == 0
    assert adapter.worker.stuck() is None


@pytest.mark.parametrize("what", ["freeze", "exit", "segfault"])
def test_a_process_lost_in_the_middle_of_a_write_leaves_an_unknown_outcome(
    pretended: Pretended, what: str
) -> None:
    adapter = pretended.fails_with(f"modify:{what}", deadline_seconds=8.0)
    outcome = adapter.drain({"n1": OURS, "n2": OURS}, free)
    assert set(outcome.unknown) == {"n1", "n2"}
    assert outcome.done == {}
    pretended.well()
    time.sleep(0.05)
    assert adapter.nodes(["n1"])["n1"].reason == OURS  # it had taken effect


def test_what_the_library_prints_costs_nothing(pretended: Pretended) -> None:
    adapter = pretended.fails_with("load:chatter")
    assert set(adapter.drain({"n1": OURS}, free).done) == {"n1"}


def test_a_refusal_is_told_and_nothing_was_written(pretended: Pretended) -> None:
    adapter = pretended.fails_with("modify:refuse")
    with pytest.raises(SlurmRefused, match="AdminLevel"):
        adapter.drain({"n1": OURS}, free)


def test_a_pyslurm_of_another_make_is_an_error_with_its_name(pretended: Pretended) -> None:
    with pytest.raises(SlurmUnavailable, match="AttributeError") as caught:
        pretended.fails_with("load:bug").nodes()
    assert caught.value.kind == "garbage"


def test_records_of_the_wrong_kinds_cost_only_themselves(pretended: Pretended) -> None:
    nodes = pretended.fails_with("load:garbage").nodes()
    assert {"n2", "n3", "n4"} <= set(nodes)
    assert nodes["n2"].base == "idle"


def test_no_nodes_are_a_failure_and_never_an_empty_cluster(pretended: Pretended) -> None:
    with pytest.raises(SlurmUnavailable, match="no nodes"):
        pretended.fails_with("load:empty").nodes()


def test_a_pyslurm_that_does_not_fit_the_host_says_so(pretended: Pretended) -> None:
    adapter = pretended.fails_with("import:unbuilt")
    with pytest.raises(SlurmUnavailable, match="built for the Slurm of this host"):
        adapter.nodes()
    assert "libslurm.so.38" in adapter.describe()[0]


def test_no_pyslurm_at_all_says_so(tmp_path: Path) -> None:
    adapter = PyslurmAdapter(Options(pyslurm_folder=tmp_path), limits=LIMITS)
    with pytest.raises(SlurmUnavailable, match=r"docs/slurm\.md") as caught:
        adapter.nodes()
    assert caught.value.kind == "missing"
    adapter.close()


def test_a_missing_slurm_conf_is_told_before_libslurm_can_end_its_process(tmp_path: Path) -> None:
    adapter = PyslurmAdapter(Options(conf=tmp_path / "none.conf"), limits=LIMITS)
    with pytest.raises(SlurmUnavailable) as caught:
        adapter.nodes()
    assert caught.value.kind == "unconfigured"
    assert adapter.worker.starts_total == 0
    adapter.close()


def test_a_comment_cannot_be_cleared_and_it_says_so(pretended: Pretended) -> None:
    assert "cannot clear" in pretended.adapter.comment({"n1": ""}, free).skipped["n1"]


def test_it_is_chosen_where_asked_for_and_where_there_are_no_commands(tmp_path: Path) -> None:
    (tmp_path / "pyslurm").mkdir()
    here = Options(pyslurm_folder=tmp_path)
    adapter, why = choose(here, which=lambda name: name)
    assert (adapter.name, "commands" in why) == ("cli", True)
    adapter, why = choose(here, which=lambda name: None)
    assert (adapter.name, why) == ("pyslurm", "pyslurm: there is no scontrol and no sinfo here")
    adapter, _ = choose(Options(adapter="pyslurm"), which=lambda name: name)
    assert adapter.name == "pyslurm"


# ---- the real one, on the real testbed -----------------------------------------------------------


@pytest.fixture
def real(slurm: Cluster) -> Iterator[PyslurmAdapter]:
    folder = real_pyslurm()
    adapter = PyslurmAdapter(Options(pyslurm_folder=folder, deadline_seconds=10.0), limits=LIMITS)
    adapter.describe()
    yield adapter
    adapter.close()


@pytest.mark.slurm
def test_the_real_one_with_a_stopped_slurmctld_means_nothing_was_written(
    slurm: Cluster, real: PyslurmAdapter
) -> None:
    slurm.stop_controller()
    try:
        with pytest.raises(SlurmUnavailable) as caught:
            real.drain({"n1": OURS}, free)
        assert caught.value.kind in ("stopped", "hung")
    finally:
        slurm.start_controller()
    assert slurm.reason("n1") == ""


@pytest.mark.slurm
def test_the_real_one_with_a_slurmctld_that_hangs_in_the_window_leaves_it_unknown(
    slurm: Cluster, real: PyslurmAdapter
) -> None:
    adapter = PyslurmAdapter(
        Options(pyslurm_folder=real_pyslurm(), deadline_seconds=8.0),
        limits=LIMITS,
        window=slurm.freeze_controller,
    )
    try:
        outcome = adapter.drain({"n1": OURS}, free)
    finally:
        slurm.thaw_controller()
        adapter.close()
    assert set(outcome.unknown) == {"n1"}


@pytest.mark.slurm
def test_the_real_one_puts_a_reason_with_any_quotes_back(slurm: Cluster) -> None:
    theirs = """ops: Zoe's "bad" DIMM \\ ask first"""
    folder = real_pyslurm()
    person = PyslurmAdapter(Options(pyslurm_folder=folder), limits=LIMITS)
    adapter = PyslurmAdapter(
        Options(pyslurm_folder=folder),
        limits=LIMITS,
        window=lambda: person.changed(["n1"], Change("DRAIN", theirs)),
    )
    outcome = adapter.drain({"n1": OURS}, free)
    assert outcome.restored == {"n1": theirs}
    assert adapter.nodes(["n1"])["n1"].reason == theirs
    person.close()
    adapter.close()


@pytest.mark.slurm
def test_the_real_one_tells_what_the_commands_tell(slurm: Cluster, real: PyslurmAdapter) -> None:
    slurm.drain("n1", "ops: swap the PSU")
    slurm.start_job("n2", "-n1", "--gres=gpu:2")
    slurm.start_job("n3", "--exclusive")
    ours, theirs = real.nodes(), CliAdapter().nodes()
    assert theirs["n2"].base == "mixed"
    assert set(ours) == set(theirs)
    for name, node in ours.items():
        other = theirs[name]
        for field in (
            "base", "flags", "reason", "reason_user", "reason_time_ns", "partitions",
            "gpus_configured", "boot_time_ns", "comment", "cpus", "cpus_allocated", "version",
            "weight",
        ):  # fmt: skip
            assert getattr(node, field) == getattr(other, field), (name, field)
        # 22.5 asks without SHOW_DETAIL, so Slurm does not tell it (23.2 and later do).
        assert node.gpus_allocated == 0
    assert real.controller_start_ns() == CliAdapter().controller_start_ns()
