"""Whatever Slurm's commands say of a connection has a name, and none says a write was not made
where it may have been.
"""

from __future__ import annotations

import errno
import os

import pytest

from collectors.command import Result
from collectors.slurm.faults import AWAY, trouble, trouble_of_text

# What Slurm's own clients say (src/common/slurm_errno.c of 22.05 to 26.11), and under which name.
SAID = {
    "Unable to contact slurm controller (connect failure)": "stopped",
    "Communication connection failure": "stopped",
    "Connection timed out establishing": "stopped",
    "Unexpected missing socket error": "stopped",
    "Slurm backup controller in standby mode": "stopped",
    "Controller is in standby mode, try a different controller": "stopped",
    "Process is shutting down and closing all communications": "stopped",
    "Unable to contact slurm controller (shutdown failure)": "stopped",
    "Socket timed out on send/recv operation": "hung",
    "Connection timed out writing": "hung",
    "Connection timed out reading": "hung",
    "Read would block": "hung",
    "Connection forced closed by quiesce timeout": "hung",
    "Zero Bytes were transmitted or received": "broken",
    "Message send failure": "broken",
    "Message receive failure": "broken",
    "Unable to contact slurm controller (send failure)": "broken",
    "Unable to contact slurm controller (receive failure)": "broken",
    "Connection rejected by handler": "broken",
    "Unable to process incoming file descriptor": "broken",
    "Kernel reported delayed socket error after successful write(), client side likely closed": (
        "broken"
    ),
    "Unexpected message received": "version",
    "Incompatible versions of client and server code": "version",
    "I/O stream version number error": "version",
    "Insane message length": "version",
    "Header lengths are longer than data received": "version",
    "Protocol authentication error": "authentication",
    "Invalid authentication credential": "authentication",
    "Authentication credential expired": "authentication",
    "Cannot unpack credential": "authentication",
    "Rejecting authentication of user nobody or group nobody": "authentication",
    "TLS missing but required for connection": "authentication",
    "Can't find an address, check slurm.conf": "unconfigured",
    "Plugin initialization failed": "unconfigured",
    "Rate limit exceeded, please retry momentarily": "busy",
    "Rate limit exceeded, please retry later": "busy",
    "Access/permission denied": "refused",
    "Invalid user id": "refused",
}
# What it passes on from the C library.
ERRNOS = {
    errno.EPIPE: "broken",
    errno.ECONNRESET: "broken",
    errno.ECONNABORTED: "broken",
    errno.ENOTCONN: "broken",
    errno.ESHUTDOWN: "broken",
    errno.EPROTO: "broken",
    errno.EBADF: "broken",
    errno.EIO: "broken",
    errno.EINTR: "broken",
    errno.ECONNREFUSED: "stopped",
    errno.EHOSTUNREACH: "stopped",
    errno.EHOSTDOWN: "stopped",
    errno.ENETUNREACH: "stopped",
    errno.ENETDOWN: "stopped",
    errno.ETIMEDOUT: "stopped",
    errno.EMFILE: "busy",
    errno.ENFILE: "busy",
    errno.ENOBUFS: "busy",
    errno.ENOMEM: "busy",
    errno.EAGAIN: "busy",
}


@pytest.mark.parametrize(("said", "kind"), SAID.items())
def test_each_of_slurms_words_for_a_connection_has_a_name(said: str, kind: str) -> None:
    assert trouble_of_text(f"slurm_load_node error: {said}\n", "scontrol").kind == kind


@pytest.mark.parametrize(("number", "kind"), ERRNOS.items())
def test_each_of_the_c_librarys_words_has_a_name(number: int, kind: str) -> None:
    error = trouble_of_text(f"slurm_load_node error: {os.strerror(number)}\n", "scontrol")
    assert error.kind == kind
    assert error.kind in AWAY
    assert not error.not_sent


def test_only_what_rules_it_out_says_that_nothing_was_sent() -> None:
    never = {
        "Unable to contact slurm controller (connect failure)",
        "Communication connection failure",
        "Connection timed out establishing",
        "Slurm backup controller in standby mode",
        "Controller is in standby mode, try a different controller",
        "Rate limit exceeded, please retry momentarily",
        "Rate limit exceeded, please retry later",
        "Access/permission denied",
        "Invalid user id",
    }
    told = {said for said in SAID if trouble_of_text(f"slurm_update error: {said}", "x").not_sent}
    assert told == never
    assert trouble_of_text("error: Munge encode failed: Failed to access socket", "x").not_sent


def test_a_second_controller_that_broke_off_leaves_it_open_whether_something_was_sent() -> None:
    said = (
        "error: Unable to contact slurm controller (connect failure)\n"
        "slurm_update error: Unable to contact slurm controller (receive failure)"
    )
    assert not trouble_of_text(said, "scontrol").not_sent


def test_an_answer_that_cannot_be_authenticated_may_answer_a_write_that_was_made() -> None:
    error = trouble_of_text("error: Munge decode failed: Failed to access socket", "scontrol")
    assert (error.kind, error.not_sent) == ("authentication", False)


def test_the_last_of_many_words_counts_too() -> None:
    said = "scontrol: error: again\n" * 60 + "slurm_load_node error: Broken pipe\n"
    assert trouble_of_text(said, "scontrol").kind == "broken"


def test_a_command_that_was_killed_said_neither_yes_nor_no() -> None:
    result = Result(("scontrol", "update"), "ended", -11, fault="scontrol was ended by SIGSEGV")
    error = trouble(result)
    assert (error.kind, error.not_sent) == ("broken", False)
    assert "SIGSEGV" in str(error)
