"""One contract for every adapter: the simulated one, and the real ones on the real testbed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from collectors.slurm.nodes import NodeState
from collectors.slurm.source import Options
from collectors.slurm.state import left_over
from daemon.drains.hand import may_drain
from daemon.slurm.adapter import (
    SlurmAdapter,
    SlurmRefused,
    SlurmUnavailable,
    plain_text,
    same_reason,
)
from daemon.slurm.cli import CliAdapter
from daemon.slurm.pyslurm_adapter import PyslurmAdapter
from daemon.slurm.rest import CONFIGURATION_FROM, RestAdapter
from daemon.slurm.session import Session
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.slurm.pyslurms import real_pyslurm
from tests.testbed.slurm.cluster import Cluster, rest_writes, wait_for
from tests.testbed.slurm.plugin import Rest

OURS = "tocsin:x79 gpu3 9f2c; fell off the bus; tocsin explain 9f2c"
THEIRS = "ops: swap the PSU, ask Zoe = x [y@z]"


def free(node: NodeState) -> str:
    """The check that a drain makes: nobody else's, and working."""
    if node.drain or node.reason:
        return f"has the reason {node.reason!r}"
    return "" if node.registered else f"is {node.words}"


def ours(node: NodeState) -> str:
    return "" if node.drain and same_reason(node.reason, OURS) else "is not ours"


class Person(Protocol):
    """Somebody else at the same Slurm."""

    def __call__(self, name: str, *, state: str = "", reason: str = "") -> None: ...


class World:
    """An adapter, a person beside it, and a window between look and write to act in."""

    def __init__(self) -> None:
        self.window: Callable[[], None] = lambda: None
        self.sees_the_window = True
        self.tells_the_start = True
        self.adapter: SlurmAdapter
        self.person: Person

    def node(self, name: str) -> NodeState:
        return self.adapter.nodes([name])[name]


def simulated_world() -> World:
    world = World()
    nodes = [
        NodeState(f"n{i}", base="idle", partitions=("batch",), gpus_configured=8, boot_time_ns=1)
        for i in range(1, 5)
    ]
    slurm = SimulatedSlurm(nodes, time.time_ns, window=lambda: world.window())
    world.adapter = slurm
    world.person = lambda name, *, state="", reason="": slurm.set(name, state=state, reason=reason)
    return world


def cli_world(cluster: Cluster, interactive: bool) -> World:
    world = World()
    world.adapter = CliAdapter(window=lambda: world.window(), interactive=interactive)
    world.person = operator(cluster)
    return world


def pyslurm_world(cluster: Cluster, folder: Path) -> World:
    world = World()
    world.adapter = PyslurmAdapter(Options(pyslurm_folder=folder), window=lambda: world.window())
    world.person = operator(cluster)
    return world


def rest_world(rest: Rest) -> World:
    world = World()
    options = Options(rest_url=rest.url, rest_user="root", rest_token_file=rest.token_file)
    adapter = RestAdapter(options, window=lambda: world.window())
    world.adapter = adapter
    world.person = operator(rest.cluster)
    world.sees_the_window = False
    world.tells_the_start = adapter.version >= CONFIGURATION_FROM
    return world


def needs_to_see_the_window(world: World) -> None:
    if not world.sees_the_window:
        assert any("would not be noticed" in line for line in world.adapter.describe())
        pytest.skip("slurmctld's log is not read this way, and describe says so")


def operator(cluster: Cluster) -> Person:
    def person(name: str, *, state: str = "", reason: str = "") -> None:
        settings = {key: value for key, value in (("state", state), ("reason", reason)) if value}
        cluster.update(name, **settings)

    return person


@pytest.fixture(
    params=[
        "simulated",
        pytest.param("cli", marks=pytest.mark.slurm),
        pytest.param("cli one by one", marks=pytest.mark.slurm),
        pytest.param("pyslurm", marks=pytest.mark.slurm),
        # Below 24.11 slurmrestd writes no nodes: test_rest_live.py tells that, not 20 tests here.
        *([pytest.param("rest", marks=pytest.mark.slurm)] if rest_writes() else []),
    ]
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "simulated":
        made = simulated_world()
    elif request.param == "pyslurm":
        made = pyslurm_world(request.getfixturevalue("slurm"), real_pyslurm())
    elif request.param == "rest":
        made = rest_world(request.getfixturevalue("slurm_rest"))
    else:
        made = cli_world(request.getfixturevalue("slurm"), request.param == "cli")
    yield made
    made.adapter.close()


def test_a_drain_is_written_and_read_back(world: World) -> None:
    outcome = world.adapter.drain({"n1": OURS}, free)
    assert set(outcome.done) == {"n1"}
    node = world.node("n1")
    assert node.drained
    assert node.reason == OURS
    assert not world.node("n2").drain


def test_several_nodes_with_one_reason_and_one_with_another(world: World) -> None:
    outcome = world.adapter.drain({"n1": OURS, "n2": OURS, "n4": "tocsin:x48 gpu0 1111"}, free)
    assert set(outcome.done) == {"n1", "n2", "n4"}
    assert world.node("n4").reason == "tocsin:x48 gpu0 1111"
    outcome = world.adapter.undrain(["n1", "n2", "n4"], ours)
    assert set(outcome.done) == {"n1", "n2"}
    assert outcome.skipped == {"n4": "is not ours"}
    assert not world.node("n1").drain
    assert world.node("n4").drain


def test_an_operators_drain_is_neither_changed_nor_lifted(world: World) -> None:
    world.person("n1", state="drain", reason=THEIRS)
    before = world.node("n1")
    outcome = world.adapter.drain({"n1": OURS, "n2": OURS}, free)
    assert THEIRS in outcome.skipped["n1"]
    assert set(outcome.done) == {"n2"}
    assert world.adapter.undrain(["n1"], ours).done == {}
    assert world.node("n1") == before


def test_a_drain_set_between_look_and_write_is_put_back(world: World) -> None:
    needs_to_see_the_window(world)
    world.window = lambda: world.person("n1", state="drain", reason=THEIRS)
    outcome = world.adapter.drain({"n1": OURS, "n2": OURS}, free)
    assert outcome.restored == {"n1": THEIRS}
    assert set(outcome.done) == {"n2"}
    node = world.node("n1")
    assert node.drain
    assert node.reason == THEIRS


def test_a_node_relabelled_between_look_and_undrain_stays_drained(world: World) -> None:
    needs_to_see_the_window(world)
    world.adapter.drain({"n1": OURS, "n2": OURS}, free)
    world.window = lambda: world.person("n1", reason=THEIRS)
    outcome = world.adapter.undrain(["n1", "n2"], ours)
    assert outcome.restored == {"n1": THEIRS}
    assert set(outcome.done) == {"n2"}
    node = world.node("n1")
    assert node.drain
    assert node.reason == THEIRS
    assert not world.node("n2").drain


def test_a_node_taken_down_between_look_and_write_stays_as_it_was_set(world: World) -> None:
    needs_to_see_the_window(world)
    world.window = lambda: world.person("n1", state="down", reason=THEIRS)
    world.adapter.drain({"n1": OURS}, free)
    node = world.node("n1")
    assert node.down
    assert node.reason == THEIRS
    assert not node.drain


def test_undrain_leaves_a_down_node_down(world: World) -> None:
    world.adapter.drain({"n1": OURS}, free)
    world.person("n1", state="down", reason=OURS)
    world.adapter.undrain(["n1"], ours)
    assert world.node("n1").down


def test_a_node_that_others_gave_back_can_be_drained(world: World) -> None:
    """Slurm 23.11 to 25.11 without accounting keep their reason: nothing holds the node."""
    for state in ("undrain", "resume"):
        world.person("n1", state="drain", reason=THEIRS)
        world.person("n1", state=state)
        node = world.node("n1")
        assert not node.drain
        assert node.reason == "" or left_over(node, THEIRS)
    wait_for(lambda: world.node("n1").registered, "n1 is pinged after its return")
    done = world.adapter.drain({"n1": OURS}, lambda node: may_drain(node, THEIRS)).done
    assert set(done) == {"n1"}
    assert world.node("n1").reason == OURS


def test_an_unknown_node_is_skipped_and_costs_no_other(world: World) -> None:
    outcome = world.adapter.drain({"n99": OURS, "n1": OURS}, free)
    assert "does not know" in outcome.skipped["n99"]
    assert set(outcome.done) == {"n1"}


def test_nothing_to_write_writes_nothing(world: World) -> None:
    assert world.adapter.drain({}, free).done == {}
    assert world.adapter.undrain([], ours).done == {}


@pytest.mark.parametrize("name", ["ALL", "n[1-4]", "n1,n2", 'n1" State=RESUME', ""])
def test_what_is_no_single_node_is_refused(world: World, name: str) -> None:
    with pytest.raises(ValueError, match="no node name"):
        world.adapter.drain({name: OURS}, free)
    assert not any(node.drain for node in world.adapter.nodes().values())


def test_a_reason_is_plain_ascii_of_at_most_200_characters(world: World) -> None:
    world.adapter.drain({"n1": 'tocsin: "x"\n\'é\\ ; State=DOWN ' + "y" * 500}, free)
    node = world.node("n1")
    assert node.base == "idle"
    assert node.reason.startswith("tocsin: x ; State=DOWN yyy")
    assert len(node.reason) == 200


def test_a_comment_is_set_and_cleared(world: World) -> None:
    assert set(world.adapter.comment({"n1": "tocsin 9f2c: x79"}, lambda node: "").done) == {"n1"}
    assert world.node("n1").comment == "tocsin 9f2c: x79"
    assert not world.node("n1").drain


def test_it_describes_itself_and_its_controller(world: World) -> None:
    assert world.adapter.describe()[0]
    if world.tells_the_start:
        assert 0 < world.adapter.controller_start_ns() <= time.time_ns()
    else:
        with pytest.raises(SlurmUnavailable, match="does not tell"):
            world.adapter.controller_start_ns()


# ---- the real controller's troubles --------------------------------------------------------------


@pytest.mark.slurm
def test_a_stopped_controller_means_nothing_was_written(slurm: Cluster) -> None:
    adapter = CliAdapter()
    slurm.stop_controller()
    try:
        with pytest.raises(SlurmUnavailable) as caught:
            adapter.drain({"n1": OURS}, free)
        assert caught.value.kind == "stopped"
    finally:
        slurm.start_controller()
    assert slurm.reason("n1") == ""


@pytest.mark.slurm
@pytest.mark.parametrize("interactive", [True, False])
def test_a_user_without_rights_is_refused_by_name_and_nothing_is_written(
    slurm: Cluster, tmp_path: Path, interactive: bool
) -> None:
    for name in ("scontrol", "sinfo"):
        tool = tmp_path / name
        drop = "setpriv --reuid=nobody --regid=nogroup --clear-groups"
        tool.write_text(f'#!/bin/sh\nexec {drop} {shutil.which(name)} "$@"\n')
        tool.chmod(0o755)
    adapter = CliAdapter(Options(binaries=tmp_path), interactive=interactive)
    with pytest.raises(SlurmRefused, match="AdminLevel"):
        adapter.drain({"n1": OURS, "n2": OURS + " x"}, free)
    assert slurm.reason("n1") == ""
    slurm.drain("n1", OURS)
    with pytest.raises(SlurmRefused):
        adapter.undrain(["n1"], ours)
    assert slurm.reason("n1") == OURS


@pytest.mark.slurm
def test_a_controller_that_hangs_in_the_window_leaves_an_unknown_outcome(slurm: Cluster) -> None:
    adapter = CliAdapter(Options(deadline_seconds=4), window=slurm.freeze_controller)
    try:
        outcome = adapter.drain({"n1": OURS}, free)
    finally:
        slurm.thaw_controller()
    assert set(outcome.unknown) == {"n1"}
    assert outcome.done == {}


@pytest.mark.slurm
def test_a_controller_that_hangs_before_the_look_means_nothing_was_written(
    slurm: Cluster,
) -> None:
    adapter = CliAdapter(Options(deadline_seconds=0.5))
    adapter.describe()
    slurm.freeze_controller()
    try:
        with pytest.raises(SlurmUnavailable) as caught:
            adapter.drain({"n1": OURS}, free)
        assert caught.value.kind == "hung"
    finally:
        slurm.thaw_controller()
    assert slurm.reason("n1") == ""


@pytest.mark.slurm
def test_shadow_of_a_look_alone_writes_nothing_by_slurmctlds_own_log(slurm: Cluster) -> None:
    adapter = CliAdapter()
    begin = slurm.log_size()
    adapter.nodes()
    adapter.drain({"n1": OURS}, lambda node: "no")
    assert slurm.updates_since(begin) == []


@pytest.mark.slurm
def test_the_window_is_measured(slurm: Cluster) -> None:
    adapter = CliAdapter(window=lambda: time.sleep(0.2))
    begin = time.monotonic()
    outcome = adapter.drain({"n1": OURS}, free)
    assert 0.2 <= outcome.window_seconds <= time.monotonic() - begin


@pytest.mark.slurm
def test_a_scontrol_that_takes_no_commands_over_a_pipe_is_started_for_each(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("scontrol")
    deaf = tmp_path / "scontrol"
    deaf.write_text(
        '#!/bin/sh\ncase "$*" in *show*|*update*|*--version*) exec '
        f'{real} "$@";; esac\nexec sleep 60\n'
    )
    deaf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("daemon.slurm.cli.READY_SECONDS", 0.3)
    adapter = CliAdapter()
    assert set(adapter.drain({"n1": OURS}, free).done) == {"n1"}
    for asked in (adapter, CliAdapter()):  # tocsin check has written nothing
        assert any("no commands over a pipe" in line for line in asked.describe())


def test_the_version_is_asked_with_the_slurm_conf_that_tocsin_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.touch()
    tool = tmp_path / "scontrol"
    tool.write_text(  # as 25.11 does it; 22.05 tells its version without
        f'#!/bin/sh\n[ "$SLURM_CONF" = {conf} ] && echo slurm 25.11.7 && exit\n'
        "echo scontrol: fatal: Could not establish a configuration source >&2; exit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    told = CliAdapter(Options(conf=conf, binaries=tmp_path)).describe()
    assert told[0] == "Slurm by its own commands: slurm 25.11.7"


def test_reasons_are_compared_whole_but_for_what_slurm_appends() -> None:
    assert same_reason(OURS, OURS)
    assert same_reason(OURS + " : reboot issued", OURS)
    assert not same_reason(OURS + "0", OURS)
    assert not same_reason(OURS + " - ask ops before touching", OURS)
    assert not same_reason("", "")
    assert not same_reason(OURS, "")


def test_plain_text_never_leaves_its_alphabet() -> None:
    assert plain_text("a\tb\r\nc") == "a b c"
    assert plain_text('Zoë\'s "PSU" `x` \\n \x00\x1b[31m') == "Zos PSU x n [31m"


@pytest.mark.slurm
@pytest.mark.parametrize("interactive", [True, False])
def test_what_a_long_command_says_is_not_taken_for_slurmctlds_answer(
    slurm: Cluster, interactive: bool
) -> None:
    """scontrol's readline repeats what it is sent, cut to the width of a screen."""
    adapter = CliAdapter(interactive=interactive)
    reason = "tocsin:proof 9f2c; " + "x" * 120 + " permission denied, connect failure"
    outcome = adapter.drain(dict.fromkeys(slurm.nodes, reason), free)
    assert set(outcome.done) == set(slurm.nodes)
    assert outcome.said == {}
    assert {slurm.reason(node) for node in slurm.nodes} == {reason}
    outcome = adapter.undrain(slurm.nodes, lambda node: "")
    assert set(outcome.done) == set(slurm.nodes)
    assert outcome.said == {}


@pytest.mark.slurm
@pytest.mark.parametrize("interactive", [True, False])
def test_words_that_look_like_another_node_hide_nobodys_drain(
    interactive: bool, slurm: Cluster
) -> None:
    """A Comment (or Extra, which the node's own slurmd tells) of several lines: a record of n1 in
    service, and what ended an answer of scontrol before.
    """
    record = slurm.run("scontrol", "-o", "show", "node", "n1").strip()
    slurm.update("n1", state="drain", reason=THEIRS)
    slurm.update("n3", comment=f"x\nslurm 22.05.8 y\n{record}\n")
    adapter = CliAdapter(interactive=interactive)
    assert adapter.nodes(["n1", "n3"])["n1"].reason == THEIRS
    outcome = adapter.drain(dict.fromkeys(("n1", "n3", "n4"), OURS), free)
    assert set(outcome.done) == {"n3", "n4"}
    assert THEIRS in outcome.skipped["n1"]
    assert slurm.reason("n1") == THEIRS


@pytest.mark.slurm
def test_jobs_in_the_comment_of_a_job_are_none(slurm: Cluster) -> None:
    """Any user may write them: they would be told, signalled or requeued for a drained node."""
    fake = "77|77|RUNNING|bob|2026-12-01T00:00:00|1:00|gres:gpu:1|batch|n2|tocsin=requeue"
    job = slurm.start_job("n1", f"--comment=x\n{fake}")
    found = CliAdapter().reader.jobs()
    assert set(found) == {job}
    assert found[job].nodes == ("n1",)


def test_an_echo_of_any_length_is_no_answer(tmp_path: Path) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text(  # as GNU readline shows a line that is longer than its screen
        "#!/bin/sh\n"
        'while read -r line; do case "$line" in\n'
        "'show hostnames '*)\n"
        '  printf \'scontrol: %s\\n%s\\n\' "$line" "${line#show hostnames }";;\n'
        '*) printf \'scontrol: \\r<%s\\nyes\\n\' "$(printf %s "$line" | tail -c 60)";;\n'
        "esac; done\n"
    )
    tool.chmod(0o755)
    session = Session([str(tool)], {})
    try:
        session.ready(60)
        assert session.ask(f"update NodeName=n1 Reason={'x' * 200}, access denied", 60) == "yes"
    finally:
        session.close()
