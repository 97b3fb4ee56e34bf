"""Captured output loses names and keeps its form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from collectors.anonymise import Anonymiser
from collectors.capture import COMMANDS, Command, capture, of_ports
from collectors.command import Runner
from collectors.parsers import PARSERS
from collectors.sample import Sample
from daemon.cli.main import main
from tests.testbed.bmc.bmcs import RedfishBmcs

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
KEY = b"a key of this test"


def clean(text: str, *names: str) -> str:
    return Anonymiser(KEY, names).text(text)


@pytest.mark.parametrize(
    "name",
    [
        "GPU-7e57a002-0023-4102-a007-0c0ffee00002",
        "fe80:0000:0000:0000:506b:4b03:00ab:cdef",
        "fe80::506b:4b03:ab:cdef",
        "2001:db8::17",
        "0x506b4b0300abcdef",
        "506b4b0300abcdef",
        "50:6b:4b:03:00:ab",
        "10.11.12.13",
        "jane.doe@site.example",
    ],
)
def test_names_of_boards_ports_and_people_go(name: str) -> None:
    text = f"before {name} after\n"
    cleaned = clean(text)
    assert name.removeprefix("GPU-") not in cleaned
    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after\n")


@pytest.mark.parametrize(
    "kept",
    [
        "0x0000000000000060",
        "00000000:1B:00.0",
        "0000:9b:00.0",
        "96.00.99.00.01",
        "570.86.15",
        "[N/A]",
        "402.77 W",
        "2026-03-04T05:06:07,120+00:00",
        "12:34:56",
        "collectors::kernel",
        "[10de:2330]",
        "INFO: rcu_sched detected stalls on CPUs/tasks: { 3} (detected by 5, t=60002 jiffies)",
        "Serial Number: N/A",
        "127.0.0.1",
    ],
)
def test_what_a_parser_needs_stays(kept: str) -> None:
    assert clean(f"a {kept} b") == f"a {kept} b"


def test_the_same_name_becomes_the_same_and_another_key_another() -> None:
    uuid = "7e57a002-0023-4102-a007-0c0ffee00002"
    first, second = clean(f"{uuid} {uuid}").split()
    assert first == second
    assert first != Anonymiser(b"another").text(uuid)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", first)


def test_host_and_user_names_go_wherever_they_stand_alone() -> None:
    text = "gpu-a-07: jdoe@gpu-a-07.site.example /home/jdoe/run gpu-a-070"
    cleaned = clean(text, "gpu-a-07", "jdoe", "site.example")
    assert "gpu-a-07:" not in cleaned
    assert "jdoe" not in cleaned
    assert "site.example" not in cleaned
    assert cleaned.endswith("gpu-a-070")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=jane_train, Ch 00000008",
        "Out of memory: Killed process 4242 (jane_train) total-vm:1kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task=jane_train,pid=4242,uid=1001",
        "INFO: task jane_train:4242 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [jane_train:4711]",
        "CPU: 3 PID: 4711 Comm: jane_train Tainted: P           OE",
        "EXT4-fs error (device sda1): ext4_journal_check_start:83: comm jane_train: Detected",
        "jane_train[4711]: segfault at 0 ip 00000000 sp 00000000 error 4",
        "|    0   N/A  N/A      4711      C   /opt/jane_train/bin/python          61203MiB |",
        "|    0      4711      C   jane_train                                      10MiB |",
    ],
)
def test_names_of_programs_go_and_the_line_says_the_same(line: str) -> None:
    cleaned = clean(line + "\n")
    assert "jane_train" not in cleaned
    assert len(cleaned) == len(line) + 1
    before, after = (PARSERS["kernel-log"](one + "\n", "n1", 1)[0] for one in (line, cleaned))
    assert [(one.tags, one.number("pid")) for one in before] == [
        (one.tags, one.number("pid")) for one in after
    ]


def test_serial_numbers_go_in_every_form() -> None:
    for text in (
        "<serial>1650000000030</serial>",
        '"serial_num" : "1650000000040"',
        " Board Serial         : MT2042X01234",
        "Serial Number: 0322415075970",
    ):
        cleaned = clean(text)
        assert len(cleaned) == len(text)
        assert cleaned != text


def essence(samples: list[Sample]) -> list[tuple[str, list[tuple[str, object]]]]:
    """What was measured, without who it was."""
    return [
        (
            one.measurement,
            [(name, value) for name, value in sorted(one.fields.items()) if name != "text"],
        )
        for one in samples
    ]


@pytest.mark.parametrize(
    ("parser", "path"),
    [
        ("nvidia-smi-xml", "gpu/smi/q-x_v12_535.xml"),
        ("nvidia-smi-xml", "gpu/smi/q-x_v13_595_recovery.xml"),
        ("nvidia-smi-csv", "gpu/smi/query_590_new-fields.csv"),
        ("nvidia-smi-list", "gpu/smi/L_one-lost_550.txt"),
        ("nvidia-smi-nvlink", "gpu/smi/nvlink-e_550.txt"),
        ("dcgm-exporter", "gpu/dcgm/metrics_4.8.prom"),
        ("dcgmi-dmon", "gpu/dcgm/dmon_4.6.txt"),
        ("dcgmi-diag", "gpu/dcgm/diag_r1_4.json"),
    ],
)
def test_a_cleaned_text_is_read_as_the_text_itself(parser: str, path: str) -> None:
    text = (FIXTURES / path).read_text()
    cleaned = clean(text)
    before, after = (PARSERS[parser](one, "n1", 1)[0] for one in (text, cleaned))
    assert essence(before) == essence(after)
    for uuid in re.findall(r"GPU-([0-9a-f-]{36})", text):
        assert uuid not in cleaned


def test_every_command_of_ours_only_reads_and_has_a_parser() -> None:
    words = {word for command in COMMANDS for word in command.argv}
    assert not words & {"-r", "--gpu-reset", "-pm", "-pl", "clear", "set", "reset", "drain"}
    assert {command.parser for command in COMMANDS} <= set(PARSERS)


def test_a_capture_keeps_what_came_and_tells_what_did_not(tmp_path: Path) -> None:
    commands = (
        Command("good.txt", ("printf", "GPU-7e57a002-0023-4102-a007-0c0ffee00002\n")),
        Command("bad.txt", ("sh", "-c", "echo to stderr >&2; exit 3")),
        Command("missing.txt", ("no-such-tool",)),
        Command("slow.txt", ("sleep", "60"), seconds=0.2),
    )
    folder = tmp_path / "out"
    done = capture(folder, Runner(), Anonymiser(KEY), commands)
    assert [one.status for one in done] == ["ended", "ended", "missing", "timeout"]
    assert (folder / "good.txt").read_text().startswith("GPU-")
    assert "7e57a002" not in (folder / "good.txt").read_text()
    assert (folder / "bad.txt.stderr").read_text() == "to stderr\n"
    assert not (folder / "missing.txt.stderr").exists()  # a tool that is not here says nothing
    index = json.loads((folder / "commands.json").read_text())
    assert [one["exit"] for one in index] == [0, 3, 127, -15]
    assert index[0]["names_replaced"] == 1
    assert index[2]["file"] == ""


def test_what_a_parser_makes_of_each_text_is_told_with_it(tmp_path: Path) -> None:
    text = str(FIXTURES / "gpu/smi/table_418.txt")
    commands = (
        Command("table.txt", ("cat", text), "nvidia-smi"),
        Command("wrong.txt", ("cat", text), "ibstat"),
        Command("unread.txt", ("cat", text)),
    )
    read, wrong, unread = capture(tmp_path / "out", Runner(), Anonymiser(KEY), commands)
    assert (read.readings, read.problems) == (5, 0)
    assert (wrong.readings, wrong.problems) == (0, 19)
    assert unread.readings is None
    index = json.loads((tmp_path / "out/commands.json").read_text())
    assert [one["readings"] for one in index] == [5, 0, None]


def test_a_folder_that_is_there_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", "--out", str(tmp_path), "--only", "ibstat*"]) == 2
    assert "is there already: give a new folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_cables_of_every_port_are_asked_about(tmp_path: Path) -> None:
    card = tmp_path / "sys/devices/0000:9b:00.0"
    (card / "net/ibs1").mkdir(parents=True)
    device = tmp_path / "sys/class/infiniband/mlx5_0"
    device.mkdir(parents=True)
    (device / "device").symlink_to(card)
    assert [(one.name, one.argv) for one in of_ports(tmp_path)] == [
        ("mlxlink-m-mlx5_0.txt", ("mlxlink", "-d", "0000:9b:00.0", "-m")),
        ("ethtool-m-mlx5_0-ibs1.txt", ("ethtool", "-m", "ibs1")),
        ("ethtool-mlx5_0-ibs1.txt", ("ethtool", "ibs1")),
    ]
    assert of_ports(tmp_path / "nothing") == []


def test_serial_numbers_of_cables_go() -> None:
    for text in ("Vendor SN        : MT2042VS01234", "Vendor Serial Number  : MT2042VS01234"):
        cleaned = clean(text)
        assert "MT2042VS01234" not in cleaned
        assert len(cleaned) == len(text)


def test_a_bmc_over_redfish_is_captured_without_names_and_is_read_as_itself(
    redfish_bmcs: RedfishBmcs,
    bmc_password: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "bmc"
    address = redfish_bmcs.addresses[0]
    login = ["--user", "admin", "--password-file", str(bmc_password)]
    trust = ["--ca-file", str(redfish_bmcs.certificate)]
    where = ["capture", "--out", str(out), "--redfish", address]
    assert main([*where, *login, *trust]) == 0
    assert "resources of the BMC are in" in capsys.readouterr().out
    listed = json.loads((out / "resources.json").read_text())
    files = {one["resource"]: out / one["file"] for one in listed if "file" in one}
    assert len(files) > 20
    assert not any("Session" in uri or "Subscriptions" in uri for uri in files)
    inlet = next(path for uri, path in files.items() if uri.endswith("/Sensors/Inlet_Temp"))
    samples, problems = PARSERS["redfish"](inlet.read_text(), "n1", 1)
    assert problems == []
    assert samples[0].tag("kind") == "celsius"
    held = "".join(path.read_text() for path in out.iterdir())
    assert address.split(":")[0] not in held
    assert "secret" not in held


def test_a_bmc_that_cannot_be_captured_is_told_in_words(
    redfish_bmcs: RedfishBmcs,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["capture", "--redfish", redfish_bmcs.addresses[0]]
    wrong = tmp_path / "wrong"
    wrong.write_text("not-it\n")
    wrong.chmod(0o600)
    more = ["--user", "admin", "--password-file", str(wrong), "--insecure"]
    assert main([*where, "--out", str(tmp_path / "a"), *more]) == 1
    assert "the BMC refuses user or password" in capsys.readouterr().out
    assert main([*where, "--out", str(tmp_path / "b"), *more[:-1]]) == 1
    assert "certificate is not trusted" in capsys.readouterr().out
    absent = ["--password-file", str(tmp_path / "absent")]
    assert main([*where, "--out", str(tmp_path / "c"), *absent]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_without_a_folder_a_new_one_is_made_here_and_what_to_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("daemon.cli.capture.COMMANDS", (Command("w.txt", ("echo", "words")),))
    assert main(["capture"]) == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("tocsin-capture-")
    out = capsys.readouterr().out
    assert f"Look through {folder.name} for names that are left" in out
