"""Drivers that are missing, wrong, reloaded, slow or hung, on the real nvidia-ml-py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import collectors.gpu.nvml as nvml
from collectors.gpu.nvml import Nvml, Skips
from collectors.processes import started_ticks, state_of
from collectors.sample import Context, Cycle, SourceUnavailable
from tests.collectors.contract import NODE, NOW_NS, check_batch
from tests.collectors.fake_gpus import FakeGpus
from tests.collectors.freezer import Freezer, wait_for
from tests.collectors.gpu.nvml_help import PATIENT, SECOND, by_gpu, events


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("DRIVER_NOT_LOADED", "the NVIDIA driver is not loaded"),
        ("LIB_RM_VERSION_MISMATCH", "driver and library versions differ"),
        ("OPERATING_SYSTEM", "the operating system blocks access to the GPUs"),
        ("NO_PERMISSION", "no permission to use the NVIDIA driver"),
        ("UNKNOWN", "NVML cannot start"),
    ],
)
def test_a_library_that_cannot_start_says_why(
    source: Nvml, gpus: FakeGpus, code: str, words: str
) -> None:
    gpus.write(f"[system]\ninit = {code}\n")
    with pytest.raises(SourceUnavailable, match=words):
        source.collect(NOW_NS)


def test_a_missing_library_says_so(context: Context, tmp_path: Path) -> None:
    options = nvml.Options(library_folder=str(tmp_path), deadline_seconds=PATIENT)
    source = nvml.make(options, context)
    with pytest.raises(SourceUnavailable, match=r"libnvidia-ml.so.1 was not found"):
        source.collect(NOW_NS)
    source.close()


def test_a_driver_that_is_unloaded_and_loaded_again_is_read_again_by_the_same_worker(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[system]\nerr.* = UNINITIALIZED\ninit = DRIVER_NOT_LOADED\n")
    with pytest.raises(SourceUnavailable, match="not loaded"):
        source.collect(NOW_NS + SECOND)
    gpus.write()
    batch = source.collect(NOW_NS + 2 * SECOND)
    assert len(by_gpu(batch)) == 8
    assert "nvlink_links_active" in by_gpu(batch)["0"].fields  # a full reading after a reload
    assert source._worker.starts_total == 1


def test_after_a_reload_of_the_module_no_gpu_is_called_lost_by_the_old_library(
    source: Nvml, gpus: FakeGpus, context: Context
) -> None:
    module = context.root / "sys/module/nvidia"
    module.mkdir(parents=True)
    assert len(by_gpu(source.collect(NOW_NS))) == 8
    module.rename(module.with_name("unloaded"))
    gpus.write("[system]\ninit = DRIVER_NOT_LOADED\n[default]\nerr.* = GPU_IS_LOST\n")
    with pytest.raises(SourceUnavailable, match="not loaded"):
        source.collect(NOW_NS + SECOND)


def test_after_a_version_mismatch_a_new_process_loads_the_new_library(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[system]\ninit = LIB_RM_VERSION_MISMATCH\n")
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="versions differ"):
            source.collect(NOW_NS)
    gpus.write()
    wait_for(lambda: Cycle(source, NODE).run(NOW_NS).up, seconds=20)
    assert source._worker.starts_total == 2


# ---- calls that hang ---------------------------------------------------------------------------


def quick(gpus: FakeGpus, context: Context, **options: float) -> Nvml:
    """A source whose first reading is over: its next deadline is short, its worker is warm."""
    source = nvml.make(
        nvml.Options(library_folder=gpus.library_folder, deadline_seconds=PATIENT, **options),
        context,
    )
    source.collect(NOW_NS)
    source._call_seconds = 0.7
    return source


def test_a_hang_on_one_gpu_keeps_the_gpus_before_it_and_names_it(
    gpus: FakeGpus, context: Context
) -> None:
    source = quick(gpus, context)
    gpus.write("[gpu5]\ndelay.* = D:60000\n")
    begin = time.monotonic()
    batch = Cycle(source, NODE).run(NOW_NS + SECOND)
    assert time.monotonic() - begin < 30
    assert not batch.up
    assert "did not answer within 0.7 s in state D" in batch.fault
    assert "(while reading gpu5)" in batch.fault
    assert sorted(by_gpu(batch)) == ["0", "1", "2", "3", "4"]
    check_batch(nvml, source, batch)
    source.close()


def test_a_library_that_starts_slowly_is_waited_for(gpus: FakeGpus, context: Context) -> None:
    gpus.write("[system]\ndelay.nvmlDeviceGetCount_v2 = 1500\n")
    source = nvml.make(
        nvml.Options(library_folder=gpus.library_folder, deadline_seconds=1.0), context
    )
    cycle = Cycle(source, NODE)
    batch = cycle.run(NOW_NS)
    assert not batch.up
    assert "still at work" in batch.fault
    gpus.write()
    source._call_seconds = PATIENT
    wait_for(lambda: cycle.run(NOW_NS + SECOND).up)
    assert source._worker.starts_total == 1
    source.close()


def test_the_other_gpus_are_read_on_without_the_one_that_hangs(
    gpus: FakeGpus, context: Context
) -> None:
    source = quick(gpus, context)
    gpus.write("[gpu0]\ndelay.* = 60000\n")
    with pytest.raises(SourceUnavailable, match="while reading gpu0"):
        source.collect(NOW_NS + SECOND)
    source._call_seconds = PATIENT
    wait_for(lambda: Cycle(source, NODE).run(NOW_NS + 2 * SECOND).up)
    batch = source.collect(NOW_NS + 3 * SECOND)
    assert sorted(by_gpu(batch)) == [str(index) for index in range(1, 8)]
    assert "gpu0 is not read for" in batch.fault
    assert events(batch, "gone") == []

    # After a while it is tried again, after the others; then it answers and is read as before.
    source._call_seconds = 0.7
    later = NOW_NS + 70 * SECOND
    batch = Cycle(source, NODE).run(later)
    assert not batch.up
    assert sorted(by_gpu(batch)) == [str(index) for index in range(1, 8)]
    gpus.write()
    source._call_seconds = PATIENT
    wait_for(lambda: len(by_gpu(Cycle(source, NODE).run(later + 200 * SECOND))) == 8)
    source.close()


def test_a_worker_that_cannot_be_killed_is_named_and_no_second_one_is_started(
    gpus: FakeGpus, context: Context, freezer: Freezer
) -> None:
    source = quick(gpus, context)
    pid = source._worker.pid
    freezer.hold(pid)
    cycle = Cycle(source, NODE)
    for turn in range(3):
        batch = cycle.run(NOW_NS + turn * 10 * SECOND)
        assert not batch.up
        assert f"nvml worker (pid {pid}) is hung for" in batch.fault
        assert "in state D" in batch.fault
        check_batch(nvml, source, batch)
    assert state_of(pid) == "D"
    assert source._worker.starts_total == 1
    freezer.thaw()
    wait_for(lambda: started_ticks(pid) == 0)
    source._call_seconds = PATIENT
    wait_for(lambda: cycle.run(NOW_NS + 100 * SECOND).up)
    assert source._worker.starts_total == 2
    source.close()


def test_one_slow_driver_lock_is_the_drivers_fault_and_no_gpu_is_left_out() -> None:
    skips = Skips(60, 900)
    skips.hung(3, NOW_NS)
    assert list(skips.now(NOW_NS + SECOND)) == [3]
    skips.hung(5, NOW_NS + SECOND)
    assert skips.now(NOW_NS + 2 * SECOND) == {}


def test_a_gpu_that_hangs_again_and_again_is_left_out_longer_and_longer_up_to_a_limit() -> None:
    skips = Skips(60, 900)
    now = NOW_NS
    waits = []
    for _ in range(6):
        skips.hung(3, now)
        waits.append(skips.now(now)[3])
        now += int(waits[-1] * SECOND) + 1
        assert skips.now(now) == {}
        assert skips.suspects() == [3]
    assert waits == [60, 120, 240, 480, 900, 900]
    skips.read([3])
    assert skips.suspects() == []
