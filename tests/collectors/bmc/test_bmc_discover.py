"""BMCs are found in a network without a password, and proposed for a person to look over."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from collectors.bmc.discover import (
    NAME_PATTERN,
    Found,
    addresses_of,
    ask_ipmi,
    ask_redfish,
    lines_of,
    main,
    node_of,
)
from tests.testbed.bmc.bmcs import IpmiBmcs, RedfishBmcs


def test_ipmi_bmcs_answer_and_nobody_else(ipmi_bmcs: IpmiBmcs) -> None:
    hosts = [address.split(":")[0] for address in ipmi_bmcs.addresses]
    ports = {int(address.split(":")[1]) for address in ipmi_bmcs.addresses}
    if len(ports) > 1:
        pytest.skip("without root the simulators have ports of their own")
    network = addresses_of([f"{ipmi_bmcs.net}.0/27"])
    begin = time.monotonic()
    found = asyncio.run(ask_ipmi(network, ports.pop(), seconds=0.3))
    assert found == set(hosts)
    assert time.monotonic() - begin < 8.0


def test_redfish_services_are_found_and_nothing_secret_is_sent(redfish_bmcs: RedfishBmcs) -> None:
    network = addresses_of([f"{redfish_bmcs.net}.0/28"])
    found = asyncio.run(ask_redfish(network, redfish_bmcs.PORT, 2.0))
    hosts = {address.split(":")[0]: "Simulated" for address in redfish_bmcs.addresses}
    assert found == hosts


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("gpu-0017-bmc", "gpu-0017"),
        ("gpu-0017-bmc.oob.site.example", "gpu-0017"),
        ("n1.ipmi.site.example", "n1"),
        ("gpu-0017", ""),
        ("", ""),
        ("-bmc", ""),
        ("a b-bmc", ""),
    ],
)
def test_a_node_is_told_by_the_name_of_its_bmc(name: str, node: str) -> None:
    assert node_of(name, re.compile(NAME_PATTERN)) == node


def test_what_is_not_sure_is_a_comment() -> None:
    lines = lines_of(
        [
            Found("10.9.0.1", True, True, "n1-bmc", "n1", "Acme X1"),
            Found("10.9.0.2", True, False, "n2-bmc", "n2"),
            Found("10.9.0.3", True, False, "n2-ipmi", "n2"),
            Found("10.9.0.4", False, True),
        ]
    )
    assert lines[0] == "n1 10.9.0.1 # ipmi redfish Acme X1"
    assert all(line.startswith("# ? ") for line in lines[1:])
    assert "claimed twice" in lines[1]


def test_networks_that_are_none_or_too_large_are_refused() -> None:
    assert len(addresses_of(["10.9.0.0/30", "10.9.0.2"])) == 2
    assert main(["10.0.0.0/8"]) == 2
    assert main(["somewhere"]) == 2
    assert main(["10.9.0.0/30", "--name", "(x)"]) == 2
