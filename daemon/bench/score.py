"""``tocsin bench score``: one scoring of a whole fleet, by part.

The readings go through the watch as live ones do; then everything is scored: features of all
GPUs, nodes, links and sensors, the rival, and a learned model where one is given. What is asked
for is the pass that ``judge`` makes each 15 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from collectors.sample import Sample, sample
from daemon.bench.figures import Figure, peak_mebibytes, spent
from daemon.bench.load import Fleet
from models.artifact import load
from models.features import FeatureEngine
from models.learned import LearnedRisk
from models.risk import RiskModel
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.voices import Risk
from models.watch import Watch

# Name, kind and usual value.
SENSORS = (
    ("Inlet Temp", "celsius", 24.0),
    ("FAN1", "rpm", 9000.0),
    ("FAN2", "rpm", 9100.0),
    ("PSU1", "watts", 1400.0),
)
REACH = "1"
ROUNDS = 3


def bench_score(nodes: int, steps: int, model: Path | None = None) -> Iterator[Figure]:
    """``steps`` readings of ``nodes`` nodes of 8 GPUs, a link and a chassis each, then scores."""
    models: list[RiskModel] = [Rival()]
    if model is not None:
        models.append(load(model))
    watch = Watch(Rules(), SilenceTracker(), FeatureEngine(), models)
    fleet = Fleet(nodes)
    now_ns = fleet.start_ns
    for samples in fleet.samples(max(2, steps)):
        now_ns = samples[-1].time_ns
        watch.ingest([*samples, *_beside(nodes, samples[0].time_ns)], now_ns)
    watch.features.flush()
    expected = {f"gpu{number:05d}": 8 for number in range(nodes)}
    yield Figure("score: parts", len(_parts(watch, now_ns)), "parts")
    best: dict[str, float] = {}
    cpu: dict[str, float] = {}
    for _ in range(ROUNDS):
        for part, work in _works(watch, models, expected, now_ns).items():
            watch.forget_scores()
            with spent() as took:
                work()
            if took.wall_seconds < best.get(part, float("inf")):
                best[part], cpu[part] = took.wall_seconds, took.cpu_seconds
    for part, seconds in best.items():
        reach = REACH if part.startswith("one judgement with") else ""
        yield Figure(f"score: {part}", seconds, "s", reach)
        yield Figure(f"score: {part}, CPU", cpu[part], "s")
    yield Figure("score: peak memory", peak_mebibytes(), "MiB")


def _works(
    watch: Watch, models: Sequence[RiskModel], expected: Mapping[str, int], now_ns: int
) -> dict[str, Callable[[], object]]:
    frame = watch.features.frame(now_ns, watch.kinds, watch.names)
    works: dict[str, Callable[[], object]] = {
        "frame of what is looked at": lambda: watch.features.frame(
            now_ns, watch.kinds, watch.names
        ),
        "frame of every kind": lambda: watch.features.frame(now_ns),
    }
    for one in models:
        works[one.name] = partial(one.score, frame, now_ns)
        if isinstance(one, LearnedRisk):
            # A large fleet is scored in turns; here is all of it.
            works[f"{one.name}, all parts, a day"] = partial(one.nodes, frame)
            works[f"{one.name}, all parts, every horizon"] = partial(one.outlook, frame)
            # Where its gate is off: features and score, beside the judgement.
            works[f"{one.name}, in shadow"] = partial(_in_shadow, watch, one, now_ns)
    works["one judgement with scores"] = lambda: watch.judge(now_ns, expected)
    return works


def _in_shadow(watch: Watch, model: LearnedRisk, now_ns: int) -> list[Risk]:
    return model.score(watch.features.frame(now_ns, tuple(model.needs), model.needs), now_ns)


def _parts(watch: Watch, now_ns: int) -> list[object]:
    return list(watch.features.frame(now_ns).entities)


def _beside(nodes: int, time_ns: int) -> Iterator[Sample]:
    """What else a node sends: the host, an InfiniBand port, a few sensors, its sources."""
    up = {"up": 1.0, "duration_seconds": 0.05, "age_seconds": 0.0}
    for number in range(nodes):
        node, at = f"gpu{number:05d}", time_ns + number * 1_000_000
        host = {"load_1m": 8.0 + number % 7, "blocked_processes": 0.0, "edac_corrected_total": 0.0}
        yield sample("host", at, {**host, "boot_time_seconds": 1.7e9}, node=node)
        port = {"state": 4.0, "rate_bits_per_second": 2e11, "symbol_errors_total": 0.0}
        yield sample("ib_port", at, port, node=node, device="mlx5_0", port="1")
        for sensor, kind, usual in SENSORS:
            reading = {"value": usual + number % 5, "present": 1.0, "critical": 0.0}
            yield sample("bmc", at, reading, node=node, sensor=sensor, kind=kind)
        for source in ("agent", "nvml", "host"):
            yield sample("source", at, up, node=node, source=source)
