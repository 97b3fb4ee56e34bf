"""What a compromised agent may not do to others with its own token, nor to the head's memory."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.admission import AdmissionOptions
from daemon.gateway import GatewayOptions
from daemon.tokens import parse_tokens
from tests.daemon.head_stub import NODE_TOKEN, Head
from tests.daemon.test_gateway import post

VICTIM_TOKEN = "victim-token-0123456789"
XID = 'event,code=79,kind=xid,node=n2 severity=3,text="Xid 79"\n'


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    bounds = AdmissionOptions(series_per_node_limit=5)
    options = GatewayOptions(admission=bounds, pending_samples_limit=1000)
    tokens = parse_tokens(f"n1 {NODE_TOKEN}\nn2 {VICTIM_TOKEN}\n")
    started = await Head(tmp_path / "store", options, tokens).start()
    yield started
    await started.stop()


async def test_refused_lines_use_up_no_budget_of_the_node_that_they_name(head: Head) -> None:
    lines = "".join(f"event,kind=k{number},node=n2 severity=0\n" for number in range(5))
    assert (await post(head, lines))[0] == 403
    assert (await post(head, XID, VICTIM_TOKEN))[0] == 204


async def test_refused_lines_leave_no_series_behind(head: Head) -> None:
    lines = "".join(f"risk,k=k{number},node=n1 a=0\n" for number in range(5))
    assert (await post(head, lines))[0] == 400
    assert head.gateway.admission.series == 0


@pytest.mark.parametrize(
    "line",
    [
        "fabric,node=n1,subnet=ib manager_up=0\n",
        'event,code=link,kind=inventory,node=n1 severity=0,device="mlx5_0/1",text="switch=1"\n',
    ],
)
async def test_a_node_says_nothing_of_the_fabric(head: Head, line: str) -> None:
    status, answer, _ = await post(head, line)
    assert status == 400
    assert "alone" in answer["message"]


async def test_short_lines_without_number_are_counted_before_they_are_read(head: Head) -> None:
    body = gzip.compress(b"a\n" * 1001)
    status, answer, _ = await post(head, body, headers={"Content-Encoding": "gzip"})
    assert status == 413
    assert "send fewer at once" in answer["message"]
