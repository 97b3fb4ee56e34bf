"""What becomes of a body that a server does not simply take."""

import gzip
import random
from pathlib import Path

from daemon.agent.delivery import Answer, Delivery


class Choosy:
    """Refuses whole bodies that hold a line with ``bad``, and names no line."""

    def __init__(self, says: Answer | None = None) -> None:
        self.says = says or Answer(400, b'{"code":"invalid","message":"unable to parse"}')
        self.taken: list[bytes] = []
        self.asked = 0
        self.away_at = -1

    async def post(self, body: bytes, key: str) -> Answer:
        self.asked += 1
        if self.asked == self.away_at:
            return Answer(503)
        text = gzip.decompress(body)
        if b"bad" in text:
            return self.says
        self.taken.append(text)
        return Answer(204)


def delivery_to(server: Choosy, quarantine: Path) -> Delivery:
    return Delivery(server.post, "server", quarantine, 10**6, 1.0, random.Random(1))


def lines(count: int, bad: set[int]) -> bytes:
    rows = [f"gpu {'bad' if n in bad else 'good'}={n}.0 {n}" for n in range(count)]
    return gzip.compress("\n".join([*rows, ""]).encode())


async def test_bad_lines_are_set_aside_alone_and_all_others_arrive(tmp_path: Path) -> None:
    server = Choosy()
    delivery = delivery_to(server, tmp_path / "q")
    assert await delivery.send(lines(1000, {0, 500, 999})) is None
    arrived = [row for text in server.taken for row in text.splitlines()]
    assert len(arrived) == len(set(arrived)) == 997
    aside = [row for row in (tmp_path / "q").read_text().splitlines() if row[0] != "#"]
    assert aside == ["gpu bad=0.0 0", "gpu bad=500.0 500", "gpu bad=999.0 999"]
    assert delivery.counts.quarantined_lines == 3
    assert server.asked < 80


async def test_a_body_of_bad_lines_costs_a_bounded_number_of_requests(tmp_path: Path) -> None:
    server = Choosy()
    delivery = delivery_to(server, tmp_path / "q")
    assert await delivery.send(lines(5000, set(range(5000)))) is None
    assert delivery.counts.quarantined_lines == 5000
    assert server.asked < 1000


async def test_a_server_that_says_it_dropped_all_is_asked_once(tmp_path: Path) -> None:
    server = Choosy(Answer(400, b'{"error":"partial write: beyond retention dropped=50"}'))
    delivery = delivery_to(server, tmp_path / "q")
    assert await delivery.send(lines(50, set(range(50)))) is None
    assert server.asked == 1
    assert delivery.counts.quarantined_lines == 50


async def test_a_server_that_goes_away_in_between_has_nothing_set_aside_twice(
    tmp_path: Path,
) -> None:
    server = Choosy()
    server.away_at = 7
    delivery = delivery_to(server, tmp_path / "q")
    body = lines(64, {3, 60})
    assert await delivery.send(body) is not None
    assert await delivery.send(body) is None
    assert delivery.counts.quarantined_lines == 2
    assert {row for text in server.taken for row in text.splitlines()} == {
        f"gpu good={n}.0 {n}".encode() for n in range(64) if n not in (3, 60)
    }


async def test_a_text_with_line_breaks_is_never_cut(tmp_path: Path) -> None:
    server = Choosy()
    delivery = delivery_to(server, tmp_path / "q")
    whole = b'event text="one\ntwo\r\nthree" 1'
    body = gzip.compress(b"\n".join([whole, b"gpu bad=1.0 2", whole, b""]))
    assert await delivery.send(body) is None
    assert b"".join(server.taken) == whole + b"\n" + whole + b"\n"


async def test_lines_that_the_answer_names_are_found_behind_such_a_text(tmp_path: Path) -> None:
    async def post(body: bytes, key: str) -> Answer:
        return Answer(400, b'{"refused":[3]}')

    delivery = Delivery(post, "head", tmp_path / "q", 10**6, 1.0, random.Random(1))
    body = gzip.compress(b'event text="one\ntwo" 1\ngpu bad=1.0 2\n')
    assert await delivery.send(body) is None
    assert (tmp_path / "q").read_text().splitlines()[1:] == ["gpu bad=1.0 2"]
