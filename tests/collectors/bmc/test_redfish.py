"""The ``redfish`` source against simulated BMCs over real TLS."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from collectors.bmc import redfish
from collectors.sample import Batch, Context, Sample
from tests.collectors.contract import NODE, SourceContract, check_samples
from tests.testbed.bmc.bmcs import RedfishBmcs

Start = Callable[..., redfish.Redfish]


def options(
    folder: Path, lines: dict[str, str], secret: Path, bmcs: RedfishBmcs, **more: object
) -> redfish.Options:
    """Options for the BMCs in ``lines``: node -> address."""
    file = folder / "bmcs"
    file.write_text("".join(f"{node} {address}\n" for node, address in lines.items()))
    given: dict[str, object] = {
        "file": str(file),
        "user": "admin",
        "password_file": str(secret),
        "ca_file": str(bmcs.certificate),
        "check_name": False,
        "timeout_seconds": 2.0,
    }
    return redfish.Options(**{**given, **more})


@pytest.fixture
def start(tmp_path: Path, bmc_password: Path, redfish_bmcs: RedfishBmcs) -> Iterator[Start]:
    """Makes sources; they are closed, and the simulators' faults cleared, in the end."""
    made: list[redfish.Redfish] = []

    def make(lines: dict[str, str], **more: object) -> redfish.Redfish:
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        given = options(tmp_path, lines, bmc_password, redfish_bmcs, **more)
        source = redfish.make(given, Context("head", state))
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()
    redfish_bmcs.fault("all", "clear")


def table(batch: Batch, node: str) -> dict[tuple[str, str], dict[str, object]]:
    return {
        (one.tag("sensor"), one.tag("kind")): dict(one.fields)
        for one in batch.samples
        if one.measurement == "bmc" and one.tag("node") == node
    }


def events(batch: Batch) -> list[Sample]:
    return [one for one in batch.samples if one.measurement == "event"]


def fault(batch: Batch, node: str) -> str:
    found = [
        one for one in batch.samples if one.measurement == "source" and one.tag("node") == node
    ]
    return found[0].text("fault")


class TestRedfish(SourceContract):
    module = redfish

    @pytest.fixture
    def healthy(
        self, context: Context, redfish_bmcs: RedfishBmcs, tmp_path: Path, bmc_password: Path
    ) -> redfish.Redfish:
        lines = {NODE: redfish_bmcs.addresses[0]}
        return redfish.make(options(tmp_path, lines, bmc_password, redfish_bmcs), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> redfish.Redfish:
        return redfish.make(redfish.Options(), context)


# ---- what is read ------------------------------------------------------------------------------


def test_a_server_with_eight_gpus_is_read_by_sensors_and_then_by_metric_reports(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start({"n1": redfish_bmcs.addresses[0]}, detail_rounds=3)
    rounds = [source.collect(time.time_ns()) for _ in range(4)]
    for batch in rounds:
        assert batch.fault == ""
        check_samples(redfish, [one for one in batch.samples if one.measurement == "bmc"], "n1")
        found = table(batch, "n1")
        assert found[("FAN1", "rpm")] == {"value": 9060.0, "critical": 0.0, "present": 1.0}
        assert found[("HGX_GPU_SXM_3_TEMP_0", "celsius")]["value"] == 43.5
        assert found[("HGX_GPU_SXM_3_TEMP_1", "headroom")]["value"] == 43.25
        assert ("HGX_GPU_SXM_3_TEMP_1", "celsius") not in found
        assert found[("SimServerPowerSupply #2", "state")] == {"critical": 0.0, "present": 1.0}
    assert table(rounds[0], "n1").keys() == table(rounds[1], "n1").keys()


def test_a_report_is_judged_by_the_thresholds_that_the_sensor_has(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start({"n1": redfish_bmcs.addresses[0]})
    source.collect(time.time_ns())
    redfish_bmcs.fault(1, "temp=46")
    found = table(source.collect(time.time_ns()), "n1")
    assert found[("Inlet_Temp", "celsius")] == {"value": 46.0, "critical": 1.0, "present": 1.0}


def test_nan_null_and_a_host_that_is_off_give_no_number(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start({"n1": redfish_bmcs.addresses[0]}, detail_rounds=1)
    redfish_bmcs.fault(1, "nulls=1")
    batch = source.collect(time.time_ns())
    assert batch.up
    assert not [key for key, fields in table(batch, "n1").items() if "value" in fields]
    redfish_bmcs.fault(1, "clear")
    redfish_bmcs.fault(1, "off=1")
    found = table(source.collect(time.time_ns()), "n1")
    assert found[("FAN1", "rpm")] == {"present": 0.0}
    values = {key for key, fields in found.items() if "value" in fields}
    assert values <= {("Power Control 0", "watts")}
    redfish_bmcs.fault(1, "clear")
    redfish_bmcs.fault(1, "nan=1")
    reports = start({"n1": redfish_bmcs.addresses[0]}, detail_rounds=100)
    reports.collect(time.time_ns())
    nan = table(reports.collect(time.time_ns()), "n1")
    assert ("FAN1", "rpm") not in nan


def test_a_bmc_without_expand_is_read_one_sensor_at_a_time(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(2, "noexpand=1")
    source = start({"n2": redfish_bmcs.addresses[1]})
    found = table(source.collect(time.time_ns()), "n2")
    assert found[("HGX_GPU_SXM_8_Power_0", "watts")]["value"] == 318.5
    found = table(source.collect(time.time_ns()), "n2")
    assert found[("HGX_GPU_SXM_8_TEMP_1", "headroom")]["value"] == 38.25


def test_a_gpu_that_vanishes_is_told_and_looked_for_again(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    source = start({"n1": redfish_bmcs.addresses[0]}, detail_rounds=1)
    assert ("HGX_GPU_SXM_5_TEMP_0", "celsius") in table(source.collect(time.time_ns()), "n1")
    redfish_bmcs.fault(1, "absent=1")
    batch = source.collect(time.time_ns())
    assert ("HGX_GPU_SXM_5_TEMP_0", "celsius") not in table(batch, "n1")
    assert ("HGX_GPU_SXM_6_TEMP_0", "celsius") in table(batch, "n1")
    assert any("could not be read" in one.problem for one in batch.problems)
    assert source.collect(time.time_ns()).problems == ()
    redfish_bmcs.fault(1, "clear")


# ---- logs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_log_entries_come_once_in_pages_also_after_a_restart(
    order: str, redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    address = redfish_bmcs.addresses[2]
    redfish_bmcs.fault(3, "sel=300", *(["oldest=1"] if order == "oldest" else []))
    source = start({"n3": address}, log_backlog=10)

    def ids(batch: Batch) -> list[int]:
        return [int(one.text("text").split("SEL ")[1].split(":")[0]) for one in events(batch)]

    assert ids(source.collect(time.time_ns())) == list(range(291, 301))
    assert ids(source.collect(time.time_ns())) == []
    redfish_bmcs.fault(3, "sel=420")
    assert ids(source.collect(time.time_ns())) == list(range(301, 421))
    assert ids(source.collect(time.time_ns())) == []
    source.close()
    again = start({"n3": address}, log_backlog=10)
    assert ids(again.collect(time.time_ns())) == []
    redfish_bmcs.fault(3, "sel=423")
    assert ids(again.collect(time.time_ns())) == [421, 422, 423]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_log_that_somebody_cleared_is_told_once_and_goes_on_with_its_new_entries(
    order: str, redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(3, "sel=300", *(["oldest=1"] if order == "oldest" else []))
    source = start({"n3": redfish_bmcs.addresses[2]})

    def told() -> list[str]:
        return [one.tag("code") for one in events(source.collect(time.time_ns()))]

    assert "log_cleared" not in told()
    redfish_bmcs.fault(3, "sel=502", "first=501")
    assert told() == ["log_cleared", "log_entry", "log_entry"]
    assert told() == []
    source.close()
    # The numbers begin again: 3 and 4 were there before, with earlier times.
    redfish_bmcs.fault(3, "sel=505", "first=504", "renumber=501")
    source = start({"n3": redfish_bmcs.addresses[2]})
    assert told() == ["log_cleared", "log_entry", "log_entry"]
    assert told() == []


def test_an_empty_log_is_told_when_it_stays_empty(redfish_bmcs: RedfishBmcs, start: Start) -> None:
    redfish_bmcs.fault(3, "sel=30")
    source = start({"n3": redfish_bmcs.addresses[2]})
    source.collect(time.time_ns())
    redfish_bmcs.fault(3, "first=31")
    assert events(source.collect(time.time_ns())) == []
    (told,) = events(source.collect(time.time_ns()))
    assert told.tag("code") == "log_cleared"
    assert told.text("text") == "SEL: somebody cleared the log: 30 entries before, 0 now"
    assert events(source.collect(time.time_ns())) == []


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_what_one_round_leaves_of_a_log_is_read_in_the_next(
    order: str, redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(3, "sel=40", *(["oldest=1"] if order == "oldest" else []))
    source = start({"n3": redfish_bmcs.addresses[2]}, log_entries_per_round=30)
    source.collect(time.time_ns())
    redfish_bmcs.fault(3, "sel=45")
    assert len(events(source.collect(time.time_ns()))) == 5
    if order == "oldest":
        redfish_bmcs.fault(3, "sel=85")
        assert [len(events(source.collect(time.time_ns()))) for _ in range(3)] == [30, 10, 0]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_log_that_drops_its_oldest_entries_was_not_cleared(
    order: str, redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(3, "sel=300", *(["oldest=1"] if order == "oldest" else []))
    source = start({"n3": redfish_bmcs.addresses[2]})
    source.collect(time.time_ns())
    redfish_bmcs.fault(3, "sel=301", "first=150")
    (told,) = events(source.collect(time.time_ns()))
    assert told.tag("code") == "log_entry"


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("status=503",), "the BMC is busy (HTTP 503), asks to wait 2 s"),
        (("status=429",), "the BMC is busy (HTTP 429), asks to wait 2 s"),
        (("status=500",), "the BMC answers with HTTP 500"),
        (("status=401",), "the BMC refuses user or password"),
        (("drop=1",), "the BMC breaks the connection off"),
        (("truncate=1",), "JSON that ends too early"),
        (("delay=30",), "the BMC does not answer within 0.5 s"),
    ],
)
def test_each_fault_has_its_own_words(
    settings: tuple[str, ...], words: str, redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(4, *settings)
    lines = {"bad": redfish_bmcs.addresses[3], "good": redfish_bmcs.addresses[0]}
    source = start(lines, timeout_seconds=0.5)
    batch = source.collect(time.time_ns())
    assert words in fault(batch, "bad")
    assert fault(batch, "good") == ""
    assert table(batch, "good")
    assert table(batch, "bad") == {}


def test_a_wrong_password_and_a_stranger_certificate_are_told_apart(
    redfish_bmcs: RedfishBmcs, start: Start, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("hunter2\n")
    wrong.chmod(0o600)
    lines = {"n1": redfish_bmcs.addresses[0]}
    batch = start(lines, password_file=str(wrong)).collect(time.time_ns())
    assert "refuses user or password" in batch.fault
    assert "hunter2" not in repr(batch)
    strange = start(lines, ca_file="").collect(time.time_ns())
    assert "certificate is not trusted" in strange.fault
    named = start(lines, check_name=True).collect(time.time_ns())
    assert "certificate is not trusted" in named.fault
    assert start(lines, ca_file="", insecure=True).collect(time.time_ns()).fault == ""
    refused = start({"n1": redfish_bmcs.addresses[0].replace("8443", "8444")})
    assert "connection refused" in refused.collect(time.time_ns()).fault


def test_a_bmc_without_a_session_left_is_read_with_user_and_password(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(2, "sessions=0")
    batch = start({"n2": redfish_bmcs.addresses[1]}).collect(time.time_ns())
    assert batch.fault == ""
    assert table(batch, "n2")


def test_a_session_that_the_bmc_ended_is_opened_again(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(2, "expire=1")
    source = start({"n2": redfish_bmcs.addresses[1]})
    for _ in range(3):
        batch = source.collect(time.time_ns())
        assert batch.fault == ""
        assert ("Power Control 0", "watts") in table(batch, "n2")


def test_sessions_are_kept_and_closed_and_never_pile_up(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(2, "sessions=2")
    for _ in range(4):
        source = start({"n2": redfish_bmcs.addresses[1]})
        for _ in range(5):
            assert source.collect(time.time_ns()).fault == ""
        client = source._visitors[0]._client
        assert client is not None
        assert client.token, "it fell back to user and password: sessions have piled up"
        source.close()


def test_connections_of_few_bmcs_are_kept_and_those_of_many_are_not(
    redfish_bmcs: RedfishBmcs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redfish, "KEEP_MANY_SECONDS", 0.1)

    def held(source: redfish.Redfish) -> int:
        connector = source._visitors[0]._shared.http().connector
        assert connector is not None
        return sum(map(len, connector._conns.values()))

    lines = {"n1": redfish_bmcs.addresses[0], "n2": redfish_bmcs.addresses[1]}
    few = start(lines)
    few.collect(time.time_ns())
    many = start(lines, in_turn_from=2, period_seconds=1.0)
    deadline = time.monotonic() + 8
    read: set[str] = set()
    while read != {"n1", "n2"} or held(many):
        batch = many.collect(time.time_ns())
        read |= {one.tag("node") for one in batch.samples if one.measurement == "bmc"}
        time.sleep(0.05)
        assert time.monotonic() < deadline
    assert held(few) == 2
    client = many._visitors[0]._client
    assert client is not None
    assert client.token, "the session at the BMC goes on"


def test_a_slow_bmc_is_walked_over_several_rounds_and_delays_no_other(
    redfish_bmcs: RedfishBmcs, start: Start
) -> None:
    redfish_bmcs.fault(4, "delay=0.06")
    lines = {"slow": redfish_bmcs.addresses[3], "good": redfish_bmcs.addresses[0]}
    source = start(lines, bmc_deadline_seconds=1.2, deadline_seconds=6.0)
    words = set()
    for _ in range(40):
        batch = source.collect(time.time_ns())
        assert table(batch, "good")
        words.add(fault(batch, "slow"))
        if ("HGX_GPU_SXM_8_TEMP_0", "celsius") in table(batch, "slow"):
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"never read to its end: {words}")
    assert any("the BMC is slow" in one for one in words)


def test_an_address_outside_the_service_is_not_followed() -> None:
    from collectors.bmc.redfish_http import Client, HttpError
    from collectors.bmc.targets import Secrets

    async def ask() -> None:
        async with aiohttp.ClientSession() as http:
            client = Client(http, "https://127.0.0.1:9", Secrets(b"u", b"p"), None)
            for uri in ("http://elsewhere.example/redfish", "//elsewhere/", "@elsewhere/redfish"):
                with pytest.raises(HttpError, match="outside its own service"):
                    await client.get(uri)

    asyncio.run(ask())


# ---- many ----------------------------------------------------------------------------------------


def test_thirty_bmcs_with_dead_and_slow_ones_keep_the_cadence_of_the_healthy(
    start: Start, bmc_password: Path
) -> None:
    bmcs = RedfishBmcs(30, offset=11)
    try:
        for number in range(1, 6):
            bmcs.fault(number, "delay=60")
        for number in range(6, 9):
            bmcs.fault(number, "drop=1")
        lines = {f"n{number}": address for number, address in enumerate(bmcs.addresses, 1)}
        lines |= {f"dead{number}": f"{bmcs.net}.{number}:9" for number in range(200, 204)}
        source = start(
            lines,
            ca_file=str(bmcs.certificate),
            period_seconds=5.0,
            deadline_seconds=8.0,
            bmc_deadline_seconds=3.0,
            timeout_seconds=2.5,
        )
        source.collect(time.time_ns())
        threads = threading.active_count()
        healthy = {f"n{number}" for number in range(9, 31)}
        took: list[float] = []
        count: Counter[str] = Counter()
        # A machine that is busy with other things may need some rounds to find out what is there.
        end = time.monotonic() + 150.0
        while time.monotonic() < end and min(count[node] for node in healthy) < 3:
            begin = time.monotonic()
            batch = source.collect(time.time_ns())
            took.append(time.monotonic() - begin)
            count.update({one.tag("node") for one in batch.samples if one.measurement == "bmc"})
        assert set(count) == healthy
        assert min(count.values()) >= 3, f"read too seldom: {count.most_common()[-5:]}"
        assert min(took) < 5.0, f"a slow one takes 60 s: {took}"
        assert "12 of 34 BMCs not read" in batch.fault
        assert threading.active_count() == threads
    finally:
        bmcs.close()
