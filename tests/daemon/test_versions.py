"""Who runs another version than its peers: over a real head, its store and its socket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from collectors.events import INFO, event
from collectors.inventory import Board, board_events
from collectors.sample import Sample
from collectors.slurm.nodes import NodeState
from daemon.assemble import open_ears
from daemon.cli.main import main
from daemon.cli.nodes import versions
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.gate.tokens import parse_tokens
from daemon.head import Head
from daemon.listen import Listeners
from daemon.slurm.simulated import SimulatedSlurm
from daemon.versions import plain_groups, readings, version_routes
from models.skew import Declared, Group, Reading, groups

HOUR = 3600 * 10**9
NODES = [f"gpu{number:02d}" for number in range(1, 7)]
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


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
            "page": {"enabled": False},
            "store": {"reserve_bytes": 0},
        }
    )
    slurm = SimulatedSlurm([NodeState(name, base="idle") for name in NODES], time.time_ns)
    source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
    made = Head(config, clock=SystemClock(), adapter=slurm, slurm=source)
    await made.start()
    listeners = Listeners()
    await open_ears(made, config, parse_tokens(""), listeners)
    yield made
    await listeners.close()
    await made.stop()


def version(node: str, code: str, text: str, at: int, device: str = "") -> Sample:
    return event(node, "version", code, at, text=text, severity=INFO, device=device)


def told(
    node: str, at: int, driver: str, model: str = H100, vbios: str = "96.00.61"
) -> list[Sample]:
    """What one node says of itself: two GPUs, a network card, its kernel."""
    boards = [
        Board(index, f"GPU-{node}-{index}", f"0000:{index + 1:02x}:00", "", model, vbios)
        for index in range(2)
    ]
    return [
        *board_events(node, boards, {"driver": driver}, 2, at),
        version(node, "kernel", "6.1.0-31-amd64", at),
        version(node, "nic_firmware", "28.39.1002", at, "mlx5_0"),
        version(node, "nic_board", "MT_0000000838", at, "mlx5_0"),
    ]


async def keep(head: Head, samples: list[Sample]) -> None:
    by_node: dict[str, list[Sample]] = {}
    for one in samples:
        by_node.setdefault(one.tag("node"), []).append(one)
    for node, rows in by_node.items():
        await head.intake.accept(rows, node, head.clock.now_ns())


def find(found: list[Group], code: str, model: str) -> Group:
    (one,) = [group for group in found if (group.code, group.model) == (code, model)]
    return one


async def test_who_differs_from_the_majority_of_its_model_and_since_when(head: Head) -> None:
    now = time.time_ns()
    fleet = [one for name in NODES[:5] for one in told(name, now - 48 * HOUR, "570.158.01")]
    fleet += told("gpu06", now - 48 * HOUR, "535.230.02", A100, "92.00.45")
    await keep(head, fleet)
    await keep(head, [version("gpu03", "driver", "560.35.03", now - 2 * HOUR)])
    await keep(head, [version("gpu04", "vbios", "96.00.99", now - HOUR, "0000:02:00")])
    found = groups(readings(head.store.database))
    driver = find(found, "driver", H100)
    assert (driver.usual, driver.usual_parts, driver.nodes) == ("570.158.01", 4, 5)
    (other,) = driver.others
    assert (other.text, other.nodes, other.before) == ("560.35.03", ("gpu03",), "570.158.01")
    assert other.since_ns == now - 2 * HOUR
    # The A100 node's driver is no skew: its peers are other A100 nodes.
    assert find(found, "driver", A100).others == ()
    vbios = find(found, "vbios", H100)
    assert (vbios.parts, vbios.usual_parts) == (10, 9)
    assert vbios.others[0].nodes == ("gpu04",)
    assert find(found, "nic_firmware", "MT_0000000838").parts == 6
    assert [one.code for one in found if one.others] == ["driver", "vbios"]


async def test_the_command_line_shows_differences_and_says_by_its_exit_code(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = str(head.config.head.socket)

    async def run(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(
            main, ["nodes", "--versions", "--socket", socket, *arguments]
        )
        return code, capsys.readouterr().out

    assert await run() == (0, "no node has told its versions yet: agents tell them at their "
                           "start and daily\n")  # fmt: skip
    now = time.time_ns()
    await keep(head, [one for name in NODES[:3] for one in told(name, now - HOUR, "570.158.01")])
    code, out = await run()
    assert (code, out) == (
        0,
        "4 of 4 kinds of version are as declared or alike on all peers (--all)\n",
    )
    await keep(head, [version(name, "driver", "560.35.03", now) for name in NODES[1:2]])
    code, out = await run()
    assert code == 1
    assert out.startswith(f"driver of {H100}: 570.158.01 on 2 of 3\n  560.35.03 on 1, since ")
    assert ", before 570.158.01: gpu02\n" in out
    code, out = await run("--json")
    assert code == 1
    assert json.loads(out)[0]["others"][0]["nodes"] == "gpu02"


async def test_nodes_that_slurm_does_not_know_do_not_count(head: Head) -> None:
    now = time.time_ns()
    await keep(
        head, [version("gpu01", "kernel", "6.1", now), version("old1", "kernel", "5.4", now)]
    )
    found = groups(readings(head.store.database), head.nodes)
    assert [one.others for one in found] == [()]


async def test_a_version_that_came_back_counts_from_its_return(head: Head) -> None:
    now = time.time_ns()
    await keep(head, [version("gpu01", "kernel", "6.1", now - 9 * HOUR)])
    await keep(head, [version("gpu01", "kernel", "5.4", now - 5 * HOUR)])
    await keep(head, [version("gpu01", "kernel", "6.1", now - HOUR)])
    (found,) = readings(head.store.database)
    assert (found.text, found.before) == ("6.1", "5.4")
    assert now - 5 * HOUR <= found.since_ns <= now - HOUR


def reading(node: str, text: str, since: int = 1, seen: int = HOUR, device: str = "") -> Reading:
    return Reading(node, "vbios" if device else "kernel", device, text, since, seen)


def test_half_and_half_has_no_majority_and_the_older_version_is_the_usual_one() -> None:
    (found,) = groups([reading("a", "new", since=5), reading("b", "old", since=1)])
    assert (found.usual, found.clear) == ("old", False)
    assert "(no majority)" in versions(plain_groups([found]))


def test_a_part_that_was_swapped_out_no_longer_counts() -> None:
    late = 60 * HOUR
    parts = [reading("a", "1.0", seen=HOUR, device="x"), reading("a", "2.0", seen=late, device="y")]
    (found,) = groups(parts)
    assert (found.parts, found.usual) == (1, "2.0")


def test_nothing_told_gives_no_group() -> None:
    assert groups([]) == []


async def test_whoever_is_content_with_an_answer_of_some_age_costs_no_reading(head: Head) -> None:
    now = time.time_ns()
    clock = [100.0]
    app = web.Application()
    app.add_routes(version_routes(head, lambda: clock[0]))
    await keep(head, [version("gpu01", "kernel", "6.1", now - HOUR)])
    async with TestClient(TestServer(app)) as client:

        async def usual(query: str = "") -> str:
            answer = await client.get(f"/api/v1/versions{query}")
            return str((await answer.json())["groups"][0]["usual"])

        assert await usual() == "6.1"
        await keep(head, [version("gpu01", "kernel", "6.6", now)])
        assert await usual("?age=300") == "6.1"
        clock[0] += 301
        assert await usual("?age=300") == "6.6"
        await keep(head, [version("gpu01", "kernel", "6.9", now + 1)])
        assert await usual() == "6.9"  # the command line asks for no age
        assert (await client.get("/api/v1/versions?age=-1")).status == 400


# ---- against what a site declares ---------------------------------------------------------------


def drivers(*texts: str) -> list[Reading]:
    return [
        one
        for number, text in enumerate(texts)
        for one in (
            Reading(f"n{number}", "model", "x", H100, 1, HOUR),
            Reading(f"n{number}", "driver", "", text, 1, HOUR),
        )
    ]


def against(declared: Declared, *texts: str) -> Group:
    return find(groups(drivers(*texts), declared=declared), "driver", H100)


def test_what_is_declared_is_the_measure_and_not_the_majority() -> None:
    good = {"driver": {"*A100*": ("535.*",), "*H100*": ("570.195.*", "580.82.07")}}
    found = against(good, "560.1", "560.1", "560.1", "570.195.03", "580.82.07")
    assert (found.usual, found.usual_parts, found.clear) == ("570.195.03", 2, True)
    assert [(one.text, one.parts) for one in found.others] == [("560.1", 3)]
    alike = against(good, "560.1", "560.1")
    assert (alike.usual, alike.usual_parts) == ("570.195.* or 580.82.07", 0)
    assert [one.parts for one in alike.others] == [2]
    assert "570.195.* or 580.82.07 on 0 of 2  (declared)" in versions(plain_groups([alike]))
    mixed = against(good, "570.195.03", "580.82.07")
    assert (mixed.others, mixed.usual_parts) == ((), 2)


def test_models_of_which_nothing_is_declared_are_compared_as_ever() -> None:
    for declared in ({}, {"vbios": {"*": ("1",)}}, {"driver": {"*A100*": ("535.*",)}}):
        found = against(declared, "560.1", "560.1", "570.2")
        assert (found.usual, found.usual_parts, found.declared) == ("560.1", 2, ())
        assert [one.text for one in found.others] == ["570.2"]


def test_a_kind_of_version_that_nobody_tells_is_a_fault_of_the_configuration() -> None:
    Config.model_validate({"versions": {"driver": {"*": ["570.*"]}, "bios": {"*": ["2.1"]}}})
    with pytest.raises(ValueError, match="drivers is no version that is told: driver, nvml"):
        Config.model_validate({"versions": {"drivers": {"*": ["570.*"]}}})


async def test_the_head_measures_by_its_configuration(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time_ns()
    await keep(head, [version(name, "kernel", "6.1.0-31-amd64", now) for name in NODES])
    head.config = head.config.model_copy(update={"versions": {"kernel": {"*": ("6.1.0-35-*",)}}})
    arguments = ["nodes", "--versions", "--socket", str(head.config.head.socket)]
    assert await asyncio.to_thread(main, arguments) == 1
    out = capsys.readouterr().out
    assert out.startswith("kernel of no GPU: 6.1.0-35-* on 0 of 6  (declared)\n")
    assert "6.1.0-31-amd64 on 6, since" in out


async def test_what_no_two_nodes_have_alike_is_no_version(head: Head) -> None:
    now = time.time_ns()
    for number, name in enumerate(NODES):
        text = f"serial=S{number} disk=D{number}"
        inventory = [
            event(name, "inventory", "chassis", now, text=text, severity=INFO),
            event(name, "inventory", "excluded", now, text=f"gpus={number}", severity=INFO),
        ]
        await keep(head, [*inventory, version(name, "kernel", "6.1", now)])
    assert [one.code for one in groups(readings(head.store.database))] == ["kernel"]
