"""Replay: the real pipeline over a history, deterministic, one line a decision."""

from __future__ import annotations

import io
import json
import lzma
import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from daemon.replay import Replay, run_replay
from models.simulate import Fleet
from models.simulate.write import START_NS, write_table
from models.telemetry import Telemetry, TelemetryWriter
from models.telemetry.foreign import import_foreign, load_map

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six nodes for six hours; gpu3 of n2 falls off the bus after two, n4 reboots by plan."""
    directory = tmp_path_factory.mktemp("lost")
    fleet = Fleet(6, 4, seed=1, start_ns=START_NS, background=False, operator=True)
    fault = fleet.sicken("n2", 3, "bus_lost", at_ns=START_NS + 120 * MINUTE)
    fault.notice_ns = START_NS + 200 * MINUTE
    fault.repair_seconds = 3600.0
    fault.style = 0.1
    with TelemetryWriter(directory) as writer:
        for minute in range(1, 361):
            if minute == 60:
                fleet.reboot("n4")
            tables, events = fleet.tables(START_NS + minute * MINUTE, slow=False)
            for table in tables:
                write_table(writer, table)
            writer.samples(events)
    return directory


def lines(directory: Path, *without: str) -> list[dict[str, object]]:
    out = io.StringIO()
    run_replay(Telemetry(directory, without=without), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture(scope="module")
def told(lost: Path) -> list[dict[str, object]]:
    return lines(lost)


KEYS = {
    "time",
    "node",
    "device",
    "component",
    "action",
    "reason",
    "guard",
    "probability",
    "voice",
}


def test_lost_gpu_drains_its_node_in_the_minute_it_is_told(told: list[dict[str, object]]) -> None:
    assert all(set(line) >= KEYS for line in told)
    drains = [line for line in told if line["action"] == "drain"]
    assert [(line["node"], line["voice"]) for line in drains] == [("n2", "fact")]
    assert str(drains[0]["time"])[:16] == "2025-01-06T02:00"
    assert str(drains[0]["reason"]).startswith("tocsin:x79 gpu3 ")


def test_node_comes_back_when_the_history_has_it_back(told: list[dict[str, object]]) -> None:
    resumes = [line for line in told if line["action"] == "resume"]
    assert [line["node"] for line in resumes] == ["n2"]
    assert str(resumes[0]["time"]) > "2025-01-06T04:00"


def test_without_the_kernel_log_the_frozen_gpu_drains_its_node(lost: Path) -> None:
    drains = [line for line in lines(lost, "event") if line["action"] == "drain"]
    assert [line["node"] for line in drains] == ["n2"]
    assert "2025-01-06T02:00" <= str(drains[0]["time"])[:16] <= "2025-01-06T02:05"


def test_planned_reboot_drains_nothing(told: list[dict[str, object]]) -> None:
    assert not [line for line in told if line["node"] == "n4" and line["action"] == "drain"]


def test_replay_is_deterministic_and_counts_what_it_did(
    lost: Path, told: list[dict[str, object]]
) -> None:
    out = io.StringIO()
    summary = Replay(Telemetry(lost), out).run()
    assert [json.loads(line) for line in out.getvalue().splitlines()] == told
    assert summary.lines == len(told)
    assert summary.judgements >= 360
    assert summary.samples > 360 * 6 * 4


def test_lines_are_in_order_of_time(told: list[dict[str, object]]) -> None:
    times = [str(line["time"]) for line in told]
    assert times == sorted(times)


# ---- the real thing: GWDG, where the data are ------------------------------------------------

DATA = Path(os.environ.get("TOCSIN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
MAPS = Path(__file__).resolve().parents[2] / "models" / "telemetry" / "maps"
needs_time = pytest.mark.skipif(
    not os.environ.get("TOCSIN_SLOW"), reason="takes minutes (set TOCSIN_SLOW=1)"
)
ONSETS = {  # xid_gauge_episodes.csv, local time brought to UTC
    ("ggpu139", "2025-03-19T08:10"),
    ("ggpu129", "2026-01-07T22:10"),
    ("ggpu129", "2026-01-12T18:50"),
    ("ggpu129", "2026-01-13T21:00"),
    ("ggpu129", "2026-01-15T10:10"),
}


# The days around these onsets, and the two days in which all nodes were restarted: what of the
# data set is replayed each time.
DAYS = re.compile(r",ggpu1(39,2025-03-19|43,2025-03-21|29,2026-01-(07|1[2345])) ")


def imported(source: Path, directory: Path) -> Path:
    plans = [
        (load_map(MAPS / f"gwdg-{name}-10min.toml"), next(source.glob(f"{name}_10min.csv*")))
        for name in ("gpu", "node")
    ]
    import_foreign(plans, directory)
    return directory


@pytest.fixture(scope="module")
def source() -> Path:
    source = DATA / "gwdg-gpu" / "derived"
    if not source.is_dir():
        pytest.skip(f"needs the GWDG data set under {DATA} (set TOCSIN_DATA)")
    return source


@pytest.fixture(scope="module")
def gwdg(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imported(source, tmp_path_factory.mktemp("gwdg"))


@pytest.fixture(scope="module")
def gwdg_days(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the days around the losses and the restart of all nodes only."""
    some = tmp_path_factory.mktemp("gwdg-source")
    for name in ("gpu", "node"):
        with lzma.open(source / f"{name}_10min.csv.xz", "rt") as lines_:
            head = next(lines_)
            kept = [line for line in lines_ if DAYS.search(line)]
        (some / f"{name}_10min.csv").write_text(head + "".join(kept))
    return imported(some, tmp_path_factory.mktemp("gwdg-days"))


@pytest.fixture(scope="module")
def gwdg_told(gwdg: Path) -> list[dict[str, object]]:
    return lines(gwdg)


def caught(found: list[dict[str, object]]) -> set[tuple[object, str]]:
    return {
        (line["node"], str(line["time"])[:16])
        for line in found
        if line["action"] in ("drain", "hold")
        and line["voice"] == "fact"
        and line["guard"] != "spent"
    }


@needs_time
def test_gwdg_every_loss_is_caught_in_its_sample_and_nothing_else_is_drained(
    gwdg_told: list[dict[str, object]],
) -> None:
    assert caught(gwdg_told) == ONSETS


@needs_time
def test_gwdg_hot_gpu_is_told_days_before_its_first_loss(
    gwdg_told: list[dict[str, object]],
) -> None:
    told = [line for line in gwdg_told if line["node"] == "ggpu129" and line["voice"] == "risk"]
    assert told[0]["device"] == "gpu3"
    assert str(told[0]["time"]) < "2026-01-06T22:10"  # a day and more


def one_sample_later(onset: str) -> str:
    later = datetime.fromisoformat(onset) + timedelta(minutes=10)
    return later.isoformat(timespec="minutes")


def check_without_events(found: list[dict[str, object]]) -> None:
    """A loss is told in its sample; that it stands still, and so the drain, needs one more."""
    told = {
        (line["node"], str(line["time"])[:16])
        for line in found
        if str(line["reason"]).startswith("tocsin:vanish ") and line["action"] == "alert"
    }
    assert told == ONSETS
    assert caught(found) == {(node, one_sample_later(onset)) for node, onset in ONSETS}


def test_gwdg_each_loss_is_drained_in_its_sample_and_a_fleet_reboot_drains_nothing(
    gwdg_days: Path,
) -> None:
    assert caught(lines(gwdg_days)) == ONSETS


def test_gwdg_without_the_xid_gauge_each_loss_is_told_in_its_sample_and_drained_in_the_next(
    gwdg_days: Path,
) -> None:
    check_without_events(lines(gwdg_days, "event"))


@needs_time
def test_gwdg_without_the_xid_gauge_over_all_days(gwdg: Path) -> None:
    found = lines(gwdg, "event")
    check_without_events(found)
    hot = [line for line in found if ":hot " in str(line["reason"])]
    # Two cards of ggpu129, anew after each return to service, and one of ggpu143.
    assert len(hot) == 11, "one case a hot card, not one for each job"
