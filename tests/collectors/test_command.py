"""Programs that are slow, noisy, missing or unkillable, run for real."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from collectors.command import Limits, Result, Runner
from collectors.processes import started_ticks, state_of
from collectors.sample import SourceUnavailable
from tests.collectors.freezer import Freezer, wait_for

FAST = Limits(term_seconds=0.3, kill_seconds=0.3, output_bytes=100_000)


def python(runner: Runner, program: str, deadline_seconds: float = 20.0) -> Result:
    return runner.run(
        [sys.executable, "-I", "-S", "-c", program], deadline_seconds=deadline_seconds, kind="py"
    )


@pytest.fixture
def runner() -> Runner:
    return Runner(FAST)


def is_gone(pid: int) -> bool:
    return started_ticks(pid) == 0


def test_output_errors_and_exit_code_come_back_as_data(runner: Runner) -> None:
    result = python(runner, "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)")
    assert (result.status, result.returncode) == ("ended", 3)
    assert (result.stdout, result.stderr) == (b"out\n", b"err")
    assert result.fault == "py ended with exit code 3: err"
    assert not result.ok


def test_a_good_run_has_no_fault(runner: Runner) -> None:
    result = runner.run(["true"], deadline_seconds=20)
    assert result.ok
    assert result.fault == ""
    assert result.need() == ""


def test_need_raises_the_fault_in_words(runner: Runner) -> None:
    with pytest.raises(SourceUnavailable, match="false ended with exit code 1"):
        runner.run(["false"], deadline_seconds=20).need()


def test_a_missing_program_is_named(runner: Runner) -> None:
    result = runner.run(["no-such-tool", "-x"], deadline_seconds=20)
    assert result.status == "missing"
    assert "no-such-tool was not found" in result.fault


def test_a_file_that_is_no_program_is_refused(runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / "tool"
    file.write_text("data")
    result = runner.run([str(file)], deadline_seconds=20)
    assert result.status == "refused"
    assert result.fault == "tool could not be started: Permission denied"


def test_an_argument_with_a_zero_byte_is_refused_not_raised(runner: Runner) -> None:
    assert runner.run(["echo", "a\0b"], deadline_seconds=20).status == "refused"


def test_input_is_fed_and_a_child_that_does_not_read_it_is_no_error(runner: Runner) -> None:
    big = b"x" * 90_000
    result = runner.run(["cat"], deadline_seconds=20, stdin=big)
    assert result.stdout == big
    assert runner.run(["true"], deadline_seconds=20, stdin=big * 20).ok


def test_the_environment_is_plain_c_and_takes_additions(runner: Runner) -> None:
    program = "import os; print(os.environ['LC_ALL'], os.environ['EXTRA'])"
    result = runner.run([sys.executable, "-c", program], deadline_seconds=20, env={"EXTRA": "yes"})
    assert result.text() == "C yes\n"


def test_a_slow_program_is_ended_at_its_deadline_with_what_it_had_said(runner: Runner) -> None:
    result = python(runner, "import time; print('a', flush=True); time.sleep(60)", 0.4)
    assert result.status == "timeout"
    assert result.returncode == -15
    assert result.stdout == b"a\n"
    assert result.fault == "py did not end within 0.4 s and was ended"
    assert result.duration_seconds < 5


def test_a_program_that_ignores_sigterm_is_killed(runner: Runner) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('a', flush=True); time.sleep(60)"
    )
    result = python(runner, program, 0.5)
    assert (result.status, result.returncode) == ("timeout", -9)


def test_sigterm_comes_before_sigkill_so_a_program_can_put_things_in_order(
    runner: Runner, tmp_path: Path
) -> None:
    mark = tmp_path / "tidied"
    program = (
        "import signal, sys, time, pathlib\n"
        f"def tidy(*_): pathlib.Path({str(mark)!r}).write_text('yes'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, tidy)\ntime.sleep(60)"
    )
    result = python(runner, program, 0.5)
    assert result.status == "timeout"
    assert mark.read_text() == "yes"


def test_the_whole_group_is_killed_at_the_deadline(runner: Runner) -> None:
    program = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '60']);"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    result = python(runner, program, 0.8)
    assert result.status == "timeout"
    wait_for(lambda: is_gone(int(result.stdout)))


def test_a_grandchild_that_holds_the_pipe_delays_nothing_and_is_ended(runner: Runner) -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    begin = time.monotonic()
    result = python(runner, program)
    assert result.ok
    assert time.monotonic() - begin < 30
    wait_for(lambda: is_gone(int(result.stdout)))


def test_a_flood_is_cut_at_the_limit_and_ended(runner: Runner) -> None:
    result = runner.run(["yes"], deadline_seconds=20)
    assert result.status == "flood"
    assert len(result.stdout) == 100_000
    assert result.fault == "yes printed more than 100000 bytes and was ended"
    assert result.duration_seconds < 10


def test_a_flood_that_ended_by_itself_is_told_too(runner: Runner) -> None:
    result = runner.run(["head", "-c", "1001", "/dev/zero"], deadline_seconds=20, output_bytes=1000)
    assert result.status == "flood"
    assert len(result.stdout) == 1000


def test_output_up_to_the_limit_is_whole(runner: Runner) -> None:
    result = runner.run(["head", "-c", "100000", "/dev/zero"], deadline_seconds=20)
    assert result.ok
    assert len(result.stdout) == 100_000


def test_a_child_that_survives_sigkill_is_given_up_and_named(
    runner: Runner, freezer: Freezer, tmp_path: Path
) -> None:
    pids: list[int] = []

    def freeze() -> None:
        file = tmp_path / "pid"
        wait_for(lambda: file.exists() and file.read_text().endswith("."))
        pids.append(int(file.read_text()[:-1]))
        freezer.hold(pids[0])

    helper = threading.Thread(target=freeze)
    helper.start()
    program = (
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + '.');"
        "time.sleep(60)"
    )
    result = python(runner, program, 6.0)  # by then it is frozen, on a busy machine too
    helper.join()
    assert result.status == "stuck"
    assert result.stuck is not None
    assert (result.stuck.pid, result.stuck.state) == (pids[0], "D")
    assert f"py (pid {pids[0]}) is hung for" in result.fault
    assert "does not end on SIGKILL and is given up" in result.fault
    assert result.duration_seconds < 30
    assert runner.given_up_total == 1

    # No second one of its kind is started, at once and without waiting; other kinds go on.
    begin = time.monotonic()
    second = python(runner, "print('never')")
    assert time.monotonic() - begin < 30
    assert second.status == "stuck"
    assert second.stdout == b""
    assert "no second one is started" in second.fault
    assert runner.run(["true"], deadline_seconds=20).ok
    assert [one.pid for one in runner.stuck()] == pids
    assert runner.stuck()[0].age_seconds > 1.0

    # It ends at last: the kind is free again.
    freezer.thaw()
    wait_for(lambda: runner.stuck() == ())
    assert python(runner, "print('again')").stdout == b"again\n"
    assert runner.given_up_total == 1


def test_a_grandchild_that_survives_sigkill_blocks_its_kind_as_well(
    runner: Runner, freezer: Freezer, tmp_path: Path
) -> None:
    file = tmp_path / "pid"

    def freeze() -> None:
        wait_for(lambda: file.exists() and file.read_text().endswith("."))
        freezer.hold(int(file.read_text()[:-1]))

    helper = threading.Thread(target=freeze)
    helper.start()
    program = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '60']);"
        f"open({str(file)!r}, 'w').write(str(p.pid) + '.'); time.sleep(60)"
    )
    result = python(runner, program, 6.0)
    helper.join()
    assert result.status == "stuck"
    assert result.stuck is not None
    assert result.stuck.pid == int(file.read_text()[:-1])
    assert python(runner, "print(1)").status == "stuck"
    freezer.thaw()
    wait_for(lambda: runner.stuck() == ())


def test_a_source_can_keep_its_own_deadline_even_when_a_child_must_be_killed() -> None:
    runner = Runner(Limits(term_seconds=1, kill_seconds=1))
    assert runner.within(10) == 8
    assert runner.within(1) == 0.5


def test_many_threads_may_run_programs_at_once(runner: Runner) -> None:
    results: list[Result] = []

    def work(number: int) -> None:
        results.append(runner.run(["echo", str(number)], deadline_seconds=20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(one.stdout) for one in results) == list(range(12))


def test_nothing_stays_open_or_unreaped(runner: Runner) -> None:
    def children() -> set[str]:  # those of this thread; other tests may have left some
        return set(Path("/proc/thread-self/children").read_text().split())

    before, own = len(list(Path("/proc/self/fd").iterdir())), children()
    for _ in range(5):
        python(runner, "print(1)")
        runner.run(["no-such-tool"], deadline_seconds=20)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert children() <= own


def test_without_pidfd_the_end_is_still_seen(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_old(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", too_old)
    result = python(runner, "import time; print('a', flush=True); time.sleep(0.2); print('b')")
    assert result.stdout == b"a\nb\n"
    assert result.ok


def test_the_state_of_this_process_is_readable_and_of_a_gone_one_empty() -> None:
    assert state_of(os.getpid()) in {"R", "S", "D"}
    assert state_of(2**22 + 1) == ""
