"""Reads state and counters of many fabric ports in one process, many requests in flight.

Made for a process of its own (collectors.ib.fabric_worker), for the library waits in the kernel:
its caller can end it. It asks with Get only; no counter is ever reset.

A node is one line: ``LID GUID PORT[,PORT...] FLAGS MASK``. The node that answers at the LID must
have that GUID, or nothing is read of it: a subnet manager may have given the LID to another.
Flags: ``i`` read PortInfo, ``s`` suspect: it did not answer last time and is asked once, last,
``-`` none. MASK is ``MASK:MASK2`` as was told before, or ``?``.

What comes is a row of records: LID, port, kind and length (``RECORD``), then what the port
answered, as it came over the wire (see ``collectors.ib.fabric_answers``). The last one is DONE;
without it the output was cut off.

Layouts: InfiniBand Architecture Specification vol. 1, 13.4 (MAD), 14.2.5.6 (PortInfo),
16.1.3.5 (PortCounters), 16.1.4.11 (PortCountersExtended). Library: libibumad of rdma-core.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import time
from collections import deque

GET, GET_RESPONSE = 0x01, 0x81
SUBNET_CLASS, PERFORMANCE_CLASS = 0x01, 0x04
QP1_KEY = 0x80010000
CLASS_PORT_INFO, NODE_INFO, PORT_INFO, SM_INFO = 0x01, 0x11, 0x15, 0x20
PORT_COUNTERS, PORT_COUNTERS_EXTENDED = 0x12, 0x1D
SUBNET_ATTRIBUTES = frozenset({NODE_INFO, PORT_INFO, SM_INFO})
NODE_GUID_AT = 12
MAD_BYTES, DATA_AT = 256, 64
# Places in a packet: agent, status, time-out and retries of the kernel's header, the LID in it,
# and from the MAD's begin its number (transaction), attribute and modifier.
AGENT, TIMES, LID, STATUS_OF = map(struct.Struct, ("=IIII", "=II", ">H", "=I"))
STATUS_AT, TIMES_AT, LID_AT = 4, 8, 28
REQUEST, REQUEST_AT = struct.Struct(">QHxxI"), 8
ANSWER, ANSWER_AT = struct.Struct(">HxxQ"), 4

# Records. A PortInfo is kept up to LinkSpeedExtActive, of counters what follows their selectors.
RECORD = struct.Struct(">HBBH")
INFO, COUNTERS, COUNTERS_WAIT, EXTENDED, WIDER, FAILED, MASKS, SILENT, DONE = range(1, 10)
MANAGER = 10
MASKS_OF, FAILED_OF, SILENT_OF = map(struct.Struct, (">HI", ">H", ">HB"))
INFO_PART, COUNTERS_PART = slice(0, 64), slice(4, 44)
EXTENDED_PART, ERRORS_PART = slice(8, 24), slice(72, 176)
MANAGER_PART = slice(0, 21)
WIDE, WIDE_NO_UNICAST, WAIT = 0x0200, 0x0400, 0x1000  # ClassPortInfo.CapabilityMask
STATUS = 0x7FFF  # MAD status: busy, redirected, not supported; bit 15 is the direction
WIDE_ERRORS = 1 << 1  # ClassPortInfo.CapabilityMask2

SILENCE_LIMIT = 2  # timeouts in a row after which the rest of a node is left
NODE_WINDOW = 4  # requests in flight to one node that answers


class Node:
    """One node to be read, and how it goes. (No dataclass: there are thousands.)"""

    __slots__ = (
        *("lid", "guid", "ports", "info", "suspect", "mask", "mask2", "todo", "able", "flying"),
        *("answered", "timeouts", "asked_mask", "knows_mask", "stranger", "read", "gone"),
    )

    def __init__(self, lid: int, guid: int, ports: list[int], info: bool, suspect: bool) -> None:
        self.lid = lid
        self.guid = guid
        self.ports = ports
        self.info = info
        self.suspect = suspect
        self.mask = -1
        self.mask2 = 0
        self.todo: deque[tuple[int, int]] = deque()
        self.able = False
        self.flying = 0
        self.answered = False
        self.timeouts = 0
        self.asked_mask = False
        self.knows_mask = True
        self.stranger = False
        self.read: set[int] = set()  # ports that told their state or counters
        self.gone = ""

    @property
    def has_all_wide(self) -> bool:
        """Whether its extended counters hold errors, too (then they hold all)."""
        return bool(self.mask2 & WIDE_ERRORS and self.mask & (WIDE | WIDE_NO_UNICAST))


class Umad:
    """One port of one adapter, two agents (subnet and performance).

    libibumad, by ctypes, opens it and makes the header of a packet; the packets themselves are
    written and read as the library does it (umad_send(3), umad_recv(3); linux/rdma/ib_user_mad.h),
    without it in between: that takes a third of the time.
    """

    def __init__(self, adapter: str, port: int) -> None:
        library = ctypes.CDLL("libibumad.so.3", use_errno=True)
        library.umad_init()
        name = adapter.encode() if adapter else None
        self._fd = library.umad_open_port(name, port)
        if self._fd < 0:
            raise OSError(f"no usable InfiniBand port ({self._fd}): is ib_umad loaded?")
        self._size = library.umad_size()
        self._heads = {}
        for kind, qp, key in ((PERFORMANCE_CLASS, 1, QP1_KEY), (SUBNET_CLASS, 0, 0)):
            agent = library.umad_register(self._fd, kind, 1, 0, None)
            if agent < 0:
                raise OSError(f"this port takes no management packets ({agent}): is it RoCE?")
            space = ctypes.create_string_buffer(self._size + MAD_BYTES)
            library.umad_set_addr(space, 0, qp, 0, key)
            head = bytearray(space.raw)
            AGENT.pack_into(head, 0, agent, 0, 0, 0)
            head[self._size : self._size + 4] = bytes((1, kind, 1, GET))
            self._heads[kind] = head
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._library = library

    def close(self) -> None:
        """Gives the port back."""
        self._library.umad_close_port(self._fd)

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
        size = self._size
        if attribute in SUBNET_ATTRIBUTES:
            packet, modifier = self._heads[SUBNET_CLASS], port
        else:
            packet, modifier = self._heads[PERFORMANCE_CLASS], 0
            packet[size + DATA_AT + 1] = port
        TIMES.pack_into(packet, TIMES_AT, timeout_ms, retries)
        LID.pack_into(packet, LID_AT, lid)
        REQUEST.pack_into(packet, size + REQUEST_AT, number, attribute, modifier)
        try:
            return os.write(self._fd, packet) == len(packet)
        except OSError:
            return False

    def receive(self, timeout_ms: int) -> tuple[int, int, int, bytes] | None:
        """(number, transport error, MAD status, data), or None when nothing came in time."""
        size = self._size
        try:
            if not self._poll.poll(timeout_ms):
                return None
            raw = os.read(self._fd, size + MAD_BYTES)
        except OSError:
            return None
        if len(raw) < size + DATA_AT:
            return None
        (error,) = STATUS_OF.unpack_from(raw, STATUS_AT)
        status, number = ANSWER.unpack_from(raw, size + ANSWER_AT)
        return number & 0xFFFFFFFF, error, status, raw[size + DATA_AT :]


class Sweep:
    """Asks every node, at most ``window`` requests at once, and keeps what came."""

    def __init__(
        self, umad: Umad, nodes: list[Node], window: int, timeout_ms: int, retries: int
    ) -> None:
        self._umad = umad
        self._window = window
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._longest_ms = timeout_ms * (retries + 2)
        self._flying: dict[int, tuple[Node, int, int]] = {}
        self._number = 0
        # Suspects come last: what does not answer must not delay what does.
        self._ready = deque(sorted(nodes, key=lambda node: node.suspect))
        self._able: deque[Node] = deque()
        self.sent = 0
        self.timeouts = 0
        self.records: list[bytes] = []
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

    def ask_manager(self, lid: int) -> None:
        """Asks the subnet manager at ``lid``, too; it need not be a node of the fabric."""
        manager = Node(lid, 0, [], info=False, suspect=False)
        manager.todo.append((SM_INFO, 0))
        self._ready.appendleft(manager)

    def run(self, deadline: float) -> bool:
        """Reads until all is done (True) or the monotonic time ``deadline`` comes (False)."""
        while self._flying or self._ready or self._able:
            self._fill()
            if not self._flying:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            answer = self._umad.receive(min(int(left * 1000) + 1, self._longest_ms))
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

    def _fill(self) -> None:
        """Sends until the window is full or no node may be asked more at this moment."""
        flying, able, ready = self._flying, self._able, self._ready
        while len(flying) < self._window:
            if able:
                node = able.popleft()
                node.able = False
            elif ready:
                node = ready.popleft()
            else:
                return
            if node.todo:
                self._send(node)
                self._may_send(node)

    def _may_send(self, node: Node) -> None:
        # What a node can tell decides what it is asked: until that is known, one at a time.
        if node.todo and not node.able:
            most = NODE_WINDOW if node.answered and node.knows_mask else 1
            if node.flying < most:
                node.able = True
                self._able.append(node)

    def _send(self, node: Node) -> None:
        attribute, port = node.todo.popleft()
        if attribute == PORT_COUNTERS_EXTENDED and not node.mask & (WIDE | WIDE_NO_UNICAST):
            return
        if attribute == PORT_COUNTERS and node.has_all_wide:
            return  # all of it comes with 64 bits, in one answer
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
            if attribute not in (NODE_INFO, CLASS_PORT_INFO, SM_INFO):
                self._record(node, port, FAILED, FAILED_OF.pack(attribute))
            self._silent(node, "no answer")
            return
        if attribute == NODE_INFO:
            self._identify(node, status, data)
            return
        if attribute == SM_INFO:
            if not status & STATUS:
                self._record(node, 0, MANAGER, data[MANAGER_PART])
            return
        node.timeouts = 0
        if attribute == CLASS_PORT_INFO:
            if not status & STATUS:
                node.mask = struct.unpack_from(">H", data, 2)[0]
                node.mask2 = struct.unpack_from(">I", data, 4)[0] >> 5
            return
        if not status & STATUS:  # else the port cannot tell this
            self._take_port(node, attribute, port, data)

    def _take_port(self, node: Node, attribute: int, port: int, data: bytes) -> None:
        if attribute == PORT_INFO:
            self._record(node, port, INFO, data[INFO_PART])
        elif data[1] != port:
            return  # of another port than asked: nothing of it is believed
        elif attribute == PORT_COUNTERS:
            kind = COUNTERS_WAIT if node.mask & WAIT else COUNTERS
            self._record(node, port, kind, data[COUNTERS_PART])
        elif node.mask2 & WIDE_ERRORS:
            self._record(node, port, WIDER, data[EXTENDED_PART] + data[ERRORS_PART])
        else:
            self._record(node, port, EXTENDED, data[EXTENDED_PART])
            return
        node.read.add(port)

    def _record(self, node: Node, port: int, kind: int, data: bytes) -> None:
        self.records.append(RECORD.pack(node.lid, port, kind, len(data)) + data)

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


def sweep(
    lines: str,
    adapter: str = "",
    port: int = 0,
    window: int = 64,
    timeout_ms: int = 500,
    retries: int = 2,
    deadline_seconds: float = 30.0,
    manager_lid: int = 0,
) -> bytes:
    """Sweeps the nodes of ``lines``; all records. OSError where there is no port to ask through.

    ``manager_lid`` is where the subnet manager was: it is asked for SMInfo, too.
    """
    begin = time.monotonic()
    nodes = read_nodes(lines)
    try:
        umad = Umad(adapter, port)
    except AttributeError as error:
        raise OSError(str(error)) from error
    try:
        work = Sweep(umad, nodes, window, timeout_ms, retries)
        if manager_lid:
            work.ask_manager(manager_lid)
        whole = work.run(begin + deadline_seconds)
    finally:
        umad.close()
    records = work.records
    for node in nodes:
        if node.asked_mask and node.answered:
            told = MASKS_OF.pack(node.mask, node.mask2)
            records.append(RECORD.pack(node.lid, 0, MASKS, len(told)) + told)
        unread = sum(1 for one in node.ports if one not in node.read)
        if node.gone or (unread and not whole):
            words = (node.gone or "not reached before the deadline").encode()
            told = SILENT_OF.pack(unread, node.stranger) + words
            records.append(RECORD.pack(node.lid, 0, SILENT, len(told)) + told)
    seconds = time.monotonic() - begin
    done = {"done": whole, "sent": work.sent, "timeouts": work.timeouts, "seconds": seconds}
    told = json.dumps(done).encode()
    records.append(RECORD.pack(0, 0, DONE, len(told)) + told)
    return b"".join(records)
