"""A worker process that hangs, crashes, talks too much or will not end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.processes import started_ticks
from collectors.sample import SourceUnavailable
from collectors.worker import Worker, WorkerEnded, WorkerError, WorkerHung, WorkerLimits, WorkerSlow
from tests.collectors.freezer import Freezer, wait_for

MODULE = "tests.collectors.worker_sample"
FAST = WorkerLimits(term_seconds=0.3, kill_seconds=0.3, backoff_seconds=0.0)
START_SECONDS = 20.0  # a busy machine may need long to start an interpreter


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("sample", MODULE, FAST)
    yield made
    made.close()


def warm(worker: Worker) -> int:
    answer = worker.call("add", {"a": 1, "b": 2}, deadline_seconds=START_SECONDS)
    assert answer["sum"] == 3
    return int(answer["pid"])


def test_one_process_answers_call_after_call(worker: Worker) -> None:
    pid = warm(worker)
    assert warm(worker) == pid == worker.pid
    assert worker.starts_total == 1
    assert os.getpgid(pid) == pid  # a group of its own


def test_parts_come_in_order_before_the_answer(worker: Worker) -> None:
    got: list[object] = []
    answer = worker.call(
        "parts", {"count": 500}, deadline_seconds=START_SECONDS, on_part=got.append
    )
    assert answer == "all"
    assert got == [{"number": number} for number in range(500)]


def test_an_error_of_the_call_keeps_the_worker(worker: Worker) -> None:
    pid = warm(worker)
    with pytest.raises(WorkerError, match="GPU is lost") as caught:
        worker.call("refuse", deadline_seconds=START_SECONDS)
    assert caught.value.kind == "lost"
    with pytest.raises(WorkerError, match="KeyError"):
        worker.call("bug", deadline_seconds=START_SECONDS)
    with pytest.raises(WorkerError, match="no call 'nothing'"):
        worker.call("nothing", deadline_seconds=START_SECONDS)
    assert warm(worker) == pid


def test_a_call_that_misses_its_deadline_ends_the_worker_and_keeps_what_came(
    worker: Worker,
) -> None:
    pid = warm(worker)
    got: list[object] = []
    begin = time.monotonic()
    with pytest.raises(WorkerHung, match=rf"pid {pid}\) did not answer within 0.3 s") as caught:
        worker.call("sleep", {"seconds": 60}, deadline_seconds=0.3, on_part=got.append)
    assert time.monotonic() - begin < 30
    assert caught.value.stuck is None
    assert got == ["before"]
    assert started_ticks(pid) == 0
    assert warm(worker) != pid


def test_a_call_that_may_be_slow_is_waited_for_and_its_late_answer_dropped(
    worker: Worker,
) -> None:
    pid = warm(worker)
    with pytest.raises(WorkerSlow, match=rf"pid {pid}\) is still at work after"):
        worker.call("sleep", {"seconds": 0.6}, deadline_seconds=0.1, grace_seconds=60)
    with pytest.raises(WorkerSlow):
        worker.call("add", {"a": 1, "b": 2}, deadline_seconds=0.1)
    assert warm(worker) == pid


def test_a_slow_call_is_ended_when_its_grace_is_over(worker: Worker) -> None:
    pid = warm(worker)
    with pytest.raises(WorkerSlow):
        worker.call("sleep", {"seconds": 60}, deadline_seconds=0.1, grace_seconds=0.3)
    with pytest.raises(WorkerHung, match="was ended"):
        worker.call("add", {"a": 1, "b": 2}, deadline_seconds=0.4)
    assert started_ticks(pid) == 0
    assert warm(worker) != pid


def test_a_worker_that_ignores_sigterm_is_killed(worker: Worker) -> None:
    pid = warm(worker)
    with pytest.raises(WorkerHung, match="was ended"):
        worker.call("sleep", {"seconds": 60, "deaf": True}, deadline_seconds=0.4)
    assert started_ticks(pid) == 0


def test_a_worker_that_survives_sigkill_is_named_and_no_second_one_is_started(
    worker: Worker, freezer: Freezer
) -> None:
    pid = warm(worker)
    freezer.hold(pid)
    begin = time.monotonic()
    with pytest.raises(WorkerHung, match=rf"sample worker \(pid {pid}\) is hung for") as caught:
        worker.call("add", {"a": 1, "b": 2}, deadline_seconds=0.3)
    assert time.monotonic() - begin < 30
    assert caught.value.stuck is not None
    assert (caught.value.stuck.pid, caught.value.stuck.state) == (pid, "D")

    for _ in range(3):
        begin = time.monotonic()
        with pytest.raises(WorkerHung, match="no second one is started"):
            worker.call("add", {"a": 1, "b": 2}, deadline_seconds=30)
        assert time.monotonic() - begin < 20
    assert (worker.starts_total, worker.given_up_total) == (1, 1)
    stuck = worker.stuck()
    assert stuck is not None
    assert stuck.age_seconds > 0.3

    freezer.thaw()
    wait_for(lambda: started_ticks(pid) == 0)
    assert warm(worker) != pid
    assert worker.stuck() is None


def test_a_crash_is_told_with_its_signal_and_the_next_call_starts_anew(worker: Worker) -> None:
    pid = warm(worker)
    with pytest.raises(WorkerEnded, match="sample worker ended by SIGSEGV"):
        worker.call("crash", deadline_seconds=START_SECONDS)
    assert warm(worker) != pid


def test_the_last_words_of_a_worker_are_in_the_fault(worker: Worker) -> None:
    with pytest.raises(WorkerEnded, match="exit code 1: the licence ran out"):
        worker.call("leave", deadline_seconds=START_SECONDS)


def test_a_module_that_does_not_exist_is_a_fault_in_words() -> None:
    worker = Worker("sample", "tests.collectors.no_such_module", FAST)
    with pytest.raises(WorkerEnded, match="No module named"):
        worker.call("add", deadline_seconds=START_SECONDS)
    worker.close()


def test_a_worker_killed_between_two_calls_is_noticed(worker: Worker) -> None:
    pid = warm(worker)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: started_ticks(pid) == 0)
    with pytest.raises(WorkerEnded, match="SIGKILL"):
        worker.call("add", {"a": 1, "b": 2}, deadline_seconds=START_SECONDS)
    warm(worker)


def test_what_a_library_prints_does_not_break_the_protocol(worker: Worker) -> None:
    assert worker.call("noise", deadline_seconds=START_SECONDS) == "done"
    warm(worker)


def test_nonsense_on_the_pipe_ends_the_worker(worker: Worker) -> None:
    pid = warm(worker)
    with pytest.raises(WorkerEnded, match="spoke nonsense"):
        worker.call("nonsense", deadline_seconds=START_SECONDS)
    assert started_ticks(pid) == 0


def test_a_worker_that_talks_without_end_is_ended_at_the_deadline(worker: Worker) -> None:
    warm(worker)
    begin = time.monotonic()
    with pytest.raises(WorkerHung):
        worker.call("chatter", deadline_seconds=0.5)
    assert time.monotonic() - begin < 30


def test_failures_in_a_row_wait_longer_and_longer_and_a_good_call_forgives() -> None:
    now = [1000.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    limits = WorkerLimits(
        term_seconds=30, kill_seconds=30, backoff_seconds=4, backoff_most_seconds=10
    )
    worker = Worker("sample", MODULE, limits, monotonic=clock)
    waits = []
    for _ in range(4):
        with pytest.raises(WorkerEnded, match="licence"):
            worker.call("leave", deadline_seconds=1000)
        failed = now[0]
        with pytest.raises(WorkerEnded, match="in a row, next start in"):
            worker.call("add", {"a": 1, "b": 2}, deadline_seconds=1000)
        while True:
            now[0] += 0.5
            try:
                worker.call("add", {"a": 1, "b": 2}, deadline_seconds=1000)
            except SourceUnavailable:
                continue
            break
        waits.append(now[0] - failed)
    assert all(3.5 < wait < 6 for wait in waits), "each good call starts the count anew"
    for _ in range(3):
        with pytest.raises(WorkerEnded, match="licence"):
            worker.call("leave", deadline_seconds=1000)
        failed = now[0]
        now[0] += 10
    with pytest.raises(WorkerEnded, match="licence"):
        worker.call("leave", deadline_seconds=1000)
    now[0] += 9
    with pytest.raises(WorkerEnded, match="4 in a row"):
        worker.call("leave", deadline_seconds=1000)
    worker.close()


def test_closing_ends_the_process_and_later_calls_say_so(worker: Worker) -> None:
    pid = warm(worker)
    worker.close()
    worker.close()
    assert started_ticks(pid) == 0
    with pytest.raises(WorkerEnded, match="closed"):
        worker.call("add", {"a": 1, "b": 2}, deadline_seconds=1)


def test_calls_from_many_threads_are_answered_one_by_one(worker: Worker) -> None:
    warm(worker)
    sums: list[int] = []

    def work(number: int) -> None:
        answer = worker.call("add", {"a": number, "b": 0}, deadline_seconds=START_SECONDS)
        sums.append(answer["sum"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sums) == list(range(10))
    assert worker.starts_total == 1


PARENT = f"""
import json, sys, threading
from collectors.worker import Worker
worker = Worker("sample", {MODULE!r})
found = []
# Started from a thread that ends at once: the worker must outlive that thread.
def start(): found.append(worker.call("add", {{"a": 1, "b": 2}}, deadline_seconds=20)["pid"])
thread = threading.Thread(target=start)
thread.start()
thread.join()
found.append(worker.call("add", {{"a": 1, "b": 2}}, deadline_seconds=20)["pid"])
print(json.dumps(found), flush=True)
worker.call("sleep", {{"seconds": 600}}, deadline_seconds=600)
"""


def test_a_worker_outlives_the_thread_that_asked_for_it_and_dies_with_the_process() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    first, second = json.loads(parent.stdout.readline())
    assert first == second
    parent.kill()  # in the middle of a call: no end of file is seen by the worker
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: started_ticks(first) == 0)
