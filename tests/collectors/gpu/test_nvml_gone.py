"""GPUs that are lost, gone, hidden or replaced, on the real nvidia-ml-py."""

from __future__ import annotations

from collectors.gpu.nvml import Nvml
from collectors.sample import Context
from tests.collectors.contract import NOW_NS
from tests.collectors.fake_gpus import FakeGpus
from tests.collectors.gpu.nvml_help import SECOND, by_gpu, events


def test_a_lost_gpu_costs_that_gpu_and_keeps_its_uuid(source: Nvml, gpus: FakeGpus) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu5]\nerr.* = GPU_IS_LOST\n")
    batch = source.collect(NOW_NS + 10 * SECOND)
    found = by_gpu(batch)
    assert dict(found["5"].fields) == {"lost": 1.0}
    assert found["5"].tag("uuid") == "GPU-5eed0005-1005-4005-8005-fa4e00000005"
    assert all(found[str(index)].number("lost") == 0.0 for index in range(8) if index != 5)
    assert batch.up
    assert "gpu5: the driver says: GPU is lost" in {one.problem for one in batch.problems}


def test_a_gpu_that_is_lost_from_the_start_is_told_without_a_uuid(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[gpu5]\nhandle = !GPU_IS_LOST\n")
    lost = by_gpu(source.collect(NOW_NS))["5"]
    assert dict(lost.fields) == {"lost": 1.0}
    assert lost.tag("uuid") == ""


def test_a_gpu_that_is_lost_in_the_middle_of_its_reading_leaves_no_half_truth(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu5]\nerr.nvmlDeviceGetUtilizationRates = GPU_IS_LOST\n")
    assert dict(by_gpu(source.collect(NOW_NS + SECOND))["5"].fields) == {"lost": 1.0}


def test_a_gpu_that_wants_a_reset_says_so_as_its_recovery_action(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[gpu6]\nhandle = !RESET_REQUIRED\n")
    assert dict(by_gpu(source.collect(NOW_NS))["6"].fields) == {
        "lost": 0.0,
        "recovery_action": 1.0,
    }


def test_a_gpu_without_a_handle_is_not_called_lost(source: Nvml, gpus: FakeGpus) -> None:
    gpus.write("[gpu4]\nhandle = !UNKNOWN\n")
    batch = source.collect(NOW_NS)
    assert sorted(by_gpu(batch)) == ["0", "1", "2", "3", "5", "6", "7"]
    assert "gpu4: the driver gives no handle: Unknown Error" in {
        one.problem for one in batch.problems
    }


def test_a_gpu_that_is_hidden_from_us_is_not_missing_in_the_node(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu4]\nhandle = !NO_PERMISSION\n")
    batch = source.collect(NOW_NS + SECOND)
    assert sorted(by_gpu(batch)) == ["0", "1", "2", "3", "5", "6", "7"]
    assert not batch.up  # so that nobody counts its GPUs
    assert "gpu4: no permission to use the NVIDIA driver" in batch.fault
    assert events(batch, "gone") == []


def test_when_every_gpu_is_lost_each_is_told(source: Nvml, gpus: FakeGpus) -> None:
    source.collect(NOW_NS)
    gpus.write("[default]\nerr.* = GPU_IS_LOST\n")
    for turn in (1, 2):
        found = by_gpu(source.collect(NOW_NS + turn * SECOND))
        assert len(found) == 8
        assert all(one.number("lost") == 1.0 and one.tag("uuid") for one in found.values())
    gpus.write()
    assert by_gpu(source.collect(NOW_NS + 3 * SECOND))["0"].number("lost") == 0.0


# ---- which boards there are ------------------------------------------------------------------


def test_the_inventory_tells_every_board_at_the_start(source: Nvml) -> None:
    batch = source.collect(NOW_NS)
    told = events(batch, "gpu")
    assert len(told) == 8
    assert {one.tag("kind") for one in told} == {"inventory"}
    assert told[4].text("device") == "0000:9b:00"
    assert told[4].text("text") == (
        "gpu=4 uuid=GPU-5eed0004-1004-4004-8004-fa4e00000004 serial=1652923010148 "
        "model=NVIDIA H100 80GB HBM3"
    )
    assert [one.text("text") for one in events(batch, "count")] == ["gpus=8"]
    assert [one.text("text") for one in events(batch, "driver")] == ["570.86.15"]
    assert len(events(batch, "vbios")) == 8


def test_the_inventory_is_told_again_daily_and_not_in_between(source: Nvml) -> None:
    source.collect(NOW_NS)
    assert events(source.collect(NOW_NS + 1800 * SECOND), "gpu") == []
    assert len(events(source.collect(NOW_NS + 86_401 * SECOND), "gpu")) == 8


def test_gpus_that_the_driver_leaves_out_by_its_setting_are_told(
    source: Nvml, gpus: FakeGpus
) -> None:
    gpus.write("[system]\ncount = 7\nexcluded = 1\n")
    (told,) = events(source.collect(NOW_NS), "excluded")
    assert told.text("text").startswith("gpus=1 left out by the driver's own setting")
    assert events(source.collect(NOW_NS + 10 * SECOND), "excluded") == []
    gpus.write()
    (told,) = events(source.collect(NOW_NS + 20 * SECOND), "excluded")
    assert told.text("text").startswith("gpus=0 ")


def test_a_board_that_is_no_longer_listed_is_told_once_as_gone(
    source: Nvml, gpus: FakeGpus
) -> None:
    source.collect(NOW_NS)
    gpus.write("[system]\ncount = 7\n")
    batch = source.collect(NOW_NS + SECOND)
    (gone,) = events(batch, "gone")
    assert gone.text("device") == "0000:ce:00"
    assert "gpu=7 uuid=GPU-5eed0007" in gone.text("text")
    assert [one.text("text") for one in events(batch, "count")] == ["gpus=7"]
    assert events(source.collect(NOW_NS + 2 * SECOND), "gone") == []


def test_another_board_at_the_same_index_is_another_gpu(source: Nvml, gpus: FakeGpus) -> None:
    source.collect(NOW_NS)
    gpus.write("[gpu3]\nuuid = GPU-0ther\nserial = 99\n")
    batch = source.collect(NOW_NS + 61 * SECOND)
    assert by_gpu(batch)["3"].tag("uuid") == "GPU-0ther"
    assert ["gpu=3 uuid=GPU-5eed0003" in one.text("text") for one in events(batch, "gone")] == [
        True
    ]
    assert "serial=99" in events(batch, "gpu")[3].text("text")


def test_two_boards_that_change_places_keep_their_names_and_none_is_gone(
    source: Nvml, gpus: FakeGpus, context: Context
) -> None:
    module = context.root / "sys/module/nvidia"
    module.mkdir(parents=True)
    before = by_gpu(source.collect(NOW_NS))
    module.rename(module.with_name("old"))  # so that the new folder is another one
    module.mkdir()
    moved = {
        new: f"[gpu{new}]\nuuid = {before[old].tag('uuid')}\nbus = {bus}\ntemp = {heat}\n"
        for new, old, bus, heat in (("3", "4", "0000:9B:00.0", 80), ("4", "3", "0000:4E:00.0", 31))
    }
    gpus.write("".join(moved.values()))
    batch = source.collect(NOW_NS + 10 * SECOND)
    after = by_gpu(batch)
    assert after["3"].tag("uuid") == before["4"].tag("uuid")
    assert after["4"].tag("uuid") == before["3"].tag("uuid")
    assert after["3"].number("temperature_celsius") == 80.0
    assert events(batch, "gone") == []
    places = {one.text("device"): one.text("text").split()[0] for one in events(batch, "gpu")}
    assert (places["0000:9b:00"], places["0000:4e:00"]) == ("gpu=3", "gpu=4")


def test_sixteen_gpus_are_read_and_one_that_is_lost_costs_one(source: Nvml, gpus: FakeGpus) -> None:
    more = "".join(
        f"[gpu{index}]\nuuid = GPU-sixteen-{index}\nbus = 0000:{0xB0 + index:02X}:00.0\n"
        for index in range(8, 16)
    )
    gpus.write(f"[system]\ncount = 16\n{more}[gpu12]\nerr.* = GPU_IS_LOST\n")
    batch = source.collect(NOW_NS)
    found = by_gpu(batch)
    assert len(found) == 16
    assert [index for index, one in found.items() if one.number("lost")] == ["12"]
    assert found["15"].tag("uuid") == "GPU-sixteen-15"
    assert [one.text("text") for one in events(batch, "count")] == ["gpus=16"]
