"""The readers of Slurm's node texts, over answers recorded from real controllers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.slurm.hostlist import HostlistError, compress, expand, valid_name
from collectors.slurm.nodes import NodeState, gpu_count, parse_nodes
from collectors.slurm.reader import parse_jobs
from collectors.slurm.source import METRICS, parse
from collectors.slurm.state import left_over
from tests.collectors.contract import check_samples

FIXTURES = Path(__file__).parents[2] / "fixtures/slurm"
VERSIONS = ("22.05", "25.11", "26.05")
WHOLE = [
    ("22.05", "sinfo.json"),
    *((version, "scontrol-nodes.json") for version in VERSIONS[1:]),
    *((version, "scontrol-nodes.txt") for version in VERSIONS),
]


def read(version: str, name: str) -> dict[str, NodeState]:
    nodes, problems = parse_nodes((FIXTURES / version / name).read_bytes())
    assert problems == []
    return nodes


@pytest.mark.parametrize(("version", "name"), WHOLE)
def test_every_form_of_every_version_gives_the_same_nodes(version: str, name: str) -> None:
    nodes = read(version, name)
    assert [*nodes] == [f"n{number}" for number in range(1, 13)]
    words = {name: node.words for name, node in nodes.items()}
    assert words == {
        "n1": "MIXED",
        "n2": "MIXED",
        "n3": "ALLOCATED",
        "n4": "IDLE+DRAIN",
        "n5": "MIXED+DRAIN",
        "n6": "DOWN+NOT_RESPONDING",
        "n7": "IDLE+MAINTENANCE+RESERVED",
        "n8": "MIXED+DRAIN+REBOOT_REQUESTED",
        "n9": "DOWN",
        "n10": "DOWN+DRAIN",
        "n11": "IDLE+DRAIN+INVALID_REG",
        "n12": "IDLE+NOT_RESPONDING",
    }
    assert nodes["n4"].reason == "gpuwatch: XID79 GPU3 fell off the bus"
    assert nodes["n5"].reason == "admin: swap PSU, ask Zoë"
    assert nodes["n11"].reason == "gres/gpu count reported lower than configured (7 < 8)"
    assert nodes["n4"].reason_user == "root"
    assert nodes["n4"].reason_time_ns > 1_795_999_000 * 10**9
    assert nodes["n1"].reason_time_ns == 0
    assert nodes["n4"].comment == '{"gpuwatch":1}'
    assert nodes["n8"].next_state == "RESUME"
    assert nodes["n1"].next_state == ""
    assert nodes["n1"].partitions == ("batch", "debug")
    assert {node.gpus_configured for node in nodes.values()} == {8}
    assert nodes["n1"].boot_time_ns > 1_795_000_000 * 10**9
    assert nodes["n1"].features == ("h200", "ib")
    assert [n for n, node in nodes.items() if node.registered] == [
        "n1", "n2", "n3", "n4", "n5", "n7", "n8",
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "name"), [(v, n) for v, n in WHOLE if n.endswith(".json")])
def test_gpus_in_use_are_counted(version: str, name: str) -> None:
    nodes = read(version, name)
    used = {name: node.gpus_allocated for name, node in nodes.items() if node.gpus_allocated}
    assert used == {"n1": 1, "n2": 3, "n3": 8, "n5": 4, "n8": 1}


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_node_that_sinfo_hides_behind_another_is_not_taken_for_it(version: str) -> None:
    nodes, problems = parse_nodes((FIXTURES / version / "sinfo.json").read_bytes())
    assert len(nodes) == 12
    assert nodes["n4"].reason == "gpuwatch: XID79 GPU3 fell off the bus"
    # n10 is DOWN+DRAIN with another reason; sinfo shows it in the record of n4.
    hidden = nodes["n10"]
    assert hidden.drain
    assert hidden.uncertain
    assert hidden.reason == ""
    assert not hidden.registered
    assert any("n10" in problem.problem for problem in problems)
    assert nodes["n1"].partitions == ("batch", "debug")


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:h200:8", 8),
        ("gpu:8", 8),
        ("gpu:h200:8(S:0-1)", 8),
        ("gpu:a100:4(S:0),gpu:h200:4(S:1),shard:32", 8),
        ("gpu:h200:3(IDX:0-1,4),shard:h200:0(0/8,0/8)", 3),
        ("gpu:1g.10gb:7", 7),
        ("gpu:h200:0(IDX:N/A)", 0),
        ("gpu:1K", 1024),
        ("gpu:h200:no_consume:8", 8),
        ("gres/gpu:h200:2", 2),
        ("(null)", 0),
        ("mps:400,nic:2", 0),
        ("gpu", 0),
        ("", 0),
    ],
)
def test_gpus_in_a_gres_string(gres: str, count: int) -> None:
    assert gpu_count(gres) == count


def test_a_reason_that_looks_like_fields_stays_whole_in_text() -> None:
    line = (
        "NodeName=n2 Gres=gpu:8 OS=Linux 6.1 #1 SMP @0  State=IDLE+DRAIN Partitions=batch "
        "Reason=a b=c [x@y] Comment=foo [root@2026-11-30T02:50:50] "
        "Comment=hello world = x Reason=abc Extra=some extra  x"
    )
    node = parse_nodes(line)[0]["n2"]
    assert node.reason == "a b=c [x@y] Comment=foo"
    assert node.reason_user == "root"
    assert node.comment == "hello world = x Reason=abc"
    assert node.extra == "some extra  x"
    assert node.partitions == ("batch",)


def test_text_of_many_lines_a_node_is_read_as_well() -> None:
    text = (
        "NodeName=a1 Arch=x86_64 \n   State=DOWN*+DRAIN ThreadsPerCore=1\n"
        "   Reason=bad DIMM [ops@2026-01-02T03:04:05]\n\n"
        "NodeName=a2 Arch=x86_64\n   State=IDLE~\n"
    )
    nodes = parse_nodes(text)[0]
    assert nodes["a1"].words == "DOWN+DRAIN+NOT_RESPONDING"
    assert nodes["a1"].reason_user == "ops"
    assert not nodes["a2"].registered
    assert not nodes["a2"].powered


def test_an_answer_without_nodes_is_told_and_not_read_as_an_empty_cluster() -> None:
    nodes, problems = parse_nodes(
        '{"meta": {}, "errors": [{"error": "Unspecified error", "errno": -1}], "nodes": []}'
    )
    assert nodes == {}
    assert "Unspecified error" in problems[0].problem


def test_a_warning_before_the_json_does_not_hide_it() -> None:
    text = 'sinfo: error: something\n{"nodes": [{"name": "n1", "state": ["IDLE"]}]}'
    assert parse_nodes(text)[0]["n1"].base == "idle"


def test_one_bad_node_costs_no_other() -> None:
    records = [
        {"name": "n1", "state": ["IDLE"]},
        "garbage",
        {"state": ["IDLE"]},
        {"name": "n[1-3]", "state": "idle"},
        {"name": "n2", "state": ["IDLE", "SOMETHING_NEW"], "reason_changed_at": float("inf")},
        {"name": "n3", "boot_time": {"set": True, "infinite": False, "number": -5}},
        {"name": "n4", "state": {"current": "IDLE"}, "gres": 7, "cpus": "many"},
    ]
    nodes, problems = parse_nodes(json.dumps({"nodes": records}))
    assert [*nodes] == ["n1", "n2", "n3", "n4"]
    assert nodes["n2"].flags == {"SOMETHING_NEW"}
    assert nodes["n2"].reason_time_ns == 0
    assert nodes["n3"].base == "unknown"
    assert nodes["n3"].boot_time_ns == 0
    assert len(problems) >= 4


@given(st.binary(max_size=400) | st.text(max_size=400))
@settings(max_examples=300, deadline=None)
def test_no_input_raises(text: bytes | str) -> None:
    parse_nodes(text)
    parse(text, "n1", 1)
    parse_jobs(text if isinstance(text, str) else text.decode("latin-1"), "")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
KEYS = st.sampled_from(["name", "state", "reason", "gres", "partitions", "boot_time", "nodes"])


@given(st.lists(st.dictionaries(KEYS, JSON_VALUES | st.just("n1"), max_size=6), max_size=4))
@settings(max_examples=300, deadline=None)
def test_no_json_raises(records: list[dict[str, object]]) -> None:
    for key in ("nodes", "sinfo"):
        parse(json.dumps({key: records}), "", 1)


def test_a_node_parsed_gives_points_that_keep_the_contract() -> None:
    import collectors.slurm.source as module

    text = (FIXTURES / "26.05/scontrol-nodes.json").read_bytes()
    samples, problems = parse(text, "", 5)
    assert problems == []
    check_samples(module, samples, node="")
    n4 = [one for one in samples if one.tag("node") == "n4"]
    assert n4[0].number("drain") == 1.0
    assert n4[1].text("reason") == "gpuwatch: XID79 GPU3 fell off the bus"
    assert {metric.measurement for metric in METRICS} == {"slurm_node", "slurm_event"}


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n01", "n02", "n10"], "n[01-02,10]"),
        (["gpu-9", "gpu-10"], "gpu-[9-10]"),
        # Slurm 22.05 reads no brackets in the midst of a name.
        (["a1-ib", "a2-ib"], "a1-ib,a2-ib"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["login", "n1"], "login,n1"),
    ],
)
def test_host_lists_there_and_back(names: list[str], text: str) -> None:
    assert compress(names) == text
    assert sorted(expand(text)) == sorted(names)


@given(st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{0,5}(-ib)?", fullmatch=True), max_size=50))
def test_compressed_host_lists_lose_nothing(names: list[str]) -> None:
    assert sorted(expand(compress(names))) == sorted(set(names))


def test_host_lists_of_several_brackets_are_read() -> None:
    assert expand("r[1-2]n[01-02],x") == ["r1n01", "r1n02", "r2n01", "r2n02", "x"]


@pytest.mark.parametrize(
    "text", ["n[1-", "n]", "n[1-999999999]", "n[a-b]", "n[[1]]", "n[1-10000]" * 3]
)
def test_garbage_host_lists_are_refused(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


@pytest.mark.parametrize(
    "name", ["ALL", "all", "n[1-2]", "n1,n2", "n1 state=resume", "", "-n1", "n1\n"]
)
def test_what_is_no_single_name_is_no_name(name: str) -> None:
    assert not valid_name(name)


def test_jobs_of_squeue() -> None:
    text = (
        "1|1|RUNNING|ann|2027-11-30T00:51:28|1-00:00:05|gres:gpu:2|batch|n2|(null)\n"
        "7|6_1|RUNNING|bob|N/A|0:05|N/A|batch|n[1-2]|tocsin=requeue | x\n"
        "8|8_[1-3]|PENDING|bob|N/A|0:00|gres/gpu:h200:8|batch||\n"
        "slurm_load_jobs error: something\n"
    )
    jobs = parse_jobs("".join(f"q7|{line}\n" for line in text.splitlines()), "q7|")
    assert jobs["1"].gpus_per_node == 2
    assert jobs["1"].elapsed_seconds == 86405.0
    assert jobs["7"].nodes == ("n1", "n2")
    assert jobs["7"].key == "6_1"
    assert jobs["7"].comment == "tocsin=requeue | x"
    assert jobs["1"].comment == ""
    assert jobs["7"].end_time_ns == 0
    assert jobs["8"].nodes == ()
    assert set(jobs) == {"1", "7", "8"}


def test_jobs_that_a_job_tells_in_its_comment_are_none() -> None:
    fake = "9|9|RUNNING|bob|N/A|0:05|N/A|batch|n1|tocsin=requeue"
    own = "q7|1|1|RUNNING|ann|N/A|0:05|N/A|batch|n2|"
    text = f"{own}x\n{fake}\nq8|{fake}\r{fake}\x0b{fake}\x85{fake}\n"
    assert set(parse_jobs(text, "q7|")) == {"1"}


@pytest.mark.parametrize("name", ["returned-nodes.json", "returned-nodes.txt", "rest-nodes.json"])
def test_25_11_keeps_the_reason_of_a_node_that_came_back(name: str) -> None:
    """Recorded without accounting: n1 was drained and resumed, n2 drained, n3 neither."""
    nodes = read("25.11", name)
    told = {node.name: (node.words, node.reason) for node in nodes.values()}
    assert told == {
        "n1": ("IDLE", "ann: swap the PSU"),
        "n2": ("IDLE+DRAIN", "ann: look at the fan"),
        "n3": ("IDLE", ""),
    }
    left = {name for name, node in nodes.items() if left_over(node, node.reason)}
    assert left == {"n1"}
    assert not left_over(nodes["n1"], "ann: look at the fan")


@pytest.mark.parametrize(
    ("state", "left"),
    [
        ("IDLE", True), ("MIXED", True), ("IDLE*", True), ("IDLE+PLANNED", True),
        ("IDLE+DRAIN", False), ("MIXED+DRAIN", False), ("DOWN", False), ("DOWN*", False),
        ("IDLE+FAIL", False), ("IDLE+REBOOT_REQUESTED", False), ("IDLE+INVALID_REG", False),
        ("UNKNOWN", False), ("IDLE+POWERED_DOWN", False), ("FUTURE", False),
    ],
)  # fmt: skip
def test_only_at_a_node_that_nothing_holds_a_reason_is_left_over(state: str, left: bool) -> None:
    text = f"NodeName=n1 State={state} Reason=ann: swap the PSU [root@2026-11-30T14:50:15]"
    nodes, problems = parse_nodes(text)
    assert problems == []
    assert nodes["n1"].reason == "ann: swap the PSU"
    assert left_over(nodes["n1"], "ann: swap the PSU") is left
    assert not left_over(nodes["n1"], "")
