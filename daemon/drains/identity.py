"""Which machine stands under a node's name: is it another one, or has it another GPU?

A node whose GPUs are mostly others than before, or whose board has another serial, is another
machine: its history begins anew, in the ledger (flap lock, escalation) and in the features, and
that is said. A single GPU that was swapped begins anew alone. A boot disk that changed is told
beside it and decides nothing: disks are swapped more often than machines.

An agent, or hardware, that names itself anew again and again would wipe what stands against it
and so never be locked: after ``ANEW_MAX`` times within a week the history is kept, and that is
said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collectors.events import INFO, event
from collectors.sample import Sample
from daemon.drains.ledger import DAY_NS, SECOND_NS, Ledger
from daemon.latest import Latest, NodeNow

SCHEMA = """
CREATE TABLE IF NOT EXISTS identities (
    node TEXT PRIMARY KEY, gpus TEXT NOT NULL, chassis TEXT NOT NULL, since_ns INTEGER NOT NULL
);
"""
# A GPU that was not read for so long may have gone with the old machine.
FRESH_NS = 900 * SECOND_NS
# A part that was replaced and whose replacement was replaced too: no more within so long.
ANEW_MAX = 2
ANEW_WINDOW_NS = 7 * DAY_NS


@dataclass(frozen=True, slots=True)
class Identity:
    """GPUs by index with their UUIDs, and the words of the chassis event. Empty: not known."""

    gpus: Mapping[int, str] = field(default_factory=dict)
    chassis: str = ""

    def word(self, name: str) -> str:
        """``serial`` or ``disk`` of the chassis."""
        words = dict(part.split("=", 1) for part in self.chassis.split() if "=" in part)
        return words.get(name, "")


@dataclass(frozen=True, slots=True)
class Change:
    """What was replaced on ``node``: a part, or with no ``device`` all of it."""

    node: str
    device: str
    text: str


def of_now(now: NodeNow, now_ns: int) -> Identity:
    """What was last heard of a node."""
    gpus = {
        index: gpu.uuid
        for index, gpu in now.gpus.items()
        if gpu.uuid and now_ns - gpu.arrival_ns < FRESH_NS
    }
    return Identity(gpus, now.chassis)


def compare(node: str, before: Identity, now: Identity) -> list[Change]:
    """What was replaced between two looks; what is not known now has not changed."""
    serial, serial_now = before.word("serial"), now.word("serial")
    old, new = set(before.gpus.values()), set(now.gpus.values())
    swapped = {
        index: (before.gpus[index], uuid)
        for index, uuid in sorted(now.gpus.items())
        if index in before.gpus and uuid not in old and before.gpus[index] not in new
    }
    beside = ""
    if before.word("disk") and now.word("disk") and before.word("disk") != now.word("disk"):
        beside = f"; its boot disk is {now.word('disk')}, before {before.word('disk')}"
    if serial and serial_now and serial != serial_now:
        text = f"another machine: its serial is {serial_now}, before {serial}{beside}"
        return [Change(node, "", f"{text}; its history begins anew")]
    if len(before.gpus) > 1 and 2 * len(swapped) > len(before.gpus):
        text = f"another machine: {len(swapped)} of {len(before.gpus)} GPUs are others{beside}"
        return [Change(node, "", f"{text}; its history begins anew")]
    return [
        Change(node, f"gpu{index}", f"gpu{index} is {new_one}, before {old_one}: its history "
               f"begins anew{beside}")
        for index, (old_one, new_one) in swapped.items()
    ]  # fmt: skip


def merged(before: Identity, now: Identity, changes: Iterable[Change]) -> Identity:
    """What is known from now on. Of another machine nothing of the old one is kept."""
    if any(not one.device for one in changes):
        return Identity(now.gpus, now.chassis)
    return Identity({**before.gpus, **now.gpus}, now.chassis or before.chassis)


def seen_in(latest: Latest, now_ns: int) -> dict[str, Identity]:
    """Every node of which a GPU or a chassis is known. Called in the watch's thread."""
    found = {name: of_now(now, now_ns) for name, now in latest.nodes.items()}
    return {name: one for name, one in found.items() if one.gpus or one.chassis}


class Identities:
    """Remembers who stands where, over restarts. Not for use from two threads at once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        ledger.database.define(SCHEMA)
        self._known: dict[str, Identity] | None = None

    def check(self, seen: Mapping[str, Identity], now_ns: int) -> list[Sample]:
        """Writes down what changed; answers the events that tell the watch and the store."""
        known = self._load()
        told: list[Sample] = []
        fresh: dict[str, Identity] = {}
        for node, now in seen.items():
            before = known.get(node)
            if before == now:
                continue
            changes = compare(node, before, now) if before is not None else []
            kept = merged(before, now, changes) if before is not None else now
            if kept != before:
                fresh[node] = kept
            for one in changes:
                if self._flips(one, now_ns):
                    continue
                self._ledger.begin_anew(one.node, one.device, one.text, now_ns)
                told.append(
                    event(
                        one.node, "inventory", "replaced", now_ns, text=one.text, severity=INFO,
                        device=one.device,
                    )
                )  # fmt: skip
        if fresh:
            with self._ledger.database.transaction() as connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO identities VALUES (?, ?, ?, ?)",
                    [
                        (node, json.dumps(one.gpus), one.chassis, now_ns)
                        for node, one in fresh.items()
                    ],
                )
            known.update(fresh)
        return told

    def _flips(self, one: Change, now_ns: int) -> bool:
        """Whether it changed too often to be believed; said once a day."""
        times = self._ledger.anew_since(one.node, one.device, now_ns - ANEW_WINDOW_NS)
        if times < ANEW_MAX:
            return False
        if now_ns - self._ledger.last_said_ns(one.node, "identity_flips") > DAY_NS:
            what = one.device or "the machine"
            text = (
                f"{what} was another one {times} times within 7 days and is again; its history is "
                "kept from now on: look at who answers for this node"
            )
            self._ledger.say(now_ns, user="tocsin", verb="identity_flips", node=one.node, text=text)
        return True

    def _load(self) -> dict[str, Identity]:
        if self._known is None:
            rows = self._ledger.database.query("SELECT node, gpus, chassis FROM identities")
            self._known = {
                row["node"]: Identity(
                    {int(index): str(uuid) for index, uuid in json.loads(row["gpus"]).items()},
                    row["chassis"],
                )
                for row in rows
            }
        return self._known
