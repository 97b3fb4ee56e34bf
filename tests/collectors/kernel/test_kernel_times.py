"""When a line of the kernel log was written, and that a node was restarted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.kernel.log import KernelLog
from collectors.sample import Context
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.kernel.log_help import SECOND, append, codes, line, proc


def test_a_first_start_tells_this_boot_with_true_times(
    start: Callable[[], KernelLog], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    boot_ns = NOW_NS - 1_000 * SECOND

    def dated(at_ns: int) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(at_ns // SECOND))

    append(log, f"{dated(boot_ns - 900 * SECOND)} {NODE} kernel: {line(79)}")  # the boot before
    append(log, f"{dated(boot_ns + 60 * SECOND)} {NODE} kernel: {line(48)}")
    append(log, f"[  100.500000] {line(95)}")
    # A syslog daemon that started again writes the old ring with a new date.
    append(log, f"{dated(NOW_NS - SECOND)} {NODE} kernel: [  100.500000] {line(119)}")
    found = [(one.tag("code"), one.time_ns) for one in start().collect(NOW_NS).samples]
    assert found == [
        ("48", boot_ns // SECOND * SECOND + 60 * SECOND),
        ("95", boot_ns // SECOND * SECOND + 100_500_000_000),
        ("119", boot_ns // SECOND * SECOND + 100_500_000_000),
    ]


def test_a_line_without_a_stamp_is_not_newer_than_its_file(
    start: Callable[[], KernelLog], log: Path
) -> None:
    append(log, line(79))
    past = NOW_NS - 500 * SECOND
    os.utime(log, ns=(past, past))
    (sample,) = start().collect(NOW_NS).samples
    assert sample.time_ns == past


def test_an_indented_line_shares_the_stamp_of_the_line_above(
    start: Callable[[], KernelLog], log: Path
) -> None:
    append(log, "[  100.500000] NVRM: The NVIDIA GPU 0000:b3:00.0\n")
    append(log, "               NVRM: (PCI ID: 10de:2330) installed in this system has\n")
    append(log, "               NVRM: fallen off the bus and is not responding to commands.\n")
    (one,) = start().collect(NOW_NS).samples
    boot_ns = (NOW_NS - 1_000 * SECOND) // SECOND * SECOND
    assert (one.tag("kind"), one.time_ns) == ("gpu_lost", boot_ns + 100_500_000_000)


def test_a_line_whose_stamp_runs_on_was_written_since_the_last_look(
    start: Callable[[], KernelLog], log: Path
) -> None:
    """The kernel's clock has drifted, or the stamp is of another machine's clock."""
    source = start()
    append(log, "[  100.500000] usb: words\n")
    source.collect(NOW_NS - 10 * SECOND)
    append(log, f"[  200.500000] {line(79)}[131453.740758] {line(48)}")
    times = [one.time_ns for one in source.collect(NOW_NS).samples]
    assert times == [NOW_NS - 10 * SECOND, NOW_NS]


def test_the_ring_written_once_more_keeps_its_true_times(
    start: Callable[[], KernelLog], log: Path
) -> None:
    boot_ns = (NOW_NS - 1_000 * SECOND) // SECOND * SECOND
    first = start()
    append(log, f"[  100.500000] {line(79)}[  900.000000] usb: words\n")
    first.collect(NOW_NS - 10 * SECOND)
    first.acknowledge()
    first.close()
    second = start()
    append(log, f"[  100.500000] {line(79)}[  900.000000] usb: words\n")
    assert [one.time_ns for one in second.collect(NOW_NS).samples] == [boot_ns + 100_500_000_000]


def test_a_dated_line_told_again_keeps_its_old_time_whatever_happens_to_the_file(
    start: Callable[[], KernelLog], log: Path
) -> None:
    text = f"2025-10-09T08:53:20.000000+00:00 {NODE} kernel: [  100.0] {line(79)}"
    boot_ns = (NOW_NS - 1_000 * SECOND) // SECOND * SECOND
    first = start()
    first.collect(NOW_NS - 2 * SECOND)
    append(log, text)
    (live,) = first.collect(NOW_NS - SECOND).samples
    assert live.time_ns >= NOW_NS - 2 * SECOND
    first.acknowledge()
    append(log, text)
    (again,) = first.collect(NOW_NS).samples
    assert again.time_ns == boot_ns + 100 * SECOND
    first.acknowledge()
    log.write_text(text)
    (third,) = start().collect(NOW_NS + SECOND).samples
    assert third.time_ns == boot_ns + 100 * SECOND


def test_no_time_lies_in_the_future(start: Callable[[], KernelLog], log: Path) -> None:
    append(log, f"2099-01-01T00:00:00Z {NODE} kernel: {line(79)}[999999999.000000] {line(48)}")
    assert all(one.time_ns <= NOW_NS for one in start().collect(NOW_NS).samples)


# ---- a restart of the node ------------------------------------------------------------------


def test_another_boot_id_gives_a_reboot_event_before_anything_else(
    start: Callable[[], KernelLog], log: Path, context: Context
) -> None:
    first = start()
    append(log, line(13))
    first.collect(NOW_NS)
    first.acknowledge()
    append(log, line(79))  # the last words before the crash
    boot_ns = NOW_NS + 100 * SECOND
    proc(context, "b1", boot_ns)
    second = start()
    samples = second.collect(NOW_NS + 200 * SECOND).samples
    assert [one.tag("kind") for one in samples] == ["reboot", "xid"]
    assert samples[0].time_ns == boot_ns // SECOND * SECOND
    assert "b1" in samples[0].text("text")
    second.acknowledge()
    third = start()
    assert third.collect(NOW_NS + 300 * SECOND).samples == ()


def test_a_first_start_is_no_reboot(start: Callable[[], KernelLog], log: Path) -> None:
    append(log, line(79))
    assert codes(start().collect(NOW_NS)) == ["79"]
