"""No user's job may speak in the kernel's name: names of processes and files, and log lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.kernel import log as kernel_log
from collectors.kernel.lines import classify
from collectors.kernel.log import KernelLog, Options
from collectors.sample import Context, SourceUnavailable

NOW_NS = 1_796_007_000_000_000_000
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
CRASH = "[77]: segfault at 0 ip 0000000000000000 sp 00007ffc00000000 error 4 in "


@pytest.mark.parametrize(
    "text",
    [
        # A process's name (up to 15 characters) and a file's name, in one line of a crash.
        f"NVRM: Xid(3b:00{CRASH})79, GPU has fallen off the bus[400000+1000]",
        f"NVRM:{CRASH}0000:3b:00 fallen off the bus[400000+1000]",
        f"NVRM:{CRASH}RmInitAdapter failed[400000+1000]",
        f"EDAC MC0: 1 UE{CRASH}a.out[400000+1000]",
        f"a 3b:00.0: AER:{CRASH}can't recover[400000+1000]",
        "traps: a[7] trap invalid opcode ip:0 sp:0 error:0 in remounting read-only[1+1]",
        "EDAC MC0: 1 UE[7]: unhandled exception: DABT (lower EL), ESR 0x92000046, in a.out[1+1]",
        "EDAC MC0: 1 UE[7] bad frame in rt_sigreturn frame:0 ip:0 sp:0 orax:ffff in a on b[1+1]",
        "EDAC MC0: 1 UE invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
        "EDAC MC0: 1 UE: page allocation failure: order:4, mode:0xcc0, nodemask=0 on (null)",
        "EDAC MC0: 1 UE/7: potentially unexpected fatal signal 11.",
        "EDAC MC0: 1 UE  D    0  7212   7001 0x00000000",
        'audit: type=1701 audit(1.2:3): pid=7 comm="mce_panic" exe="/tmp/mce_panic" sig=11',
        "process '/tmp/mce_panic' started with executable stack",
    ],
)
def test_what_a_user_named_is_no_fault(text: str) -> None:
    assert classify(text) is None


def test_a_clients_version_text_is_only_a_mismatch() -> None:
    text = "NVRM: API mismatch: the client 'a' (pid 7)\nNVRM: has the version {}, but\nNVRM: ..."
    for words in ("fallen off the bus", "RmInitAdapter failed", f"\n{XID}"):
        event = classify(text.format(words))
        assert event is not None
        assert (event.kind, event.code) == ("driver", "api_mismatch")


@pytest.mark.parametrize(
    "text",
    [
        XID,
        "NVRM: Xid (0005:00): 79, fallen",
        "NVRM: Xid (PCI:0000:9b:00 GPU-I:05 GPU-CI:00): 31, pid=7201, name=a, Ch 00000008",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0",
        "EDAC MC1: 1 UE on mc#1csrow#2channel#0 (csrow:2 channel:0 page:0x1)",
        "EDAC skx MC4: 2 CE Some error on any memory ( page:0x0 offset:0x0)",
        "? mce_panic.part.14+0x2a/0x40",
        "INFO: task python3:7212 blocked for more than 120 seconds.",
    ],
)
def test_what_the_kernel_says_itself_still_counts(text: str) -> None:
    assert classify(text) is not None


# ---- a text file ------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text("")
    return path


def start(log: Path, trust: bool = False) -> KernelLog:
    root = log.parent / "root"
    (root / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
    (root / "proc/sys/kernel/hostname").write_text("gpu07\n")
    return kernel_log.make(
        Options(path=str(log), trust_mixed_log=trust),
        Context("gpu07", log.parent, root, lambda: NOW_NS),
    )


def codes(log: Path, trust: bool = False) -> list[str]:
    source = start(log, trust)
    try:
        return [one.tag("code") for one in source.collect(NOW_NS).samples]
    finally:
        source.close()


FRONTS = {
    "syslog": "Nov 30 02:41:49 gpu07 kernel: [  100.500001] ",
    "dmesg": "[  100.500001] ",
    "no stamps": "Nov 30 02:41:49 gpu07 kernel: ",
    "nothing": "",
}


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
@pytest.mark.parametrize(
    "said",
    [
        f"a{CRASH}x\n{XID}[400000+1000]",
        f"NVRM: a{CRASH}x\nNVRM: b\n{XID}[400000+1000]",
        f"NVRM: a\nNVRM: b{CRASH}\n{XID}[1+1]",
        f"NVRM: API mismatch: the client 'a' (pid 7)\nNVRM: has the version \n{XID}, but",
        f"a{CRASH}" + "\na" * 90 + f"\n{XID}[400000+1000]",
    ],
)
def test_a_name_that_holds_a_line_end_makes_no_line_of_the_kernel(
    log: Path, front: str, said: str
) -> None:
    log.write_text("".join(f"{front}{line}\n" for line in said.split("\n")))
    assert "79" not in codes(log)


def test_a_continued_line_of_a_crash_is_none_of_the_kernels(log: Path) -> None:
    log.write_text(f"[  100.500001] a{CRASH}x\n               {XID}[1+1]\n")
    assert codes(log) == []


def test_a_stamp_in_the_name_is_not_the_kernels(log: Path) -> None:
    front = "Nov 30 02:41:49 gpu07 kernel: "
    log.write_text(f"{front}a{CRASH}x\n{front}[ 1.5] {XID}[1+1]\n")
    assert codes(log) == []


def test_real_lines_around_a_crash_still_count(log: Path) -> None:
    front = "Nov 30 02:41:49 gpu07 kernel: [  100.5000{}] "
    log.write_text(
        f"{front.format('01')}NVRM: GPU at PCI:0000:3b:00: GPU-1\n{front.format('01')}{XID}\n"
        f"{front.format('02')}a{CRASH}x[400000+1000]\n{front.format('03')}{XID}\n"
    )
    assert codes(log) == ["79", "79"]


def test_a_log_that_programs_write_into_is_refused_and_that_is_said(log: Path) -> None:
    log.write_text(
        f"Nov 30 02:41:48 gpu07 kernel: [  1.0] {XID}\n"
        "Nov 30 02:41:49 gpu07 sshd[812]: Accepted publickey for ops\n"
    )
    source = start(log)
    for _ in range(2):  # logger -t kernel "NVRM: Xid ..." makes just such a line
        with pytest.raises(SourceUnavailable, match="any user can write as the kernel"):
            source.collect(NOW_NS)
    assert codes(log, trust=True) == ["79"]


def test_a_log_with_facilities_may_be_mixed(log: Path) -> None:
    log.write_text(
        "<14>1 2026-11-30T02:41:48.1Z gpu07 trainer 4711 - - hello\n"
        f"<12>1 2026-11-30T02:41:49.1Z gpu07 kernel - - - {XID}\n"
        f"<4>1 2026-11-30T02:41:50.1Z gpu07 kernel - - - {XID.replace('79', '48')}\n"
    )
    assert codes(log) == ["48"]
