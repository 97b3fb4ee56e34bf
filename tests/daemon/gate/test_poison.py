"""One node's token, and what its readings may not do to the head or to other nodes' readings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.lines import Decoder
from collectors.sample import Sample, sample
from daemon import recovery
from daemon.fleet import fleet_points
from daemon.gate.admission import Admission
from daemon.intake import Intake
from daemon.latest import Latest
from daemon.schema import fields as schema_fields
from daemon.store.commit import Told
from daemon.store.embedded import Store
from models.features import FeatureEngine
from models.features.frame import KindFrame
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.watch import Watch

NOW = 1_796_000_000 * 10**9

# The maths of the hostile node's own rows overflows, as it must.
OVERFLOWS = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def watch() -> Watch:
    return Watch(Rules(), SilenceTracker(), FeatureEngine(), [Rival()])


class Poisoned(Watch):
    """A watch with a fault that one reading finds, as there was one in reading GPU numbers."""

    def ingest_runs(self, runs: Any, arrival_ns: int) -> None:
        if any(one.text("text") == "poison" for run in runs for one in run.samples):
            raise ValueError("cannot be read")
        super().ingest_runs(runs, arrival_ns)


def poisoned() -> Watch:
    return Poisoned(Rules(), SilenceTracker(), FeatureEngine(), [Rival()])


def event(node: str, at_ns: int, text: str, kind: str = "xid", code: str = "79") -> Sample:
    fields = {"text": text, "severity": 3.0, "device": "0000:9b:00"}
    return sample("event", at_ns, fields, node=node, kind=kind, code=code)


def test_a_reading_that_breaks_the_watch_keeps_no_head_from_starting(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.append([event("bad", NOW - 3, "poison"), event("good", NOW - 2, "fell off the bus")])
    store.commit()
    found = poisoned()
    recovery.restore(tmp_path / "state", found, store, NOW)
    assert [fact.entity.node for fact in found.judge(NOW, {"good": 8, "bad": 8}).facts] == ["good"]
    store.close()


class Kept:
    """Stands for the store: what the watch makes of a write is asked here."""

    def submit(self, samples: Any, batch: Any, told: Told) -> None:
        told(None)


async def test_a_reading_that_breaks_the_watch_costs_no_other_of_its_write() -> None:
    found = poisoned()
    intake = Intake(cast(Any, Kept()), found, cast(Any, None), lambda: None)
    write = [event("good", NOW, "x"), event("bad", NOW, "poison"), event("late", NOW, "x")]
    await intake.accept(write, "*", NOW)
    judged = await intake.in_turn(found.judge, NOW + 1, {"good": 8, "bad": 8, "late": 8})
    assert {fact.entity.node for fact in judged.facts} == {"good", "late"}
    assert intake.unusable == 1
    intake.close()


ODD_TEXTS = ["", "²", "٣", "gpu", "-1", "9" * 199, "nan", "1e400", "0x", "🔥", "a=b", "\x7f", "/"]
WORDS = [
    "gpu=²",
    "gpu=٣",
    "gpu=" + "9" * 80,
    "gpus=²",
    "uuid=",
    "uuid=GPU-1",
    "model=",
    "switch=0x",
]
WORDS += ["switch_port=²", "adapter=0xzz", "name==", "serial=²", "=", "boot=²", "driver=", "gpu=1"]
NUMBERS = [0.0, -1.0, 1.0, 79.0, 1e308, -1e308, 5e-324, 2.0**63, 1.5e19, 0.1, 255.0, 65536.0]
KINDS = ["xid", "sxid", "inventory", "version", "reboot", "sel", "link", "edac", "mce", "gpu_lost"]
KINDS += ["repair", "dcgm_health", "dcgm_diag", "topology", "driver", "aer", "nvme", "slurm"]
CODES = ["gpu", "chassis", "count", "gone", "adapter", "port", "79", "48", "uncorrected", "fatal"]
OWN = sorted({measurement for measurement, _ in schema_fields()})
TAGS = ["gpu", "uuid", "device", "port", "guid", "sensor", "kind", "code", "source", "address"]

odd_text = st.sampled_from(ODD_TEXTS) | st.text(max_size=6)
sentence = st.lists(st.sampled_from(WORDS) | odd_text, max_size=5).map(" ".join)
number = st.sampled_from(NUMBERS) | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def readings(draw: st.DrawFn) -> Sample:
    measurement = draw(st.sampled_from(["event", "event", "gpu", "source", *OWN]))
    tags = draw(st.dictionaries(st.sampled_from(TAGS), odd_text.filter(bool), max_size=3))
    if measurement == "event":
        tags["kind"] = draw(st.sampled_from(KINDS) | odd_text.filter(bool))
        tags["code"] = draw(st.sampled_from(CODES) | odd_text.filter(bool))
        fields: dict[str, Any] = {"text": draw(sentence), "device": draw(sentence)}
        fields |= draw(st.dictionaries(st.sampled_from(["severity", "pid"]), number, max_size=2))
    else:
        names = [name for of, name in schema_fields() if of == measurement]
        fields = draw(st.dictionaries(st.sampled_from(names), number, min_size=1, max_size=4))
    at_ns = NOW + draw(st.sampled_from([0, 1, -1, 60, -86_400, 90_000, -60 * 86_400])) * 10**9
    return sample(measurement, at_ns, fields, node=draw(st.sampled_from(["n1", "n2"])), **tags)


@OVERFLOWS
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(readings(), min_size=1, max_size=15))
def test_nothing_that_a_node_may_send_breaks_the_watch_or_what_is_shown(many: list[Sample]) -> None:
    gate, found, latest = Admission(), watch(), Latest()
    let_in = [
        one
        for one in many
        if gate.judge(one, one.tag("node"), NOW) is None and gate.judge_text(one) is None
    ]
    expected = {"n1": 8, "n2": 8}
    for place, one in enumerate(let_in):
        found.ingest([one], NOW + place)
        latest.observe([one], NOW + place)
    for later in (1, 120, 86_400):
        found.judge(NOW + later * 10**9, expected, {"rack": ["n1", "n2"]})
    for point in fleet_points(latest, NOW + 10**9):
        assert all(abs(cast(float, value)) < 1e300 for value in point.fields.values())
    again = watch()
    again.features.load(found.features.dump())
    again.load(found.dump())
    again.judge(NOW + 86_401 * 10**9, expected)


@OVERFLOWS
def test_readings_of_one_node_do_not_change_what_is_said_of_another() -> None:
    def fleet(poison: Iterator[Sample]) -> tuple[Any, ...]:
        found = watch()
        for minute in range(20):
            at_ns = NOW + minute * 60 * 10**9
            for node in ("a", "b", "c"):
                for gpu in range(4):
                    fields = {"temperature_celsius": 50.0 + gpu, "power_watts": 300.0 + minute}
                    one = sample("gpu", at_ns, fields, node=node, gpu=str(gpu), uuid=f"{node}{gpu}")
                    found.ingest([one], at_ns)
            for one in poison:
                found.ingest([one], at_ns)
        found.ingest([event("a", at_ns, "fell off the bus")], at_ns)
        judged = found.judge(at_ns + 10**9, {"a": 4, "b": 4, "c": 4, "evil": 4})
        return (
            tuple(one for one in judged.facts if one.entity.node != "evil"),
            tuple(one for one in judged.silences if one.node != "evil"),
            tuple(one for one in judged.risks if one.entity.node != "evil"),
        )

    def evil() -> Iterator[Sample]:
        for gpu in range(300):
            fields = {"temperature_celsius": 1e308, "power_watts": -1e308, "lost": 1.0}
            # Its neighbour's GPUs, by their serial numbers.
            yield sample("gpu", NOW, fields, node="evil", gpu=str(gpu), uuid=f"a{gpu % 4}")
        for word in WORDS:
            yield event("evil", NOW, f"{word} uuid=a0 gpu=0", "inventory", "gpu")

    quiet = fleet(iter(()))
    assert quiet[0]
    assert quiet[2]
    assert fleet(evil()) == quiet


@OVERFLOWS
def test_numbers_without_measure_of_one_node_leave_the_features_of_others_bit_for_bit() -> None:
    def seen(hostile: bool) -> KindFrame:
        engine = FeatureEngine()
        for minute in range(90):
            at_ns = NOW + minute * 60 * 10**9
            huge = 1e308 if minute % 2 else -1e308
            fields = {"temperature_celsius": 50.0 + minute % 7, "power_watts": 300.0 + minute}
            told = {"a": fields, "b": fields, "c": fields}
            if hostile:
                told["evil"] = dict.fromkeys((*fields, "ecc_corrected_total"), huge)
            engine.observe(
                [
                    sample("gpu", at_ns, told[node], node=node, gpu=str(gpu), uuid=f"{node}{gpu}")
                    for node in told
                    for gpu in range(4)
                ],
                at_ns,
            )
        found = engine.frame(at_ns + 10**9).of("gpu")
        assert found is not None
        return found

    quiet, beside = seen(hostile=False), seen(hostile=True)
    rows = [beside.entities.index(one) for one in quiet.entities]
    assert len(rows) == 12
    for name in quiet.names:
        assert quiet.column(name).tobytes() == beside.column(name)[rows].tobytes(), name


def test_refused_names_are_counted_in_one_place() -> None:
    gate = Admission()
    for place in range(5000):
        assert gate.judge(Sample(f"m{place}", (("node", "n2"),), {"f": 1.0}, NOW), "n1", NOW)
    assert gate.judge(Sample("gpu", (("node", "n2"),), {"lost": 1.0}, NOW), "n1", NOW)
    assert dict(gate.refused) == {"": 5000, "gpu": 1}


def test_names_in_every_order_fill_no_memory() -> None:
    rng = random.Random(1)
    gate = Admission()
    for _ in range(900):
        names = [f"field_{place}" for place in rng.sample(range(250), 250)]
        one = Sample("m", (("node", "n1"),), dict.fromkeys(names, 1.0), NOW)
        assert gate.judge(one, "n1", NOW) is None
    assert 0 < sum(len(names) for _, names in gate._columns._layouts) <= 200_000


def test_the_decoder_remembers_no_more_of_odd_lines_than_of_good_ones() -> None:
    decoder = Decoder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("collectors.lines._CACHE_LIMIT", 1000)
        for place in range(300):
            tags = ",".join(f"t{n}={place}{n}" for n in range(28))
            fields = ",".join(f"f{place}_{n}=1" for n in range(28))
            assert decoder.decode(f"m,node=n1,{tags} f=1".encode(), NOW).samples
            assert not any(tag == "t27" for tag, _ in decoder._pairs), "more tags than any of ours"
            few = ",".join(f"t{n}={place}{n}" for n in range(12))
            assert decoder.decode(f"m,node=n1,{few} {fields}".encode(), NOW).samples
            # A series holds its tags: whoever forgets the tags forgets the series too.
            held = {pair for head in decoder._heads.values() for pair in head.tags}
            assert len(held) <= 1000 + 13
            assert sum(len(one.names) for one in decoder._layouts.values()) <= 1000


async def test_a_body_of_many_lines_lets_others_have_their_turn() -> None:
    from daemon.gate import gateway as module

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    asked = asyncio.ensure_future(others())
    door = module.Gateway(cast(Any, None), cast(Any, None), cast(Any, FixedClock()))
    body = b"\n".join(b"host,node=n1 load_1m=%d %d" % (n % 9, NOW + n) for n in range(4_000))
    body += b"\n"
    before = turns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_JUDGED_AT_ONCE", 100)
        kept, problems = await door._read(body, "n1", "ns", NOW)
    asked.cancel()
    assert (len(kept), problems) == (4_000, [])
    assert turns - before >= 39


class FixedClock:
    """A clock that stands."""

    def now_ns(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0
