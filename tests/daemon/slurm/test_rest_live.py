"""A real slurmrestd over a real cluster: what it reads, writes, refuses, and how it fails.

The contract of every adapter, with what is written and read back: test_adapters.py. Where the
slurmrestd of this Slurm writes no nodes (before 24.11), its refusals are what is tested.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectors.slurm.nodes import NodeState
from collectors.slurm.source import Options
from daemon.config import Config
from daemon.reach import make_slurm_source
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable
from daemon.slurm.cli import CliAdapter
from daemon.slurm.rest import RestAdapter
from tests.testbed.slurm.cluster import wait_for
from tests.testbed.slurm.plugin import Rest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
OURS = "tocsin:x79 gpu3 9f2c; fell off the bus; tocsin explain 9f2c"


def adapter(rest: Rest, token_file: Path | None = None, user: str = "root") -> RestAdapter:
    return RestAdapter(
        Options(rest_url=rest.url, rest_user=user, rest_token_file=token_file or rest.token_file)
    )


def writing(rest: Rest) -> RestAdapter:
    made = adapter(rest)
    if not made.writes:
        pytest.skip(f"the slurmrestd of this Slurm speaks {made.version}, which writes no nodes")
    return made


def free(node: NodeState) -> str:
    return f"has the reason {node.reason!r}" if node.drain or node.reason else ""


def test_nodes_are_read_as_the_commands_read_them(slurm_rest: Rest) -> None:
    slurm_rest.cluster.drain("n2", "ann: PSU")
    job = slurm_rest.cluster.start_job("n3", "--gres=gpu:2")
    rest = adapter(slurm_rest)
    theirs, ours = CliAdapter().nodes(), rest.nodes()
    assert ours["n1"].words == "IDLE"
    assert ours["n2"].drained
    assert (ours["n2"].reason, ours["n2"].gpus_configured) == ("ann: PSU", 8)
    assert ours["n3"].base == "mixed", job
    for name in slurm_rest.cluster.nodes:
        for field in ("base", "flags", "reason", "reason_user", "reason_time_ns", "partitions",
                      "boot_time_ns", "comment", "gpus_configured", "gpus_allocated"):  # fmt: skip
            assert getattr(ours[name], field) == getattr(theirs[name], field), (name, field)


def test_the_source_reads_nodes_by_slurmrestd_and_jobs_by_squeue(
    slurm_rest: Rest, tmp_path: Path
) -> None:
    cluster = slurm_rest.cluster
    cluster.drain("n2", "ann: PSU")
    job = cluster.start_job("n1")
    section = {"adapter": "rest", "rest_url": slurm_rest.url, "rest_user": "root",
               "conf": cluster.conf, "rest_token_file": slurm_rest.token_file}  # fmt: skip
    source = make_slurm_source(Config.model_validate({"slurm": section}), tmp_path)
    source.collect(time.time_ns())
    assert source.latest is not None
    assert source.latest.nodes["n1"].jobs == (job,)
    assert source.latest.nodes["n2"].reason == "ann: PSU"
    source.reader.close()  # type: ignore[attr-defined]


def test_a_version_that_writes_no_nodes_refuses_by_name_and_says_so(slurm_rest: Rest) -> None:
    rest = adapter(slurm_rest)
    if rest.writes:
        pytest.skip(f"the slurmrestd of this Slurm speaks {rest.version}, which writes nodes")
    with pytest.raises(SlurmRefused, match=rf"{rest.version}, which writes no nodes"):
        rest.drain({"n1": OURS}, free)
    assert any("nothing can be drained" in line for line in rest.describe())
    assert slurm_rest.cluster.reason("n1") == ""


def test_a_bad_token_is_named_and_not_told(slurm_rest: Rest, tmp_path: Path) -> None:
    bad = tmp_path / "token"
    good = slurm_rest.token_file.read_text()
    start, body, signature = good.split(".")
    for token in ("bad", f"{start}.{body}.{signature[::-1]}"):
        bad.write_text(token)
        with pytest.raises(SlurmUnavailable, match="token") as caught:
            adapter(slurm_rest, bad).nodes()
        assert token not in str(caught.value)


def test_a_token_that_ran_out_is_named(slurm_rest: Rest, tmp_path: Path) -> None:
    cluster = slurm_rest.cluster
    short = tmp_path / "token"
    short.write_text(cluster.run("scontrol", "token", "username=root", "lifespan=1").strip())

    def refused() -> bool:
        try:
            adapter(slurm_rest, short).nodes()
        except SlurmUnavailable as error:
            return "token" in str(error)
        return False

    wait_for(refused, "the token to run out")


def test_a_stopped_slurmctld_is_a_failure_and_nothing_is_written(slurm_rest: Rest) -> None:
    cluster = slurm_rest.cluster
    rest = adapter(slurm_rest)
    assert set(rest.nodes()) == set(cluster.nodes)
    cluster.stop_controller()
    try:
        with pytest.raises(SlurmUnavailable):
            rest.nodes()
        with pytest.raises((SlurmUnavailable, SlurmRefused)):
            rest.drain({"n1": OURS}, free)
    finally:
        cluster.start_controller()
    assert cluster.reason("n1") == ""
    assert set(rest.nodes()) == set(cluster.nodes), "it comes back by itself"


def test_a_user_without_rights_is_refused_by_name_and_nothing_is_written(
    slurm_rest: Rest, tmp_path: Path
) -> None:
    writing(slurm_rest)
    cluster = slurm_rest.cluster
    token = tmp_path / "token"
    token.write_text(cluster.token("nobody"))
    rest = adapter(slurm_rest, token, "nobody")
    assert set(rest.nodes()) == set(cluster.nodes)
    with pytest.raises(SlurmRefused, match="refuses this user"):
        rest.drain({"n1": OURS, "n2": OURS + " x"}, free)
    assert cluster.reason("n1") == ""
    cluster.drain("n1", OURS)
    with pytest.raises(SlurmRefused):
        rest.undrain(["n1"], lambda node: "")
    assert cluster.reason("n1") == OURS


def test_a_slurmctld_that_hangs_in_the_window_leaves_an_unknown_outcome(slurm_rest: Rest) -> None:
    writing(slurm_rest)
    cluster = slurm_rest.cluster
    options = Options(
        rest_url=slurm_rest.url, rest_user="root", rest_token_file=slurm_rest.token_file,
        deadline_seconds=4.0,
    )  # fmt: skip
    rest = RestAdapter(options, window=cluster.freeze_controller)
    try:
        outcome = rest.drain({"n1": OURS}, free)
    finally:
        cluster.thaw_controller()
    assert set(outcome.unknown) == {"n1"}
    assert outcome.done == {}


def test_a_node_that_is_gone_between_look_and_write_costs_no_other(slurm_rest: Rest) -> None:
    rest = writing(slurm_rest)
    outcome = rest.drain({"n99": OURS, "n1": OURS}, free)
    assert "does not know" in outcome.skipped["n99"]
    assert set(outcome.done) == {"n1"}
