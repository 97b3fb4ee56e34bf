"""A failed command means a no of slurmctld, or a way to it that failed: never one for the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.slurm.source import Options
from daemon.proofs.proof import ProofOptions
from daemon.slurm.adapter import SlurmError, SlurmRefused, SlurmUnavailable
from daemon.slurm.commands import Commands
from daemon.slurm.proving import ProofTools
from daemon.slurm.reboot import RebootSlurm
from daemon.slurm.soft import SoftSlurm
from daemon.slurm.writing import raise_if_not_written


def options(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Options:
    """Options whose scontrol is a script."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    tool = folder / "scontrol"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    return Options(binaries=folder)


def failure(made: Options, what: str) -> SlurmError:
    tries: dict[str, Callable[[], None]] = {
        "reboot": lambda: RebootSlurm(made).reboot("n1", resume=False),
        "weight": lambda: SoftSlurm(made).set_weight("n1", 7),
        "reserve": lambda: ProofTools(ProofOptions(), made).reserve("tocsin_0123abcd", "n1"),
    }
    with pytest.raises(SlurmError) as caught:
        tries[what]()
    return caught.value


@pytest.mark.parametrize("what", ["reboot", "weight", "reserve"])
def test_a_connection_that_broke_is_no_refusal(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = options(tmp_path, monkeypatch, "echo 'slurm_update error: Broken pipe' >&2; exit 1")
    error = failure(made, what)
    assert isinstance(error, SlurmUnavailable)
    assert not error.not_sent
    made = options(tmp_path, monkeypatch, "kill -SEGV $$")
    error = failure(made, what)
    assert isinstance(error, SlurmUnavailable)
    assert not error.not_sent


@pytest.mark.parametrize("what", ["reboot", "weight", "reserve"])
def test_a_no_is_one_and_what_did_not_connect_was_not_sent(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "slurm_update error: Requested reservation is in use"
    error = failure(options(tmp_path, monkeypatch, f"echo '{said}' >&2; exit 1"), what)
    assert isinstance(error, SlurmRefused)
    assert error.not_sent
    said = "slurm_update error: Unable to contact slurm controller (connect failure)"
    error = failure(options(tmp_path, monkeypatch, f"echo '{said}' >&2; exit 1"), what)
    assert isinstance(error, SlurmUnavailable)
    assert error.not_sent


def test_behind_a_closed_fence_no_command_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = options(tmp_path, monkeypatch, f"touch {tmp_path}/started")
    commands = Commands("slurm-test", made, fence=lambda: "another head holds the lease")
    with pytest.raises(SlurmUnavailable, match="another head") as caught:
        commands.must("scontrol", "update", "NodeName=n1", "State=DRAIN")
    assert caught.value.not_sent
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "said",
    [
        "slurm_update error: Broken pipe",
        "slurm_update error: Connection reset by peer",
        "slurm_update error: Zero Bytes were transmitted or received",
        "slurm_update error: Unable to contact slurm controller (receive failure)",
        "slurm_update error: Protocol authentication error",
        "error: Munge decode failed: Failed to access socket",
        "slurm_update error: Insane message length",
    ],
)
def test_a_drain_whose_answer_was_lost_is_read_back_and_never_called_not_made(said: str) -> None:
    raise_if_not_written(said, "scontrol")


def test_a_drain_that_was_refused_or_never_left_is_known_not_to_be_made() -> None:
    with pytest.raises(SlurmRefused):
        raise_if_not_written("slurm_update error: Access/permission denied", "scontrol")
    with pytest.raises(SlurmUnavailable):
        raise_if_not_written("error: Munge encode failed: Failed to access socket", "scontrol")
