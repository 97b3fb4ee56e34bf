"""Two people, one at the command line and one at the page; and proposals that expire."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable

import pytest

from daemon.cli.token import add
from daemon.page.guard import WORD_HEADER
from tests.acceptance.house import XID79, House
from tests.testbed.slurm.cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
SECRET = "the-login-of-ann-at-the-page-0123"


def start(build_house: Callable[..., House], policy: str) -> House:
    """A house in mode approve with a login for ann; n3's agent alone is heard."""
    house = build_house(mode="approve", policy=policy)
    logins = house.folder / "logins"
    add(logins, "ann", SECRET)
    text = house.config.read_text()
    house.config.write_text(text.replace("[page]\n", f'[page]\nlogins_file = "{logins}"\n'))
    house.start_head()
    house.start_agent("n3")
    wait_for(lambda: house.status()["agents_heard"] >= 1, "the agent is heard")
    house.kernel_says("n3", XID79)
    wait_for(lambda: house.guard("n3") == "approval", "the drain waits")
    return house


def at_the_page(house: House, case: str) -> tuple[int, dict[str, str]]:
    """Ann presses "approve" at the page."""
    login = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    connection = http.client.HTTPConnection("127.0.0.1", house.page, timeout=60)
    try:
        connection.request(
            "POST", f"/api/v1/approve/{case}", b"{}",
            {"Authorization": f"Basic {login}", WORD_HEADER: "1",
             "Content-Type": "application/json"},
        )  # fmt: skip
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_two_people_drain_a_node_one_by_the_command_line_and_one_at_the_page(
    build_house: Callable[..., House],
) -> None:
    house = start(build_house, "approvals_needed = 2")
    case = house.decisions("n3")[0]["id"]
    unknown = house.tocsin("approve", case[:6], login="")
    assert unknown.returncode == 1
    assert "Speak as yourself, without sudo" in unknown.stderr
    first = house.tocsin("approve", case[:6], login="daemon")
    assert first.returncode == 0, first.stderr
    assert "another person's is needed too" in first.stdout
    again = house.tocsin("approve", case[:6], login="daemon")
    assert again.returncode == 1
    assert "said yes already; 2 people are needed" in again.stderr
    assert not house.drained("n3")
    status, said = at_the_page(house, case)
    assert status == 200, said
    wait_for(lambda: house.drained("n3"), "n3 is drained after the second yes")
    told = house.tocsin("explain", case[:6]).stdout
    assert "(by daemon (as root))" in told
    assert "(by page:ann)" in told
    status, said = at_the_page(house, case)
    assert status != 200
    assert "waits for nobody" in json.dumps(said)


def test_a_proposal_expires_is_made_again_and_an_old_yes_counts_no_more(
    build_house: Callable[..., House],
) -> None:
    house = start(build_house, "approvals_needed = 2\napproval_seconds = 6")
    case = house.decisions("n3")[0]["id"]
    assert at_the_page(house, case)[0] == 200

    def expired() -> bool:
        return "expire: nobody answered" in house.tocsin("explain", case[:6]).stdout

    wait_for(expired, "the proposal expires")
    wait_for(lambda: house.status()["approvals_waiting"] == 1, "it is made again")
    done = house.tocsin("approve", case[:6], login="daemon")
    assert "another person's is needed too" in done.stdout, done.stdout + done.stderr
    assert not house.drained("n3")
