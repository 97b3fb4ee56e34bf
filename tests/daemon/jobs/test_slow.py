"""Why a job is slow: each cause alone, and nothing where nothing stands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daemon.jobs.slow import Finding, GpuUse, HostUse, PortUse, findings

WELL = GpuUse("n1", "0", 0.97, 650.0, 700.0, 1.9e9, 62.0, 16.0, {"throttle_sw_power_cap": 0.9})


def job(*odd: GpuUse, **all_of_them: Any) -> list[GpuUse]:
    """Two nodes of eight GPUs that train, ``odd`` ones in the place of theirs."""
    gpus = {
        (node, str(gpu)): replace(WELL, node=node, gpu=str(gpu), **all_of_them)
        for node in ("n1", "n2")
        for gpu in range(8)
    }
    gpus.update({(one.node, one.gpu): one for one in odd})
    return list(gpus.values())


def one(**changes: Any) -> GpuUse:
    return replace(WELL, node="n2", gpu="3", **changes)


def told(*found: Finding) -> list[tuple[str, str]]:
    return [(each.kind, each.where) for each in found]


def test_a_job_that_is_well_has_nothing_told_of_it() -> None:
    hosts = [HostUse("n1", 0.9, 0.9, 0.9)]  # busy GPUs starve of nothing
    ports = [PortUse("n1", "mlx5_0/1", 4e11), PortUse("n2", "mlx5_0/1", 4e11)]
    assert findings(job(), hosts, ports) == []
    assert findings([]) == []


def test_a_gpu_that_is_slowed_by_heat_is_named_with_its_clock_and_cause() -> None:
    hot = one(
        sm_clock_hertz=1.2e9, temperature_celsius=91.0, throttled={"throttle_sw_thermal": 0.8}
    )
    (found,) = findings(job(hot))
    assert (found.kind, found.where) == ("slow_gpu", "n2 gpu3")
    assert found.text == (
        "runs at 1200 MHz, the others at 1900: heat in 80% of the readings; "
        "the others wait for it in each step (91 C)"
    )


def test_the_one_that_works_while_all_spin_is_the_straggler() -> None:
    spinning: dict[str, Any] = {"utilization_ratio": 1.0, "power_watts": 210.0}
    assert told(*findings(job(one(power_watts=660.0), **spinning))) == [("straggler", "n2 gpu3")]
    (all_wait,) = findings(job(**spinning))
    assert all_wait.kind == "waits"
    assert "210 W of 700" in all_wait.text


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (one(utilization_ratio=0.0), [("idle", "n2 gpu3")]),
        (one(pcie_link_width=4.0), [("pcie", "n2 gpu3")]),
        (one(utilization_ratio=0.5), [("uneven", "n2 gpu3")]),
        (one(utilization_ratio=None), []),
        (one(utilization_ratio=0.9), []),
        (one(sm_clock_hertz=1.8e9), []),
    ],
)
def test_one_gpu_that_stands_out(odd: GpuUse, expected: list[tuple[str, str]]) -> None:
    assert told(*findings(job(odd))) == expected


def test_gpus_that_all_do_nothing_and_gpus_that_are_all_slowed() -> None:
    assert told(*findings(job(utilization_ratio=0.0))) == [("idle", "all")]
    brake = findings(job(throttled={"throttle_hw_power_brake": 0.5}))
    assert told(*brake) == [("throttled", "all")]
    assert "the power brake" in brake[0].text
    assert findings(job(throttled={"throttle_sw_power_cap": 1.0})) == []


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        (HostUse("n1", 0.5, 0.0, 0.0), "cpu"),
        (HostUse("n1", 0.0, 0.4, 0.0), "io"),
        (HostUse("n1", 0.0, 0.0, 0.2), "memory"),
        (HostUse("n1", 0.1, 0.1, 0.01), ""),
        (HostUse("n1"), ""),
        (HostUse("n9", 0.9, 0.9, 0.9), ""),
    ],
)
def test_hosts_whose_gpus_wait(host: HostUse, kind: str) -> None:
    found = findings(job(utilization_ratio=0.4), [host])
    # Where nothing says why, that is said.
    assert [each.kind for each in found] == [kind or "low"]
    assert all("its GPUs are at 40%" in each.text for each in found)


def test_links_that_are_slow_flap_or_err() -> None:
    ports = [
        PortUse("n1", "mlx5_0/1", 4e11),
        PortUse("n2", "mlx5_0/1", 2e11, errors=12.0, downs=1.0),
    ]
    found = findings(job(), [], ports)
    assert told(*found) == [("link", "n2 mlx5_0/1")] * 3
    assert "200 Gb/s, the best at 400" in " ".join(each.text for each in found)
