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


def test_a_clock_that_ran_ahead_and_was_set_right_stops_no_reading() -> None:
    latest = Latest()
    now_ns = 1_796_000_000 * 10**9
    for at_ns, arrival_ns, celsius in (
        (now_ns + 7_200 * 10**9, now_ns, 40.0),
        (now_ns + 10 * 10**9, now_ns + 10 * 10**9, 50.0),
        (now_ns + 5 * 10**9, now_ns + 20 * 10**9, 45.0),  # late, and older
    ):
        gpu = sample("gpu", at_ns, {"temperature_celsius": celsius}, node="n1", gpu="0")
        source = sample("source", at_ns, {"up": 1.0, "age_seconds": celsius}, node="n1", source="s")
        latest.observe([gpu, source], arrival_ns)
    node = latest.nodes["n1"]
    assert node.gpus[0].value("temperature_celsius") == 50.0
    assert node.sources["s"].age_seconds == 50.0
