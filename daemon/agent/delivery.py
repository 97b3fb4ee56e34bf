"""Gets one body of line protocol to a server, whatever the server answers.

2xx, it is done. 400 and 422, the lines that the answer names are set aside in a quarantine
file (our gateway and InfluxDB 3 name them); where it names none (InfluxDB 1 and 2 do not), the
body is sent in halves until the bad lines stand alone, for such a server may have refused the
good ones with them, and keeps equal points once. 413, it is sent in halves too. Anything else,
it is not done, and the pause before the next attempt has full jitter and is not shorter than
Retry-After, so that ten thousand senders whose server comes back do not call at once.

Source of the pauses: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
Source of 422 (partial write of InfluxDB 2): https://docs.influxdata.com/influxdb/v2/api/
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.line_reader import fold_lines
from collectors.lines import LINE_LIMIT_BYTES
from collectors.sample import clip

log = logging.getLogger("tocsin.delivery")

_BACKOFF_FIRST_SECONDS = 0.5
# So many refusals of one body are looked into by halves; what is left then is set aside whole.
_REFUSALS_LIMIT = 400
_DROPPED = re.compile(rb"\bdropped=(\d{1,9})\b")


@dataclass(slots=True)
class Answer:
    """What a server said; status 0 when it did not answer (``body`` then says why)."""

    status: int
    body: bytes = b""
    retry_after_seconds: float = 0.0


@dataclass(slots=True)
class DeliveryCounts:
    """What became of the requests since the start of the process."""

    failures: int = 0
    quarantined_lines: int = 0
    fault: str = ""
    last_good_seconds: float | None = None


@dataclass
class Delivery:
    """Sends bodies by ``post(gzipped body, key)`` to the server that people know as ``where``."""

    post: Callable[[bytes, str], Awaitable[Answer]]
    where: str
    quarantine: Path
    quarantine_limit_bytes: int
    backoff_limit_seconds: float
    rng: random.Random = field(default_factory=random.Random)
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    # How often it failed lately: the ceiling of the pause doubles with it.
    _attempt: int = 0
    _last_status: int = -1

    def has_failed_for_long(self) -> None:
        """From now on as after a long outage: the next pause is drawn from all that is allowed."""
        while _BACKOFF_FIRST_SECONDS * 2.0**self._attempt < self.backoff_limit_seconds:
            self._attempt += 1

    async def send(self, body: bytes, key: str = "") -> float | None:
        """None when ``body`` is done with, else the seconds to wait before the next attempt."""
        answer = await self._settle(body, key)
        if answer is None:
            if self.counts.fault:
                log.warning("%s answers again", self.where)
            # Not back to nothing at once: a server that has just come back is easily lost again.
            self._attempt //= 2
            self._last_status = -1
            self.counts.fault = ""
            self.counts.last_good_seconds = asyncio.get_running_loop().time()
            return None
        self.counts.failures += 1
        self.counts.fault = self._fault(answer)
        if answer.status != self._last_status:
            log.warning("%s", self.counts.fault)  # once for each kind, not for each attempt
        self._last_status = answer.status
        ceiling = min(self.backoff_limit_seconds, _BACKOFF_FIRST_SECONDS * 2.0**self._attempt)
        if ceiling < self.backoff_limit_seconds:
            self._attempt += 1
        asked = min(answer.retry_after_seconds, 10 * self.backoff_limit_seconds)
        return asked + self.rng.uniform(0, max(ceiling, asked))

    async def _settle(self, body: bytes, key: str) -> Answer | None:
        """None when nothing of ``body`` need be sent again, else the answer that says why."""
        refused: list[_Refused] = []
        failed = await self._try(body, key, refused)
        if failed is None and refused:
            # Only now: a body that is sent again would be set aside again.
            await asyncio.to_thread(self._set_aside, refused)
        return failed

    async def _try(self, body: bytes, key: str, refused: list[_Refused]) -> Answer | None:
        while True:
            answer = await self.post(body, key)
            if 200 <= answer.status < 300:
                return None
            if answer.status not in (400, 413, 422):
                return answer
            lines = _lines(gzip.decompress(body))
            if named := _named_lines(answer.body):
                bad = [lines[n - 1] for n in named if 0 < n <= len(lines)]
                refused.append(_Refused(answer, bad))
                return None
            kept = [line for line in lines if line.strip()]
            bad = _named_by_influxdb3(answer.body, lines)
            if not bad or len(refused) >= _REFUSALS_LIMIT:
                return await self._halves(answer, kept, refused)
            refused.append(_Refused(answer, bad))
            kept = [line for line in kept if line not in bad]
            if not kept:
                return None
            # Whether it has kept these depends on how it is set; equal points are kept once.
            body, key = _packed(kept), ""

    async def _halves(
        self, answer: Answer, kept: list[bytes], refused: list[_Refused]
    ) -> Answer | None:
        """Sends what was refused with ``answer`` in two parts, if that can tell more."""
        found = _DROPPED.search(answer.body)
        if (
            len(kept) < 2
            or (found is not None and int(found[1]) >= len(kept))
            or len(refused) >= _REFUSALS_LIMIT
        ):
            refused.append(_Refused(answer, kept))
            return None
        middle = len(kept) // 2
        for part in (kept[:middle], kept[middle:]):
            # Without a key: a store keeps equal points once, the key names the whole.
            if (failed := await self._try(_packed(part), "", refused)) is not None:
                return failed
        return None

    def _fault(self, answer: Answer) -> str:
        detail = clip(answer.body.decode("utf-8", "replace"), 200)
        if answer.status == 0:
            return f"{self.where} does not answer: {detail}"
        if answer.status in (401, 403):
            return f"{self.where} refuses our token ({answer.status}): {detail}"
        return f"{self.where} answers {answer.status}: {detail}"

    def _set_aside(self, refused: list[_Refused]) -> None:
        """Writes refused lines and the server's words on them to the quarantine."""
        parts: list[bytes] = []
        for one in refused:
            self.counts.quarantined_lines += len(one.lines)
            reason = one.answer.body.decode("utf-8", "replace").replace("\n", " ")[:300]
            parts += [b"# " + reason.encode() + b"\n", *(line + b"\n" for line in one.lines)]
        count = sum(len(one.lines) for one in refused)
        first = refused[0].answer.body.decode("utf-8", "replace").replace("\n", " ")[:300]
        log.error("%s refused %d lines: %s", self.where, count, first)
        text = b"".join(parts)
        try:
            self.quarantine.parent.mkdir(parents=True, exist_ok=True)
            with open(self.quarantine, "ab") as file:
                if file.tell() + len(text) <= self.quarantine_limit_bytes:
                    file.write(text)
                else:
                    log.error("quarantine %s is full: only counted", self.quarantine)
        except OSError as error:
            log.warning("quarantine %s: %s", self.quarantine, error.strerror)


@dataclass(frozen=True, slots=True)
class _Refused:
    """Lines that a server will never take, and what it said."""

    answer: Answer
    lines: list[bytes]


def _lines(body: bytes) -> list[bytes]:
    """The lines of ``body`` by physical number; a text that holds line breaks stays one line.

    Its further numbers are empty, so that a number that an answer names is found.
    """
    found: list[bytes] = []
    for _, line in fold_lines(body, LINE_LIMIT_BYTES):
        found.append(line)
        found.extend([b""] * line.count(b"\n"))
    return found


def _named_lines(answer: bytes) -> list[int]:
    """The numbers of the lines that our gateway's answer names; empty for another server."""
    try:
        parsed: Any = json.loads(answer)
        return sorted({int(number) for number in parsed["refused"]})
    except (ValueError, TypeError, KeyError):
        return []


def _named_by_influxdb3(answer: bytes, lines: list[bytes]) -> list[bytes]:
    """The lines that InfluxDB 3 names in its answer; empty when it names none or others."""
    try:
        told: Any = json.loads(answer)["data"]
        named = [
            (int(one["line_number"]), str(one["original_line"]).encode())
            for one in (told if isinstance(told, list) else [told])
        ]
    except (ValueError, TypeError, KeyError):
        return []
    found = []
    for number, original in named:
        line = lines[number - 1] if 0 < number <= len(lines) else b""
        # It may cut the line short; another line's number would cost a good one.
        if not original or not line.startswith(original[:60]):
            return []
        found.append(line)
    return found


def _packed(lines: list[bytes]) -> bytes:
    return gzip.compress(b"\n".join([*lines, b""]), 1)


def retry_after_seconds(text: str) -> float:
    """Retry-After in seconds; a date or nonsense counts as not said."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(seconds, 86_400.0) if seconds > 0 else 0.0  # NaN is not above 0
