"""A person has a drained node tested, by the command line, over a real Slurm."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from daemon.cli.client import HeadRefused
from tests.acceptance.house import XID79, House
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

GEMM = 'proof.probes.gemm.command = ["builtin:gemm"]'
PROOF = """
proof.when = "{when}"
proof.returns = "passed"
proof.passes = 1
proof.clean_seconds = 0
{more}
proof.probes.{name}.command = ["{command}"]
"""


def start(
    build_house: Callable[..., House], when: str, name: str, command: str, more: str = ""
) -> House:
    """A house with one node drained, and no GPUs to read: what counts here is the proof."""
    house = build_house(policy=PROOF.format(when=when, name=name, command=command, more=more))
    house.start_head()
    house.start_agent("n3")
    wait_for(lambda: house.status()["agents_heard"] >= 1, "the agent is heard")
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.drained("n3"), "n3 is drained")
    return house


def ask(house: House) -> None:
    """Says prove until the ledger has seen that the node is empty."""

    def taken() -> bool:
        try:
            return "being tested" in house.ask("/api/v1/prove/n3", {})["text"]
        except HeadRefused:
            return False

    wait_for(taken, "the word is taken")


def test_a_node_that_passes_is_back_and_explained(build_house: Callable[..., House]) -> None:
    house = start(build_house, "asked", "true", "/bin/true", GEMM)
    house.looks()
    assert house.drained("n3"), "nobody asked for a proof yet"
    case = house.node("n3")["reason"].split()[2].rstrip(";")
    done = house.tocsin("prove", "n1")
    assert done.returncode == 1
    assert "only a node that it drained is tested" in done.stderr
    done = house.tocsin("prove", "n3")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not house.node("n3")["reason"], "n3 is back")
    wait_for(lambda: house.node("n3")["owner"] == "", "nobody holds it")
    told = house.tocsin("explain", case).stdout
    # Whoever runs the tests: root, with or without a login that the kernel knows.
    assert re.search(r"asked by [a-z]+( \([^)]*\))?: it is back in service", told), told
    assert "proof gemm_flops = " in told
    assert "proof_begins" in told
    kept = house.cluster.run("scontrol", "show", "reservation")
    assert "No reservations" in kept


def test_a_node_that_fails_stays_with_its_ticket(build_house: Callable[..., House]) -> None:
    house = start(build_house, "asked", "disk", "/bin/false")
    ask(house)
    wait_for(lambda: "proof failed" in house.cluster.reason("n3"), "it has failed")
    assert house.drained("n3")

    def told() -> str:
        return " ".join(house.ask("/api/v1/explain/n3")["sentences"])

    wait_for(lambda: "For a ticket: node n3" in told(), "the ticket is ready")
    assert "disk:exit1 failed" in told()


def test_in_shadow_no_proof_begins(build_house: Callable[..., House]) -> None:
    house = start(build_house, "asked", "true", "/bin/true")
    house.kill("head", signal.SIGTERM)
    text = house.config.read_text().replace('mode = "act"', 'mode = "shadow"')
    house.config.write_text(text.replace('when = "asked"', 'when = "drained"'))
    house.start_head()
    before = house.cluster.log_size()
    done = house.tocsin("prove", "n3")
    assert done.returncode == 1
    assert "shadow mode" in done.stderr
    house.looks(4)
    assert house.cluster.updates_since(before) == []
    assert not house.cluster.jobs()
    assert "No reservations" in house.cluster.run("scontrol", "show", "reservation")
    assert house.drained("n3")
