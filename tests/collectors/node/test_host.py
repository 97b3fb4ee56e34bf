"""The host source on made-up trees: sums, absences, restarts, read-only filesystems."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.node import host
from collectors.node.host import Host, Options, read_text
from collectors.node.host_clock import filtered, kernel_offset_seconds, offset_seconds
from collectors.sample import Batch, Context, Sample, Source
from tests.collectors.contract import NODE, NOW_NS, SourceContract, check_samples

SECOND = 10**9
BOOT_SECONDS = NOW_NS // SECOND - 1_000


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def tree(root: Path, boot_id: str = "b0", boot_seconds: int = BOOT_SECONDS) -> None:
    put(root, "proc/stat", f"cpu  1 2 3\nbtime {boot_seconds}\nprocs_running 3\nprocs_blocked 2\n")
    put(root, "proc/loadavg", "12.50 8.00 4.00 3/1000 4711\n")
    put(root, "proc/vmstat", "nr_free_pages 1\noom_kill 7\n")
    put(root, "proc/sys/kernel/random/boot_id", boot_id + "\n")
    put(root, "proc/sys/kernel/osrelease", "6.1.0-31-amd64\n")
    some = "some avg10=2.65 avg60=2.78 avg300=2.92 total=111749000000\n"
    put(root, "proc/pressure/cpu", some)
    put(root, "proc/pressure/memory", some + some.replace("some", "full").replace("2.65", "1.00"))
    put(root, "proc/pressure/io", "some avg10=100.00 avg60=0.00 avg300=0.00 total=1\n")
    put(
        root, "proc/interrupts", "   CPU0 CPU1\n  0: 5 5 timer\nMCE: 1 2 Machine check exceptions\n"
    )
    for number, (corrected, uncorrected) in enumerate([(5, 0), (7, 1)]):
        put(root, f"sys/devices/system/edac/mc/mc{number}/ce_count", f"{corrected}\n")
        put(root, f"sys/devices/system/edac/mc/mc{number}/ue_count", f"{uncorrected}\n")
    put(root, "sys/devices/system/edac/mc/power/control", "auto\n")
    put(root, "proc/1/mountinfo", mount("259:2", "/", "ext4", "rw"))


def mount(device: str, place: str, kind: str, options: str) -> str:
    return f"28 1 {device} / {place} rw,relatime shared:1 - {kind} /dev/x {options}\n"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "root").mkdir()
    (tmp_path / "state").mkdir()
    return Context(NODE, tmp_path / "state", tmp_path / "root", lambda: NOW_NS)


def make(context: Context, offset: float | None = None) -> Host:
    return Host(Options(), context, lambda: offset)


def fields(batch: Batch) -> dict[str, object]:
    return dict(next(one for one in batch.samples if one.measurement == "host").fields)


def events(batch: Batch, kind: str) -> list[Sample]:
    return [one for one in batch.samples if one.tag("kind") == kind]


class TestContract(SourceContract):
    module = host

    @pytest.fixture
    def healthy(self, context: Context) -> Source:
        tree(context.root)
        return host.make(Options(), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return host.make(Options(), context)


def test_every_field_is_read(context: Context) -> None:
    tree(context.root)
    batch = make(context, offset=-0.25).collect(NOW_NS)
    assert fields(batch) == {
        "edac_corrected_total": 12.0,
        "edac_uncorrected_total": 1.0,
        "mce_total": 3.0,
        "boot_time_seconds": float(BOOT_SECONDS),
        "load_1m": 12.5,
        "blocked_processes": 2.0,
        "oom_kills_total": 7.0,
        "filesystem_readonly": 0.0,
        "pressure_cpu_ratio": 0.0265,
        "pressure_memory_ratio": 0.0265,
        "pressure_io_ratio": 1.0,
        "clock_offset_seconds": -0.25,
    }
    check_samples(host, list(batch.samples))


def test_what_a_kernel_does_not_have_is_absent_not_zero(context: Context) -> None:
    tree(context.root)
    for path in ("proc/pressure", "proc/vmstat", "sys", "proc/interrupts", "proc/1"):
        target = context.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    batch = make(context).collect(NOW_NS)
    assert set(fields(batch)) == {"boot_time_seconds", "load_1m", "blocked_processes"}
    assert batch.problems == ()


def test_edac_with_a_driver_but_no_counts_is_absent(context: Context) -> None:
    tree(context.root)
    shutil.rmtree(context.root / "sys/devices/system/edac/mc/mc0")
    shutil.rmtree(context.root / "sys/devices/system/edac/mc/mc1")
    assert "edac_corrected_total" not in fields(make(context).collect(NOW_NS))


def test_words_where_a_number_should_be_cost_that_field(context: Context) -> None:
    tree(context.root)
    put(context.root, "sys/devices/system/edac/mc/mc0/ce_count", "N/A (no PMA)\n")
    put(context.root, "proc/loadavg", "nan nan\n")
    batch = make(context).collect(NOW_NS)
    assert fields(batch)["edac_corrected_total"] == 7.0
    assert "load_1m" not in fields(batch)
    assert len(batch.problems) == 2


def test_machine_checks_are_counted_once_a_minute(context: Context) -> None:
    tree(context.root)
    source = make(context)
    seen = ["mce_total" in fields(source.collect(NOW_NS + s * SECOND)) for s in (0, 10, 50, 61)]
    assert seen == [True, False, False, True]


# ---- restarts -------------------------------------------------------------------------------


def test_a_new_boot_id_gives_one_reboot_event_at_the_boot_time(context: Context) -> None:
    tree(context.root)
    assert events(make(context).collect(NOW_NS), "reboot") == []
    assert (
        events(make(context).collect(NOW_NS), "reboot") == []
    )  # the agent restarted, not the node
    tree(context.root, "b1", BOOT_SECONDS + 500)
    source = make(context)
    told = [events(source.collect(NOW_NS + s * SECOND), "reboot") for s in range(6)]
    # Told more than once, but always the same point: a store keeps one.
    points = {(one.tags, one.time_ns) for batch in told for one in batch}
    assert points == {
        (
            (("code", "boot"), ("kind", "reboot"), ("node", NODE)),
            (BOOT_SECONDS + 500) * SECOND,
        )
    }
    assert told[-1] == []
    assert events(make(context).collect(NOW_NS), "reboot") == []


def test_a_reboot_that_was_not_told_to_the_end_is_told_again(context: Context) -> None:
    tree(context.root)
    make(context).collect(NOW_NS)
    tree(context.root, "b1")
    assert len(events(make(context).collect(NOW_NS), "reboot")) == 1
    assert len(events(make(context).collect(NOW_NS), "reboot")) == 1


def test_a_state_folder_that_cannot_be_written_is_a_problem_only(context: Context) -> None:
    tree(context.root)
    (context.state_dir / "host.new").mkdir()
    batch = make(context).collect(NOW_NS)
    assert "can't be written" in batch.problems[0].problem
    assert fields(batch)


# ---- versions ----------------------------------------------------------------------------------


def test_versions_are_told_at_start_on_change_and_once_a_day(context: Context) -> None:
    tree(context.root)
    put(context.root, "sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002\n")
    put(context.root, "sys/class/infiniband/mlx5_1/fw_ver", "28.39.1002\n")
    source = make(context)
    first = events(source.collect(NOW_NS), "version")
    assert {(one.tag("code"), one.text("device"), one.text("text")) for one in first} == {
        ("kernel", "", "6.1.0-31-amd64"),
        ("nic_firmware", "mlx5_0", "28.39.1002"),
        ("nic_firmware", "mlx5_1", "28.39.1002"),
    }
    assert events(source.collect(NOW_NS + 10 * SECOND), "version") == []
    put(context.root, "sys/class/infiniband/mlx5_1/fw_ver", "28.43.2026\n")
    (changed,) = events(source.collect(NOW_NS + 20 * SECOND), "version")
    assert changed.text("text") == "28.43.2026"
    assert len(events(source.collect(NOW_NS + 86_400 * SECOND), "version")) == 3


# ---- filesystems --------------------------------------------------------------------------------


def test_a_filesystem_that_turns_read_only_counts(context: Context) -> None:
    tree(context.root)
    source = make(context)
    assert fields(source.collect(NOW_NS))["filesystem_readonly"] == 0.0
    put(context.root, "proc/1/mountinfo", mount("259:2", "/", "ext4", "ro,errors=remount-ro"))
    assert fields(source.collect(NOW_NS))["filesystem_readonly"] == 1.0
    put(context.root, "proc/1/mountinfo", mount("259:2", "/", "ext4", "rw"))
    assert fields(source.collect(NOW_NS))["filesystem_readonly"] == 0.0


def test_a_users_image_that_turns_read_only_is_no_fault_of_the_node(context: Context) -> None:
    tree(context.root)
    source = make(context)
    for options, count in (("rw", 0.0), ("ro", 0.0)):
        put(context.root, "proc/1/mountinfo", mount("7:3", "/mnt/image", "ext4", options))
        assert fields(source.collect(NOW_NS))["filesystem_readonly"] == count
    put(context.root, "etc/fstab", "/srv/image /mnt/image ext4 defaults 0 0\n")
    assert fields(source.collect(NOW_NS))["filesystem_readonly"] == 1.0


def test_what_is_read_only_on_purpose_does_not_count(context: Context) -> None:
    tree(context.root)
    mounts = (
        mount("259:2", "/", "ext4", "rw")
        + mount("259:2", "/usr", "ext4", "rw").replace("rw,relatime", "ro,relatime")
        + mount("7:0", "/snap/x", "squashfs", "ro")
        + mount("11:0", "/media", "iso9660", "ro")
        + mount("259:9", "/opt/image", "ext4", "ro")
        + mount("0:40", "/home", "nfs4", "ro")
    )
    put(context.root, "proc/1/mountinfo", mounts)
    assert fields(make(context).collect(NOW_NS))["filesystem_readonly"] == 0.0


def test_fstab_tells_what_should_be_writable_after_a_restart_too(context: Context) -> None:
    tree(context.root)
    put(
        context.root,
        "etc/fstab",
        "# x\nUUID=1 /scratch xfs defaults 0 0\nUUID=2 /img ext4 ro 0 0\n",
    )
    mounts = mount("259:3", "/scratch", "xfs", "ro") + mount("259:4", "/img", "ext4", "ro")
    put(context.root, "proc/1/mountinfo", mounts)
    assert fields(make(context).collect(NOW_NS))["filesystem_readonly"] == 1.0


def test_without_leave_to_see_the_first_process_our_own_mounts_speak(context: Context) -> None:
    tree(context.root)
    shutil.rmtree(context.root / "proc/1")
    put(context.root, "proc/self/mountinfo", "nonsense\n - \n" + mount("1:1", "/", "xfs", "rw"))
    assert fields(make(context).collect(NOW_NS))["filesystem_readonly"] == 0.0


# ---- the clock -----------------------------------------------------------------------------------


def test_the_kernels_offset_counts_only_when_a_daemon_steers_it() -> None:
    assert offset_seconds(0x2001, -1_500_000_000) == -1.5
    assert offset_seconds(0x0001, 250_000) == 0.25
    assert offset_seconds(0x2000, 5) is None  # chrony: the kernel's PLL is not used
    assert offset_seconds(0x2041, 5) is None  # not synchronised
    assert filtered("Name:\tx\nSeccomp:\t0\n") is False
    assert filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n")
    assert filtered("")
    own = kernel_offset_seconds()
    assert own is None or abs(own) < 10


# ---- whatever is there -------------------------------------------------------------------------


def test_this_machine_itself_can_be_read(tmp_path: Path) -> None:
    source = Host(Options(), Context(NODE, tmp_path, Path("/")))
    batch = source.collect(NOW_NS)
    assert fields(batch)["boot_time_seconds"]
    assert [one.text("text") for one in events(batch, "version") if one.tag("code") == "kernel"]
    assert read_text(Path("/proc/sys/kernel/random/boot_id"))


@settings(max_examples=50, deadline=None)
@given(noise=st.text(max_size=60), number=st.sampled_from(["1e400", "-5", "inf", "9" * 40, ""]))
def test_no_content_gives_a_traceback(
    noise: str, number: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("noise")
    tree(root)
    for path in (
        "proc/loadavg",
        "proc/vmstat",
        "proc/pressure/io",
        "proc/1/mountinfo",
        "etc/fstab",
    ):
        put(root, path, noise)
    put(root, "proc/stat", f"btime {number}\nprocs_blocked {noise}\n")
    put(root, "proc/interrupts", f"MCE: {number} {noise}\n")
    put(root, "sys/devices/system/edac/mc/mc0/ce_count", number)
    batch = make(Context(NODE, root, root)).collect(NOW_NS)
    check_samples(host, list(batch.samples))


def test_the_machine_itself_is_told_at_the_start_and_once_a_day(context: Context) -> None:
    tree(context.root)
    put(context.root, "sys/class/dmi/id/product_serial", "SGH123\n")
    source = make(context)
    (told,) = events(source.collect(NOW_NS), "inventory")
    assert (told.tag("code"), told.text("text")) == ("chassis", "serial=SGH123")
    assert events(source.collect(NOW_NS + 10 * SECOND), "inventory") == []
    assert len(events(source.collect(NOW_NS + 86_400 * SECOND), "inventory")) == 1


# ---- processes ----------------------------------------------------------------------------------


def process(root: Path, pid: int, uid: int, state: str, cgroup: str, name: str = "a) Z b") -> None:
    put(root, f"proc/{pid}/stat", f"{pid} ({name}) {state} 1 1 1 0 -1 0 0\n")
    put(root, f"proc/{pid}/cgroup", cgroup)
    os.chown(root / f"proc/{pid}", uid, uid)


JOB = "0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n"
JOB_1 = "4:memory:/slurm/uid_1234/job_17/step_batch\n1:name=systemd:/system.slice/slurmd.service\n"
OUTSIDE = "0::/user.slice/user-1234.slice/session-7.scope\n"


@pytest.mark.parametrize("cgroups", ["system.slice/slurmstepd.scope", "memory/slurm_n7"])
def test_zombies_and_processes_outside_of_jobs_are_counted(context: Context, cgroups: str) -> None:
    if os.getuid():
        pytest.skip("only root can give processes to users")
    tree(context.root)
    (context.root / "sys/fs/cgroup" / cgroups).mkdir(parents=True)
    for pid, uid, state, cgroup in (
        (10, 0, "S", "0::/system.slice/sshd.service\n"),
        (11, 1234, "R", JOB),
        (12, 1234, "R", JOB_1),
        (13, 1234, "S", OUTSIDE),
        (14, 65_534, "S", OUTSIDE),
        (15, 1234, "Z", OUTSIDE),
        (16, 0, "Z", ""),
        (17, 999, "S", OUTSIDE),
    ):
        process(context.root, pid, uid, state, cgroup)
    source = make(context)
    found = fields(source.collect(NOW_NS))
    assert (found["zombie_processes"], found["stray_processes"]) == (2.0, 1.0)
    assert "zombie_processes" not in fields(source.collect(NOW_NS + 10 * SECOND))
    assert "zombie_processes" in fields(source.collect(NOW_NS + 301 * SECOND))


def test_without_cgroups_of_jobs_nobody_knows_who_is_stray(context: Context) -> None:
    tree(context.root)
    process(context.root, 13, os.getuid() or 1234, "S", OUTSIDE)
    found = fields(make(context).collect(NOW_NS))
    assert found["zombie_processes"] == 0.0
    assert "stray_processes" not in found
