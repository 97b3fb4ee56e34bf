"""The quick ways through the features give the very bits of the plain ones."""

from __future__ import annotations

import io

import numpy as np

from collectors.sample import Value, sample
from models.features import FeatureEngine
from models.features.arrays import NEVER_NS, Arrays, Floats, Rows, Times
from models.features.gauges import HORIZONS, Gauges
from models.features.spec import MINUTE
from models.voices import Entity

SECOND_NS = 1_000_000_000
NOW_NS = 1_780_000_000 * SECOND_NS
NAMES = ("power", "clock", "level")


def plain_update(arrays: Arrays, rows: Rows, times_ns: Times, values: Floats) -> None:
    """West's update as it stands in the book, all rows at once and each array anew."""
    read = ~np.isnan(values)
    seen = arrays["g.seen_ns"][rows]
    dt = np.where(seen == NEVER_NS, MINUTE, (times_ns[:, None] - seen) / 1e9)
    decay = np.exp(-dt[:, :, None] / HORIZONS)
    gain = 1.0 - decay
    mean, square, weight = (arrays[f"g.{name}"][rows] for name in ("mean", "square", "weight"))
    known = np.where(read, values, 0.0)[:, :, None]
    new_weight = weight * decay + gain
    delta = known - mean
    new_mean = mean + gain / new_weight * delta
    new_square = square * decay + gain * delta * (known - new_mean)
    keep = ~read[:, :, None]
    arrays["g.mean"][rows] = np.where(keep, mean, new_mean)
    arrays["g.square"][rows] = np.where(keep, square, new_square)
    arrays["g.weight"][rows] = np.where(keep, weight, new_weight)
    arrays["g.seen_ns"][rows] = np.where(read, times_ns[:, None], seen)
    arrays["g.value"][rows] = np.where(read, values, arrays["g.value"][rows])


def test_gauges_are_updated_in_parts_and_in_place_to_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    quick, plain = Arrays(), Arrays()
    gauges = Gauges(quick, "g", NAMES)
    Gauges(plain, "g", NAMES)
    for arrays in (quick, plain):
        arrays.reserve(3000)
    for step in range(12):
        rows = rng.permutation(3000)[: int(rng.integers(1, 3000))].astype(np.int64)
        times_ns = NOW_NS + step * 30 * SECOND_NS + rng.integers(0, SECOND_NS, len(rows))
        values = rng.normal(300, 200, (len(rows), len(NAMES)))
        if step % 3:
            values[rng.random(values.shape) < 0.1] = np.nan
        gauges.update(rows, times_ns, values)
        plain_update(plain, rows, times_ns, values)
        for name, array in plain.arrays.items():
            np.testing.assert_array_equal(quick[name], array, err_msg=name)


def engine() -> FeatureEngine:
    """GPUs of a few nodes over an hour, some of them silent since, and what stands beside them."""
    rng = np.random.default_rng(5)
    made = FeatureEngine()
    for step in range(30):
        for number in range(6):
            if number == 5 and step > 3:
                continue  # not heard any more
            node, time_ns = f"n{number}", NOW_NS + step * 120 * SECOND_NS + number
            readings = [
                sample(
                    "gpu",
                    time_ns,
                    {
                        "temperature_celsius": float(rng.normal(60, 5)),
                        "power_watts": float(rng.normal(500, 9)),
                        "utilization_ratio": float(rng.random()),
                        "ecc_corrected_total": float(step // 7),
                        **({"lost": 0.0} if step % 5 else {}),
                    },
                    node=node, gpu=str(gpu), uuid=f"GPU-{number}-{gpu}",
                )
                for gpu in range(4)
            ]  # fmt: skip
            host: dict[str, Value] = {"load_1m": float(rng.random()), "boot_time_seconds": 1.7e9}
            readings.append(sample("host", time_ns, host, node=node))
            made.observe(readings, time_ns)
    return made


def test_a_frame_of_a_few_features_holds_the_bits_of_the_whole_one() -> None:
    made = engine()
    rng = np.random.default_rng(9)
    for later_seconds in (0, 3_600, 15 * 86_400, 16 * 86_400):
        now_ns = NOW_NS + (3_600 + later_seconds) * SECOND_NS
        whole = made.frame(now_ns)
        for _ in range(5):
            names = {
                kind: frozenset(name for name in part.names if rng.random() < 0.03)
                for kind, part in whole.kinds.items()
            }
            some = made.frame(now_ns, tuple(names), names)
            for kind, part in some.kinds.items():
                assert set(part.names) == names[kind]
                assert part.entities == whole.kinds[kind].entities
                for name in part.names:
                    np.testing.assert_array_equal(
                        part.column(name), whole.kinds[kind].column(name), err_msg=name
                    )


def test_entities_not_heard_for_long_leave_the_frame_one_by_one() -> None:
    made = engine()
    silent_ns = NOW_NS + 3 * 120 * SECOND_NS + 5  # the last reading of n5
    kept = made.frame(silent_ns + 14 * 86_400 * SECOND_NS).kinds["gpu"].entities
    left = made.frame(silent_ns + 14 * 86_400 * SECOND_NS + 1).kinds["gpu"].entities
    assert Entity("gpu", "n5", "gpu0") in kept
    assert [one for one in kept if one.node != "n5"] == left


def test_a_checkpoint_that_is_written_at_once_is_the_one_that_is_dumped() -> None:
    made = engine()
    file = io.BytesIO()
    made.write(file)
    assert file.getvalue() == made.dump()
    again = FeatureEngine()
    again.load(file.getvalue())
    assert again.dump() == made.dump()


def test_a_checkpoint_keeps_a_name_that_is_no_text() -> None:
    made = FeatureEngine()
    odd = "n\udcff1"  # half a character: the bytes were no UTF-8
    made.observe([sample("host", NOW_NS, {"load_1m": 1.0}, node=odd)], NOW_NS)
    again = FeatureEngine()
    again.load(made.dump())
    assert Entity("node", odd) in again.tables["node"].rows
    assert again.dump() == made.dump()
