"""Writes that are taken in run by run say the same as samples that are taken one by one."""

from __future__ import annotations

import itertools
import random

from collectors.events import event
from collectors.sample import Sample, Value, sample, source_reading
from models.rules import Rules
from models.runs import runs_of
from models.silence import SilenceTracker

SECOND_NS = 1_000_000_000
NOW_NS = 1_780_000_000 * SECOND_NS
EXPECTED = {"n1": 8, "n2": 4, "n3": 2}


def gpu(rng: random.Random, node: str, index: int, time_ns: int) -> Sample:
    """A reading with this and that missing or wrong; sometimes another card, or no card's name."""
    fields: dict[str, Value] = {
        "temperature_celsius": float(rng.randint(30, 33)),
        "power_watts": 70.0 if node == "n2" else rng.uniform(60, 700),
        "utilization_ratio": rng.choice([0.0, 0.9]),
        "sm_clock_hertz": 1.98e9,
    }
    extra: dict[str, Value] = {
        "memory_used_bytes": 1e9,
        "energy_joules_total": rng.uniform(1, 9),
        "pcie_replays_total": 0.0,
        "mig_enabled": float(rng.random() < 0.02),
        "lost": float(rng.random() < 0.01),
        "recovery_action": float(rng.random() < 0.02),
        "row_remap_failed": 0.0,
        "ecc_uncorrected_total": float(rng.choice([0, 0, 0, 0, 1, 2])),
        "pcie_link_generation": rng.choice([5.0, 5.0, 4.0]),
        "pcie_link_generation_max": 5.0,
    }
    gone = node == "n3" and rng.random() < 0.5
    fields |= {name: value for name, value in extra.items() if not gone and rng.random() < 0.9}
    if rng.random() < 0.02:
        fields["lost"] = "text"
    uuid = f"GPU-{node}-{index}-{int(rng.random() < 0.01)}" if rng.random() < 0.9 else ""
    return sample("gpu", time_ns, fields, node=node, gpu=str(index), uuid=uuid)


def write(rng: random.Random, now_ns: int) -> list[Sample]:
    """What one node sends at once, out of a spool now and then, or by a clock that is off."""
    node = rng.choice(["n1", "n1", "n2", "n3", ""])
    time_ns = now_ns + rng.choice([0, 0, 0, 0, -40, 300, 7200]) * SECOND_NS
    found = [
        gpu(rng, node, index, time_ns + rng.choice([0, 0, 0, -5, 1]) * SECOND_NS)
        for index in range(EXPECTED.get(node, 1))
    ]
    host: dict[str, Value] = {
        "boot_time_seconds": float(now_ns // SECOND_NS - rng.choice([9000, 9000, 10])),
        "filesystem_readonly": float(rng.random() < 0.05),
    }
    beside = [
        sample("host", time_ns, host, node=node),
        source_reading(
            node, "nvml", time_ns, up=rng.random() < 0.9, duration_seconds=0.0, age_seconds=0.0,
            fault="hung" if rng.random() < 0.05 else "",
        ),
        sample("bmc", now_ns, {"critical": float(rng.random() < 0.3)}, node=node, sensor="PSU1"),
        event(
            node, "xid", rng.choice(["79", "154", "31"]), time_ns, text="x", severity=2.0,
            device="0000:3b:00",
        ),
    ]  # fmt: skip
    found += rng.sample(beside, rng.randint(0, 4))
    if rng.random() < 0.1:
        rng.shuffle(found)
    return found


def test_a_run_says_what_its_samples_say_one_by_one() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        rules, plain_rules = Rules(), Rules()
        silence, plain_silence = SilenceTracker(), SilenceTracker()
        for step in range(60):
            now_ns = NOW_NS + step * 10 * SECOND_NS
            samples = write(rng, now_ns)
            for run in runs_of(samples):
                rules.observe_run(run, now_ns)
                silence.observe_run(run, now_ns)
            for one in samples:
                plain_rules.observe(one, now_ns)
                plain_silence.observe(one, now_ns)
            assert rules.dump() == plain_rules.dump()
            assert silence.dump() == plain_silence.dump()
            assert rules.facts(now_ns, EXPECTED) == plain_rules.facts(now_ns, EXPECTED)
            assert silence.silences(now_ns) == plain_silence.silences(now_ns)


def test_runs_keep_the_order_and_lose_nothing() -> None:
    rng = random.Random(7)
    samples = [one for step in range(50) for one in write(rng, NOW_NS + step)]
    runs = runs_of(samples)
    assert [one for run in runs for one in run.samples] == samples
    for run in runs:
        assert {(one.measurement, one.tag("node")) for one in run.samples} == {
            (run.measurement, run.node)
        }
    for run, after in itertools.pairwise(runs):
        assert run[:2] != after[:2]
