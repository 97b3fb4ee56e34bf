"""BMCs read by FreeIPMI: asked for, or because our own RMCP+ finds no common words with them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.bmc import ipmi
from collectors.bmc.ipmi_batches import FreeIpmi
from daemon.bench.bmc_standin import Bmc
from tests.collectors.ipmi_help import events, heard, values
from tests.testbed.bmc.bmcs import IpmiBmcs, missing

Start = Callable[..., ipmi.Ipmi]
SIMULATOR = {"tool": "freeipmi", "freeipmi": FreeIpmi(workaround_flags=("opensesspriv",))}

pytestmark = pytest.mark.skipif(bool(missing("ipmi-sensors", "ipmi-sel")), reason="no FreeIPMI")


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a script before ipmi-sensors that notes how it was called and calls it."""
    note, real = folder / "calls", shutil.which("ipmi-sensors")
    script = folder / "bin" / "ipmi-sensors"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n(echo "$*"; env) >> {note}\nexec {real} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    return note


def test_freeipmi_reads_many_bmcs_in_one_run_what_we_read_and_is_told_no_password(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = recorded(tmp_path, monkeypatch)
    lines = dict(zip(("n1", "n2", "n3"), ipmi_bmcs.addresses, strict=False))
    free = ipmi_start(lines, **SIMULATOR).collect(time.time_ns())
    assert free.fault == ""
    own = ipmi_start(lines, tool="native").collect(time.time_ns())
    for node in lines:
        told = values(free, node)
        assert len(told) >= 20
        # FreeIPMI prints two places after the point.
        assert told == pytest.approx({n: values(own, node)[n] for n in told}, abs=0.005)
    calls = [line for line in note.read_text().splitlines() if line.startswith("--config-file")]
    assert len(calls) == 1, "one run for all"
    assert all(address in calls[0] for address in lines.values())
    assert "secret" not in note.read_text()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "password"]
    assert not [path for path in kept if b"secret" in path.read_bytes()], "a password on disk"


def test_log_entries_come_once_also_after_a_restart(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
) -> None:
    lines = {"n1": ipmi_bmcs.addresses[0]}
    ipmi_bmcs.run("sel", "1", "0x0c", "0x87", "0x6f", "0x01", "0x03", "0x05")
    source = ipmi_start(lines, **SIMULATOR)
    first = events(source.collect(time.time_ns()))
    assert first[-1].tag("code") == "memory_uncorrectable"
    assert first[-1].fields["severity"] == 3.0
    assert events(source.collect(time.time_ns())) == []
    source.close()
    again = ipmi_start(lines, **SIMULATOR)
    assert events(again.collect(time.time_ns())) == []
    ipmi_bmcs.run("sel", "1", "0x13", "0x90", "0x6f", "0x08")
    assert [one.tag("code") for one in events(again.collect(time.time_ns()))] == [
        "bus_uncorrectable"
    ]


def test_a_bmc_that_offers_no_suite_of_ours_is_read_by_freeipmi(
    bmc_standin: tuple[Bmc, str],
    ipmi_start: Start,
) -> None:
    bmc, address = bmc_standin
    bmc.suites = (3,)
    source = ipmi_start({"n1": address}, cipher_suites=(17,))
    batch = source.collect(time.time_ns())
    assert batch.fault == ""
    assert values(batch, "n1")["Inlet Temp"] == 24.0
    assert any("read by FreeIPMI: the BMC offers no cipher" in p.problem for p in batch.problems)
    again = source.collect(time.time_ns())
    assert values(again, "n1") == values(batch, "n1")
    assert again.problems == (), "it is said once"
    native = ipmi_start({"n1": address}, cipher_suites=(17,), tool="native")
    assert "no cipher suite" in native.collect(time.time_ns()).fault


def test_a_dead_bmc_and_a_wrong_password_cost_only_themselves(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    tmp_path: Path,
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not-it\n")
    wrong.chmod(0o600)
    (tmp_path / "list").write_text(
        f"ok {ipmi_bmcs.addresses[0]}\nlocked {ipmi_bmcs.addresses[1]} wrong\n"
        f"dead {ipmi_bmcs.silent(1)}\nodd {ipmi_bmcs.addresses[2]} odd\n"
    )
    odd = tmp_path / "odd"
    odd.write_text('a"b\n')
    odd.chmod(0o600)
    source = ipmi_start(
        {},
        file=str(tmp_path / "list"),
        tool="freeipmi",
        freeipmi=FreeIpmi(workaround_flags=("opensesspriv",), session_timeout_seconds=1.0),
        groups={
            "wrong": {"user": "admin", "password_file": str(wrong)},
            "odd": {"user": "admin", "password_file": str(odd)},
        },
        period_seconds=5.0,
    )
    source.collect(time.time_ns())
    begin = time.monotonic()
    batch = source.collect(time.time_ns())
    assert len(values(batch, "ok")) >= 20
    assert time.monotonic() - begin < 30
    said: dict[str, str] = {}
    for _ in range(6):
        said |= {node: str(one.get("fault", "")) for node, one in heard(batch).items()}
        if len(said) == 4:
            break
        batch = source.collect(time.time_ns())
    assert said["ok"] == ""
    assert said["locked"].startswith("the BMC refuses the password")
    assert said["dead"].startswith("the BMC does not answer")
    assert said["odd"].startswith("FreeIPMI takes no user or password with")


def test_a_bmc_that_speaks_ipmi_1_5_only_is_found_out_and_read_by_freeipmi(
    ipmi_bmcs: IpmiBmcs,
    ipmi_start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = {"n1": ipmi_bmcs.relay(1, "--old")}
    ipmi_bmcs.run("sel", "1", "0x0c", "0x87", "0x6f", "0x01", "0x03", "0x05")
    source = ipmi_start(lines)
    batch = source.collect(time.time_ns())
    assert batch.fault == ""
    assert len(values(batch, "n1")) >= 20
    assert events(batch)[-1].tag("code") == "memory_uncorrectable"
    assert any("read by FreeIPMI: the BMC speaks IPMI 1.5" in p.problem for p in batch.problems)
    source.close()
    again = ipmi_start(lines)  # it is remembered: not asked in vain at each start
    batch = again.collect(time.time_ns())
    assert values(batch, "n1")
    assert batch.problems == ()
    assert events(batch) == []
    native = ipmi_start(lines, tool="native").collect(time.time_ns())
    assert 'the BMC speaks IPMI 1.5 only: tool = "auto" has FreeIPMI read it' in native.fault
    other = {"n2": lines["n1"]}
    asked = ipmi_start(other, **SIMULATOR).collect(time.time_ns())
    assert 'speaks IPMI 1.5 only: set driver = "LAN"' in asked.fault
    monkeypatch.setenv("PATH", "/nowhere")
    alone = ipmi_start(other).collect(time.time_ns())
    assert "the BMC speaks IPMI 1.5 only: install freeipmi-tools" in alone.fault


@pytest.mark.parametrize("flag", ["", "a b", "x;y", "-h"])
def test_a_workaround_flag_is_a_word(flag: str) -> None:
    with pytest.raises(ValueError, match="small letters"):
        FreeIpmi(workaround_flags=(flag,))
