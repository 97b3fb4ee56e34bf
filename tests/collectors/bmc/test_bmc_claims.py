"""A node whose BMC speaks Redfish and IPMI is read by one of them at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.bmc import claims as bmc_claims
from collectors.bmc import ipmi, redfish
from collectors.bmc.claims import Claims, claims_beside
from collectors.sample import Batch, Context
from tests.collectors.ipmi_help import options as ipmi_options
from tests.testbed.bmc.bmcs import IpmiBmcs, RedfishBmcs


@pytest.fixture
def both(
    tmp_path: Path, bmc_password: Path, ipmi_bmcs: IpmiBmcs, redfish_bmcs: RedfishBmcs
) -> Iterator[tuple[redfish.Redfish, ipmi.Ipmi]]:
    """Both sources of one head: n1 has both protocols, n2 IPMI alone."""
    (tmp_path / "redfish.list").write_text(f"n1 {redfish_bmcs.addresses[0]}\n")
    first = redfish.Options(
        file=str(tmp_path / "redfish.list"),
        user="admin",
        password_file=str(bmc_password),
        ca_file=str(redfish_bmcs.certificate),
        check_name=False,
        period_seconds=0.5,
        timeout_seconds=2.0,
        pause_max_seconds=0.5,
    )
    lines = {"n1": ipmi_bmcs.addresses[0], "n2": ipmi_bmcs.addresses[1]}
    second = ipmi_options(tmp_path, lines, bmc_password)
    for name in ("redfish", "ipmi"):
        (tmp_path / name).mkdir()
    made = (
        redfish.make(first, Context("head", tmp_path / "redfish")),
        ipmi.make(second, Context("head", tmp_path / "ipmi")),
    )
    yield made
    for source in made:
        source.close()
    redfish_bmcs.fault("all", "clear")


def nodes(batch: Batch, measurement: str) -> set[str]:
    return {one.tag("node") for one in batch.samples if one.measurement == measurement}


def test_redfish_comes_first_and_ipmi_stands_in_while_it_fails(
    both: tuple[redfish.Redfish, ipmi.Ipmi],
    redfish_bmcs: RedfishBmcs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bmc_claims, "PROBE_PERIODS", 1.0)
    first, second = both
    batch = second.collect(time.time_ns())
    assert nodes(batch, "bmc") == nodes(batch, "source") == {"n2"}
    assert nodes(first.collect(time.time_ns()), "bmc") == {"n1"}
    assert nodes(second.collect(time.time_ns()), "bmc") == {"n2"}

    redfish_bmcs.fault(1, "status=500")
    deadline = time.monotonic() + 90
    while "n1" not in nodes(batch := second.collect(time.time_ns()), "bmc"):
        first.collect(time.time_ns())
        assert time.monotonic() < deadline
    assert "n1" in nodes(batch, "source")
    assert "n1" not in nodes(first.collect(time.time_ns()), "source"), "two words on one BMC"

    redfish_bmcs.fault(1, "clear")
    while "n1" not in nodes(batch := first.collect(time.time_ns()), "bmc"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "n1" in nodes(batch, "source")
    assert nodes(second.collect(time.time_ns()), "bmc") == {"n2"}


def test_a_claim_ends_when_redfish_has_not_read_for_three_periods_or_is_switched_off() -> None:
    now = [1_000.0]
    claims = Claims(lambda: now[0])
    assert not claims.held("n1"), "nobody else reads it"
    claims.expect(["n1"], 60.0)
    assert claims.held("n1")
    now[0] += 179
    claims.read("n1", 60.0)
    now[0] += 179
    assert claims.held("n1")
    now[0] += 2
    assert not claims.held("n1")
    assert not claims.stood_in("n1")
    claims.stand_in("n1")
    assert claims.stood_in("n1")
    claims.read("n1", 60.0)
    assert not claims.stood_in("n1")
    claims.give_up()
    assert not claims.held("n1")


def test_while_ipmi_stands_in_redfish_asks_only_now_and_then() -> None:
    now = [1_000.0]
    claims = Claims(lambda: now[0])
    claims.expect(["n1"], 60.0)
    tried = []
    for minute in range(60):
        if claims.may_try("n1", 60.0):
            tried.append(minute)
        if not claims.held("n1"):
            claims.stand_in("n1")
        now[0] += 60
    assert tried == [0, 1, 2, 3, 14, 24, 34, 44, 54]
    claims.read("n1", 60.0)
    assert claims.may_try("n1", 60.0)


def test_two_heads_do_not_share_their_claims(tmp_path: Path) -> None:
    one = claims_beside(tmp_path / "a" / "ipmi")
    assert claims_beside(tmp_path / "a" / "redfish") is one
    assert claims_beside(tmp_path / "b" / "redfish") is not one
