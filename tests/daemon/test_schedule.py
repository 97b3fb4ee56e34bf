import asyncio
import datetime
import threading
import time
from collections.abc import Callable

import pytest

from daemon.schedule import OwnThread, Schedule


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.005)


async def test_a_hung_thread_delays_no_other_job_and_is_not_started_twice() -> None:
    schedule = Schedule()
    release = threading.Event()
    starts, others = [], []

    def stuck() -> None:
        starts.append(1)
        release.wait(20)

    async def other() -> None:
        others.append(1)

    state = schedule.every_blocking("stuck", 0.02, 0.05, stuck)
    schedule.every("other", 0.02, 1, other)
    schedule.start()
    await until(lambda: len(others) >= 10 and state.skipped >= 3)
    assert len(starts) == 1
    assert state.overruns == 1
    assert "did not end within" in state.fault
    assert set(schedule.hung()) == {"stuck"}
    release.set()
    await until(lambda: len(starts) >= 3)
    await until(lambda: not schedule.hung())
    assert await schedule.stop() == []


async def test_a_coroutine_past_its_deadline_is_cancelled_and_runs_again() -> None:
    schedule = Schedule()
    cancelled = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    state = schedule.every("slow", 0.02, 0.03, slow)
    schedule.start()
    await until(lambda: len(cancelled) >= 2)
    assert state.overruns >= 2
    await schedule.stop(grace_seconds=0)


async def test_a_failing_job_is_said_and_runs_again() -> None:
    schedule = Schedule()

    async def bad() -> None:
        raise OSError("no such device")

    state = schedule.every("bad", 0.01, 1, bad)
    schedule.start()
    await until(lambda: state.failures >= 3)
    assert state.fault == "OSError: no such device"
    await schedule.stop()


async def test_a_clock_set_back_by_an_hour_silences_no_job() -> None:
    schedule = Schedule()
    runs = []

    async def job() -> None:
        runs.append(1)

    schedule.every("job", 0.05, 1, job)
    schedule.start()
    await until(lambda: len(runs) >= 1)
    timer_job = schedule._timer.get_job("job")
    # The wall clock goes back an hour: to the timer the next run is an hour away.
    hour = datetime.timedelta(hours=1)
    timer_job.modify(next_run_time=timer_job.next_run_time + hour)
    seen = len(runs)
    await asyncio.sleep(0.15)
    assert len(runs) == seen
    schedule.clock_stepped(-3600)
    await until(lambda: len(runs) > seen + 2)
    await schedule.stop()


async def test_stop_names_what_still_hangs() -> None:
    schedule = Schedule()
    release = threading.Event()
    schedule.every_blocking("stuck", 1, 0.05, lambda: release.wait(20))
    schedule.start()
    await until(lambda: "stuck" in schedule.hung())
    assert await schedule.stop(grace_seconds=0.1) == ["stuck"]
    release.set()


async def test_the_same_name_twice_is_refused() -> None:
    schedule = Schedule()

    async def job() -> None: ...

    schedule.every("job", 1, 1, job)
    with pytest.raises(ValueError, match="already"):
        schedule.every("job", 1, 1, job)


async def test_an_own_thread_gives_results_and_errors_back() -> None:
    thread = OwnThread("t")
    assert await thread.submit(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.submit(lambda: 1 // 0)
    release = threading.Event()
    waiting = thread.submit(lambda: release.wait(60))
    assert thread.busy
    with pytest.raises(RuntimeError, match="busy"):
        thread.submit(lambda: 1)
    release.set()
    assert await waiting
    thread.close()


async def test_a_clock_that_jumps_decades_ahead_costs_one_run() -> None:
    schedule = Schedule()
    runs = []

    async def job() -> None:
        runs.append(1)

    schedule.every("job", 0.5, 1, job, delay_seconds=60)
    schedule.start()
    # To the timer the last turn was in 1970: 3.5 billion turns were missed since.
    past = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    started = time.monotonic()
    schedule._timer.get_job("job").modify(next_run_time=past)
    await until(lambda: len(runs) == 1)
    assert time.monotonic() - started < 30
    await schedule.stop()
