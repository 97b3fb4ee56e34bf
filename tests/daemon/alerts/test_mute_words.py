"""``tocsin mute`` and ``unmute`` to a whole head, over its socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from collectors.sample import sample
from daemon.assemble import open_ears
from daemon.cli.main import main as tocsin
from daemon.clock import SystemClock
from daemon.config import Config
from daemon.demo.source import simulated_source
from daemon.gate.tokens import parse_tokens
from daemon.head import Head
from daemon.listen import Listeners
from daemon.slurm.simulated import SimulatedSlurm
from tests.daemon.worlds import idle


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    url = tmp_path / "url"
    url.write_text("http://127.0.0.1:9/hook\n")
    config = Config.model_validate(
        {
            "mode": "act",
            "head": {
                "state_dir": tmp_path, "listen": "127.0.0.1:0", "socket": tmp_path / "s",
                "operators_group": "", "judge_seconds": 300,
            },
            "page": {"enabled": False},
            "policy": {"drained_share_max": 1.0, "partition_share_max": 1.0},
            "store": {"reserve_bytes": 0},
            "alerts": {"webhook_url_file": url, "webhook_give_up_seconds": 1e9},
        }
    )  # fmt: skip
    clock = SystemClock()
    slurm = SimulatedSlurm([idle(f"n{n}") for n in range(1, 9)], clock.now_ns)
    source = simulated_source(slurm, 3600.0, tmp_path / "slurm")
    made, listeners = Head(config, clock=clock, adapter=slurm, slurm=source), Listeners()
    await made.start()
    await open_ears(made, config, parse_tokens(""), listeners)
    yield made
    await listeners.close()
    await made.stop()


async def say(head: Head, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of the command and all that it printed."""
    capsys.readouterr()
    arguments = [*words, "--socket", str(head.config.head.socket)]
    code = await asyncio.to_thread(tocsin, arguments)
    said = capsys.readouterr()
    return code, said.out + said.err


def sent(head: Head) -> list[str]:
    (webhook,) = head.ways
    return [str(one["node"]) for one in webhook.pending()]


async def fault(head: Head, node: str) -> None:
    """A failed row remap: certain, and drained for."""
    now_ns = head.clock.now_ns()
    row = sample("gpu", now_ns, {"row_remap_failed": 1.0}, node=node, gpu="3", uuid=f"GPU-{node}")
    await head.intake.accept([row], node, now_ns)
    await head.judge()


async def test_a_muted_node_is_drained_and_shown_and_sent_to_nobody_until_unmuted(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await say(head, capsys, "mute") == (0, "nothing is muted\n")
    code, said = await say(head, capsys, "mute", "n3", "--hours", "2", "--because", "fan on order")
    assert code == 0
    assert said.startswith("n3 is muted by root")
    assert "nothing that is active now is meant" in said
    for node in ("n3", "n4"):
        await fault(head, node)
    assert set(sent(head)) == {"n4"}
    assert head.nodes["n3"].drain  # muting stops nothing
    _, status = await say(head, capsys, "status")
    assert "fan on order" in status
    _, listed = await say(head, capsys, "mute", "--json")
    (row,) = json.loads(listed)
    assert (row["target"], row["text"]) == ("n3", "fan on order")
    assert "fan on order" in (await say(head, capsys, "mute"))[1]
    assert (await say(head, capsys, "unmute", "n3"))[0] == 0
    await head.judge()
    assert set(sent(head)) == {"n3", "n4"}
    verbs = [entry.verb for entry in head.ledger.audit(node="n3") if entry.user.startswith("root")]
    assert verbs == ["unmute", "mute"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("mute", "n3", "--hours", "0"), "hours: a number over 0 and at most 720"),
        (("mute", "n3", "--hours", "nan"), "hours: a number over 0"),
        (("mute", "n3", "--because", "a\nb"), "text: one line"),
        (("mute", "../n3"), "a node's name or a decision's id is letters, digits"),
        (("unmute", "n3"), "n3 is not muted; tocsin mute lists what is"),
    ],
)
async def test_what_makes_no_sense_is_refused_in_words(
    head: Head, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, said = await say(head, capsys, *words)
    assert code == 1
    assert f"tocsin: {told.partition(':')[0]}" in said
    assert told in said
    assert head.alerts.mutes(head.clock.now_ns()) == []
