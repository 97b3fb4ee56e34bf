"""A node whose clock ran ahead after its start and was set right is heard at once."""

from __future__ import annotations

import pytest

from collectors.events import event
from collectors.sample import Sample, sample, source_reading
from models.rules import Rules
from models.silence import SilenceTracker

SECOND = 10**9
NOW = 1_796_000_000 * SECOND
STEP = 10 * SECOND
AHEAD = 7_200 * SECOND
UP = {"state": 4.0, "physical_state": 5.0, "rate_bits_per_second": 400e9, "link_width": 4.0}
GPU = {
    "temperature_celsius": 40.0,
    "power_watts": 90.0,
    "utilization_ratio": 0.5,
    "memory_used_bytes": 1e9,
}


class Node:
    """A node of two GPUs, read every ten seconds, whose clock is ``ahead_ns`` ahead."""

    def __init__(self) -> None:
        self.rules, self.silence = Rules(), SilenceTracker()
        self.now = NOW
        self.ahead_ns = 0
        self.booted_ns = NOW - 86_400 * SECOND
        self.gpus = [dict(GPU), dict(GPU)]
        self.port = dict(UP)
        self.silence.expect(["n1"], NOW)

    def tell(self, *samples: Sample) -> None:
        for one in samples:
            self.rules.observe(one, self.now)
            self.silence.observe(one, self.now)

    def run(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.now += STEP
            at = self.now + self.ahead_ns
            boot_seconds = (self.booted_ns + self.ahead_ns) / SECOND
            for index, fields in enumerate(self.gpus):
                tags = {"gpu": str(index), "uuid": f"GPU-{index}"}
                self.tell(sample("gpu", at, fields, node="n1", **tags))
            self.tell(
                sample("host", at, {"boot_time_seconds": boot_seconds}, node="n1"),
                sample("ib_port", at, self.port, node="n1", device="mlx5_0", port="1"),
                source_reading("n1", "nvml", at, up=True, duration_seconds=0.1, age_seconds=0.0),
            )

    def restart(self, ahead_ns: int) -> None:
        """It is away for three minutes."""
        self.now += 180 * SECOND
        self.booted_ns = self.now - 60 * SECOND
        self.ahead_ns = ahead_ns
        boot_ns = self.booted_ns + ahead_ns
        self.tell(event("n1", "reboot", "boot", boot_ns, text="it restarted", severity=0))

    def xid(self, at_ns: int) -> None:
        line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, words"
        self.tell(event("n1", "xid", "79", at_ns, text=line, severity=3, device="0000:9b:00"))

    def codes(self) -> set[str]:
        return {fact.code for fact in self.rules.facts(self.now, {"n1": 2})} - {"clock"}


@pytest.fixture(params=[30, 300], ids=["for half a minute", "for five minutes"])
def node(request: pytest.FixtureRequest) -> Node:
    """Ran for a while, restarted two hours ahead, was set right after some time."""
    made = Node()
    made.run(900)
    made.restart(AHEAD)
    made.run(request.param)
    made.ahead_ns = 0
    made.run(60)
    assert made.codes() == set()
    return made


def test_an_xid_is_heard(node: Node) -> None:
    node.xid(node.now)
    assert node.codes() == {"x79"}


def test_a_lost_gpu_and_a_link_that_is_down_are_seen(node: Node) -> None:
    node.run(660)  # until the port counts as in use again
    node.gpus[1]["lost"] = 1.0
    node.port.update({"state": 1.0, "physical_state": 2.0})
    node.run(120)
    assert node.codes() == {"lost", "ibdown"}


def test_nothing_of_it_is_called_silent(node: Node) -> None:
    node.run(600)
    assert node.silence.silences(node.now) == []


def test_what_was_before_the_restart_stays_over(node: Node) -> None:
    node.xid(node.booted_ns - 120 * SECOND)
    assert node.codes() == set()


def test_a_clock_that_stays_ahead_is_believed_as_it_is() -> None:
    made = Node()
    made.ahead_ns = AHEAD
    made.run(900)
    boot_ns = made.rules._nodes["n1"].boot_ns
    made.run(900)
    made.xid(made.now + AHEAD)
    assert made.codes() == {"x79"}
    assert made.rules._nodes["n1"].boot_ns == boot_ns


def test_a_spool_that_is_emptied_after_newer_readings_sets_nothing_back() -> None:
    made = Node()
    made.run(900)
    newest_ns = made.rules._nodes["n1"].newest_ns
    for late in range(600, 0, -10):
        made.tell(sample("gpu", made.now - late * SECOND, GPU, node="n1", gpu="0", uuid="GPU-0"))
    assert made.rules._nodes["n1"].newest_ns == newest_ns
