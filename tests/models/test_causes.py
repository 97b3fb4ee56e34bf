"""Every label that the miner can give has a cause of its kind."""

from __future__ import annotations

import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from models.causes import CAUSES, cause_of
from models.features.catalogue import HARDWARE_XIDS
from models.labels import mine
from models.voices import Entity

DAY_NS = 86_400_000_000_000


def sel(code: str) -> Sample:
    return event("n1", "sel", code, DAY_NS, text="x", severity=3.0, device="x")


def link(device: str) -> Sample:
    return event("n1", "link", "down", DAY_NS, text="x", severity=2.0, device=device)


def slurm(code: str, before: str, after: str, reason: str) -> Sample:
    fields: dict[str, float | str] = {"before": before, "after": after, "reason": reason}
    return sample("slurm_event", DAY_NS, fields, node="n1", kind="state", code=code)


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        (sel("fan"), "chassis"),
        (sel("power_supply_failure"), "chassis"),
        (event("n1", "link", "down", DAY_NS, text="x", severity=2.0, device="mlx5_0/1"), "link"),
        (event("n1", "mce", "uncorrected", DAY_NS, text="x", severity=3.0, device=""), "memory"),
        (event("n1", "filesystem", "readonly", DAY_NS, text="x", severity=3.0, device=""), "disk"),
        (slurm("down", "IDLE", "DOWN+NOT_RESPONDING", "Not responding"), "host"),
        (slurm("drain", "IDLE", "IDLE+DRAIN", "gpu problem"), "host"),
    ],
)
def test_failures_of_a_node_have_the_cause_that_their_event_tells(told: Sample, cause: str) -> None:
    (failure,) = mine([told]).failures
    assert cause_of("node", failure.cause) == cause
    assert cause_of(failure.entity.kind, failure.cause) in CAUSES[failure.entity.kind]


@pytest.mark.parametrize(
    ("told", "entity"),
    [
        (sel("fan"), Entity("chassis", "n1")),
        (sel("power_supply_failure"), Entity("chassis", "n1")),
        (link("mlx5_0/1"), Entity("link", "n1", "mlx5_0/1")),
        (link("0000:41:00"), Entity("node", "n1")),  # which port that is nobody says
        (event("n1", "edac", "uncorrected", DAY_NS, text="x", severity=3.0, device="DIMM_A1"),
         Entity("memory", "n1")),
        (event("n1", "filesystem", "readonly", DAY_NS, text="x", severity=3.0,
               device="nvme0n1p2"), Entity("disk", "n1", "nvme0")),
        (event("n1", "filesystem", "readonly", DAY_NS, text="x", severity=3.0, device="dm-0"),
         Entity("node", "n1")),
    ],
)  # fmt: skip
def test_a_failure_is_that_of_the_part_that_readings_know_by_this_name(
    told: Sample, entity: Entity
) -> None:
    (failure,) = mine([told]).failures
    assert failure.entity == entity


def test_supply_that_only_foresees_its_failure_has_not_failed() -> None:
    assert mine([sel("power_supply_predictive")]).failures == ()


@pytest.mark.parametrize("code", sorted(HARDWARE_XIDS, key=int))
def test_each_hardware_xid_has_a_cause(code: str) -> None:
    assert cause_of("gpu", f"xid {code}") in CAUSES["gpu"]


@pytest.mark.parametrize(
    ("words", "cause"),
    [("xid 48", "memory"), ("xid 74", "nvlink"), ("xid 79", "loss"), ("gpu_lost lost", "loss")],
)
def test_xids_of_memory_of_links_and_of_the_whole_gpu_are_told_apart(
    words: str, cause: str
) -> None:
    assert cause_of("gpu", words) == cause
