"""Names of measurements and columns: our own are free, others have a budget."""

from daemon.gate.names import Names
from daemon.schema import fields

OWN = tuple(name for measurement, name in fields() if measurement == "gpu")


def names(measurements: int = 3, columns: int = 6, per_node: int = 4) -> Names:
    return Names(fields(), measurements, columns, per_node)


def test_our_own_schema_is_free_whatever_others_have_used_up() -> None:
    budget = names()
    assert len(OWN) > 40
    assert budget.fault("gpu", tuple(f"x{n}" for n in range(4)), "n1") == ""
    assert budget.fault("gpu", ("y1", "y2"), "n2") == ""
    assert budget.fault("gpu", OWN, "n3") == ""
    for number in range(9):
        budget.fault(f"m{number}", ("a",), "n1")
    assert budget.fault("host", ("load_1m",), "n2") == ""


def test_a_node_that_invents_fields_is_cut_and_others_go_on() -> None:
    budget = names()
    assert budget.fault("cpu", ("a", "b", "c", "d"), "n1") == ""
    assert "column budget: n1 named 4 of cpu already" in budget.fault("cpu", ("a", "e"), "n1")
    # What was named before may come from anybody, in any order and company.
    assert budget.fault("cpu", ("d", "a"), "n1") == ""
    assert budget.fault("cpu", ("a", "e"), "n2") == ""
    assert budget.fault("cpu", ("e",), "n1") == ""


def test_all_nodes_together_are_bounded_too() -> None:
    budget = names()
    assert budget.fault("cpu", ("a", "b", "c"), "n1") == ""
    assert budget.fault("cpu", ("d", "e", "f"), "n2") == ""
    assert "column budget: cpu has 6" in budget.fault("cpu", ("g",), "n3")
    assert budget.fault("mem", ("g",), "n3") == ""
    assert budget.fault("disk2", ("g",), "n3") == ""
    assert "measurement budget" in budget.fault("swap", ("g",), "n3")


def test_a_refused_name_takes_no_place() -> None:
    budget = names()
    assert budget.fault("cpu", ("a" * 65,), "n1") != ""
    assert budget.fault("cpu", tuple("abcde"), "n1") != ""
    assert budget.fault("cpu", tuple("fghi"), "n1") == ""


def test_tags_are_columns_as_well() -> None:
    budget = names()
    assert budget.meet("cpu", ["node", "gpu", "t1", "t2", "t3", "t4"], "n1") == ""
    assert budget.meet("cpu", ["t5"], "n1") != ""
