"""One BMC read by FreeIPMI: sensors, and what is new in the log."""

from __future__ import annotations

import hashlib

from collectors.bmc.fleet import Poll
from collectors.bmc.ipmi_batches import Batches
from collectors.bmc.ipmi_faults import NO_PRIVILEGE, WRONG_LOGIN, WRONG_PASSWORD, WRONG_USER
from collectors.bmc.ipmi_freeipmi import parse
from collectors.bmc.ipmi_sel import parse_freeipmi
from collectors.bmc.targets import Secrets, Target
from collectors.events import WARNING, event
from collectors.sample import Problem, Sample

OLD_DRIVER = "LAN"  # IPMI 1.5
TAIL_ENTRIES = 64
TAIL_LIMIT_ENTRIES = 4_096
_LOGIN = frozenset({WRONG_PASSWORD, WRONG_USER, WRONG_LOGIN, NO_PRIVILEGE})


class FreeBmc:
    """Reads one BMC through :class:`Batches`.

    ``seen`` holds the entries of the log's end by a short hash each: record ids come again after
    a log was cleared. None before the first reading. ``driver`` is FreeIPMI's word for how this
    BMC speaks, where it was found out.
    """

    def __init__(self, target: Target, batches: Batches, backlog: int, with_log: bool) -> None:
        self.seen: list[str] | None = None
        self.driver = ""
        self._target = target
        self._batches = batches
        self._backlog = backlog
        self._with_log = with_log
        self._suspect = False

    def dump(self) -> object:
        """Where the log stands, as JSON data; None before it was read."""
        return None if self.seen is None else {"freeipmi": self.seen, "driver": self.driver}

    def load(self, data: object) -> None:
        """Takes what ``dump`` gave; anything else is no beginning."""
        held = data.get("freeipmi") if isinstance(data, dict) else None
        if isinstance(data, dict) and isinstance(held, list):
            self.seen = [str(one) for one in held[-TAIL_LIMIT_ENTRIES:]]
            self.driver = OLD_DRIVER if data.get("driver") == OLD_DRIVER else ""

    async def visit(self, secrets: Secrets, poll: Poll, now_ns: int) -> None:
        """Reads once into ``poll``."""
        node, host = self._target.node, self._target.address
        if self._target.port:
            host += f":{self._target.port}"
        told = await self._batches.sensors(host, secrets, self._suspect, self.driver)
        samples, problems = parse(told.text, node, now_ns)
        poll.samples.extend(samples)
        poll.problems.extend(Problem(f"{node}: {one.problem}", one.line) for one in problems)
        if told.fault and not samples:
            poll.fault = told.fault
            poll.kind = "login" if told.fault in _LOGIN else "silent"
        self._suspect = bool(poll.fault)
        if self._with_log and not poll.fault:
            await self._log(host, secrets, poll, now_ns)

    async def _log(self, host: str, secrets: Secrets, poll: Poll, now_ns: int) -> None:
        known = set(self.seen or ())
        tail = TAIL_ENTRIES
        while True:
            told = await self._batches.log(host, secrets, tail, self.driver)
            if told.fault and not told.text:
                poll.problems.append(Problem(f"{self._target.node}: log: {told.fault}"))
                return
            lines = [line for line in told.text.splitlines() if line.strip()]
            new = [line for line in lines if _name(line) not in known]
            if len(new) < len(lines) or len(lines) < tail or self.seen is None:
                break
            if tail >= TAIL_LIMIT_ENTRIES:
                poll.samples.append(self._gap(now_ns))
                break
            tail *= 4
        if self.seen is None:
            new = new[-self._backlog :] if self._backlog else []
        self.seen = [_name(line) for line in lines]
        samples, problems = parse_freeipmi(
            "".join(f"{line}\n" for line in new), self._target.node, now_ns
        )
        poll.samples.extend(samples)
        poll.problems.extend(problems)

    def _gap(self, now_ns: int) -> Sample:
        text = f"SEL: over {TAIL_LIMIT_ENTRIES} new entries at once, or a new log: older are left"
        return event(
            self._target.node, "sel", "log_gap", now_ns, text=text, severity=WARNING, device="SEL"
        )


def _name(line: str) -> str:
    return hashlib.blake2s(line.encode(), digest_size=6).hexdigest()
