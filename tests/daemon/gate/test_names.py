"""Names of measurements and columns: our own are free, others have a budget."""

from daemon.gate.names import Names
from daemon.schema import fields

OWN = tuple(name for measurement, name in fields() if measurement == "gpu")


def names(
    measurements: int = 3, columns: int = 6, per_node: int = 4, share: tuple[int, int] = (0, 0)
) -> Names:
    return Names(fields(), measurements, columns, per_node, *share)


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


def test_what_few_nodes_use_up_leaves_the_others_their_few_names() -> None:
    budget = names(measurements=20, columns=40, per_node=10, share=(2, 3))
    for number in range(100):
        budget.fault(f"m{number}", ("a",), f"bad{number % 3}")
        budget.fault("cpu", (f"c{number}",), f"bad{number % 5}")
    assert "measurement budget" in budget.fault("more", ("a",), "bad0")
    assert budget.fault("cpu", ("more",), "bad0") != ""
    # An honest fleet: all say the same names, and each of the first few brings in some.
    wanted = [("cpu", (f"h{n}",)) for n in range(9)] + [(f"honest{n}", ("a",)) for n in range(6)]
    for node in ("n1", "n2", "n3"):
        for measurement, columns in wanted:
            budget.fault(measurement, columns, node)
    assert [budget.fault(*one, "n4") for one in wanted] == [""] * len(wanted)
    # Nor is there more than twice as much for names that many senders invent.
    for number in range(1000):
        budget.fault(f"x{number}", ("a",), f"n{number}")
        budget.fault("cpu", (f"x{number}",), f"n{number}")
    assert "there are 40 measurements already" in budget.fault("y", ("a",), "new")
    assert "cpu has 80" in budget.fault("cpu", ("y",), "new")
