"""What InfluxDB 1.8, 2 and 3 answer, by their documents: no such server runs here.

Each recorded answer is given once or for as long as its cause lasts; then the server is sound.
Whatever it was, every good line arrives, and only bad ones are set aside.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from daemon.agent.delivery import Answer, Delivery, retry_after_seconds

ANSWERS = json.loads(Path("tests/fixtures/influxdb/answers.json").read_text())
LINES = [b"gpu,node=n%d number=%d.0 178000000000000000%d" % (n, n, n) for n in range(10)]
BAD = {LINES[3], LINES[7]}


@dataclass
class Recorded:
    """A server that has the fault of one recorded answer, and keeps what it takes."""

    answer: dict[str, Any]
    kept: set[bytes] = field(default_factory=set)
    asked: int = 0
    limit_lines: int = 3

    async def post(self, body: bytes, key: str) -> Answer:
        self.asked += 1
        lines = gzip.decompress(body).splitlines()
        bad = [(n, line) for n, line in enumerate(lines, 1) if line in BAD]
        status = self.answer["status"]
        if status in (400, 422):
            if not bad:
                self.kept.update(lines)
                return Answer(204)
            if self.answer["keeps_good"]:
                self.kept.update(set(lines) - BAD)
            return self._said(self._fill(bad))
        if status == 413 and len(lines) > self.limit_lines:
            return self._said(self.answer["body"])
        if status != 413 and self.asked == 1:
            return self._said(self.answer["body"])
        self.kept.update(lines)
        return Answer(204)

    def _fill(self, bad: list[tuple[int, bytes]]) -> str:
        def told(number: int, line: bytes) -> str:
            text: str = self.answer.get("line", "")
            return text.replace("%LINE%", line.decode()).replace("%NUMBER%", str(number))

        texts = [told(number, line) for number, line in bad]
        filled: str = self.answer["body"]
        for mark, text in (
            ("%LINES%", ",".join(texts)),
            ("%FIRST%", texts[0]),
            ("%LINE%", bad[0][1].decode()),
            ("%DROPPED%", str(len(bad))),
        ):
            filled = filled.replace(mark, text)
        return filled

    def _said(self, body: str) -> Answer:
        asked = retry_after_seconds(self.answer["headers"].get("Retry-After", ""))
        return Answer(self.answer["status"], body.encode(), asked)


def delivery(server: Recorded, folder: Path) -> Delivery:
    rng = random.Random(3)
    return Delivery(server.post, "InfluxDB", folder / "quarantine.lines", 10**6, 10.0, rng)


def set_aside(folder: Path) -> list[bytes]:
    path = folder / "quarantine.lines"
    text = path.read_bytes() if path.exists() else b""
    return [line for line in text.splitlines() if not line.startswith(b"#")]


def cases(choose: Callable[[int], bool]) -> pytest.MarkDecorator:
    chosen = [one for one in ANSWERS if choose(one["status"])]
    return pytest.mark.parametrize(
        "answer", chosen, ids=[f"{one['server']}: {one['what']}" for one in chosen]
    )


@cases(lambda status: status in (400, 422))
async def test_refused_lines_are_set_aside_alone(answer: dict[str, Any], tmp_path: Path) -> None:
    server = Recorded(answer)
    sender = delivery(server, tmp_path)
    assert await sender.send(gzip.compress(b"\n".join(LINES) + b"\n")) is None
    assert server.kept == set(LINES) - BAD
    assert sorted(set_aside(tmp_path)) == sorted(BAD)
    assert sender.counts.quarantined_lines == len(BAD)
    # A server that names its lines is asked few times more, not once for each half.
    assert server.asked <= (1 + len(BAD) if answer.get("names_lines") else 13)


@cases(lambda status: status == 413)
async def test_what_is_too_large_arrives_in_parts(answer: dict[str, Any], tmp_path: Path) -> None:
    server = Recorded(answer)
    assert await delivery(server, tmp_path).send(gzip.compress(b"\n".join(LINES))) is None
    assert server.kept == set(LINES)
    assert set_aside(tmp_path) == []


@cases(lambda status: status not in (400, 413, 422))
async def test_what_may_pass_is_waited_for(answer: dict[str, Any], tmp_path: Path) -> None:
    server = Recorded(answer)
    sender = delivery(server, tmp_path)
    body = gzip.compress(b"\n".join(LINES))
    pause_seconds = await sender.send(body)
    assert pause_seconds is not None
    assert pause_seconds >= float(answer["headers"].get("Retry-After", 0))
    assert str(answer["status"]) in sender.counts.fault
    assert server.kept == set()
    assert await sender.send(body) is None
    assert sender.counts.fault == ""
    assert server.kept == set(LINES)
    assert set_aside(tmp_path) == []


async def test_a_number_that_does_not_fit_its_line_costs_no_good_line(tmp_path: Path) -> None:
    (answer,) = (one for one in ANSWERS if one["what"].endswith("the rest kept"))
    off_by_one = answer | {"line": answer["line"].replace("%NUMBER%", "1%NUMBER%")}
    server = Recorded(off_by_one)
    assert await delivery(server, tmp_path).send(gzip.compress(b"\n".join(LINES))) is None
    assert server.kept == set(LINES) - BAD
    assert sorted(set_aside(tmp_path)) == sorted(BAD)
