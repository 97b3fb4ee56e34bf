"""The simulated fleet: seeded, reacts to drains, and its faults show as real ones do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collectors.sample import Sample
from models.simulate import CLASSES, Fleet

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def quiet(nodes: int = 4, seed: int = 1, operator: bool = False) -> Fleet:
    return Fleet(nodes, 8, seed=seed, start_ns=START, background=False, operator=operator)


def ticks(fleet: Fleet, count: int, seconds: int = 30) -> Iterator[list[Sample]]:
    for _ in range(count):
        yield fleet.tick(fleet.now_ns + seconds * SECOND)


def gpu(samples: list[Sample], node: str, index: int) -> Sample | None:
    for one in samples:
        if one.measurement == "gpu" and one.tag("node") == node and one.tag("gpu") == str(index):
            return one
    return None


def test_same_seed_gives_the_same_readings() -> None:
    first = [Fleet(8, 4, seed=3, start_ns=START) for _ in range(2)]
    for _ in range(20):
        left, right = (fleet.tick(fleet.now_ns + 600 * SECOND) for fleet in first)
        assert left == right


def test_other_seed_gives_other_readings() -> None:
    left, right = (Fleet(8, 4, seed=seed, start_ns=START) for seed in (1, 2))
    assert left.tick(START + SECOND) != right.tick(START + SECOND)


def test_no_two_samples_share_measurement_tags_and_time() -> None:
    fleet = Fleet(16, 8, seed=5, start_ns=START, operator=True)
    seen: set[tuple[str, object, int]] = set()
    for batch in ticks(fleet, 40, 7200):
        for one in batch:
            key = (one.measurement, one.tags, one.time_ns)
            assert key not in seen
            seen.add(key)
            assert list(one.tags) == sorted(one.tags)
            assert all(isinstance(value, float | str) for value in one.fields.values())


def test_lost_gpu_stops_answering_and_its_siblings_go_on() -> None:
    fleet = quiet()
    fault = fleet.sicken("n2", 3, "bus_lost")
    fault.style = 0.9  # NVML gives nothing of a lost GPU
    batch = fleet.tick(START + 30 * SECOND)
    codes = {one.tag("code") for one in batch if one.measurement == "event"}
    assert {"79", "lost"} <= codes
    batch = fleet.tick(START + 60 * SECOND)
    lost = gpu(batch, "n2", 3)
    assert lost is not None
    assert lost.fields == {"lost": 1.0}
    sibling = gpu(batch, "n2", 4)
    assert sibling is not None
    assert "power_watts" in sibling.fields


def test_lost_gpu_behind_an_exporter_freezes_and_its_counters_vanish() -> None:
    fleet = quiet()
    list(ticks(fleet, 5))
    fleet.sicken("n2", 3, "bus_lost").style = 0.1
    frozen = [gpu(batch, "n2", 3) for batch in ticks(fleet, 5)]
    first, *rest = [one.fields for one in frozen if one is not None]
    assert "energy_joules_total" not in first
    assert "power_watts" in first
    assert all(one == first for one in rest)


def test_heat_fault_shows_against_siblings_before_it_strikes() -> None:
    fleet = quiet()
    fleet.sicken("n1", 5, "heat", lead_seconds=7200, strength=2)
    *_, batch = ticks(fleet, 230)
    node = [gpu(batch, "n1", index) for index in range(8)]
    excess = [
        (one.fields["temperature_celsius"] - 24) / one.fields["power_watts"]
        for one in node
        if one is not None
    ]
    assert max(excess) == excess[5]
    assert excess[5] > 1.2 * sorted(excess)[4]


def test_drained_node_takes_no_new_job_and_keeps_the_old_ones() -> None:
    fleet = quiet(nodes=6)
    list(ticks(fleet, 2))
    before = {job.number for job in fleet.jobs_on("n3")}
    assert before
    fleet.set_drained(["n3", "no such node"])
    for _ in ticks(fleet, 150, 3600):
        assert {job.number for job in fleet.jobs_on("n3")} <= before
    assert fleet.gpus_allocated("n3") == 0
    assert fleet.gpus_allocated("n4") > 0


def test_node_that_is_drained_for_a_struck_fault_is_mended_and_reads_well_again() -> None:
    fleet = quiet()
    fault = fleet.sicken("n2", 0, "gsp")
    list(ticks(fleet, 1))
    assert fleet.sick == {"n2"}
    fleet.set_drained(["n2"])
    fault.repair_seconds = 60.0
    for batch in ticks(fleet, 400, 1800):
        if "n2" in fleet.mended and "n2" not in fleet.down:
            assert gpu(batch, "n2", 0) is not None
            break
    assert fleet.mended == {"n2"}
    assert not fleet.sick
    assert fleet.truth()[0].repaired_ns > fleet.truth()[0].onset_ns


def test_nobody_mends_what_the_head_does_not_drain() -> None:
    fleet = quiet()
    fleet.sicken("n2", 0, "hbm")
    list(ticks(fleet, 100, 4 * 3600))
    assert fleet.sick == {"n2"}


def test_crashed_host_is_silent_but_its_bmc_answers() -> None:
    fleet = quiet()
    fleet.sicken("n1", None, "host")
    list(ticks(fleet, 1))
    batch = fleet.tick(fleet.now_ns + 30 * SECOND)
    heard = {one.measurement for one in batch if one.tag("node") == "n1"}
    assert heard == {"bmc"}
    assert fleet.down == {"n1"}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_class_strikes_and_is_recorded(name: str) -> None:
    fleet = quiet(operator=True)
    fleet.sicken("n1", 2, name, lead_seconds=3600)
    list(ticks(fleet, 130, 60))
    (truth,) = fleet.truth()
    assert truth.fault_class == name
    assert truth.onset_ns == START + 3600 * SECOND
    assert truth.component == CLASSES[name].component
    assert truth.device == ("gpu2" if CLASSES[name].per == "gpu" else "")


def test_people_notice_and_mend_without_a_head() -> None:
    fleet = Fleet(200, 8, seed=2, start_ns=START, operator=True)
    for _ in range(6 * 40):
        fleet.tables(fleet.now_ns + 4 * 3600 * SECOND)
    truth = fleet.truth()
    mended = [one for one in truth if one.repaired_ns]
    assert len(truth) > 20
    assert len(mended) > 0.7 * len(truth)
    assert all(one.onset_ns <= one.noticed_ns <= one.repaired_ns for one in mended)
