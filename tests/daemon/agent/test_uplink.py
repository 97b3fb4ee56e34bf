import asyncio
import gzip
import random
import time
from pathlib import Path

import aiohttp

from collectors.lines import encode
from collectors.sample import sample
from daemon.agent.delivery import Answer, Delivery, retry_after_seconds
from daemon.agent.lane import Lane
from daemon.agent.options import UplinkOptions
from daemon.agent.spool import Spool
from daemon.agent.uplink import Uplink
from daemon.gate.gateway import GatewayOptions
from daemon.gate.tokens import parse_tokens
from tests.daemon.head_stub import NODE_TOKEN, Head

AGENTS, BATCHES = 60, 12


async def test_many_agents_that_come_back_at_once_are_pushed_back_and_lose_nothing(
    tmp_path: Path,
) -> None:
    tokens = parse_tokens("\n".join(f"n{n} token-of-the-node-{n:04d}" for n in range(AGENTS)))
    bounds = GatewayOptions(pending_samples_limit=40, retry_after_seconds=0.5)
    head = await Head(tmp_path / "store", bounds, tokens).start()
    now_ns = time.time_ns()
    spools = []
    for number in range(AGENTS):
        (tmp_path / f"token{number}").write_text(f"token-of-the-node-{number:04d}")
        spool = Spool(tmp_path / f"spool{number}")
        for batch in range(BATCHES):
            rows = [
                sample(
                    "host", now_ns + batch * 10 + row, {"number": float(batch)}, node=f"n{number}"
                )
                for row in range(3)
            ]
            spool.append(gzip.compress(encode(rows)), len(rows), now_ns)
        spools.append(spool)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        uplinks = [
            Uplink(
                Lane(spool),
                session,
                UplinkOptions(head_url=head.url, token_file=tmp_path / f"token{number}"),
                tmp_path / "quarantine",
                time.time_ns,
                backoff_limit_seconds=1.0,
                rng=random.Random(number),
            )
            for number, spool in enumerate(spools)
        ]
        running = [asyncio.create_task(uplink.run()) for uplink in uplinks]
        end = time.monotonic() + 50
        while any(spool.waiting()[0] for spool in spools):
            assert time.monotonic() < end, "the backlog was not drained"
            await asyncio.sleep(0.05)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert head.gateway.counts.pushed_back > 0, "nobody was pushed back: the test is too easy"
    assert head.store.read("host", 0, 2**62).num_rows == AGENTS * BATCHES * 3
    assert len(head.accepted) == AGENTS * BATCHES * 3, "a batch was judged twice"
    await head.stop()


async def test_pauses_are_spread_and_never_shorter_than_asked(tmp_path: Path) -> None:
    answers = [Answer(0, b"refused")] * 12 + [Answer(429, b"", 30.0)] * 3

    async def post(body: bytes, key: str) -> Answer:
        return answers.pop(0)

    delivery = Delivery(post, "head", tmp_path / "q", 0, 60.0, random.Random(1))
    pauses = [await delivery.send(b"") or 0.0 for _ in range(15)]
    # Full jitter: anything between nothing and a ceiling that doubles up to the limit.
    for attempt, pause in enumerate(pauses[:12]):
        assert 0 <= pause <= min(60.0, 0.5 * 2**attempt)
    assert max(pauses[8:12]) > 10
    assert len({round(pause, 3) for pause in pauses}) == 15
    assert all(30 <= pause <= 90 for pause in pauses[12:])


def test_retry_after_that_makes_no_sense_counts_as_not_said() -> None:
    asked = ["5", "-3", "Wed, 21 Oct 2026 07:28:00 GMT", "", "1e99", "nan"]
    assert [retry_after_seconds(text) for text in asked[:5]] == [5.0, 0.0, 0.0, 0.0, 86400.0]
    assert retry_after_seconds("nan") == 0.0


async def test_where_nobody_answers_the_other_head_is_asked(tmp_path: Path) -> None:
    head = await Head(tmp_path / "store").start()
    (tmp_path / "token").write_text(NODE_TOKEN)
    now_ns = time.time_ns()
    spool = Spool(tmp_path / "spool")
    for number in range(3):
        rows = [sample("host", now_ns + number, {"number": float(number)}, node="n1")]
        spool.append(gzip.compress(encode(rows)), 1, now_ns)
    options = UplinkOptions(
        head_url="http://127.0.0.1:9", standby_urls=(head.url,), token_file=tmp_path / "token"
    )
    async with aiohttp.ClientSession() as session:
        uplink = Uplink(
            Lane(spool), session, options, tmp_path / "quarantine", time.time_ns,
            backoff_limit_seconds=0.1,
        )  # fmt: skip
        assert not await uplink.drain(), "the first address is dead"
        assert await uplink.drain()
    assert uplink.counts.failures == 1, "the address that answered is kept"
    assert len(head.accepted) == 3
    await head.stop()
