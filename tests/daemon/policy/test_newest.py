"""What is made of a tuple is kept while the same tuple comes again, and no longer."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.points import risks_by_node
from daemon.policy.candidates import combined, model_chances, node_chances, node_risks
from daemon.policy.newest import of_newest
from models.voices import Entity, Risk

DAY = 86_400.0


def risk(node: str, device: str, probability: float, model: str = "m") -> Risk:
    return Risk(Entity("gpu" if device else "node", node, device), probability, DAY, model, "risk")


RISKS = (
    risk("n1", "", 0.1),
    risk("n2", "gpu1", 0.2),
    risk("n2", "", 0.3),
    risk("n1", "gpu3", 0.5, "other"),
    risk("n1", "gpu3", 0.4),
)


def test_the_same_tuple_is_answered_from_memory_and_another_is_not() -> None:
    asked: list[tuple[int, ...]] = []

    @of_newest
    def doubled(some: Iterable[int]) -> list[int]:
        asked.append(tuple(some))
        return [2 * one for one in some]

    first, second = tuple(range(1, 3)), tuple(range(1, 3))
    assert doubled(first) is doubled(first)
    assert doubled(second) == [2, 4]
    assert doubled(first) == [2, 4]
    assert len(asked) == 3


def test_a_list_is_read_anew_each_time() -> None:
    held = list(RISKS[:1])
    assert node_chances(held) == {"n1": combined(RISKS[:1])}
    held.append(risk("n9", "", 0.9))
    assert node_chances(held)["n9"] == combined(held[1:])


def test_the_highest_risk_of_a_node_is_that_of_its_likeliest_model() -> None:
    grouped = node_risks(RISKS)
    assert model_chances(RISKS) == {key: combined(held) for key, held in grouped.items()}
    assert node_chances(RISKS)["n1"] == max(
        combined(grouped["n1", "m"]), combined(grouped["n1", "other"])
    )


def test_risks_by_node_are_worked_out_when_somebody_looks_and_are_all_there() -> None:
    found = risks_by_node(RISKS)
    assert list(found) == ["n1", "n2"]
    assert len(found) == 2
    assert found.get("n3") is None
    assert found["n1"]["gpu3"].probability == 0.5
    assert found["n2"][""].probability == combined(node_risks(RISKS)["n2", "m"])
    assert found["n2"] is found["n2"]
