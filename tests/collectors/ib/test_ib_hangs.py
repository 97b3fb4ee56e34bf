"""A device or a tool of the node's InfiniBand that hangs costs only itself."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from collectors.ib.infiniband import Options, make
from collectors.ib.readers import Readers
from collectors.sample import Context, SourceUnavailable
from tests.collectors.contract import NOW_NS
from tests.collectors.ib.node_help import SECOND, learned, link_events, ports
from tests.testbed.ib import fake_sysfs


def test_a_device_that_does_not_answer_costs_only_its_own_readings(
    context: Context, sys_root: Path
) -> None:
    for name in ("mlx5_0", "mlx5_1", "mlx5_2"):
        fake_sysfs.port(fake_sysfs.device(sys_root, name))
    blocked = sys_root / "class/infiniband/mlx5_1/ports/1/state"
    blocked.unlink()
    os.mkfifo(blocked)  # reading waits until somebody writes, as for a driver in trouble
    source = make(Options(hung_seconds=2.0), context)
    begin = time.monotonic()
    batch = source.collect(NOW_NS)
    assert time.monotonic() - begin < 30
    assert set(ports(batch)) == {"mlx5_0/1", "mlx5_2/1"}
    assert batch.up
    assert "mlx5_1" in batch.fault
    threads = threading.active_count()
    for turn in range(5):
        begin = time.monotonic()
        assert set(ports(source.collect(NOW_NS + turn * SECOND))) == {"mlx5_0/1", "mlx5_2/1"}
        assert time.monotonic() - begin < 1.5, "a hung device is asked once, not every cycle"
    assert threading.active_count() <= threads
    with open(blocked, "w") as pipe:
        pipe.write("4: ACTIVE\n")
    end = time.monotonic() + 60
    blocked.unlink()
    fake_sysfs.put(blocked, "4: ACTIVE")
    while "mlx5_1/1" not in ports(source.collect(NOW_NS + 60 * SECOND)):
        assert time.monotonic() < end
    source.close()


def test_when_all_devices_hang_the_source_says_so(context: Context, sys_root: Path) -> None:
    blocked = fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_0")) / "state"
    blocked.unlink()
    os.mkfifo(blocked)
    source = make(Options(hung_seconds=0.1), context)
    with pytest.raises(SourceUnavailable, match="mlx5_0 hang"):
        source.collect(NOW_NS)
    with open(blocked, "w") as pipe:
        pipe.write("4: ACTIVE\n")


def test_an_adapter_that_is_gone_is_told_also_where_the_others_hang(
    context: Context, sys_root: Path
) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        fake_sysfs.port(fake_sysfs.device(sys_root, name))
    source = learned(context, hung_seconds=0.1)
    (sys_root / "class/infiniband/mlx5_0").rename(context.root / "away")
    blocked = sys_root / "class/infiniband/mlx5_1/ports/1/state"
    blocked.unlink()
    os.mkfifo(blocked)
    batch = source.collect(NOW_NS + 710 * SECOND)
    assert link_events(batch) == [("missing", "mlx5_0/1")]
    assert not batch.up
    assert "mlx5_1 hang" in batch.fault
    with open(blocked, "w") as pipe:
        pipe.write("4: ACTIVE\n")


def test_an_error_in_one_device_is_told_and_the_others_are_read() -> None:
    def read(name: str) -> str:
        if name == "b":
            raise OSError("Input/output error")
        return name.upper()

    answers, errors = Readers(read, 1.0).ask(["a", "b", "c"], 5.0)
    assert answers == {"a": "A", "c": "C"}
    assert str(errors["b"]) == "Input/output error"


def test_nothing_piles_up_over_a_week_of_readings(context: Context, sys_root: Path) -> None:
    fake_sysfs.tree(sys_root)
    source = make(Options(learn_seconds=0), context)
    source.collect(NOW_NS)
    process = psutil.Process()
    files, threads = process.num_fds(), process.num_threads()
    for turn in range(1, 101):
        source.collect(NOW_NS + turn * 6048 * SECOND)
    assert process.num_fds() <= files
    assert process.num_threads() <= threads + 1  # the last reader may just be ending
    assert [path.name for path in context.state_dir.iterdir()] == ["ports.json"]


def test_a_perfquery_that_hangs_at_each_reading_leaves_nothing_behind(
    context: Context, sys_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fake_sysfs.port(fake_sysfs.device(sys_root, "mlx5_0"))
    for name in ("port_rcv_data", "port_xmit_data"):
        fake_sysfs.put(place / "counters" / name, str(2**32 - 1))
    script = tmp_path / "bin" / "perfquery"
    script.parent.mkdir()
    # It ignores being ended, and has a child that does.
    script.write_text("#!/bin/sh\ntrap '' TERM\nsleep 600 &\nwait\nsleep 600\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    source = make(Options(learn_seconds=0, deadline_seconds=0.4), context)
    source.collect(NOW_NS)
    process = psutil.Process()
    before = process.num_fds(), process.num_threads()
    for turn in range(1, 4):
        batch = source.collect(NOW_NS + turn * 2000 * SECOND)
        (port,) = [one for one in batch.samples if one.measurement == "ib_port"]
        assert "receive_bytes_total" not in port.fields, "a saturated counter is no number"
    assert process.num_fds() <= before[0]
    assert process.num_threads() <= before[1] + 1
    left = [one for one in process.children(recursive=True) if one.status() != "zombie"]
    assert [one for one in left if "sleep" in one.name() or "perfquery" in one.name()] == []
