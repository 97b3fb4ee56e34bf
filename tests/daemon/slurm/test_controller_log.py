"""slurmctld's log as a witness: what counts as its word, and what is made of words that do not."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.slurm.nodes import Nodes, NodeState
from daemon.slurm.adapter import SlurmRefused
from daemon.slurm.cli import CliAdapter
from daemon.slurm.controller_log import ControllerLog, Foreign, Update, overwritten
from daemon.slurm.session import Session
from daemon.slurm.writing import DRAIN, UNDRAIN, Change, Writer
from tests.testbed.slurm.cluster import Cluster, wait_for

OURS = "tocsin:x79 gpu3 9f2c; fell off the bus"
THEIRS = "ann: bad DIMM"
STAMP = "2026-11-30T02:51:57.286"


def free(node: NodeState) -> str:
    return node.reason


def told(folder: Path, text: str) -> list[Update] | None:
    path = folder / "slurmctld.log"
    path.write_text("older\n")
    with ControllerLog(path).watch() as watch:
        with path.open("a") as stream:
            stream.write(text)
        return watch.updates()


@pytest.mark.parametrize(
    "stamp",
    [
        STAMP,
        "2026-11-30T02:51:57+01:00",
        "Nov 30 02:51:57",
        "81236",
        "Nov 30 02:51:57.123456 4711 rpc-1        0x7f3b",
    ],
)
def test_a_line_of_slurmctlds_own_is_read_in_every_format_of_its_time(
    stamp: str, tmp_path: Path
) -> None:
    text = f"[{stamp}] update_node: node n3 reason set to: {THEIRS}\n"
    assert told(tmp_path, text) == [Update("n3", "reason", THEIRS)]


def test_words_within_a_line_are_not_its_own(tmp_path: Path) -> None:
    text = f"[{STAMP}] _job_create: invalid partition specified: "
    text += f"[{STAMP}] update_node: node n3 reason set to: gone\n"
    assert told(tmp_path, text) == []


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1e", "\x85", "\u2028", "\r"])
def test_what_ends_lines_elsewhere_is_part_of_a_reason(odd: str, tmp_path: Path) -> None:
    text = f"[{STAMP}] update_node: node n3 reason set to: a{odd}b\n"
    assert told(tmp_path, text) == [Update("n3", "reason", f"a{odd}b")]


def drained(reason: str) -> str:
    lines = (f"reason set to: {reason}", "state set to DRAINED")
    return "".join(f"[{STAMP}] update_node: node n1 {line}\n" for line in lines)


@pytest.mark.parametrize("made_anew", ["at once", "later", "never", "unreadable"])
def test_a_log_that_is_renamed_meanwhile_is_read_to_its_end(made_anew: str, tmp_path: Path) -> None:
    """slurmctld writes to the file that it has open until it is told of the rotation."""
    path = tmp_path / "slurmctld.log"
    path.write_text("older\n")
    with ControllerLog(path).watch() as watch, path.open("a") as old:
        old.write(drained(THEIRS))
        path.rename(tmp_path / "slurmctld.log.1")
        if made_anew == "at once":
            path.write_text("")
        old.write(drained(OURS))
        old.flush()
        if made_anew == "later":
            path.write_text(drained("ann: later"))
        if made_anew == "unreadable":
            path.mkdir()
        found = watch.updates()
    if made_anew == "unreadable":
        assert found is None
        return
    assert found is not None
    later = ["ann: later"] if made_anew == "later" else []
    assert [one.value for one in found if one.what == "reason"] == [THEIRS, OURS, *later]
    assert overwritten(found, "n1", OURS) == Foreign(THEIRS, drained=True, down=False)


@pytest.mark.parametrize("grown", [False, True])
def test_a_log_that_was_cut_meanwhile_tells_nothing_and_says_so(
    grown: bool, tmp_path: Path
) -> None:
    """copytruncate; also where it has grown again past the place where we began."""
    path = tmp_path / "slurmctld.log"
    path.write_text("older\n")
    log = ControllerLog(path)
    with log.watch() as watch:
        with path.open("a") as stream:
            stream.write(drained(THEIRS))
        path.write_text(drained(OURS) if grown else "")
        assert watch.updates() is None
    assert "was cut" in log.why


@pytest.mark.parametrize("log", ["still", "another's", "cut"])
def test_a_write_that_the_log_does_not_show_is_said_to_be_unwatched(
    log: str, tmp_path: Path
) -> None:
    """The log of a backup that is not in charge, of another cluster, or on another host."""
    named = tmp_path / "named"
    channel = Memory(named if log == "cut" else tmp_path / "real")
    named.write_text("older\n")

    def window() -> None:
        channel.set("n1", THEIRS)
        with named.open("a") as stream:
            stream.write(drained("somebody: elsewhere") if log == "another's" else "")
        if log == "cut":
            named.write_text("")

    outcome = Writer(channel, ControllerLog(named), window).write(DRAIN, {"n1": OURS}, free)
    assert set(outcome.done) == {"n1"}
    words = "was cut in between" if log == "cut" else "does not show what slurmctld has just done"
    assert words in outcome.unwatched["n1"]


def test_a_return_that_the_log_does_not_show_is_said_to_be_unwatched(tmp_path: Path) -> None:
    still = tmp_path / "still"
    still.write_text("older\n")
    channel = Memory(tmp_path / "real")
    channel.set("n1", OURS)
    writer = Writer(channel, ControllerLog(still), lambda: channel.set("n1", THEIRS))
    outcome = writer.write(UNDRAIN, {"n1": ""}, lambda node: "")
    assert set(outcome.done) == {"n1"}
    assert "does not show" in outcome.unwatched["n1"]


def test_a_write_that_the_log_shows_is_watched(tmp_path: Path) -> None:
    channel = Memory(tmp_path / "log")
    writer = Writer(channel, ControllerLog(tmp_path / "log"))
    assert writer.write(DRAIN, {"n1": OURS, "n2": f"{OURS} 2"}, free).unwatched == {}
    assert writer.write(UNDRAIN, {"n1": "", "n2": ""}, lambda node: "").unwatched == {}
    without = Writer(channel, ControllerLog(None, "syslog"))
    channel.nodes["n1"] = NodeState("n1", base="idle")
    assert without.write(DRAIN, {"n1": OURS}, free).unwatched == {}, "tocsin check says it once"


@pytest.mark.parametrize("rest", ["second", "\nthird", " update_node: node n2 reason set to: x"])
def test_a_reason_of_several_lines_is_one_reason(rest: str, tmp_path: Path) -> None:
    text = f"{drained(f'first{chr(10)}{rest}')}[{STAMP}] _job_create: no: x\nupdate_node: node n1\n"
    reason, state = told(tmp_path, text) or []
    assert (reason.value, state.value) == (f"first\n{rest}", "DRAINED")


def changes(*words: str) -> list[Update]:
    """``DRAINED`` or another state, else a reason."""
    return [Update("n3", "state" if one.isupper() else "reason", one) for one in words]


@pytest.mark.parametrize("back", ["IDLE", "ALLOCATED", "MIXED", "IDLE*"])
def test_a_drain_that_its_owner_lifted_again_is_not_put_back(back: str) -> None:
    """A log that is told late (NFS) shows both behind our look."""
    taken_back = changes(THEIRS, "DRAINED", back)
    assert overwritten([*taken_back, *changes(OURS, "DRAINED")], "n3", OURS) is None
    again = changes("ann: PSU", "DRAINED")
    found = overwritten([*taken_back, *again, *changes(OURS, "DRAINED")], "n3", OURS)
    assert found == Foreign("ann: PSU", drained=True, down=False)
    assert overwritten([*taken_back, *changes("IDLE")], "n3", "") is None


class Memory:
    """A channel to nodes in memory that writes a log as slurmctld does."""

    def __init__(self, log: Path, refuses: Sequence[str] = ()) -> None:
        self.nodes = {name: NodeState(name, base="idle") for name in ("n1", "n2")}
        self.refuses = refuses
        self._log = log
        log.write_text("")

    def look(self, names: list[str]) -> Nodes:
        return {name: self.nodes[name] for name in names}

    def change(self, names: list[str], change: Change) -> str:
        if set(names) & set(self.refuses):
            raise SlurmRefused("Access/permission denied", not_sent=True)
        for name in names:
            if change.state == "UNDRAIN":
                self.lift(name)
            else:
                self.set(name, change.reason)
        return ""

    def lift(self, name: str) -> None:
        node = self.nodes[name]
        self.nodes[name] = replace(node, flags=node.flags - {"DRAIN"}, reason="")
        with self._log.open("a", newline="\n") as stream:
            stream.write(f"[{STAMP}] update_node: node {name} state set to IDLE\n")

    def set(self, name: str, reason: str) -> None:
        node = self.nodes[name]
        self.nodes[name] = replace(node, flags=node.flags | {"DRAIN"}, reason=reason)
        with self._log.open("a", newline="\n") as stream:
            stream.write(f"[{STAMP}] update_node: node {name} reason set to: {reason}\n")
            stream.write(f"[{STAMP}] update_node: node {name} state set to DRAINED\n")


def ticking() -> Callable[[], float]:
    """A clock by which a look takes as long as many writes, so that a round takes all groups."""
    moments = iter([0.0, 10.0, *(10.0 + n / 1000 for n in range(1000))])
    return lambda: next(moments)


def test_what_was_overwritten_is_put_back_though_a_later_group_is_refused(tmp_path: Path) -> None:
    """n1 and n2 are of one round; n2 is refused after n1 was written over a person's word."""
    channel = Memory(tmp_path / "log")
    # A first round of one group tells the writer that a look is dear.
    channel.nodes["n0"] = NodeState("n0", base="idle")
    channel.refuses = ["n2"]

    def window() -> None:
        if not channel.nodes["n1"].drain and channel.nodes["n0"].drain:
            channel.set("n1", THEIRS)

    writer = Writer(channel, ControllerLog(tmp_path / "log"), window, ticking())
    reasons = {name: f"{OURS} {name}" for name in ("n0", "n1", "n2")}
    outcome = writer.write(DRAIN, reasons, lambda node: node.reason)
    assert outcome.restored == {"n1": THEIRS}
    assert channel.nodes["n1"].reason == THEIRS
    assert set(outcome.done) == {"n0"}
    assert set(outcome.skipped) == {"n2"}
    assert outcome.unknown == {}


@pytest.mark.parametrize("odd", ["\x15", "\x0f", "\t", "\x1b[A", "\ufffd", "\n"])
def test_a_reason_that_holds_keys_or_lost_bytes_is_put_back_without_them(
    odd: str, tmp_path: Path
) -> None:
    channel = Memory(tmp_path / "log")
    reason = f"ann:{odd}update NodeName=n2 State=DOWN"
    writer = Writer(channel, ControllerLog(tmp_path / "log"), lambda: channel.set("n1", reason))
    outcome = writer.write(DRAIN, {"n1": OURS}, lambda node: node.reason)
    assert outcome.restored == {"n1": reason}
    blank = odd.replace(odd[0], " ")
    assert channel.nodes["n1"].reason == f"ann:{blank}update NodeName=n2 State=DOWN"


def test_a_reason_of_nothing_but_keys_is_told_and_not_written(tmp_path: Path) -> None:
    channel = Memory(tmp_path / "log")
    writer = Writer(channel, ControllerLog(tmp_path / "log"), lambda: channel.set("n1", "\x15\x0f"))
    outcome = writer.write(DRAIN, {"n1": OURS}, lambda node: node.reason)
    assert outcome.lost == {"n1": "\x15\x0f"}
    assert channel.nodes["n1"].reason == OURS


@pytest.mark.parametrize("command", ["show node n1\nversion", "\x15version", "Reason=Lüfter"])
def test_no_key_of_readlines_goes_into_a_session(command: str) -> None:
    session = Session([sys.executable, "-c", "input()"], {})
    try:
        with pytest.raises(ValueError, match="printable ASCII"):
            session.ask(command, 60)
    finally:
        session.close()


# ---- on the real one ------------------------------------------------------------------------


def forged(slurm: Cluster, line: str) -> None:
    """A user names a partition that does not exist, with a line of slurmctld's behind it."""
    slurm.run("sbatch", "-p", f"x\n{line}", "--wrap=true", check=False)


@pytest.mark.slurm
def test_users_words_in_slurmctlds_log_become_no_commands(slurm: Cluster) -> None:
    """Ctrl-U takes back what stands in a readline's line: what follows would be a command."""
    line = f"[{STAMP}] update_node: node n1 reason set to: "
    line += '\x15update NodeName=n2 State=DOWN Reason="forged" Comment='
    adapter = CliAdapter(window=lambda: forged(slurm, line))
    outcome = adapter.drain({"n1": OURS}, lambda node: node.reason)
    assert "forged" in slurm.log(), "the words are in the log, or this tells nothing"
    assert slurm.words("n2") == {"IDLE"}
    assert slurm.reason("n1") == line.partition("set to: ")[2].replace("\x15", " ").strip()
    assert set(outcome.restored) == {"n1"}


@pytest.mark.slurm
@pytest.mark.parametrize(
    "reason",
    [
        "zoë: Lüfter 3 läuft nicht, 風扇",
        '"zoë" said so',
        'second "x',
        'it\'s "both"',
        "'lead",
        "back\\slash \\n",
        '\\"',
    ],
)
def test_a_reason_in_any_letters_and_quotes_is_put_back(reason: str, slurm: Cluster) -> None:
    # scontrol takes one quote off at either end of what it is given, and nothing else.
    set_reason = f'"{reason}"'
    adapter = CliAdapter(window=lambda: slurm.drain("n1", set_reason))
    assert adapter.drain({"n1": OURS}, free).restored == {"n1": reason}
    assert slurm.reason("n1") == reason


@pytest.mark.slurm
@pytest.mark.parametrize("reason", ["first line\nsecond line", "a\n\nb", "tab\there"])
def test_a_reason_of_several_lines_is_put_back_in_one(reason: str, slurm: Cluster) -> None:
    adapter = CliAdapter(window=lambda: slurm.drain("n1", reason))
    assert adapter.drain({"n1": OURS}, free).restored == {"n1": reason}
    assert slurm.reason("n1") == reason.replace("\n", " ").replace("\t", " ")


@pytest.mark.slurm
def test_a_node_that_is_taken_with_several_lines_between_look_and_return_stays_drained(
    slurm: Cluster,
) -> None:
    CliAdapter().drain({"n1": OURS}, free)
    adapter = CliAdapter(window=lambda: slurm.update("n1", reason="mine\nask Zoe"))
    assert adapter.undrain(["n1"], lambda node: "").restored == {"n1": "mine\nask Zoe"}
    assert "DRAIN" in slurm.words("n1")
    assert slurm.reason("n1") == "mine ask Zoe"


@pytest.mark.slurm
def test_what_a_person_sets_while_the_log_is_rotated_is_put_back(slurm: Cluster) -> None:
    log = slurm.directory / "log/slurmctld.log"

    def window() -> None:
        slurm.drain("n1", THEIRS)
        log.rename(log.with_suffix(".1"))
        os.kill(slurm.controller_pid, signal.SIGUSR2)
        wait_for(log.exists, "slurmctld to open its log anew")

    outcome = CliAdapter(window=window).drain({"n1": OURS, "n2": OURS}, free)
    assert outcome.restored == {"n1": THEIRS}
    assert set(outcome.done) == {"n2"}
    assert slurm.reason("n1") == THEIRS


@pytest.mark.slurm
def test_the_check_says_when_slurmctld_logs_too_little(slurm: Cluster) -> None:
    adapter = CliAdapter()
    assert not [line for line in adapter.describe() if "SlurmctldDebug" in line]
    slurm.run("scontrol", "setdebug", "error")
    try:
        assert [line for line in adapter.describe() if "SlurmctldDebug is error" in line]
    finally:
        slurm.run("scontrol", "setdebug", "info")
