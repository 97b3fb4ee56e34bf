"""Two heads: one acts, takeover by kill and by partition, and the fence before each write."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from daemon.slurm.adapter import SlurmUnavailable
from daemon.slurm.fenced import FencedAdapter
from daemon.slurm.lease import Lease, Mark
from tests.daemon.worlds import Clock, simulated
from tests.testbed.slurm.cluster import wait_for

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys, time
from pathlib import Path
from daemon.slurm.lease import Lease
lease = Lease(Path(sys.argv[1]), "first", float(sys.argv[2]))
lease.wait()
lease.keep(lambda: print("lost", flush=True))
print("held", flush=True)
while True:
    time.sleep(0.05)
    print("acts" if not lease.held() else "stands", flush=True)
"""


def pair(folder: Path, clock: Clock) -> tuple[Lease, Lease]:
    return (
        Lease(folder, "first", 30, clock.monotonic),
        Lease(folder, "second", 30, clock.monotonic),
    )


def test_one_of_two_holds_it_and_the_other_stands_by(tmp_path: Path) -> None:
    first, second = pair(tmp_path, clock := Clock())
    assert first.try_take()
    for _ in range(20):
        clock.pass_seconds(6)
        assert first.renew()
        assert not second.try_take()
    assert first.held() == ""
    assert second.held() == "another head holds the lease"


def test_a_holder_that_falls_silent_is_replaced_and_stops_before_the_other_begins(
    tmp_path: Path,
) -> None:
    first, second = pair(tmp_path, clock := Clock())
    assert first.try_take()
    assert not second.try_take()
    both = 0
    for _ in range(60):
        clock.pass_seconds(1)
        taken = second.try_take() if second.held() else True
        both += taken and first.held() == ""
        if taken:
            break
    assert second.held() == ""
    assert both == 0
    assert "second" in first.held() or "renewed in time" in first.held()
    assert not first.renew(), "it is told for good"


def test_a_holder_that_was_paused_with_its_clock_while_it_renewed_holds_nothing(
    tmp_path: Path,
) -> None:
    """A paused machine's clock stands still: it writes its mark over that of the other head."""
    clock, paused = Clock(), Clock()
    second = Lease(tmp_path, "second", 30, clock.monotonic)

    class Paused(Lease):
        pauses = False

        def _write(self, mark: Mark) -> None:
            if self.pauses:
                second.try_take()
                clock.pass_seconds(31)
                assert second.try_take()
            super()._write(mark)

    first = Paused(tmp_path, "first", 30, paused.monotonic)
    assert first.try_take()
    first.pauses = True
    first.renew()
    first.pauses = False
    assert first.held() == "another head has claimed the lease"
    assert not first.renew(), "it is told for good"
    assert second.renew()
    assert second.held() == ""


def test_a_frozen_holder_that_wakes_up_never_writes(tmp_path: Path) -> None:
    first, second = pair(tmp_path, clock := Clock())
    assert first.try_take()
    second.try_take()
    clock.pass_seconds(31)
    assert second.try_take()
    adapter = simulated(1)
    with pytest.raises(SlurmUnavailable, match="does not act"):
        FencedAdapter(adapter, first.held).drain({"n1": "tocsin:x 1"}, lambda node: "")
    assert adapter.writes_total == 0
    assert set(FencedAdapter(adapter, second.held).drain({"n1": "x"}, lambda n: "").done) == {"n1"}


def test_a_lease_lost_between_look_and_write_stops_the_write(tmp_path: Path) -> None:
    words = iter(["", "another head holds the lease"])
    adapter = simulated(1)
    outcome = FencedAdapter(adapter, lambda: next(words)).drain({"n1": "x"}, lambda node: "")
    assert outcome.skipped == {"n1": "another head holds the lease"}
    assert adapter.writes_total == 0


def test_a_partition_from_the_folder_stops_the_holder(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    first, second = pair(folder, clock := Clock())
    assert first.try_take()
    folder.rename(tmp_path / "away")
    assert "cannot be read" in first.held()
    clock.pass_seconds(19)
    first.renew()
    assert first.held() != ""
    assert not second.try_take(), "a folder that is not mounted is no free lease"
    (tmp_path / "away").rename(folder)
    assert not second.try_take()
    clock.pass_seconds(31)
    assert second.try_take()
    assert first.held() != ""


def test_two_that_stand_by_never_both_take_it(tmp_path: Path) -> None:
    for turn in range(20):
        folder = tmp_path / str(turn)
        folder.mkdir()
        leases = [Lease(folder, f"head {number}", 30) for number in range(8)]
        gate = threading.Barrier(8)
        taken: list[Lease] = []

        def take(lease: Lease, gate: threading.Barrier = gate, taken: list[Lease] = taken) -> None:
            gate.wait()
            if lease.try_take():
                taken.append(lease)

        threads = [threading.Thread(target=take, args=(lease,)) for lease in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1
        assert sum(lease.held() == "" for lease in leases) == 1


def test_a_clean_end_hands_over_at_once(tmp_path: Path) -> None:
    first, second = pair(tmp_path, Clock())
    assert first.try_take()
    assert not second.try_take()
    first.give_up()
    assert second.try_take()
    assert first.held() != ""


def test_a_claim_that_died_half_way_is_passed_over(tmp_path: Path) -> None:
    _, second = pair(tmp_path, clock := Clock())
    (tmp_path / "lease.1").write_text("died")
    assert not second.try_take()
    clock.pass_seconds(31)
    assert second.try_take()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"epoch": "x"}', "\x00\xff"])
def test_a_damaged_file_is_no_lease_for_anybody(tmp_path: Path, text: str) -> None:
    first, second = pair(tmp_path, clock := Clock())
    assert first.try_take()
    (tmp_path / "lease.json").write_text(text)
    assert "cannot be read" in first.held()
    clock.pass_seconds(100)
    assert not second.try_take()


def test_kill_9_of_the_holder_is_followed_by_a_takeover(tmp_path: Path) -> None:
    seconds = 4.0  # so long no process of a busy machine stands still
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), str(seconds)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        second = Lease(tmp_path, "second", seconds)
        end = time.monotonic() + 1.5 * seconds
        while time.monotonic() < end:
            assert not second.try_take()
            time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        wait_for(second.try_take, "the takeover")
        assert second.held() == ""
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
