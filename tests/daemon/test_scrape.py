"""``GET /metrics`` of a real head: what a Prometheus server would read."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from collectors.sample import sample
from collectors.slurm.nodes import NodeState
from daemon.assemble import open_ears
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.gate.tokens import parse_tokens
from daemon.head import Head
from daemon.listen import Listeners
from daemon.scrape import Scrape
from daemon.slurm.simulated import SimulatedSlurm

LINE = re.compile(r'[a-z0-9_]+(\{([a-z_]+="(?:[^"\\]|\\.)*",?)*\})? -?[0-9.e+-]+')


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    config = Config.model_validate(
        {
            "head": {
                "state_dir": tmp_path,
                "listen": "127.0.0.1:0",
                "socket": tmp_path / "socket",
                "operators_group": "",
                "judge_seconds": 300,
            },
            "page": {"listen": "127.0.0.1:0"},
            "store": {"reserve_bytes": 0},
        }
    )
    slurm = SimulatedSlurm([NodeState(f"n{n}", base="idle") for n in range(3)], time.time_ns)
    source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
    made = Head(config, clock=SystemClock(), adapter=slurm, slurm=source)
    await made.start()
    yield made
    await made.stop()


async def fill(head: Head) -> None:
    now_ns = head.clock.now_ns()
    rows = [
        sample("gpu", now_ns, {"temperature_celsius": 40.0 + gpu}, node=f"n{n}", gpu=str(gpu))
        for n in range(3)
        for gpu in range(2)
    ]
    reading = {"up": 1.0, "duration_seconds": 0.1, "age_seconds": 0.0}
    rows.append(sample("source", now_ns, reading, node="n1", source="nvml"))
    await head.intake.accept(rows, "n1", now_ns)
    await head._write_fleet()


async def test_the_page_and_the_operators_socket_give_the_newest_readings(head: Head) -> None:
    await fill(head)
    listeners = Listeners()
    _, page = await open_ears(head, head.config, parse_tokens(""), listeners)
    try:
        unix = aiohttp.UnixConnector(str(head.config.head.socket))
        for connector, at in ((None, page), (unix, "localhost")):
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.get(f"http://{at}/metrics") as answer,
            ):
                assert answer.status == 200
                assert answer.content_type == "text/plain"
                lines = (await answer.text()).splitlines()
            values = [line for line in lines if not line.startswith("#")]
            assert all(LINE.fullmatch(line) for line in values), values
            assert 'tocsin_gpu_temperature_celsius{gpu="1",node="n2"} 41.0' in values
            assert 'tocsin_source_up{node="n1",source="nvml"} 1.0' in values
            assert 'tocsin_fleet_count{metric="gpu.temperature_celsius"} 6.0' in values
            assert "tocsin_head_nodes 3.0" in values
            assert any(line.startswith("tocsin_gateway_requests ") for line in values)
            assert "# TYPE tocsin_gpu_temperature_celsius gauge" in lines
        async with aiohttp.ClientSession() as session:
            foreign = {"Host": "evil.example"}
            async with session.get(f"http://{page}/metrics", headers=foreign) as answer:
                assert answer.status == 421
    finally:
        await listeners.close()


async def test_a_large_fleet_is_told_by_its_summary_and_by_the_nodes_asked_for(head: Head) -> None:
    await fill(head)
    scrape = Scrape(head, gpus_limit=4)
    text = scrape.text()
    assert len(re.findall(r"^tocsin_gpu_temperature_celsius", text, re.M)) == 4
    assert "tocsin_exposition_left_out_gpus 2.0" in text
    assert "tocsin_fleet_p99{" in text
    few = scrape.text(["n2"])
    assert re.findall(r'^tocsin_gpu_temp.*node="(n\d)"', few, re.M) == ["n2", "n2"]
    assert "fleet" not in few
    assert "left_out" not in few
