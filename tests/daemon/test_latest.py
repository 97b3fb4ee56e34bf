"""What the page remembers of a node that invents GPUs and sources."""

from collectors.sample import sample
from daemon.latest import Latest


def test_a_node_that_invents_gpus_is_bounded_and_its_known_ones_go_on() -> None:
    latest = Latest()
    for turn in range(2):
        for gpu in range(1000):
            fields = {"temperature_celsius": float(turn)}
            latest.observe([sample("gpu", turn, fields, node="n1", gpu=str(gpu))], turn)
            reading = {"up": 1.0, "age_seconds": float(turn)}
            latest.observe([sample("source", turn, reading, node="n1", source=f"s{gpu}")], turn)
    node = latest.nodes["n1"]
    assert len(node.gpus) == len(node.sources) == 256
    assert node.gpus[0].value("temperature_celsius") == 1.0
    assert node.sources["s0"].age_seconds == 1.0
