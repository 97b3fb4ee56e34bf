"""Reads state and counters of many fabric ports in one process, many requests in flight.

A program of its own (``python -m collectors.fabric_sweep``), for the library waits in the kernel:
its caller can end it. It asks with Get only; no counter is ever reset.

Standard input has one node a line: ``LID GUID PORT[,PORT...] FLAGS MASK``. The node that answers
at the LID must have that GUID, or nothing is read of it: a subnet manager may have given the LID
to another. Flags: ``i`` read
PortInfo, ``s`` suspect: it did not answer last time and is asked once, last, ``-`` none. MASK is
``MASK:MASK2`` as this program told them before, or ``?``.
Standard output has one JSON object a line: ``{"l": LID, "p": PORT, "i": [...], "c": [...],
"x": [...], "y": [...]}`` with what was read of a port, ``{"l": LID, "m": [MASK, MASK2]}`` with
what a node can tell, ``{"l": LID, "e": WORDS, "left": N}`` for a node that does not answer, and
at the end ``{"done": ...}``. Output without that line was cut off.

Layouts: InfiniBand Architecture Specification vol. 1, 13.4 (MAD), 14.2.5.6 (PortInfo),
16.1.3.5 (PortCounters), 16.1.4.11 (PortCountersExtended). Library: libibumad of rdma-core.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

GET, GET_RESPONSE = 0x01, 0x81
SUBNET_CLASS, PERFORMANCE_CLASS = 0x01, 0x04
QP1_KEY = 0x80010000
CLASS_PORT_INFO, NODE_INFO, PORT_INFO = 0x01, 0x11, 0x15
PORT_COUNTERS, PORT_COUNTERS_EXTENDED = 0x12, 0x1D
SUBNET_ATTRIBUTES = frozenset({NODE_INFO, PORT_INFO})
NODE_GUID_AT = 12
MAD_BYTES, DATA_AT = 256, 64
HEAD = struct.Struct(">BBBBHHQHHI")

# Order of the answers: see collectors.fabric_answers, which names them.
COUNTERS = struct.Struct(">HBBHHHHBBxBHHIIIII")
EXTENDED = struct.Struct(">QQQQ")
EXTENDED_ERRORS = struct.Struct(">13Q")
EXTENDED_AT, EXTENDED_ERRORS_AT = 8, 72
WIDE, WIDE_NO_UNICAST, WAIT = 0x0200, 0x0400, 0x1000  # ClassPortInfo.CapabilityMask
STATUS = 0x7FFF  # MAD status: busy, redirected, not supported; bit 15 is the direction
WIDE_ERRORS = 1 << 1  # ClassPortInfo.CapabilityMask2

SILENCE_LIMIT = 2  # timeouts in a row after which the rest of a node is left
NODE_WINDOW = 4  # requests in flight to one node that answers


@dataclass
class Node:
    """One node to be read, and how it goes."""

    lid: int
    guid: int
    ports: list[int]
    info: bool
    suspect: bool
    mask: int = -1
    mask2: int = 0
    todo: deque[tuple[int, int]] = field(default_factory=deque)
    able: bool = False
    flying: int = 0
    answered: bool = False
    timeouts: int = 0
    asked_mask: bool = False
    knows_mask: bool = True
    stranger: bool = False
    rows: dict[int, dict[str, object]] = field(default_factory=dict)
    gone: str = ""


class Umad:
    """libibumad by ctypes: one port of one adapter, two agents (subnet and performance)."""

    def __init__(self, adapter: str, port: int) -> None:
        library = ctypes.CDLL("libibumad.so.3", use_errno=True)
        library.umad_init()
        name = adapter.encode() if adapter else None
        self._library = library
        self._fd = library.umad_open_port(name, port)
        if self._fd < 0:
            raise OSError(f"no usable InfiniBand port ({self._fd}): is ib_umad loaded?")
        self._agents = {}
        for kind in (PERFORMANCE_CLASS, SUBNET_CLASS):
            agent = library.umad_register(self._fd, kind, 1, 0, None)
            if agent < 0:
                raise OSError(f"this port takes no management packets ({agent}): is it RoCE?")
            self._agents[kind] = agent
        self._size = library.umad_size()
        self._out = ctypes.create_string_buffer(self._size + MAD_BYTES)
        self._in = ctypes.create_string_buffer(self._size + MAD_BYTES)
        self._length = ctypes.c_int()

    def send(
        self,
        lid: int,
        number: int,
        attribute: int,
        port: int,
        timeout_ms: int,
        retries: int,
    ) -> bool:
        """Sends one Get; ``number`` comes back with the answer."""
        subnet = attribute in SUBNET_ATTRIBUTES
        kind = SUBNET_CLASS if subnet else PERFORMANCE_CLASS
        ctypes.memset(self._out, 0, self._size + MAD_BYTES)
        qp, key = (0, 0) if subnet else (1, QP1_KEY)
        self._library.umad_set_addr(self._out, lid, qp, 0, key)
        modifier = port if subnet else 0
        mad = HEAD.pack(1, kind, 1, GET, 0, 0, number, attribute, 0, modifier)
        if attribute in (PORT_COUNTERS, PORT_COUNTERS_EXTENDED):
            mad = mad.ljust(DATA_AT + 1, b"\0") + bytes([port])
        ctypes.memmove(ctypes.addressof(self._out) + self._size, mad, len(mad))
        agent = self._agents[kind]
        sent: int = self._library.umad_send(
            self._fd, agent, self._out, MAD_BYTES, timeout_ms, retries
        )
        return sent == 0

    def receive(self, timeout_ms: int) -> tuple[int, int, int, bytes] | None:
        """(number, transport error, MAD status, data), or None when nothing came in time."""
        self._length.value = MAD_BYTES
        got = self._library.umad_recv(self._fd, self._in, ctypes.byref(self._length), timeout_ms)
        if got < 0:
            return None
        raw = self._in.raw[self._size : self._size + MAD_BYTES]
        number = struct.unpack_from(">Q", raw, 8)[0] & 0xFFFFFFFF
        status = struct.unpack_from(">H", raw, 4)[0]
        return number, self._library.umad_status(self._in), status, raw[DATA_AT:]


class Sweep:
    """Asks every node, at most ``window`` requests at once, and keeps what came."""

    def __init__(
        self, umad: Umad, nodes: list[Node], window: int, timeout_ms: int, retries: int
    ) -> None:
        self._umad = umad
        self._window = window
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._flying: dict[int, tuple[Node, int, int]] = {}
        self._number = 0
        # Suspects come last: what does not answer must not delay what does.
        self._ready = deque(sorted(nodes, key=lambda node: node.suspect))
        self._able: deque[Node] = deque()
        self.sent = 0
        self.timeouts = 0
        for node in nodes:
            node.todo.append((NODE_INFO, 0))
            if node.mask < 0:
                node.asked_mask, node.knows_mask, node.mask = True, False, 0
                node.todo.append((CLASS_PORT_INFO, 0))
            for port in node.ports:
                self._plan(node, port)

    def _plan(self, node: Node, port: int) -> None:
        if node.info:
            node.todo.append((PORT_INFO, port))
        node.todo.append((PORT_COUNTERS, port))
        node.todo.append((PORT_COUNTERS_EXTENDED, port))

    def run(self, deadline: float) -> bool:
        """Reads until all is done (True) or the monotonic time ``deadline`` comes (False)."""
        while self._flying or self._ready or self._able:
            self._fill()
            if not self._flying:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            answer = self._umad.receive(min(int(left * 1000) + 1, self._longest_ms()))
            if answer is None:
                # The kernel answers for every request, if only with a timeout. Silence beyond
                # that means that they are lost.
                for node, _, _ in self._flying.values():
                    node.flying -= 1
                    self._silent(node, "no answer, not even a timeout")
                self._flying.clear()
            else:
                self._take(*answer)
        return True

    def _longest_ms(self) -> int:
        return self._timeout_ms * (self._retries + 2)

    def _fill(self) -> None:
        """Sends until the window is full or no node may be asked more at this moment."""
        while len(self._flying) < self._window:
            if self._able:
                node = self._able.popleft()
                node.able = False
            elif self._ready:
                node = self._ready.popleft()
            else:
                return
            if node.todo:
                self._send(node)
            self._may_send(node)

    def _may_send(self, node: Node) -> None:
        # What a node can tell decides what it is asked: until that is known, one at a time.
        most = NODE_WINDOW if node.answered and node.knows_mask else 1
        if node.todo and node.flying < most and not node.able:
            node.able = True
            self._able.append(node)

    def _send(self, node: Node) -> None:
        attribute, port = node.todo.popleft()
        if attribute == PORT_COUNTERS_EXTENDED and not node.mask & (WIDE | WIDE_NO_UNICAST):
            return
        self._number += 1
        retries = 0 if node.suspect else self._retries
        if self._umad.send(node.lid, self._number, attribute, port, self._timeout_ms, retries):
            self._flying[self._number] = (node, attribute, port)
            node.flying += 1
            self.sent += 1
        else:
            self._silent(node, "the request cannot be sent")

    def _take(self, number: int, error: int, status: int, data: bytes) -> None:
        found = self._flying.pop(number, None)
        if found is None:
            return  # late: it was given up
        node, attribute, port = found
        node.flying -= 1
        self._note(node, attribute, port, error, status, data)
        self._may_send(node)

    def _note(
        self, node: Node, attribute: int, port: int, error: int, status: int, data: bytes
    ) -> None:
        if attribute == CLASS_PORT_INFO:
            node.knows_mask = True
        if error:
            self.timeouts += 1
            if attribute not in (NODE_INFO, CLASS_PORT_INFO):
                _add(node, port, "e", attribute)
            self._silent(node, "no answer")
            return
        if attribute == NODE_INFO:
            self._identify(node, status, data)
            return
        node.timeouts = 0
        if attribute == CLASS_PORT_INFO:
            if not status & STATUS:
                node.mask = struct.unpack_from(">H", data, 2)[0]
                node.mask2 = struct.unpack_from(">I", data, 4)[0] >> 5
            return
        row = node.rows.setdefault(port, {})
        if status & STATUS:
            _add(node, port, "u", attribute)
        elif attribute == PORT_INFO:
            row["i"] = [data[32] & 15, data[33] >> 4, data[31], data[35] >> 4, data[62] >> 4]
        elif data[1] != port:
            _add(node, port, "u", attribute)
        elif attribute == PORT_COUNTERS:
            row["c"] = list(COUNTERS.unpack_from(data, 4))
            row["w"] = bool(node.mask & WAIT)
        else:
            row["x"] = list(EXTENDED.unpack_from(data, EXTENDED_AT))[:2]
            if node.mask2 & WIDE_ERRORS:
                row["y"] = list(EXTENDED_ERRORS.unpack_from(data, EXTENDED_ERRORS_AT))

    def _identify(self, node: Node, status: int, data: bytes) -> None:
        """Only a node that proves who it is is read on."""
        guid = struct.unpack_from(">Q", data, NODE_GUID_AT)[0]
        if not status & STATUS and guid == node.guid:
            node.answered = True
            return
        node.stranger = not status & STATUS
        node.gone = (
            f"0x{guid:016x} answers at this LID" if node.stranger else "it says not who it is"
        )
        node.todo.clear()

    def _silent(self, node: Node, words: str) -> None:
        node.timeouts += 1
        if node.suspect or not node.answered or node.timeouts >= SILENCE_LIMIT:
            node.gone = words
            node.todo.clear()


def _add(node: Node, port: int, key: str, attribute: int) -> None:
    found = node.rows.setdefault(port, {}).setdefault(key, [])
    assert isinstance(found, list)
    found.append(attribute)


def read_nodes(text: str) -> list[Node]:
    """The nodes of standard input; a line that is none is left out."""
    nodes = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 5 or not words[0].isdecimal():
            continue
        lid, guid, listed, flags, masks = words
        ports = [int(one) for one in listed.split(",") if one.isdecimal() and int(one) < 255]
        node = Node(int(lid), int(guid, 16), ports, "i" in flags, "s" in flags)
        mask, colon, mask2 = masks.partition(":")
        if colon and mask.isdecimal() and mask2.isdecimal():
            node.mask, node.mask2 = int(mask), int(mask2)
        nodes.append(node)
    return nodes


def main() -> int:
    """Reads the options and nodes, sweeps, and prints."""
    parser = argparse.ArgumentParser(prog="fabric_sweep")
    parser.add_argument("--adapter", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--timeout-ms", type=int, default=500)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--deadline-seconds", type=float, default=30.0)
    options = parser.parse_args()
    begin = time.monotonic()
    nodes = read_nodes(sys.stdin.read())
    try:
        umad = Umad(options.adapter, options.port)
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"fabric_sweep: {error}\n")
        return 2
    sweep = Sweep(umad, nodes, options.window, options.timeout_ms, options.retries)
    whole = sweep.run(begin + options.deadline_seconds)
    lines = []
    for node in nodes:
        if node.asked_mask and node.answered:
            lines.append(json.dumps({"l": node.lid, "m": [node.mask, node.mask2]}))
        for port, row in node.rows.items():
            if row:
                lines.append(json.dumps({"l": node.lid, "p": port, **row}, separators=(",", ":")))
        unread = sum(1 for port in node.ports if not node.rows.get(port, {}).keys() & {"c", "i"})
        if node.gone or (unread and not whole):
            words = node.gone or "not reached before the deadline"
            told = {"l": node.lid, "e": words, "left": unread, "stranger": node.stranger}
            lines.append(json.dumps(told))
    seconds = time.monotonic() - begin
    done = {"done": whole, "sent": sweep.sent, "timeouts": sweep.timeouts, "seconds": seconds}
    lines.append(json.dumps(done))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
