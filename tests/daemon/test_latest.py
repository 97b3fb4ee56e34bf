"""What the page remembers of a node that invents GPUs and sources."""

from collectors.sample import Value, sample
from daemon.latest import GPU_FIELDS, STALE_NS, Latest


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


def test_a_gpu_of_which_all_was_read_shows_what_one_with_gaps_or_text_shows() -> None:
    whole: dict[str, Value] = {name: 10.0 + at for at, name in enumerate(GPU_FIELDS)}
    for odd in (*GPU_FIELDS, None):
        for wrong in ("text", None):
            fields = dict(whole)
            if odd is not None and wrong is None:
                del fields[odd]
            elif odd is not None and wrong is not None:
                fields[odd] = wrong
            latest = Latest()
            latest.observe([sample("gpu", 1, fields, node="n1", gpu="0", uuid="GPU-1")], 1)
            shown = latest.nodes["n1"].gpus[0]
            for name in GPU_FIELDS:
                assert shown.value(name) == (None if name == odd else whole[name])


def test_what_one_write_tells_of_several_nodes_goes_to_each_of_them() -> None:
    latest = Latest()
    reading = {"temperature_celsius": 1.0}
    latest.observe(
        [sample("gpu", 5, reading, node=node, gpu=gpu) for node in ("n1", "n2") for gpu in "01"]
        + [sample("gpu", 6, reading, node="n1", gpu="1"), sample("gpu", 7, reading, gpu="1")],
        9,
    )
    assert {
        (name, index, gpu.time_ns, gpu.step_ns)
        for name, node in latest.nodes.items()
        for index, gpu in node.gpus.items()
    } == {("n1", 0, 5, 0), ("n1", 1, 6, 1), ("n2", 0, 5, 0), ("n2", 1, 5, 0)}


def test_a_node_that_nobody_expects_is_forgotten_once_it_is_heard_no_more() -> None:
    latest = Latest()
    for node, at_ns in (("expected", 1), ("gone", 1), ("stranger", 2)):
        latest.observe([sample("host", at_ns, {"load_1m": 1.0}, node=node)], at_ns)
    latest.keep_only(["expected"], 2 + STALE_NS)
    assert set(latest.nodes) == {"expected", "stranger"}


def test_the_cards_of_a_node_change_and_each_reading_goes_to_its_own() -> None:
    latest = Latest()
    for turn, (order, card) in enumerate(
        [("012", "a"), ("012", "a"), ("210", "a"), ("02", "a"), ("012", "b"), ("0x2", "")]
    ):
        latest.observe(
            [
                sample(
                    "gpu", turn + 1, {"power_watts": 10.0 * turn + int(gpu, 36)}, node="n1",
                    gpu=gpu, uuid=card and f"{card}{gpu}",
                )
                for gpu in order
            ],
            turn,
        )  # fmt: skip
        shown = latest.nodes["n1"].gpus
        for gpu in order.replace("x", ""):
            assert shown[int(gpu)].value("power_watts") == 10.0 * turn + int(gpu)
            assert shown[int(gpu)].uuid == f"{card or 'b'}{gpu}"
            assert shown[int(gpu)].time_ns == turn + 1
    assert set(shown) == {0, 1, 2}
