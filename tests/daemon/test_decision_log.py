from collections.abc import Sequence

import structlog

from collectors.sample import Sample
from daemon.decision_log import DecisionLog
from daemon.policy.decisions import Action, Decision, Mode


def decision(number: int) -> Decision:
    return Decision(
        f"{number:04x}", number * 10**9, "n1", "gpu0", "gpu", Action.DRAIN, "fact", "xid", "79",
        Mode.SHADOW, "a reason",
    )  # fmt: skip


async def test_what_the_store_did_not_take_is_written_again_and_logged_once() -> None:
    durable = [False]
    points: list[int] = []

    async def keep(samples: Sequence[Sample]) -> bool:
        if durable[0]:
            points.extend(one.time_ns // 10**9 for one in samples)
        return durable[0]

    writer = DecisionLog(4)
    with structlog.testing.capture_logs() as lines:
        await writer.write(5, [decision(1)], keep)
        assert writer.sequence == 4
        await writer.write(6, [decision(1), decision(2)], keep)
        durable[0] = True
        await writer.write(7, [decision(1), decision(2), decision(3)], keep)
        assert writer.sequence == 7
        await writer.write(7, [], keep)
        await writer.write(8, [decision(4)], keep)
    assert writer.sequence == 8
    assert points == [1, 2, 3, 4]
    assert [line["id"] for line in lines] == ["0001", "0002", "0003", "0004"]
