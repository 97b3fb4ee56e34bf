"""BMCs that send their events to the head: entries come at once and once, and nobody else may."""

from __future__ import annotations

import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.bmc import redfish
from collectors.bmc.redfish_push import BURST_MESSAGES, Push
from collectors.sample import Batch, Context
from tests.collectors.bmc.test_redfish_events import entries, wait_for
from tests.ports import free_port
from tests.testbed.bmc.bmcs import RedfishBmcs

Start = Callable[..., redfish.Redfish]
SUBSCRIPTIONS = "/redfish/v1/EventService/Subscriptions"


@pytest.fixture
def start(tmp_path: Path, bmc_password: Path, redfish_bmcs: RedfishBmcs) -> Iterator[Start]:
    made: list[redfish.Redfish] = []
    listen = f"127.0.0.1:{free_port()}"

    def make(number: int, **more: object) -> redfish.Redfish:
        (tmp_path / "bmcs").write_text(f"n1 {redfish_bmcs.addresses[number - 1]}\n")
        given: dict[str, object] = {
            "file": str(tmp_path / "bmcs"),
            "user": "admin",
            "password_file": str(bmc_password),
            "ca_file": str(redfish_bmcs.certificate),
            "check_name": False,
            "timeout_seconds": 2.0,
            "period_seconds": 30.0,
            "log_backlog": 0,
            "push": {
                "listen": listen,
                "certificate_file": str(redfish_bmcs.certificate),
                "key_file": str(redfish_bmcs.folder / "key.pem"),
            },
        }
        state = tmp_path / "head" / "redfish"
        state.mkdir(parents=True, exist_ok=True)
        options = redfish.Options.model_validate({**given, **more})
        made.append(redfish.make(options, Context("head", state)))
        return made[-1]

    yield make
    for source in made:
        source.close()
    redfish_bmcs.fault("all", "clear")


def ask(bmcs: RedfishBmcs, number: int, uri: str, method: str = "GET", body: Any = None) -> Any:
    """A request at a BMC as an operator would send it."""
    tls = ssl.create_default_context(cafile=str(bmcs.certificate))
    tls.check_hostname = False
    request = urllib.request.Request(
        f"https://{bmcs.addresses[number - 1]}{uri}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": "Basic YWRtaW46c2VjcmV0"},
    )
    with urllib.request.urlopen(request, context=tls, timeout=30) as answer:
        raw = answer.read()
    return json.loads(raw) if raw else None


def subscriptions(bmcs: RedfishBmcs, number: int) -> list[dict[str, Any]]:
    listed = ask(bmcs, number, SUBSCRIPTIONS)["Members"]
    return [ask(bmcs, number, one["@odata.id"]) for one in listed]


def first(source: redfish.Redfish) -> Batch:
    """The batch in which the BMC was first heard of; with events a round is many short ones."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        batch = source.collect(time.time_ns())
        if any(one.tag("source") == "bmc" for one in batch.samples):
            return batch
    raise AssertionError("the BMC was not visited")


def send(to: str, body: bytes, source: str, method: str = "POST", times: int = 1) -> int:
    """HTTP status of a message to the head from the address ``source``; 0 where it is cut off.

    With ``times`` it is sent so often over one connection, and the last status is given.
    """
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    host, _, rest = to.removeprefix("https://").partition("/")
    place = host.rpartition(":")
    try:
        with (
            socket.create_connection((place[0], int(place[2])), 5, (source, 0)) as plain,
            tls.wrap_socket(plain) as one,
        ):
            head = f"{method} /{rest} HTTP/1.1\r\nHost: head\r\n"
            for _ in range(times):
                one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = one.recv(4096)
    except OSError:
        return 0
    return int(answer.split()[1]) if answer else 0


def test_an_entry_is_pushed_between_two_visits_and_the_subscription_is_taken_out_again(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    foreign = {"Destination": "https://10.0.0.9/events", "Protocol": "Redfish", "Context": "mine"}
    ask(redfish_bmcs, 1, SUBSCRIPTIONS, "POST", foreign)
    redfish_bmcs.fault(1, "sel=119")
    source = start(1)
    first(source)
    contexts = [one["Context"] for one in subscriptions(redfish_bmcs, 1)]
    assert contexts == ["mine", "tocsin@head n1"]
    begin = time.monotonic()
    redfish_bmcs.fault(1, "sel=121")
    found = wait_for(source, 2)
    assert time.monotonic() - begin < 30, "it waited for the next visit"
    assert ["entry 120" in one.text("text") for one in found] == [True, False]
    assert [one.number("severity") for one in found] == [3.0, 0.0]
    source.close()
    assert [one["Context"] for one in subscriptions(redfish_bmcs, 1)] == ["mine"]


def test_what_was_pushed_is_not_told_again_by_the_log(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start(2, period_seconds=1.0)
    first(source)
    redfish_bmcs.fault(2, "sel=122")
    assert len(wait_for(source, 2)) == 2
    cursors = source._visitors[0]._cursors
    deadline = time.monotonic() + 60
    while not any(cursor.highest == 122 for cursor in cursors.values()):
        assert entries(source) == [], "told twice"
        assert time.monotonic() < deadline, "the log was never read"
        time.sleep(0.05)
    assert entries(source) == []


def test_what_a_killed_head_left_behind_is_taken_out_and_an_old_service_is_asked_in_its_way(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start(3)
    base = source._options.push.base
    redfish_bmcs.fault(3, "clear")
    for destination, context in (
        (f"{base}/left-behind", "tocsin@head n1"),
        (f"{base}/of-another", "tocsin@otherhead n1"),
        ("https://10.0.0.9/x", "tocsin@head n1"),
    ):
        given = {"Destination": destination, "Protocol": "Redfish", "Context": context}
        ask(redfish_bmcs, 3, SUBSCRIPTIONS, "POST", given)
    redfish_bmcs.fault(3, "oldsubs=1")
    first(source)
    destinations = [one["Destination"] for one in subscriptions(redfish_bmcs, 3)]
    assert destinations[:2] == [f"{base}/of-another", "https://10.0.0.9/x"]
    assert len(destinations) == 3
    assert destinations[2].startswith(base + "/")
    assert len(destinations[2].removeprefix(base + "/")) >= 32, "a secret that can be guessed"


def test_only_the_bmc_itself_gets_in_and_only_by_its_secret(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start(4)
    first(source)
    to = subscriptions(redfish_bmcs, 4)[0]["Destination"]
    bmc, other = (address.split(":")[0] for address in redfish_bmcs.addresses[3:1:-1])
    event = json.dumps({"Events": [{"Message": "hot", "MessageSeverity": "Critical"}]}).encode()
    assert send(to, event, bmc) == 204
    assert send(to, event, other) == 0, "another BMC knows the secret: closed before a byte"
    assert send(to, event, bmc, "GET") == 404
    assert send(to + "x", event, bmc) == 404
    assert send(to.rpartition("/")[0] + "/", event, bmc) == 404
    assert send(to, b"\x00\xff{", bmc) == 204, "noise is a problem record, and no error"
    assert send(to, b"x" * 1_200_000, bmc) in (413, 0)
    batch = source.collect(time.time_ns())
    found = [one for one in batch.samples if one.measurement == "event"]
    assert [("hot" in one.text("text"), one.number("severity")) for one in found] == [(True, 3.0)]
    assert ["n1: an event that is no JSON" in one.problem for one in batch.problems] == [True]
    assert send(to, event, bmc, times=3) == 204
    flood = int(BURST_MESSAGES) + 60
    assert send(to, event, bmc, times=flood) == 429, "one BMC may not flood the head"


def test_a_bmc_that_grants_no_subscription_is_polled_on_and_it_is_said_once(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(1, "nosubs=1")
    source = start(1, period_seconds=0.2)
    batch = first(source)
    assert batch.fault == ""
    said = [one.problem for one in batch.problems]
    assert said == ["n1: push: no subscription: the user has too few rights on the BMC"]
    assert first(source).problems == ()


def test_a_port_that_is_taken_is_told_and_polling_goes_on(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        push = {"listen": f"127.0.0.1:{taken.getsockname()[1]}", "plain": True}
        batch = first(start(2, push=push))
    assert batch.fault == ""
    assert ["cannot be listened on" in one.problem for one in batch.problems] == [True]


@pytest.mark.parametrize(
    ("push", "words"),
    [
        ({"listen": "10.0.0.1:8444"}, "certificate_file"),
        ({"listen": "0.0.0.0:8444", "plain": True}, "set push.url"),
        ({"listen": "10.0.0.1"}, "pattern"),
        ({"url": "https://head/path"}, "pattern"),
    ],
)
def test_an_unsafe_or_useless_way_is_refused(push: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        redfish.Options.model_validate({"push": push})
    assert not redfish.Options(push=Push()).push.on
