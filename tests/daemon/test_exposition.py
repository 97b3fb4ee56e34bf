from collectors.sample import Metric, sample
from daemon.exposition import counts_sample, expose


def test_samples_become_series_with_help_and_type() -> None:
    metrics = [Metric("gpu", "energy_joules_total", "counter", "energy since the driver started")]
    found = expose(
        [
            sample("gpu", 1, {"energy_joules_total": 5.0, "odd-name": 1.0}, node="n1", gpu="0"),
            sample("gpu", 2, {"energy_joules_total": 7.5}, node="n1", gpu="0"),
            sample("event", 3, {"text": "no number", "severity": 2.0}, node='a"b\\c'),
        ],
        metrics,
    )
    assert found.splitlines() == [
        "# TYPE tocsin_event_severity untyped",
        'tocsin_event_severity{node="a\\"b\\\\c"} 2.0',
        "# HELP tocsin_gpu_energy_joules_total energy since the driver started",
        "# TYPE tocsin_gpu_energy_joules_total counter",
        'tocsin_gpu_energy_joules_total{gpu="0",node="n1"} 7.5',
        "# TYPE tocsin_gpu_odd_name untyped",
        'tocsin_gpu_odd_name{gpu="0",node="n1"} 1.0',
    ]
    assert found.endswith("\n")


def test_the_text_is_bounded_and_says_what_is_left_out() -> None:
    many = [sample("gpu", 1, {"a": 1.0}, node=f"n{n}") for n in range(1000)]
    found = expose([*many, counts_sample("gateway", {"requests": 3}, 1)], limit_bytes=1000)
    assert len(found) < 1100
    assert "tocsin_gateway_requests 3.0" in found
    assert "tocsin_exposition_left_out_series 1000" in found
