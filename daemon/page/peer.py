"""Who is at the other end of the operator's unix socket, and whether they may be there.

The kernel says so (SO_PEERCRED, unix(7)); nothing the client sends is believed. Whoever speaks
through ``sudo`` or ``su`` is still the person who logged in: the kernel keeps their login in
``/proc/PID/loginuid`` (pam_loginuid(8)), whatever user they became since.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from daemon.policy.cases import as_other, without_login

PROC = Path("/proc")
# Nobody logged in: a service, or a host without pam_loginuid (audit's AUDIT_UID_UNSET).
_UNSET = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that called: its ids, the name of its user, and the user id that its person
    logged in with (None where the kernel does not say).
    """

    pid: int
    uid: int
    gid: int
    user: str
    login_uid: int | None = None

    @property
    def spoken(self) -> str:
        """Who speaks, as it is recorded: ``ann``, ``ann (as root)``, ``root (login unknown)``."""
        if self.login_uid is None:
            return without_login(self.user) if self.uid == 0 else self.user
        login = user_name(self.login_uid)
        return self.user if self.login_uid == self.uid else as_other(login, self.user)


def peer_of(request: web.Request) -> Peer | None:
    """The caller by the kernel's word, or None when this is no unix socket."""
    transport = request.transport
    end = transport.get_extra_info("socket") if transport is not None else None
    if end is None or end.family != socket.AF_UNIX:
        return None
    size = struct.calcsize("3i")
    pid, uid, gid = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return Peer(pid, uid, gid, user_name(uid), login_uid_of(pid, uid))


def login_uid_of(pid: int, uid: int, proc: Path = PROC) -> int | None:
    """Who logged in to what became process ``pid`` of user ``uid``; None where that is not known.

    The process may have ended and its number been given anew: then its user is another, mostly.
    """
    place = proc / str(pid)
    try:
        login = int((place / "loginuid").read_text())
        status = (place / "status").read_text()
    except (OSError, ValueError):
        return None
    ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    return login if login != _UNSET and str(uid) in ids else None


def user_name(uid: int) -> str:
    """The login of ``uid``, or ``uid 1234`` where the user database does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def may_operate(peer: Peer, group: str) -> bool:
    """Root, the head's own user and members of ``group`` may; nobody else."""
    if peer.uid in (0, os.getuid()):
        return True
    if not group:
        return False
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return False
    if peer.gid == entry.gr_gid:
        return True
    try:
        groups = os.getgrouplist(peer.user, peer.gid)
    except (KeyError, OSError):
        return False
    return entry.gr_gid in groups


def peers_only(group: str) -> Middleware:
    """A middleware that lets operators through and tells all others who they are."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = peer_of(request)
        if peer is None or not may_operate(peer, group):
            who = peer.user if peer is not None else "a caller without credentials"
            text = f"{who} may not operate tocsin here"
            if group:
                text += f"; be root or a member of group {group}"
            return web.json_response({"error": text}, status=403)
        return await handler(request)

    return middleware
