"""Readings of which no entity is kept cost nothing, also before the first entity is known."""

from __future__ import annotations

import pytest

from collectors.sample import sample
from models.features import FeatureEngine
from models.features.catalogue import CATALOGUE

STREAMS = [
    (spec.kind, stream) for spec in CATALOGUE for stream in spec.streams if stream.only is not None
]


@pytest.mark.parametrize(("kind", "stream"), STREAMS, ids=lambda one: getattr(one, "name", one))
def test_readings_that_a_stream_passes_over_do_no_harm(kind: str, stream) -> None:  # type: ignore[no-untyped-def]
    engine = FeatureEngine()
    tags = {"node": "n1", **dict.fromkeys(stream.device_tags, "x"), stream.only[0]: "another"}
    engine.observe([sample(stream.measurement, 1_000, {"up": 1.0, "value": 3.0}, **tags)], 1_000)
    frame = engine.frame(2_000)
    assert frame.of(kind) is None or kind == "node"


def test_a_frame_of_few_features_holds_the_same_bits_as_the_whole_one() -> None:
    """Every feature of every kind, each asked for alone: nothing depends on what else is asked."""
    engine = FeatureEngine()
    for step in range(6):
        at = (1 + step) * 600_000_000_000
        rows = [
            sample("gpu", at, {"temperature_celsius": 40.0 + gpu * step, "power_watts": 300.0,
                               "utilization_ratio": 0.9, "ecc_corrected_total": float(gpu * step)},
                   node=node, gpu=str(gpu), uuid=f"{node}{gpu}")
            for node in ("n1", "n2") for gpu in range(4)
        ]  # fmt: skip
        for node in ("n1", "n2"):
            rows.append(sample("host", at, {"load_1m": 3.0 * step, "mce_total": 1.0}, node=node))
            port = {"state": 4.0, "symbol_errors_total": float(step)}
            rows.append(sample("ib_port", at, port, node=node, device="mlx5_0", port="1"))
            for fan in range(4):
                speed = {"value": 9000.0 - 500 * fan * step, "present": 1.0}
                rows.append(sample("bmc", at, speed, node=node, sensor=f"FAN{fan}", kind="rpm"))
        engine.observe(rows, at)
    now_ns = 4_000_000_000_000
    whole = engine.frame(now_ns)
    for kind, part in whole.kinds.items():
        for name in part.names:
            one = engine.frame(now_ns, (kind,), {kind: {name}}).of(kind)
            assert one is not None
            assert one.names == (name,)
            assert one.entities == part.entities
            assert one.column(name).tobytes() == part.column(name).tobytes(), (kind, name)
