"""Who is at the other end of the operator's unix socket, and whether they may be there.

The kernel says so (SO_PEERCRED, unix(7)); nothing the client sends is believed.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that called: its ids and the name of its user."""

    pid: int
    uid: int
    gid: int
    user: str


def peer_of(request: web.Request) -> Peer | None:
    """The caller by the kernel's word, or None when this is no unix socket."""
    transport = request.transport
    end = transport.get_extra_info("socket") if transport is not None else None
    if end is None or end.family != socket.AF_UNIX:
        return None
    size = struct.calcsize("3i")
    pid, uid, gid = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return Peer(pid, uid, gid, user_name(uid))


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
