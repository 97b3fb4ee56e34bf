"""What ``dcgmi diag -j`` of all versions says of GPUs, and of no GPU."""

from __future__ import annotations

import json

from collectors.gpu.dcgm_json import parse_diag
from tests.collectors.contract import NODE, NOW_NS


def diagnostic(test: dict[str, object]) -> dict[str, object]:
    tests = [{"name": "NVML Library", **test}]
    return {"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}}


def failures(document: object) -> list[tuple[str, str]]:
    samples, problems = parse_diag(json.dumps(document), NODE, NOW_NS)
    assert problems == []
    return [
        (one.text("device"), one.text("text"))
        for one in samples
        if one.tag("kind") == "dcgm_diag" and one.tag("code") != "summary"
    ]


def warned(*words: str) -> list[dict[str, object]]:
    return [{"warning": one, "error_id": 1, "error_severity": 2} for one in words]


def test_a_fault_of_no_gpu_stands_in_the_summary_of_its_test() -> None:
    passed = {"entity_group": "GPU", "entity_id": 0, "status": "Pass"}
    failed = {**passed, "entity_id": 3, "status": "Fail", "warnings": warned("of GPU 3")}
    whole = {"status": "Fail", "warnings": warned("of GPU 3", "of no GPU")}
    begin = "Deployment: NVML Library: fail: "
    both = failures(diagnostic({"results": [passed, failed], "test_summary": whole}))
    assert both == [("gpu3", f"gpu3: {begin}of GPU 3"), ("", f"{begin}of no GPU")]
    again = {"status": "Fail", "warnings": warned("of GPU 3")}
    assert len(failures(diagnostic({"results": [failed], "test_summary": again}))) == 1
    alone = failures(diagnostic({"results": [passed], "test_summary": whole}))
    assert [device for device, _ in alone] == [""]
    assert failures(diagnostic({"test_summary": whole})) == [("", f"{begin}of GPU 3; of no GPU")]
    assert failures(diagnostic({"results": [passed], "test_summary": {"status": "Pass"}})) == []


def test_every_round_of_a_repeated_diagnostic_is_read() -> None:
    result = {"gpu_id": "2", "status": "FAIL", "warnings": [{"warning": "too slow"}]}
    rounds = [diagnostic({"results": [{"gpu_id": "2", "status": "PASS"}]}),
              diagnostic({"results": [result]})]  # fmt: skip
    document = {"Overall Result": "Fail", "iterations": rounds}
    assert [device for device, _ in failures(document)] == ["gpu2"]
    samples, problems = parse_diag(json.dumps({**document, "Warning": "ended"}), NODE, NOW_NS)
    assert [one.problem for one in problems] == ["dcgmi ended the diagnostic early"]
    assert len(samples) == 3


def test_the_gpu_of_a_result_is_known_in_every_version() -> None:
    for named in ({"gpu_ids": "5"}, {"gpu_id": "5"}, {"gpu_id": 5}):
        result = {**named, "status": "Fail", "warnings": "words", "info": "more"}
        assert failures(diagnostic({"results": [result]}))[0][0] == "gpu5"
    told = {"entity_group": "GPU", "entity_id": 5, "status": "Fail", "info": ["one", "two"]}
    assert failures(diagnostic({"results": [told]}))[0][1].endswith("fail: one; two")
    other = {"entity_group": "CPU", "entity_id": 5, "status": "Fail", "warnings": warned("hot")}
    assert failures(diagnostic({"results": [other]}))[0][0] == ""
