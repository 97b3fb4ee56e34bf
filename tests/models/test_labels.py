"""Labels: what counts as a failure, what never does, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.events import event
from collectors.sample import Sample, sample
from models.labels import HOUR_NS, SECOND_NS, Labels, corrected, follows, mine
from models.voices import Entity

DAY_NS = 24 * HOUR_NS


def xid(code: int, time_ns: int = HOUR_NS, node: str = "n1", pci: str = "0000:9b:00") -> Sample:
    return event(node, "xid", str(code), time_ns, text="x", severity=3, device=pci)


def slurm(code: str, time_ns: int, node: str = "n1", reason: str = "", after: str = "") -> Sample:
    fields = {"before": "MIXED", "after": after or "IDLE+DRAIN", "reason": reason}
    return sample("slurm_event", time_ns, fields, node=node, kind="state", code=code)


def inventory(node: str = "n1") -> Sample:
    text = "gpu=4 uuid=a serial=1 model=M"
    return event(node, "inventory", "gpu", 0, text=text, severity=0, device="0000:9b:00")


def found(*samples: Sample) -> Labels:
    crowd = [inventory(f"other{i}") for i in range(100)]
    return mine([inventory(), *crowd, *sorted(samples, key=lambda one: one.time_ns)])


@pytest.mark.parametrize("code", [48, 64, 74, 79, 95, 119])
def test_hardware_xid_is_a_failure_of_the_gpu_at_that_address(code: int) -> None:
    (failure,) = found(xid(code)).failures
    assert failure.entity == Entity("gpu", "n1", "gpu4")
    assert failure.onset_ns == HOUR_NS


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 94])
def test_application_and_contained_xids_are_none(code: int) -> None:
    assert found(xid(code)).failures == ()


def test_hardware_xid_at_an_unknown_address_is_a_failure_of_the_node() -> None:
    (failure,) = found(xid(79, pci="0000:01:00")).failures
    assert failure.entity == Entity("node", "n1")


def test_all_lines_of_one_failure_are_one_label_until_the_node_is_back() -> None:
    back = slurm("drain_end", 9 * HOUR_NS, after="IDLE")
    labels = found(
        *(xid(79, HOUR_NS + i) for i in range(50)),
        slurm("drain", 3 * HOUR_NS, reason="gpu problem"),
        back,
        xid(79, 20 * HOUR_NS),
    )
    assert [one.onset_ns for one in labels.failures] == [HOUR_NS, 20 * HOUR_NS]
    assert labels.failures[0].end_ns == 9 * HOUR_NS


def test_node_that_slurm_lost_failed_and_one_that_a_plan_took_did_not() -> None:
    lost = slurm("down", HOUR_NS, reason="Not responding", after="DOWN+NOT_RESPONDING")
    planned = slurm("down", HOUR_NS, "n2", "planned power work", "DOWN")
    reboot = slurm("reboot", HOUR_NS, "n3", "kernel")
    labels = found(lost, planned, reboot)
    assert [one.entity.node for one in labels.failures] == ["n1"]
    assert {one.node for one in labels.away} == {"n2", "n3"}


@pytest.mark.parametrize("reason", ["planned: reboot", "maint window", "firmware update", "test"])
def test_planned_drains_are_no_failures(reason: str) -> None:
    assert found(slurm("drain", HOUR_NS, reason=reason)).failures == ()


def test_drain_by_a_person_for_a_fault_is_a_late_label() -> None:
    labels = found(slurm("drain", 3 * DAY_NS, reason="gpu problem"))
    (failure,) = labels.failures
    assert failure.cause == "drained by a person"
    (lag,) = labels.away
    assert (lag.begin_ns, lag.end_ns) == (2 * DAY_NS, 3 * DAY_NS)


def test_time_after_our_own_drain_is_censored_and_no_failure() -> None:
    labels = found(slurm("drain", HOUR_NS, reason="tocsin:x79 gpu4 9f2c; fell off the bus"))
    assert labels.failures == ()
    assert labels.spans()["n1"][0][0] == HOUR_NS


def test_many_nodes_lost_at_once_are_a_fleet_event() -> None:
    lost = [
        slurm("down", HOUR_NS + i * SECOND_NS, f"other{i}", "Not responding", "DOWN")
        for i in range(8)
    ]
    single = slurm("down", 9 * HOUR_NS, "other50", "Not responding", "DOWN")
    labels = found(*lost, single)
    assert [one.entity.node for one in labels.failures] == ["other50"]
    ((at_ns, nodes),) = labels.fleet_events
    assert at_ns == HOUR_NS
    assert len(nodes) == 8


def test_two_nodes_lost_at_once_are_two_failures() -> None:
    lost = [slurm("down", HOUR_NS + i, f"other{i}", "Not responding", "DOWN") for i in range(2)]
    assert len(found(*lost).failures) == 2


def test_operator_who_calls_a_drain_wrong_takes_the_label_back() -> None:
    labels = found(xid(79), xid(79, HOUR_NS, "other1"))
    left = corrected(labels, {"n1": 2 * HOUR_NS})
    assert [one.entity.node for one in left.failures] == ["other1"]


def test_window_of_a_label_is_open_below_and_closed_above() -> None:
    onsets = np.array([100, 200], np.int64)
    assert follows(onsets, 0, 50, 100)
    assert not follows(onsets, 0, 100, 150)
    assert follows(onsets, 0, 100, 200)
    assert not follows(onsets, 200, 0, 1000)


@pytest.mark.parametrize(
    ("code", "severity", "failures"),
    [("fan", 1, 0), ("fan", 2, 1), ("fan_lower_critical", 2, 1), ("fantasy", 2, 0)],
)
def test_fan_that_the_bmc_calls_failed_is_a_failure_at_once(
    code: str, severity: int, failures: int
) -> None:
    """People drain for it hours later; by then its precursor lies before another onset."""
    fan = event("n1", "sel", code, HOUR_NS, text="Fan3", severity=severity, device="FAN3")
    late = slurm("drain", 3 * HOUR_NS, reason="hardware")
    labels = found(fan, late)
    assert [one.onset_ns for one in labels.failures if one.cause == "fan"] == [HOUR_NS] * failures


@pytest.mark.parametrize("reason", ["lustre not mounted", "NHC: check_fs_mount: /scratch"])
def test_an_outage_for_software_is_no_failure_of_a_part_and_no_example(reason: str) -> None:
    labels = found(slurm("drain", HOUR_NS, reason=reason))
    assert labels.failures == ()
    assert [one.why for one in labels.away] == ["software"]


def test_what_accounting_and_people_say_of_a_dead_node_are_failures() -> None:
    labels = found(
        slurm("node_fail", HOUR_NS),
        slurm("down", 2 * DAY_NS, "n2", "ann: bad DIMM P1-C2", "DOWN"),
        slurm("down", 3 * DAY_NS, "n3", "ann: I look at it", "DOWN"),
    )
    assert [(one.entity.node, one.cause) for one in labels.failures] == [
        ("n1", "node down"),
        ("n2", "drained by a person"),
    ]
