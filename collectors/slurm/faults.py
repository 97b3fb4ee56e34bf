"""Names what is wrong when one of Slurm's commands cannot reach slurmctld or is turned away.

Slurm's clients print their own words for most failures of a connection and the C library's for
the rest ("Broken pipe", "Connection reset by peer"): whichever of them a client happens to see
when slurmctld is killed, restarted or not one, it is a fault of the connection and never of a
node. What a connection that broke says of a *write* is nothing at all: slurmctld may have had
the request. ``not_sent`` knows the few texts that rule this out.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from collectors.command import Result
from collectors.sample import SourceUnavailable, clip

STOPPED = "stopped"
HUNG = "hung"
BROKEN = "broken"
BUSY = "busy"
UNCONFIGURED = "unconfigured"
PLUGIN = "plugin"
AUTHENTICATION = "authentication"
VERSION = "version"
REFUSED = "refused"
MISSING = "missing"
GARBAGE = "garbage"

# In these slurmctld itself has said nothing of what was asked: neither yes nor no.
AWAY = frozenset(
    {
        STOPPED, HUNG, BROKEN, BUSY, UNCONFIGURED, PLUGIN, AUTHENTICATION, VERSION, MISSING,
        "standby",
    }
)  # fmt: skip


def _errnos(*numbers: int) -> str:
    """The C library's words for ``numbers``, as a pattern. All commands run with LC_ALL=C."""
    return "|".join(re.escape(os.strerror(number)) for number in numbers)


# Nobody was reached: certain where a connection is opened, and that is where these come from.
_NOBODY_THERE = _errnos(
    errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN,
    errno.EADDRNOTAVAIL,
)  # fmt: skip
# Somebody was reached, and then no longer.
_BROKE_OFF = _errnos(
    errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ENETRESET,
    errno.ESHUTDOWN, errno.EPROTO, errno.EBADF, errno.ENOTSOCK, errno.EIO, errno.EINTR,
    errno.EINPROGRESS, errno.EALREADY, errno.EISCONN, errno.EBADMSG,
)  # fmt: skip
# This host has no more of what a connection needs.
_NO_ROOM = _errnos(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN)

_WORDS: tuple[tuple[str, str, str], ...] = (
    # (kind, pattern in what the tool said, what to do)
    (
        AUTHENTICATION,
        r"munge|authentication error|auth_g_|Invalid authentication|authentication credential"
        r"|Cannot unpack credential|Rejecting authentication|socket peer credential"
        r"|Token Generation failed|TLS missing but required|authentication plugin",
        "authentication fails: is munged running here, with the cluster's key and clock?",
    ),
    (
        VERSION,
        r"Incompatible versions|Protocol version|Insane message length|Header lengths are longer"
        r"|Unsupported protocol|Message receive failure.*version|stream version number error"
        r"|Unexpected message received|Incompatible plugin version|invalid message type"
        r"|Malformed RPC",
        "client and slurmctld do not speak the same protocol: are their versions near enough?",
    ),
    (
        # 22.05 to 24.11, and 25.05 on.
        PLUGIN,
        r"JSON plugin load failure|could not find plugin for application/json",
        "Slurm's JSON plugin is not here: install the package that holds serializer_json.so"
        " (Debian and Ubuntu: slurm-wlm-basic-plugins)",
    ),
    (
        UNCONFIGURED,
        r"Could not establish a configuration source|cannot stat file|ClusterName needs to be"
        r"|Unable to process configuration file|DNS SRV lookup failed|Unable to read configuration"
        r"|Can't find an address, check slurm\.conf|unable to (?:read|status|open) \S*\.conf"
        r"|Unable to (?:resolve|establish) controller|Plugin initialization failed"
        r"|Plugin file not found|Dlopen of plugin file failed|cannot (?:create|find) \w+ context",
        "no usable slurm.conf or plugins: set SLURM_CONF or the option conf to the cluster's own",
    ),
    (
        BUSY,
        r"Rate limit exceeded",
        "slurmctld turns requests away (SlurmctldParameters=rl_enable): they are too many",
    ),
    (
        STOPPED,
        r"\(connect failure\)|Communication connection failure|Unexpected missing socket"
        r"|Connection timed out(?! (?:reading|writing))|in standby mode|shutdown failure"
        r"|Process is shutting down|Name or service not known|Unable to resolve"
        rf"|Temporary failure in name resolution|{_NOBODY_THERE}",
        "slurmctld cannot be reached: is it running?",
    ),
    (
        HUNG,
        r"Socket timed out|Communication timeout|timed out|would block|quiesce timeout",
        "slurmctld accepts and does not answer",
    ),
    (
        BROKEN,
        r"Zero Bytes were transmitted|Message (?:send|receive) failure|\((?:send|receive) failure\)"
        r"|Unable to contact slurm controller|Connection rejected by handler"
        r"|Unable to process (?:incoming|outgoing)|delayed socket error|Read error|Write error"
        rf"|{_BROKE_OFF}",
        "the connection to slurmctld broke off: is it being restarted? If it stays so, compare"
        " versions, munge key and clocks; slurmctld's log tells",
    ),
    (
        BUSY,
        _NO_ROOM,
        "this host or slurmctld has run out of memory, sockets or open files",
    ),
    (
        REFUSED,
        r"Invalid user id|Access/permission denied|access denied|permission denied|Request denied",
        "Slurm refuses this user: the head needs AdminLevel=Operator or to be SlurmUser",
    ),
)

# Said before a request leaves, or by slurmctld instead of looking at it; and what takes it back.
_NOT_SENT = re.compile(
    r"connect failure|connection failure|timed out establishing|encode failed|Rate limit exceeded"
    r"|in standby mode|JSON plugin load failure|could not find plugin for"
    r"|establish a configuration source|DNS SRV lookup failed",
    re.IGNORECASE,
)
_PERHAPS_SENT = re.compile(
    rf"send failure|receive failure|timed out on|Zero Bytes|decode failed|{_BROKE_OFF}",
    re.IGNORECASE,
)


class SlurmTrouble(SourceUnavailable):
    """slurmctld could not be read or written. ``kind`` is one of the words above.

    ``not_sent``: certainly nothing was changed. Where it is false nobody knows.
    """

    def __init__(self, kind: str, text: str, not_sent: bool = False) -> None:
        self.kind = kind
        self.not_sent = not_sent
        super().__init__(text)


def trouble(result: Result) -> SlurmTrouble:
    """The named error of a command that did not end well."""
    name = Path(result.argv[0]).name if result.argv else "the command"
    if result.status in ("missing", "refused"):
        return SlurmTrouble(MISSING, result.fault, not_sent=True)
    if result.status in ("timeout", "stuck"):
        return SlurmTrouble(HUNG, f"slurmctld does not answer: {result.fault}")
    said = (result.stderr or result.stdout)[:4000].decode("utf-8", "replace")
    if result.status != "ended" or result.returncode is None or result.returncode < 0:
        # Killed in the middle, whatever it had said before.
        return SlurmTrouble(BROKEN, f"{name} did not end by itself: {result.fault}")
    return trouble_of_text(said, name, result.fault)


def trouble_of_text(said: str, name: str, fault: str = "") -> SlurmTrouble:
    """The named error in what one of Slurm's commands said."""
    shown = clip(said, 300)
    said = clip(said, 4000)
    for kind, pattern, advice in _WORDS:
        if re.search(pattern, said, re.IGNORECASE):
            before = bool(_NOT_SENT.search(said)) and not _PERHAPS_SENT.search(said)
            return SlurmTrouble(kind, f"{advice} ({name}: {shown})", kind == REFUSED or before)
    return SlurmTrouble(GARBAGE, fault or f"{name} gave nothing to read: {shown}")
