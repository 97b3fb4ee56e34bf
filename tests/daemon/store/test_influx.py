"""The InfluxDB sink: against real servers, and against the recorded words of newer ones."""

import asyncio
import base64
import errno
import gzip
import http.server
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from collectors.sample import sample
from daemon.store.embedded import Store
from daemon.store.influx import InfluxOptions, InfluxSink, query_influxql
from daemon.store.options import StoreOptions
from daemon.store.tail import Position
from tests.testbed.store.servers import Influx1, MissingServerError, VictoriaMetrics

START_NS = 1_780_000_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store", StoreOptions(segment_bytes=65536))
    yield opened
    opened.close()


def put(store: Store, first: int, count: int, measurement: str = "gpu") -> None:
    store.append(
        sample(measurement, START_NS + n * 10**9, {"number": float(n)}, node=f"n{n % 3}")
        for n in range(first, first + count)
    )
    store.commit()


def sink_for(store: Store, url: str, **options: Any) -> InfluxSink:
    defaults = {"backoff_limit_seconds": 0.2, "poll_seconds": 0.02, "batch_lines": 50}
    return InfluxSink(store, InfluxOptions(url=url, **(defaults | options)))


async def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.02)


def numbers(influx: Influx1, database: str) -> list[float]:
    answer = influx.query(database, "SELECT number FROM gpu")["results"][0]
    return [row[1] for row in answer.get("series", [{"values": []}])[0]["values"]]


async def drain(sink: InfluxSink) -> None:
    while await sink.step():
        pass


async def test_influxdb_1_6_gets_everything_by_v1s_write(store: Store, influx1: Influx1) -> None:
    influx1.create("sink")
    sink = sink_for(store, influx1.url, bucket="sink")
    put(store, 0, 120)
    text = {"text": 'a "quoted" text, with = signs', "severity": 3.0}
    store.append([sample("event", START_NS, text, node="n1", kind="xid", code="79")])
    store.commit()
    await drain(sink)
    assert sink.writer.path == "/write"
    assert numbers(influx1, "sink") == [float(n) for n in range(120)]
    asked = InfluxOptions(url=influx1.url, bucket="sink")
    answer = await asyncio.to_thread(query_influxql, asked, "SELECT text FROM event")
    assert json.loads(answer)["results"][0]["series"][0]["values"] == [[START_NS, text["text"]]]
    assert sink.fault() == ""
    await sink.close()


async def test_victoriametrics_gets_everything_by_v2s_write(
    store: Store, victoria: VictoriaMetrics
) -> None:
    now_ms = int(time.time() * 1000)
    sink = sink_for(store, victoria.url)
    store.append(
        sample("gpu", (now_ms - n * 1000) * 10**6, {"power_watts": float(n)}, node=f"s{n}")
        for n in range(30)
    )
    store.commit()
    await drain(sink)
    assert sink.writer.path == "/api/v2/write"

    def count() -> int:
        _, answer = victoria.ask("/api/v1/series?match[]=gpu_power_watts&start=-1h")
        return len(json.loads(answer)["data"])

    await until(lambda: count() == 30)
    await sink.close()


@pytest.mark.slow
async def test_outage_restart_and_kill_9_of_either_side_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    influx = Influx1(tmp_path / "influx")
    try:
        influx.start()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    influx.create("sink")
    directory = tmp_path / "store"
    rng = random.Random(11)
    written = 0
    try:
        for turn in range(4):
            # Each turn is a new head over the same store, as after a kill.
            store = Store(directory, StoreOptions(segment_bytes=65536))
            sink = sink_for(store, influx.url, bucket="sink")
            running = asyncio.create_task(sink.run())
            for _ in range(15):
                put(store, written, 40)
                written += 40
                if rng.random() < 0.4:
                    store.roll(2**62, everything=rng.random() < 0.5)
                await asyncio.sleep(rng.random() * 0.02)
            if turn < 3:
                influx.kill()
                for _ in range(10):
                    put(store, written, 40)
                    written += 40
                    store.roll(2**62, everything=True)
                await until(lambda sink=sink: "does not answer" in sink.fault())
                await asyncio.to_thread(influx.start)
                await asyncio.sleep(rng.random() * 0.3)
            else:
                await until(lambda sink=sink: sink.tail.read() is None)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await sink.close()
            store.close()
        assert numbers(influx, "sink") == [float(n) for n in range(written)]
        assert not list((directory / "outbox" / "influxdb").glob("*.frames"))
    finally:
        influx.stop()


# What servers say, as their documents have it; no such server runs here.


@dataclass
class Recorded:
    """A server that answers from a list, and remembers what it was asked."""

    answers: list[tuple[int, dict[str, str], bytes]]
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def __enter__(self) -> "Recorded":
        recorded = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                recorded.asked.append((self.path, dict(self.headers), gzip.decompress(body)))
                status, headers, answer = (
                    recorded.answers.pop(0) if recorded.answers else (204, {}, b"")
                )
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


async def test_the_four_ways_to_authorise(store: Store, tmp_path: Path) -> None:
    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("my-token\n")
    password.write_text("secret\n")
    not_found = (404, {}, b'{"error":"404 page not found"}')
    basic = "Basic " + base64.b64encode(b"admin:secret").decode()
    cases: list[tuple[dict[str, Any], list[Any], str | None, str]] = [
        ({"token_file": token}, [], "Token my-token", "/api/v2/write?"),
        ({"username": "admin", "password_file": password}, [], "Token admin:secret", "/api/v2/"),
        ({"username": "admin", "password_file": password}, [not_found], basic, "/write?db=tocsin&"),
        ({}, [], None, "/api/v2/write?org=tocsin&bucket=tocsin&precision=ns"),
    ]
    for number, (options, answers, expected, path) in enumerate(cases):
        with Recorded(answers) as server:
            store.tails.clear()
            sink = sink_for(store, server.url, **options)
            put(store, number, 1)
            await drain(sink)
            asked, headers, body = server.asked[-1]
            assert headers.get("Authorization") == expected
            assert asked.startswith(path)
            assert (
                body.decode()
                == f"gpu,node=n{number % 3} number={float(number)} {START_NS + number * 10**9}\n"
            )
            await sink.close()


async def test_a_missing_bucket_of_influxdb_2_is_no_reason_to_speak_v1(store: Store) -> None:
    missing = b'{"code":"not found","message":"bucket \\"tocsin\\" not found"}'
    with Recorded([(404, {}, missing)]) as server:
        sink = sink_for(store, server.url)
        put(store, 0, 1)
        await sink.step()
        assert sink.writer.path == "/api/v2/write"
        assert "answers 404" in sink.fault()
        await drain(sink)
        assert sink.fault() == ""
        assert len(server.asked) == 2
        await sink.close()


async def test_retry_after_is_waited_for_and_nothing_is_lost(store: Store) -> None:
    busy = (429, {"Retry-After": "1"}, b'{"code":"too many requests"}')
    with Recorded([busy, (503, {}, b"")]) as server:
        sink = sink_for(store, server.url)
        put(store, 0, 3)
        started = time.monotonic()
        await drain(sink)
        assert time.monotonic() - started >= 1.0
        assert [body.count(b"\n") for _, _, body in server.asked] == [3, 3, 3]
        await sink.close()


async def test_what_is_refused_is_set_aside_and_never_sent_again(store: Store) -> None:
    said = b'{"code":"invalid","message":"partial write: points beyond retention dropped=3"}'
    with Recorded([(422, {}, said)]) as server:
        sink = sink_for(store, server.url)
        put(store, 0, 2)
        put(store, 2, 1)
        await drain(sink)
        assert len(server.asked) == 1
        kept = (sink.tail.directory / "quarantine.lines").read_text()
        assert "beyond retention" in kept
        assert kept.count("number=") == 3
        assert "3 lines refused" in sink.fault()
        await sink.close()


async def test_influxdb_1_6_keeps_the_good_lines_of_a_batch_with_bad_ones(
    store: Store, influx1: Influx1
) -> None:
    influx1.create("mixed")
    influx1.write("mixed", f'gpu,node=n1 number="text first" {START_NS - 10**9}'.encode())
    sink = sink_for(store, influx1.url, bucket="mixed")
    # ``number`` of gpu is text there: these lines conflict, those of host do not.
    put(store, 0, 20, "host")
    store.append([sample("gpu", START_NS, {"number": 1.0}, node="n1")])
    store.append([sample("gpu", START_NS + 1, {"number": 2.0}, node="n1")])
    store.commit()
    put(store, 20, 20, "host")
    await drain(sink)
    answer = influx1.query("mixed", "SELECT count(number) FROM host")["results"][0]
    assert answer["series"][0]["values"][0][1] == 40
    kept = (sink.tail.directory / "quarantine.lines").read_text()
    assert [line.split(" ")[1] for line in kept.splitlines() if line[0] != "#"] == [
        "number=1.0",
        "number=2.0",
    ]
    await sink.close()


async def test_a_body_that_is_too_large_goes_in_halves(store: Store) -> None:
    with Recorded([(413, {}, b""), (413, {}, b"")]) as server:
        sink = sink_for(store, server.url)
        put(store, 0, 8)
        await drain(sink)
        assert [body.count(b"\n") for _, _, body in server.asked] == [8, 4, 2, 2, 4]
        await sink.close()


def test_a_sink_that_stays_away_costs_a_bounded_outbox_and_says_so(store: Store) -> None:
    from daemon.store.tail import Tail

    tail = Tail(store.directory, "slow", limit_bytes=20_000)
    store.tails.append(tail)
    for turn in range(40):
        put(store, turn * 100, 100)
        store.roll(2**62, everything=True)
    size = sum(path.stat().st_size for path in tail.directory.glob("*.frames"))
    assert size <= 20_000
    assert tail.dropped_rows > 0
    frames, position = tail.read(10**9) or ([], Position())
    assert tail.dropped_rows + sum(f.rows for f in frames) <= 4000
    rows = sum(frame.rows for frame in frames)
    while (piece := tail.read(10**9)) and piece[1] != position:
        position = piece[1]
    tail.done(position)
    while piece := tail.read(10**9):
        rows += sum(frame.rows for frame in piece[0])
        tail.done(piece[1])
    assert rows + tail.dropped_rows == 4000


def test_a_new_sink_begins_with_what_comes_from_now_on(store: Store) -> None:
    from daemon.store.tail import Tail

    put(store, 0, 10)
    store.roll(2**62, everything=True)
    tail = Tail(store.directory, "new")
    assert tail.read() is None
    put(store, 10, 5)
    frames, position = tail.read() or ([], Position())
    assert sum(frame.rows for frame in frames) == 5
    tail.done(position)
    assert Tail(store.directory, "new").read() is None


async def test_a_moment_without_file_handles_does_not_end_the_sending(
    store: Store, influx1: Influx1, monkeypatch: pytest.MonkeyPatch
) -> None:
    influx1.create("handles")
    sink = sink_for(store, influx1.url, bucket="handles")
    put(store, 0, 10)

    def refuses(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as inside:
        inside.setattr("daemon.store.tail.read_file", refuses)
        running = asyncio.create_task(sink.run())
        await until(lambda: "Too many open files" in sink.fault())
        assert not running.done()
    await until(lambda: sink.sent_lines == 10)
    await until(lambda: sink.fault() == "")
    assert numbers(influx1, "handles") == [float(n) for n in range(10)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sink.close()


def test_what_the_outbox_drops_is_counted_without_what_the_sink_had(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_for(store, "http://127.0.0.1:1", batch_lines=10)
    for first in range(0, 60, 10):
        put(store, first, 10)
    piece = sink.tail.read(10)
    assert piece is not None
    sink.tail.done(piece[1])
    store.roll(0, everything=True)
    put(store, 60, 10)
    sink.tail.limit_bytes = 1
    store.roll(0, everything=True)
    assert sink.tail.dropped_rows == 50
    assert sink.loss() == "50 samples dropped: the outbox was full"
