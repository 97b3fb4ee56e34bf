"""dcgm-exporter: its text of all versions, and real scrapes over HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import collectors.gpu.dcgm_exporter as dcgm_exporter
from collectors.gpu.dcgm_exporter import DcgmExporters
from collectors.gpu.dcgm_exporter_text import parse
from collectors.sample import Batch, Context, Cycle, Sample, Source, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, SourceContract, check_batch

FOLDER = Path(__file__).resolve().parents[2] / "fixtures/gpu/dcgm"
TEXT = (FOLDER / "metrics_4.8.prom").read_text()
SECOND = 1_000_000_000
MIB = 2**20


def gpus(samples: list[Sample] | tuple[Sample, ...]) -> dict[str, dict[str, float | str]]:
    return {one.tag("gpu"): dict(one.fields) for one in samples if one.measurement == "gpu"}


def kinds(samples: list[Sample] | tuple[Sample, ...], kind: str) -> list[Sample]:
    return [one for one in samples if one.tag("kind") == kind]


def metric(name: str, value: object, labels: str = "") -> str:
    extra = f",{labels}" if labels else ""
    return f'{name}{{gpu="0",UUID="GPU-aaaa",pci_bus_id="00000000:1B:00.0"{extra}}} {value}\n'


# ---- the text --------------------------------------------------------------------------------


def test_version_4_8() -> None:
    samples, problems = parse(TEXT, NODE, NOW_NS)
    assert problems == []
    assert gpus(samples) == {
        "0": {
            "temperature_celsius": 46.0,
            "power_watts": 402.771,
            "remapped_rows_uncorrected_total": 0.0,
            "graphics_activity_ratio": 0.981234,
        },
        "1": {
            "temperature_celsius": 44.0,
            "power_watts": 61.004,
            "remapped_rows_uncorrected_total": 1.0,
            "graphics_activity_ratio": 0.0,
        },
    }
    (xid,) = kinds(samples, "xid")
    assert (xid.tag("code"), xid.text("device"), xid.number("count")) == ("94", "0000:2c:00", 2.0)
    boards = kinds(samples, "inventory")
    assert [one.text("device") for one in boards] == ["0000:1b:00", "0000:2c:00"]
    assert [one.text("text") for one in kinds(samples, "version")] == ["570.86.15"]


def test_the_case_of_labels_does_not_matter() -> None:
    samples, problems = parse((FOLDER / "metrics_label-case.prom").read_text(), NODE, NOW_NS)
    assert problems == []
    (board,) = [one for one in samples if one.measurement == "gpu"]
    assert board.tag("uuid") == "GPU-7e57a000-0021-4100-a005-0c0ffee00000"


def test_renamed_fields_are_the_same_fields() -> None:
    old = metric("DCGM_FI_DEV_GPU_TEMP", 46) + metric("DCGM_FI_DEV_POWER_USAGE", 100.5)
    new = metric("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 46) + metric(
        "DCGM_FI_DEV_BOARD_POWER_WATTS", 100.5
    )
    first = metric("dcgm_gpu_temp", 46) + metric("dcgm_power_usage", 100.5)
    assert gpus(parse(old, NODE, NOW_NS)[0]) == gpus(parse(new, NODE, NOW_NS)[0])
    assert gpus(parse(old, NODE, NOW_NS)[0]) == gpus(parse(first, NODE, NOW_NS)[0])


def test_units_are_ours() -> None:
    text = (
        metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5000)
        + metric("DCGM_FI_DEV_SM_CLOCK", 1980)
        + metric("DCGM_FI_DEV_GPU_UTIL", 97)
        + metric("DCGM_FI_DEV_FB_USED", 10)
        + metric("DCGM_FI_DEV_FB_FREE", 20)
        + metric("DCGM_FI_DEV_FB_RESERVED", 1)
        + metric("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0x48)
    )
    fields = gpus(parse(text, NODE, NOW_NS)[0])["0"]
    assert fields["energy_joules_total"] == 5.0
    assert fields["sm_clock_hertz"] == 1.98e9
    assert fields["utilization_ratio"] == 0.97
    assert fields["memory_used_bytes"] == 10 * MIB
    assert fields["memory_total_bytes"] == 31 * MIB
    assert (fields["throttle_hw_slowdown"], fields["throttle_hw_thermal"]) == (1.0, 1.0)
    assert fields["throttle_sw_power_cap"] == 0.0


def test_blanks_are_absent_and_impossible_values_refused() -> None:
    text = (
        metric("DCGM_FI_DEV_MEMORY_TEMP", 2147483634)
        + metric("DCGM_FI_DEV_POWER_USAGE", "140737488355328.000000")
        + metric("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 9223372036854775794)
        + metric("DCGM_FI_DEV_SM_CLOCK", "NaN")
        + metric("DCGM_FI_DEV_GPU_TEMP", 900)
        + metric("DCGM_FI_DEV_FAN_SPEED", 0)
    )
    samples, problems = parse(text, NODE, NOW_NS)
    assert gpus(samples)["0"] == {"fan_speed_ratio": 0.0}
    assert ["temperature_celsius out of range: 900" in one.problem for one in problems] == [True]


def test_a_count_of_xids_that_cannot_be_is_none() -> None:
    line = 'DCGM_EXP_XID_ERRORS_COUNT{{gpu="1",UUID="GPU-b",xid="{}"}} {}\n'
    odd = (("79", "+Inf"), ("79", "NaN"), ("79", "-1"), ("0", "3"), ("48", "0.5"), ("x", "1"))
    samples, problems = parse("".join(line.format(*one) for one in odd), NODE, NOW_NS)
    assert kinds(samples, "xid") == []
    assert len(problems) == len(odd)
    samples, problems = parse(line.format("48", "2") + line.format("79", "0"), NODE, NOW_NS)
    assert [one.tag("code") for one in kinds(samples, "xid")] == ["48"]
    assert problems == []


def test_a_board_that_runs_two_jobs_is_one_board() -> None:
    text = "".join(metric("DCGM_FI_DEV_GPU_TEMP", 46, f'hpc_job="{job}"') for job in ("81", "82"))
    samples, problems = parse(text, NODE, NOW_NS)
    assert problems == []
    assert [one.fields["temperature_celsius"] for one in samples if one.measurement == "gpu"] == [
        46.0
    ]


def test_mig_gives_the_boards_values_and_says_that_instances_are_not_scored() -> None:
    text = "".join(
        metric(name, value, f'GPU_I_PROFILE="1g.10gb",GPU_I_ID="{instance}"')
        for instance in (7, 8)
        for name, value in (("DCGM_FI_DEV_GPU_TEMP", 46), ("DCGM_FI_DEV_FB_USED", 100))
    )
    samples, problems = parse(text, NODE, NOW_NS)
    assert gpus(samples)["0"] == {"temperature_celsius": 46.0, "mig_enabled": 1.0}
    assert ["instances are not" in one.problem for one in problems] == [True]


def test_aggregate_errors_win_over_volatile_ones_in_any_order() -> None:
    lines = [metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1), metric("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 9)]
    for text in ("".join(lines), "".join(reversed(lines))):
        assert gpus(parse(text, NODE, NOW_NS)[0])["0"]["ecc_uncorrected_total"] == 9.0


def test_labels_may_hold_quotes_commas_and_braces() -> None:
    text = metric("DCGM_FI_DEV_GPU_TEMP", 46, r'modelName="A \"B\", {C}\\"')
    samples, problems = parse(text, NODE, NOW_NS)
    assert problems == []
    assert kinds(samples, "inventory")[0].text("text").endswith(r'model=A "B", {C}\ '.strip())


def test_several_hosts_in_one_text_keep_their_own_names() -> None:
    text = metric("DCGM_FI_DEV_GPU_TEMP", 46, 'Hostname="a.site"') + metric(
        "DCGM_FI_DEV_GPU_TEMP", 47, 'Hostname="b.site"'
    )
    samples, _ = parse(text, NODE, NOW_NS)
    assert {one.tag("node") for one in samples} == {"a", "b"}


def test_health_that_is_bad_is_an_event() -> None:
    text = metric("DCGM_FI_DEV_GPU_TEMP", 46) + "".join(
        metric("DCGM_EXP_GPU_HEALTH_STATUS", value, f'health_watch="{watch}"')
        for watch, value in (("PCIE", 10), ("MEM", 0))
    )
    (told,) = kinds(parse(text, NODE, NOW_NS)[0], "dcgm_health")
    assert (told.tag("code"), told.number("severity")) == ("pcie", 1.0)


def test_another_exporters_text_gives_a_problem() -> None:
    samples, problems = parse('node_load1{job="x"} 0.5\n# HELP a b\n', NODE, NOW_NS)
    assert samples == []
    assert [one.problem for one in problems] == ["no metric of dcgm-exporter in this text"]


def test_a_line_that_was_cut_off_is_left_out() -> None:
    text = metric("DCGM_FI_DEV_GPU_TEMP", 46) + metric("DCGM_FI_DEV_POWER_USAGE", 402.7)[:-2]
    samples, problems = parse(text, NODE, NOW_NS)
    assert gpus(samples)["0"] == {"temperature_celsius": 46.0}
    assert "cut off" in problems[0].problem


# ---- over HTTP -------------------------------------------------------------------------------


class Exporters:
    """A real HTTP server that answers as many exporters, each by its path."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.statuses: dict[str, int] = {}
        self.delays: dict[str, float] = {}
        self.asked: list[str] = []
        self.headers: list[str] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    async def _answer(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        self.asked.append(node)
        self.headers.append(request.headers.get("Authorization", ""))
        await asyncio.sleep(self.delays.get(node, 0))
        text = self.texts.get(node, TEXT.replace("GPU-", f"GPU-{node}-"))
        return web.Response(text=text, status=self.statuses.get(node, 200))

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/{node}/metrics", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._ready.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)


@pytest.fixture
def server() -> Iterator[Exporters]:
    made = Exporters()
    yield made
    made.close()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(node=NODE, state_dir=tmp_path, root=tmp_path, now_ns=lambda: NOW_NS)


def source(server: Exporters, context: Context, **options: object) -> DcgmExporters:
    settings = {
        "nodes": ("g[1-3]",),
        "url": f"http://127.0.0.1:{server.port}/{{node}}/metrics",
        "timeout_seconds": 10,
        **options,
    }
    return dcgm_exporter.make(dcgm_exporter.Options.model_validate(settings), context)


def readings(batch: Batch) -> dict[str, Sample]:
    return {
        one.tag("node"): one
        for one in batch.samples
        if one.measurement == "source" and one.tag("source") == "dcgm_exporter"
    }


class TestContract(SourceContract):
    module = dcgm_exporter
    node = ""

    @pytest.fixture
    def healthy(self, server: Exporters, context: Context) -> Source:
        return source(server, context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return dcgm_exporter.make(dcgm_exporter.Options(), context)


def test_every_exporter_gives_its_gpus_and_a_reading_of_its_own(
    server: Exporters, context: Context
) -> None:
    made = source(server, context)
    batch = made.collect(NOW_NS)
    assert batch.up
    assert {one.tag("node") for one in batch.samples} == {"g1", "g2", "g3"}
    assert len([one for one in batch.samples if one.measurement == "gpu"]) == 6
    assert all(one.number("up") == 1.0 for one in readings(batch).values())
    made.close()


def test_exporters_that_fail_cost_only_themselves_and_say_why(
    server: Exporters, context: Context
) -> None:
    server.statuses["g1"] = 500
    server.delays["g2"] = 5.0
    server.texts["g3"] = "node_load1 0.5\n"
    made = source(
        server,
        context,
        nodes=("g[1-4]",),
        targets={"g5": "http://127.0.0.1:9/metrics"},
        timeout_seconds=0.5,
    )
    batch = Cycle(made, NODE).run(NOW_NS)
    check_batch(dcgm_exporter, made, batch, "")
    assert batch.up
    assert batch.fault.startswith("4 of 5 exporters do not answer")
    found = readings(batch)
    assert found["g4"].number("up") == 1.0
    assert "HTTP 500" in found["g1"].text("fault")
    assert "no answer within 0.5 s" in found["g2"].text("fault")
    assert "without any GPU" in found["g3"].text("fault")
    assert "no connection" in found["g5"].text("fault")
    made.close()


def test_two_names_of_one_exporter_are_both_refused_for_a_gpu_is_in_one_node(
    server: Exporters, context: Context
) -> None:
    server.texts["g1"] = server.texts["g2"] = TEXT
    made = source(server, context)
    for _ in range(2):
        batch = made.collect(NOW_NS)
        assert {one.tag("node") for one in batch.samples if one.measurement != "source"} <= {"g3"}
        found = readings(batch)
        assert [found[node].number("up") for node in ("g1", "g2", "g3")] == [0.0, 0.0, 1.0]
        assert "shows GPUs that g2 shows too" in found["g1"].text("fault")
    made.close()


def test_an_answer_with_the_gpus_of_several_hosts_is_refused(
    server: Exporters, context: Context
) -> None:
    here = metric("DCGM_FI_DEV_XID_ERRORS", 0, 'Hostname="g1"')
    there = metric("DCGM_FI_DEV_XID_ERRORS", 79, 'Hostname="g9"').replace("GPU-aaaa", "GPU-bbbb")
    server.texts["g1"] = here + there
    made = source(server, context)
    batch = made.collect(NOW_NS)
    assert "several hosts" in readings(batch)["g1"].text("fault")
    assert not [one for one in batch.samples if one.tag("node") == "g1" and one.tag("gpu")]
    made.close()


def test_a_dead_exporter_is_asked_less_and_less_often(server: Exporters, context: Context) -> None:
    server.statuses["g1"] = 503
    clock = [1000.0]
    settings = dcgm_exporter.Options(
        nodes=("g1", "g2"),
        url=f"http://127.0.0.1:{server.port}/{{node}}/metrics",
        period_seconds=10,
        pause_most_seconds=60,
    )
    made = DcgmExporters(settings, context, monotonic=lambda: clock[0])
    for _ in range(20):
        batch = made.collect(NOW_NS)
        assert readings(batch)["g1"].number("up") == 0.0
        clock[0] += 10
    assert server.asked.count("g2") == 20
    assert 4 <= server.asked.count("g1") <= 7
    assert readings(batch)["g1"].number("age_seconds") == 190.0
    server.statuses.clear()
    clock[0] += 60
    assert readings(made.collect(NOW_NS))["g1"].number("up") == 1.0
    made.close()


def test_one_slow_exporter_does_not_delay_many_others(server: Exporters, context: Context) -> None:
    server.delays["g1"] = 60.0
    # Forty in six seconds: at once on a quiet machine, in time on one that is overloaded.
    made = source(server, context, nodes=("g[1-40]",), deadline_seconds=6.0)
    begin = time.monotonic()
    batch = made.collect(NOW_NS)
    assert time.monotonic() - begin < 40  # and not the minute that the slow one takes
    assert sum(one.number("up") or 0.0 for one in readings(batch).values()) == 39
    assert "end of the round" in readings(batch)["g1"].text("fault")
    made.close()


def test_an_answer_without_end_is_cut(server: Exporters, context: Context) -> None:
    server.texts["g1"] = TEXT * 50
    made = source(server, context, nodes=("g1", "g2"), body_bytes=50_000)
    found = readings(made.collect(NOW_NS))
    assert found["g1"].text("fault") == "more than 50000 bytes"
    assert found["g2"].number("up") == 1.0
    made.close()


def test_an_old_xid_is_never_news_and_a_new_one_is_news_once_even_over_a_restart(
    server: Exporters, context: Context
) -> None:
    server.texts["g1"] = TEXT
    made = source(server, context, nodes=("g1",))
    assert kinds(made.collect(NOW_NS).samples, "xid") == []  # met for the first time: of any age
    assert kinds(made.collect(NOW_NS + SECOND).samples, "xid") == []
    server.texts["g1"] = TEXT.replace('err_msg="No Error"} 0', 'err_msg="fell off"} 79')
    made.close()

    made = source(server, context, nodes=("g1",))
    (xid,) = kinds(made.collect(NOW_NS + 2 * SECOND).samples, "xid")
    assert (xid.tag("code"), xid.text("device")) == ("79", "0000:1b:00")
    assert kinds(made.collect(NOW_NS + 3 * SECOND).samples, "xid") == []

    # The same code again: only the exporter's own count tells.
    server.texts["g1"] = server.texts["g1"].replace('xid="94"} 2', 'xid="94"} 3')
    (xid,) = kinds(made.collect(NOW_NS + 4 * SECOND).samples, "xid")
    assert (xid.tag("code"), xid.number("count")) == ("94", 1.0)
    made.close()


def test_an_xid_of_a_round_that_nobody_waited_for_comes_with_the_next(
    server: Exporters, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round had no processor for seconds, and ended when nobody looked any more."""
    server.texts["g1"] = TEXT
    made = source(server, context, nodes=("g1",))
    made.collect(NOW_NS)
    server.texts["g1"] = TEXT.replace('err_msg="No Error"} 0', 'err_msg="fell off"} 79')
    submit = asyncio.run_coroutine_threadsafe

    class Late:
        def __init__(self, *arguments: Any) -> None:
            self.future = submit(*arguments)

        def result(self, timeout: float) -> None:
            self.future.result(timeout=60)
            raise TimeoutError

        def cancel(self) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", Late)
        with pytest.raises(SourceUnavailable):
            made.collect(NOW_NS + SECOND)
    (xid,) = kinds(made.collect(NOW_NS + 2 * SECOND).samples, "xid")
    assert xid.tag("code") == "79"
    assert kinds(made.collect(NOW_NS + 3 * SECOND).samples, "xid") == []
    made.close()


def test_counters_of_single_nvlinks_are_summed_where_the_board_tells_no_sum() -> None:
    text = "".join(
        metric(f"DCGM_FI_DEV_NVLINK_{what}_ERROR_COUNT_L{link}", count)
        for what, link, count in (
            ("CRC_FLIT", 0, 2), ("CRC_FLIT", 1, 3), ("CRC_DATA", 1, 4), ("REPLAY", 5, 7),
        )
    )  # fmt: skip
    text += metric("DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY", 1, 'nvlink="0"')
    text += metric("DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY", 2, 'nvlink="1"')
    (gpu,) = [one for one in parse(text, NODE, NOW_NS)[0] if one.measurement == "gpu"]
    assert dict(gpu.fields) == {
        "nvlink_crc_errors_total": 9.0,
        "nvlink_replays_total": 7.0,
        "nvlink_recoveries_total": 3.0,
    }
    text += metric("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 70)
    (gpu,) = [one for one in parse(text, NODE, NOW_NS)[0] if one.measurement == "gpu"]
    assert gpu.number("nvlink_replays_total") == 70.0


def test_bad_health_is_told_when_it_begins_and_when_it_ends(
    server: Exporters, context: Context
) -> None:
    made = source(server, context, nodes=("g1",))
    sick = TEXT + metric("DCGM_EXP_GPU_HEALTH_STATUS", 20, 'health_watch="MEM"') + "\n"
    severities = []
    for step, text in enumerate((sick, sick, TEXT, TEXT)):
        server.texts["g1"] = text
        told = kinds(made.collect(NOW_NS + step * SECOND).samples, "dcgm_health")
        severities.append([one.number("severity") for one in told])
    assert severities == [[3.0], [], [0.0], []]
    made.close()


def test_inventory_is_told_once(server: Exporters, context: Context) -> None:
    made = source(server, context, nodes=("g1",))
    assert len(kinds(made.collect(NOW_NS).samples, "inventory")) == 3
    assert kinds(made.collect(NOW_NS + SECOND).samples, "inventory") == []
    made.close()


def test_the_authorization_comes_from_a_file(
    server: Exporters, context: Context, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("Bearer t0ken\n")
    made = source(server, context, nodes=("g1",), authorization_file=str(file))
    made.collect(NOW_NS)
    assert server.headers == ["Bearer t0ken"]
    file.unlink()
    with pytest.raises(SourceUnavailable, match="authorization_file"):
        made.collect(NOW_NS)
    made.close()
