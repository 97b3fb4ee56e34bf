"""A tool that did not finish its list of GPUs drains nobody; GPUs that are really gone do."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.gpu import nvidia_smi
from collectors.sample import Context, Cycle
from models.rules import Rules
from models.voices import Remedy
from tests.collectors.recorded_tool import PROGRAM, recorded_tool
from tests.models.rule_samples import NOW, SECOND, feed

SMI = Path(__file__).resolve().parents[1] / "fixtures/gpu/smi"
PERIOD = 30 * SECOND


def listing(gpus: int, attached: int) -> str:
    """A document that lists ``gpus`` boards and counts ``attached``."""
    head, _, tail = (SMI / "q-x_v12_535.xml").read_text().partition("\t<gpu id=")
    one, _, end = tail.partition("</gpu>")
    boards = "".join(
        "\t<gpu id="
        + one.replace("1B:", f"{place + 1}B:").replace("0c0ffee00000", f"0c0ffee0000{place}")
        + "</gpu>\n"
        for place in range(gpus)
    )
    return head.replace("attached_gpus>1<", f"attached_gpus>{attached}<") + boards + end


@pytest.mark.parametrize(
    ("text", "code", "drained"),
    [
        (listing(8, 8), 0, False),
        (listing(7, 7), 0, True),  # the driver itself counts seven
        (listing(7, 8), 0, False),
        (listing(8, 8)[: listing(8, 8).index('<gpu id="00000000:7B')], -11, False),
        ("", 137, False),
    ],
    ids=["all", "one gone", "one not listed", "cut off", "nothing"],
)
def test_ten_minutes_of_one_list(
    rules: Rules,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    code: int,
    drained: bool,
) -> None:
    tool = recorded_tool(tmp_path, monkeypatch)
    context = Context(node="n3", state_dir=tmp_path, root=tmp_path, now_ns=lambda: NOW)
    options = nvidia_smi.Options(program=PROGRAM, deadline_seconds=30.0)
    made = Cycle(nvidia_smi.make(options, context), "n3")
    tool.answer("-q -x", listing(8, 8))
    feed(rules, made.run(NOW).samples)
    tool.answer("-q -x", text, code)
    for step in range(1, 21):
        feed(rules, made.run(NOW + step * PERIOD).samples)
    facts = rules.facts(NOW + 20 * PERIOD, {"n3": 8})
    assert {one.rule for one in facts if one.remedy is Remedy.DRAIN} == (
        {"gpu_count"} if drained else set()
    )
