"""Kernel lines in, events out: every format, and what must not count."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.kernel import lines as kernel_lines
from collectors.kernel.lines import Lines, classify, parse
from collectors.kernel.nvidia import nvlink_line, recovery_action, xid_line
from collectors.node.pci import address
from collectors.parsers import PARSERS
from collectors.sample import Sample

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kernel"
# 2026-11-30 02:50 UTC, shortly after the lines of the fixtures were written.
NOW_NS = 1_796_007_000_000_000_000


def data(name: str) -> Path:
    """A file of the outside data folder, or a skip that says where it was looked for."""
    beside = Path(__file__).parents[3].parent / "shared" / "data"
    path = Path(os.environ.get("TOCSIN_DATA", beside)) / name
    if not path.exists():
        pytest.skip(f"{path} is not here (set TOCSIN_DATA to the folder that holds it)")
    return path


def read(name: str, now_ns: int = NOW_NS) -> list[Sample]:
    return parse((FIXTURES / name).read_bytes(), "n3", now_ns)[0]


def told(samples: list[Sample]) -> list[tuple[str, str, str]]:
    return [(one.tag("kind"), one.tag("code"), one.text("device")) for one in samples]


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


# ---- Xid lines ------------------------------------------------------------------------------


def rows() -> list[dict[str, str]]:
    with open(FIXTURES / "xid.tsv", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['xid']}-{row['pid'] or 'nopid'}")
def test_every_part_of_an_xid_line_is_found(row: dict[str, str]) -> None:
    event = classify(row["line"])
    assert event is not None
    assert (event.kind, event.code, event.device) == ("xid", row["xid"], row["pci"])
    assert event.pid == (int(row["pid"]) if row["pid"] else None)
    assert event.process == row["name"]
    assert event.text == row["line"]


def test_every_labelled_line_gives_exactly_its_kind_code_and_pci_address() -> None:
    lines = 0
    with open(data("xid-log-samples/lines.tsv"), newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            samples, _ = parse(row["line"], "n3", NOW_NS)
            if row["code"] == "0000":  # mislabelled: its line is "SXid (...): xyz, Fatal error"
                assert samples == []
            elif row["kind"] == "other":
                assert {one.tag("kind") for one in samples} <= {"gpu_lost", "link", "driver"}
            else:
                lines += 1
                pci = re.sub(r"^PCI:|\.\d$", "", row["pci"])
                assert told(samples) == [(row["kind"], row["code"], pci)], row["line"]
    assert lines > 100


def test_the_mig_instance_is_told_apart_from_the_address() -> None:
    line = xid_line("NVRM: Xid (PCI:0000:9b:00 GPU-I:05 GPU-CI:01): 31, pid=7, name=a, Ch 8")
    assert line is not None
    assert (line.pci, line.gi, line.ci) == ("0000:9b:00", 5, 1)


@pytest.mark.parametrize(
    ("rest", "process", "message"),
    [
        ("name=a,b=c (x), Ch 00000008", "a,b=c (x)", "Ch 00000008"),
        ("name=a, b, GPU has fallen off the bus.", "a, b", "GPU has fallen off the bus."),
        ("name=sh, odd words, more words", "sh", "odd words, more words"),
        ("name=<unknown>, Ch 1, x", "", "Ch 1, x"),
        ("name=trainer", "trainer", ""),
    ],
)
def test_a_process_name_may_hold_commas(rest: str, process: str, message: str) -> None:
    line = xid_line(f"NVRM: Xid (PCI:0000:3b:00): 31, pid=7, {rest}")
    assert line is not None
    assert (line.process, line.message) == (process, message)


@pytest.mark.parametrize("pid", ["'<unknown>'", "<unknown>", '"<unknown>"', "XXX", "-1", ""])
def test_a_pid_that_is_not_known_is_absent(pid: str) -> None:
    line = xid_line(f"NVRM: Xid (PCI:0000:3b:00): 79, pid={pid}, name=<unknown>, GPU has fallen")
    assert line is not None
    assert (line.code, line.pid, line.process) == (79, None, "")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("0000:3B:00", "0000:3b:00"),
        ("00000000:3B:00.0", "0000:3b:00"),
        ("0008:01:00", "0008:01:00"),
        ("00010000:01:00.0", "00010000:01:00"),
        ("18:00.0", "0000:18:00"),
        ("0005:00", "0000:05:00"),
        ("invalid", ""),
        ("0000:3b:20", ""),
    ],
)
def test_addresses_have_one_spelling(written: str, kept: str) -> None:
    assert address(written) == kept


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (...)",
        "NVRM: Xid (invalid): some error",
        "NVRM: Xid error: xyz, invalid data",
        "nvidia-nvswitch0: SXid (invalid): some error",
        "log copied: NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
        "xNVRM: Xid (PCI:0000:3b:00): 79, pid=1",
    ],
)
def test_what_is_no_xid_gives_no_event(line: str) -> None:
    assert parse(line + "\n", "n3", NOW_NS)[0] == []


def test_an_xid_line_in_an_unknown_form_is_told_as_a_problem() -> None:
    _, problems = parse("NVRM: Xid (invalid): some error\n", "n3", NOW_NS)
    assert len(problems) == 1
    assert "Xid" in problems[0].problem


def test_a_code_at_the_cut_end_of_the_text_is_not_believed() -> None:
    cut = "NVRM: Xid (PCI:0000:3b:00): 7"
    assert parse(cut, "n3", NOW_NS)[0] == []
    assert "cut off" in parse(cut, "n3", NOW_NS)[1][0].problem
    assert told(parse(cut + "9, GPU has", "n3", NOW_NS)[0]) == [("xid", "79", "0000:3b:00")]
    assert told(parse(cut + "9\n", "n3", NOW_NS)[0]) == [("xid", "79", "0000:3b:00")]


def test_the_recovery_action_is_read_by_its_number() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    assert recovery_action(text) == "drain_and_reset"
    assert recovery_action("GPU recovery action changed from 0x1 (x) to 0x0 (None)") == "none"
    assert recovery_action("GPU recovery action changed from 0x0 (None) to 0x2") == "node_reboot"
    assert recovery_action("GPU recovery action changed from 0x0 to 0x77 (New)") == "unknown"
    assert recovery_action("something else") == ""


def test_an_nvlink_line_gives_unit_link_and_registers_even_when_cut_off() -> None:
    text = "RLW_SRC_TRACK  Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000"
    line = nvlink_line(text)
    assert line is not None
    assert (line.unit, line.fatal, line.link) == ("RLW_SRC_TRACK", False, 17)
    assert line.words == (0x04084507, 4)


# ---- other lines -----------------------------------------------------------------------------


def test_a_gpu_off_the_bus_without_an_xid_is_found() -> None:
    assert ("gpu_lost", "lost", "0000:b3:00") in told(read("nvrm.log"))
    one_record = (
        "4,9,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in "
        "this system has\\x0aNVRM: fallen off the bus and is not responding to commands.\\x0a\n"
    )
    assert told(parse(one_record, "n3", NOW_NS)[0]) == [("gpu_lost", "lost", "0000:b3:00")]
    assert told(parse("NVRM: GPU 18:00.0: GPU has fallen off the bus.\n", "n3", NOW_NS)[0]) == [
        ("gpu_lost", "lost", "0000:18:00")
    ]


def test_sxid_severity_is_fatal_nonfatal_or_detail() -> None:
    found = [(one.tag("code"), one.number("severity")) for one in read("sxid.log")]
    assert found == [
        ("20034", 3.0),
        ("20034", 0.0),
        ("20034", 0.0),
        ("12028", 1.0),
        ("24007", 3.0),
        ("123", 1.0),
    ]
    assert read("sxid.log")[0].text("device") == "0000:c1:00"


def test_three_generations_of_aer_name_the_device_in_error() -> None:
    found = told(read("aer.log"))
    assert found.count(("aer", "corrected", "0000:3b:00")) == 4
    assert ("aer", "corrected", "0000:00:1c") in found  # id=00e5: bus 00, slot 1c
    assert ("aer", "fatal", "0000:37:01") in found
    assert ("aer", "unrecovered", "0000:3b:00") in found
    assert ("aer", "dpc", "0000:37:01") in found
    assert ("link", "pcie_link_down", "0000:37:01") in found
    assert ("hung_task", "blocked", "") in found
    assert len(found) == 11


def test_driver_start_failures_and_mismatch_are_found() -> None:
    found = told(read("init-and-mismatch.log"))
    assert found == [
        ("driver", "init_failed", "0000:3b:00"),
        ("driver", "init_failed", "0000:3b:00"),
        ("driver", "api_mismatch", ""),
        ("driver", "api_mismatch", ""),
        ("driver", "reset_likely", "0000:61:00"),
        ("driver", "gsp_rpc", ""),
        ("version", "driver", ""),
    ]
    assert read("init-and-mismatch.log")[-1].text("text") == "570.158.01"


def test_the_lines_of_a_firmware_error_record_are_one_event() -> None:
    samples = read("ghes-memory.log")
    assert told(samples) == [("edac", "corrected", "D2")]
    assert "single-bit ECC" in samples[0].text("text")


def test_two_firmware_records_are_two_events() -> None:
    lines = Lines()
    events = []
    for number, severity in ((1, "corrected"), (2, "fatal")):
        events += lines.feed(f"{{{number}}}[Hardware Error]: event severity: {severity}")
        events += lines.feed(f"{{{number}}}[Hardware Error]:   section_type: memory error")
    events += lines.flush()
    assert [(one.kind, one.code) for one in events] == [
        ("edac", "corrected"),
        ("edac", "uncorrected"),
    ]
    assert lines.flush() == []


def test_host_lines_are_found() -> None:
    samples = read("system.log")
    assert told(samples) == [
        ("oom", "host", ""),
        ("oom", "cgroup", ""),
        ("filesystem", "readonly", "sda1"),
        ("filesystem", "shutdown", "dm-0"),
        ("filesystem", "io_error", "nvme0n1"),
        ("driver", "nvme", "nvme0"),
        ("filesystem", "server_away", "home01"),
        ("filesystem", "server_back", "home01"),
        ("link", "cable_unplugged", "0000:41:00"),
        ("link", "down", "0000:41:00"),
        ("driver", "insufficient_power", "0000:5c:00"),
        ("driver", "nic_command", "0000:d2:00"),
        ("driver", "nic_health", "0000:d2:00"),
        ("hung_task", "blocked", ""),
        ("hung_task", "lockup", ""),
        ("mce", "corrected", "cpu12 bank7"),
        ("mce", "uncorrected", "cpu12 bank1"),
        ("mce", "corrected", "cpu2 bank17"),
        ("edac", "corrected", "CPU_SrcID#1_MC#0_Chan#1_DIMM#0"),
        ("edac", "uncorrected", "CPU_SrcID#0_MC#0_Chan#0_DIMM#1"),
        ("panic", "panic", ""),
    ]
    named = {one.tag("code"): (one.text("process"), one.number("pid")) for one in samples}
    assert named["blocked"] == ("kworker/u64:3", 991.0)
    assert named["host"] == ("python3", 4242.0)
    assert next(one for one in samples if one.tag("kind") == "edac").number("count") == 3.0


# ---- forms of logs --------------------------------------------------------------------------


def test_kmsg_records_are_unescaped_and_their_properties_left_out() -> None:
    samples = read("kmsg.raw")
    assert told(samples) == [
        ("xid", "79", "0000:3b:00"),
        ("gpu_lost", "lost", "0000:3b:00"),
        ("xid", "154", "0000:3b:00"),
    ]
    # Between the first and the last record lie 91.829 ms of the machine's own clock.
    assert samples[2].time_ns - samples[0].time_ns == 91_829_000


def test_a_record_that_a_program_wrote_into_kmsg_does_not_count() -> None:
    line = ",1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    assert parse("12" + line, "n3", NOW_NS)[0] == []
    assert told(parse("4" + line, "n3", NOW_NS)[0]) == [("xid", "79", "0000:3b:00")]


def test_only_the_kernel_transport_of_the_journal_counts() -> None:
    samples = read("journal.json")
    assert told(samples) == [("xid", "79", "0000:3b:00"), ("xid", "31", "0000:3b:00")]
    assert samples[0].time_ns == 1_772_510_706_308_145_000


def test_syslog_lines_count_only_from_the_kernel(utc: None) -> None:
    samples = read("syslog.log")
    assert told(samples) == [
        ("xid", "79", "0000:9b:00"),
        ("xid", "154", "0000:9b:00"),
        ("xid", "31", "0000:1b:00"),
    ]
    stamps = [
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(one.time_ns // 10**9)) for one in samples
    ]
    assert stamps == ["2026-11-30T02:41:49", "2026-11-30T02:41:50", "2026-11-30T02:41:51"]


def test_decoded_and_iso_dmesg_output_is_read(utc: None) -> None:
    samples = read("dmesg-iso.log")
    assert told(samples) == [("xid", "13", "0000:38:00"), ("filesystem", "readonly", "nvme0n1p2")]
    assert samples[0].time_ns % 10**9 == 803_751_000


@pytest.mark.parametrize(
    "front",
    [
        "",
        "kernel: ",
        "[  123.456789] ",
        "[  123.456789][ T1234] ",
        "[   12.345678 <    0.000001>] ",
        "<4>[  123.456789] ",
        "[Sun Feb 23 16:24:18 2025] ",
        "[Nov30 02:41] ",
        "kern  :warn  : [  123.456789] ",
        "Nov 30 02:41:49 gpu07 kernel: ",
        "Nov  3 02:41:49.123456 gpu07 kernel: [  123.456789] ",
        "Mon 2026-11-30 02:41:49 UTC gpu07 kernel: ",
        "2026-11-30T02:41:49+0000 gpu07 kernel: ",
        "2026-11-30 02:41:49 gpu07 kernel: ",
        "1772510706.308145 gpu07 kernel: ",
        "[  123.456789] gpu07 kernel: ",
        "[  123.456789 <    0.000012 >] gpu07 kernel: ",
        "[  123.456789 <    0.000012*>] gpu07 kernel: ",
        "[  123.456789                ] gpu07 kernel: ",
        "<4>1 2026-11-30T02:41:49.123456+00:00 gpu07 kernel - - - ",
        '<4>1 2026-11-30T02:41:49Z gpu07 kernel - - [a@1 b="c"] [  12.345678] ',
        "2026-11-30T02:41:49Z gpu07 NVRM: ",
    ],
)
def test_every_usual_form_of_a_line_is_read(front: str) -> None:
    line = front.removesuffix("NVRM: ") + "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has"
    assert told(parse(line + "\n", "n3", NOW_NS)[0]) == [("xid", "79", "0000:9b:00")]


@pytest.mark.parametrize(
    "front",
    [
        "<12>[  123.456789] ",
        "user  :warn  : [  123.456789] ",
        "Nov 30 02:41:49 gpu07 trainer[12]: ",
        "2026-11-30T02:41:49+0000 gpu07 trainer: ",
        "[  123.456789] gpu07 trainer[12]: ",
        "<12>1 2026-11-30T02:41:49Z gpu07 trainer 1 - - ",
        "1 2026-11-30T02:41:49Z gpu07 trainer 1 - - ",
        "2026-11-30T02:41:49Z stdout F ",
    ],
)
def test_lines_of_other_writers_never_count(front: str) -> None:
    line = front + "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus.\n"
    assert parse(line, "n3", NOW_NS)[0] == []


def test_a_syslog_line_of_december_read_in_january_is_of_last_year(utc: None) -> None:
    january_ns = 1_798_762_000_000_000_000  # 2027-01-01 00:06 UTC
    line = "Dec 31 23:59:00 gpu07 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen\n"
    samples, _ = parse(line, "n3", january_ns)
    assert 0 < january_ns - samples[0].time_ns < 3_600 * 10**9


def test_dmesg_json_is_read() -> None:
    text = (
        '{\n "dmesg": [\n {"pri": 4, "time": 12.5, "msg": "NVRM: Xid (PCI:0000:9b:00): 79, GPU"},'
        '\n {"pri": 12, "time": 13.5, "msg": "NVRM: Xid (PCI:0000:3b:00): 79, GPU"} ]}'
    )
    assert told(parse(text, "n3", NOW_NS)[0]) == [("xid", "79", "0000:9b:00")]


def test_journal_entries_over_many_lines_are_read() -> None:
    pretty = "".join(
        json.dumps(json.loads(line), indent="\t") + "\n"
        for line in (FIXTURES / "journal.json").read_text().splitlines()
    )
    assert told(parse(pretty, "n3", NOW_NS)[0]) == told(read("journal.json"))


def test_colours_are_taken_off() -> None:
    line = "\x1b[32m[   12.345678] \x1b[0m\x1b[33mNVRM: Xid (PCI:0000:9b:00): 79, GPU has\x1b[0m\n"
    assert told(parse(line, "n3", NOW_NS)[0]) == [("xid", "79", "0000:9b:00")]


def test_a_repeated_message_keeps_its_count() -> None:
    line = (
        "Nov 30 02:41:49 gpu07 kernel: message repeated 3 times: "
        "[ [   12.345678] NVRM: Xid (PCI:0000:9b:00): 13, pid=1, name=a, Graphics Exception]\n"
    )
    (one,) = parse(line, "n3", NOW_NS)[0]
    assert (one.tag("code"), one.number("count"), one.text("process")) == ("13", 3.0, "a")


def test_two_alike_lines_of_one_time_stay_two_events() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 13, pid=1, name=a, Graphics Exception\n"
    samples, _ = parse(line * 3, "n3", NOW_NS)
    assert len({(one.tags, one.time_ns) for one in samples}) == 3


# ---- whatever comes ----------------------------------------------------------------------------


PIECES = st.sampled_from(
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, ",
        "NVRM: Xid (",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): ",
        "pid='<unknown>', name=",
        "{35}[Hardware Error]: event severity: fatal",
        "EDAC MC0: 99999999999999999999 CE ",
        "mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 7: ffffffffffffffff",
        "4,1,1,-;",
        "<4>1 2026-13-45T99:99:99Z h kernel - - - ",
        "Feb 29 12:00:00 h kernel: ",
        "[99999999999.999999] ",
        "message repeated 999999999 times: [ ",
        "{\n",
        "\n}\n{",
        '{"MESSAGE": [300, 1], "_TRANSPORT": "kernel"}',
        '{"MESSAGE": null, "_TRANSPORT": ["kernel"]}',
        "\n",
        " ",
        "\x00",
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=12).map("".join))
def test_no_text_gives_a_traceback(text: str) -> None:
    samples, problems = PARSERS["kernel-log"](text, "n3", NOW_NS)
    assert all(one.time_ns > 0 for one in samples)
    assert len(problems) <= 101
    for one in samples:
        assert one.tag("kind")
        assert one.tag("code")
        assert len(one.text("text")) <= 1000


@given(st.binary(max_size=400))
def test_no_bytes_give_a_traceback(body: bytes) -> None:
    parse(body, "n3", NOW_NS)


def test_a_flood_of_noise_takes_time_in_proportion() -> None:
    noise = b"[  123.456789] docker0: port 1(veth0) entered blocking state\n" * 100_000
    begin = time.perf_counter()
    assert parse(noise, "n3", NOW_NS) == ([], [])
    assert time.perf_counter() - begin < 20


def test_more_events_than_anybody_reads_are_left_out_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_lines, "_EVENT_LIMIT", 50)
    line = "NVRM: Xid (PCI:0000:9b:00): 13, pid=1, name=a, Graphics Exception\n"
    samples, problems = parse(line * 100, "n3", NOW_NS)
    assert len(samples) == 50
    assert "left out" in problems[0].problem


def test_a_line_without_end_is_left_out_and_told() -> None:
    samples, problems = parse(
        b"NVRM: " + b"x" * 200_000 + b"\nNVRM: Xid (PCI:0000:9b:00): 79, a\n", "n", NOW_NS
    )
    assert len(samples) == 1
    assert "left out" in problems[0].problem


def test_hostile_repetition_does_not_slow_a_pattern() -> None:
    for piece in (
        "a:",
        "NVRM: ",
        "[0.0]",
        "NVRM: Xid (PCI:0000:3b:00): 79, name=a, ",
        "mlx5_core ",
    ):
        line = (piece * 40_000)[: kernel_lines.LINE_LIMIT - 1]
        begin = time.perf_counter()
        parse(line + "\n", "n3", NOW_NS)
        assert time.perf_counter() - begin < 10
