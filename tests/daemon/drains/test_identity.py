"""A node that was replaced, a GPU that was swapped: whose history counts afterwards."""

from __future__ import annotations

import dataclasses

import pytest

from collectors.events import INFO, event
from collectors.sample import sample
from daemon.drains.identity import Identities, Identity, compare, merged, seen_in
from daemon.drains.ledger import Ledger
from daemon.latest import Latest
from daemon.policy.cases import State
from daemon.policy.decide import decide
from models.features import FeatureEngine
from models.rival import EPISODES
from models.voices import Entity
from tests.daemon.worlds import GENEROUS, SECOND_NS, START_NS, House, lost, simulated


def machine(first: int = 0, count: int = 8, chassis: str = "serial=A disk=D1") -> Identity:
    return Identity({i: f"GPU-{first + i}" for i in range(count)}, chassis)


def swapped(before: Identity, **gpus: str) -> Identity:
    changed = {int(name[3:]): uuid for name, uuid in gpus.items()}
    return dataclasses.replace(before, gpus={**before.gpus, **changed})


def devices(before: Identity, now: Identity) -> list[str]:
    return [one.device for one in compare("n1", before, now)]


def test_one_swapped_gpu_begins_anew_alone() -> None:
    (change,) = compare("n1", machine(), swapped(machine(), gpu3="GPU-99"))
    assert change.device == "gpu3"
    assert "GPU-99, before GPU-3" in change.text


def test_most_gpus_others_is_another_machine_and_so_is_another_serial() -> None:
    assert devices(machine(), machine(100)) == [""]
    five = swapped(machine(), **{f"gpu{i}": f"GPU-{90 + i}" for i in range(5)})
    four = swapped(machine(), **{f"gpu{i}": f"GPU-{90 + i}" for i in range(4)})
    assert devices(machine(), five) == [""]
    assert devices(machine(), four) == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert devices(machine(), dataclasses.replace(machine(), chassis="serial=B disk=D1")) == [""]


@pytest.mark.parametrize(
    "now",
    [
        machine(),
        Identity(),  # nothing heard
        Identity({0: "GPU-0"}),  # the others are lost, and silent
        Identity({i: f"GPU-{7 - i}" for i in range(8)}, "serial=A disk=D1"),  # counted anew
        dataclasses.replace(machine(), chassis=""),
        dataclasses.replace(machine(), chassis="serial=A disk=D2"),  # a disk was swapped
        dataclasses.replace(machine(), chassis="disk=D1"),
        swapped(machine(), gpu8="GPU-8"),  # one more
    ],
)
def test_what_is_silent_or_counted_anew_has_not_changed(now: Identity) -> None:
    assert compare("n1", machine(), now) == []
    assert set(machine().gpus.values()) <= {*merged(machine(), now, []).gpus.values(), *map(
        "GPU-{}".format, range(8))}  # fmt: skip


def test_a_node_of_one_gpu_is_told_by_its_serial() -> None:
    one = machine(count=1)
    assert devices(one, swapped(one, gpu0="GPU-9")) == ["gpu0"]
    assert devices(one, machine(9, 1, "serial=B")) == [""]


def test_it_is_remembered_over_a_restart_and_told_once() -> None:
    made = House(simulated(2))
    Identities(made.ledger).check({"n1": machine(), "n2": machine(50)}, START_NS)
    later = Identities(Ledger(made.database))
    now = {"n1": machine(100), "n2": swapped(machine(50), gpu3="GPU-99")}
    told = later.check(now, START_NS + 5)
    assert [(one.tag("node"), one.text("device") or "") for one in told] == [
        ("n1", ""),
        ("n2", "gpu3"),
    ]
    assert later.check(now, START_NS + 6) == []
    assert Identities(made.ledger).check(now, START_NS + 7) == []
    assert made.ledger.anew_ns() == {"n1": START_NS + 5, "n2/gpu3": START_NS + 5}
    assert "history begins anew" in made.ledger.audit(node="n1")[0].text


def test_a_lost_gpu_that_comes_back_is_the_same_and_a_swap_while_it_was_lost_is_seen() -> None:
    made = House(simulated(1))
    identities = Identities(made.ledger)
    identities.check({"n1": machine()}, START_NS)
    gone = dataclasses.replace(machine(), gpus={i: f"GPU-{i}" for i in range(8) if i != 3})
    assert identities.check({"n1": gone}, START_NS + 1) == []
    assert identities.check({"n1": machine()}, START_NS + 2) == []
    assert identities.check({"n1": gone}, START_NS + 3) == []
    (told,) = identities.check({"n1": swapped(machine(), gpu3="GPU-99")}, START_NS + 4)
    assert told.text("device") == "gpu3"


def test_the_newest_readings_say_who_stands_where() -> None:
    latest = Latest()
    readings = [
        sample("gpu", START_NS, {"lost": 0.0}, node="n1", gpu=str(i), uuid=f"GPU-{i}")
        for i in range(2)
    ]
    words = event("n1", "inventory", "chassis", START_NS, text="serial=A", severity=INFO)
    latest.observe([*readings, words], START_NS)
    latest.observe([sample("host", START_NS, {"load_1m": 1.0}, node="n2")], START_NS)
    assert seen_in(latest, START_NS) == {"n1": Identity({0: "GPU-0", 1: "GPU-1"}, "serial=A")}
    # What was not read for long may have gone with the old machine.
    assert seen_in(latest, START_NS + 3600 * SECOND_NS) == {"n1": Identity({}, "serial=A")}


def test_the_flap_lock_and_the_advice_count_anew() -> None:
    limits = GENEROUS.model_copy(update={"flap_drains": 3})
    made = House(simulated(2), limits=limits)

    def once() -> str:
        made.facts = [lost("n1", onset_ns=made.clock.pass_seconds(3600))]
        advice = made.cycle()[0].advice
        made.clock.pass_seconds(60)
        made.cycle()
        return advice

    for _ in range(2):
        once()
        made.drains.resume("n1", "ann", made.clock.pass_seconds(60))
    identities = Identities(made.ledger)
    identities.check({"n1": machine()}, made.clock.pass_seconds(60))
    identities.check({"n1": machine(100)}, made.clock.pass_seconds(60))
    assert once() == "restart the node", "nothing stands against the new machine"
    assert made.ledger.locks() == {}
    case = made.ledger.case_of("n1")
    assert case is not None
    assert case.state is State.DRAINED
    view = made.ledger.view(made.now_ns())
    again = decide(made.situation(made.adapter.nodes()), limits, view, made.mode, made.now_ns())
    assert again[0].inputs["escalation"]["repeats"] == 0


def test_the_features_of_the_old_machine_are_not_the_new_ones() -> None:
    engine = FeatureEngine()

    def episodes() -> dict[str, float]:
        part = engine.frame(START_NS + 20 * SECOND_NS, ["node"]).of("node")
        assert part is not None
        values = part.column(EPISODES)
        return {entity.node: float(values[row]) for row, entity in enumerate(part.entities)}

    for node in ("n1", "n2"):
        line = event(node, "xid", "79", START_NS, text="NVRM: Xid 79", severity=3, device="gpu3")
        engine.observe([line], START_NS)
    assert episodes()["n1"] == pytest.approx(episodes()["n2"])
    assert episodes()["n1"] > 0.9
    swap = event("n1", "inventory", "replaced", START_NS + SECOND_NS, text="gpu3 is another",
                 severity=INFO, device="gpu3")  # fmt: skip
    engine.observe([swap], START_NS + SECOND_NS)
    assert episodes()["n1"] > 0.9, "one GPU is not the node"
    other = event("n1", "inventory", "replaced", START_NS + 2 * SECOND_NS, text="another machine",
                  severity=INFO)  # fmt: skip
    engine.observe([other], START_NS + 2 * SECOND_NS)
    found = episodes()
    assert found.get("n1", 0.0) == 0.0
    assert found["n2"] > 0.9
    assert Entity("node", "n1") in engine.tables["node"].rows


def test_a_node_that_names_itself_anew_each_cycle_does_not_escape_the_flap_lock() -> None:
    limits = GENEROUS.model_copy(update={"flap_drains": 3})
    made = House(simulated(2), limits=limits)
    identities = Identities(made.ledger)
    told = 0
    for number in range(60):
        seen = {"n1": machine(100 * number, chassis=f"serial={number}"), "n2": machine()}
        told += len(identities.check(seen, made.clock.pass_seconds(60)))
        if made.ledger.locks():
            break
        made.facts = [lost("n1", onset_ns=made.clock.pass_seconds(3600))]
        made.cycle()
        made.clock.pass_seconds(60)
        made.cycle()
        if not made.ledger.locks():
            made.drains.resume("n1", "ann", made.clock.pass_seconds(60))
    assert set(made.ledger.locks()) == {"n1"}
    assert told == 2
    verbs = [one.verb for one in made.ledger.audit(node="n1")]
    assert verbs.count("identity_flips") == 1, "said once a day"


def test_each_part_may_be_replaced_twice_a_week_and_a_later_week_counts_anew() -> None:
    made = House(simulated(1))
    identities = Identities(made.ledger)
    identities.check({"n1": machine()}, START_NS)
    now_ns, told = START_NS, []
    for number in range(4):
        for index in (3, 5):
            now_ns += 60 * SECOND_NS
            now = swapped(machine(), gpu3=f"GPU-3-{number}", gpu5=f"GPU-5-{number - (index == 3)}")
            told += identities.check({"n1": now}, now_ns)
    assert [one.text("device") for one in told].count("gpu3") == 2
    assert [one.text("device") for one in told].count("gpu5") == 2
    later = now_ns + 8 * 86_400 * SECOND_NS
    (one,) = identities.check({"n1": swapped(now, gpu3="GPU-77")}, later)
    assert one.text("device") == "gpu3"
