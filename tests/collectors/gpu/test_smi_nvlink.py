"""``nvidia-smi nvlink``: errors by link and links that are up."""

from __future__ import annotations

from collectors.gpu import smi_lists
from tests.collectors.contract import NODE, NOW_NS
from tests.collectors.gpu.test_smi_parsers import SMI, gpus


def test_nvlink_errors_are_summed_over_links() -> None:
    samples, problems = smi_lists.parse_nvlink((SMI / "nvlink-e_550.txt").read_text(), NODE, NOW_NS)
    assert problems == []
    assert gpus(samples) == [
        {
            "nvlink_replays_total": 991.0,
            "nvlink_recoveries_total": 2.0,
            "nvlink_crc_errors_total": 17.0,
        }
    ]


def test_nvlink_5_counts_other_things() -> None:
    text = (SMI / "nvlink-e_580_b200.txt").read_text()
    samples, problems = smi_lists.parse_nvlink(text, NODE, NOW_NS)
    assert problems == []
    assert gpus(samples) == [{"nvlink_crc_errors_total": 7.0, "nvlink_recoveries_total": 3.0}]
    odd = text.replace("Rx Errors: 4", "Rx Errors: 4e-3")
    samples, problems = smi_lists.parse_nvlink(odd, NODE, NOW_NS)
    assert gpus(samples)[0]["nvlink_crc_errors_total"] == 3.0
    assert len(problems) == 1


def test_nvlink_states_are_counted_and_mig_says_nothing() -> None:
    samples, problems = smi_lists.parse_nvlink((SMI / "nvlink-s_550.txt").read_text(), NODE, NOW_NS)
    assert problems == []
    assert gpus(samples) == [{"nvlink_links_active": 2.0}, {"nvlink_links_active": 0.0}]
