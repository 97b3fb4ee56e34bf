"""slurmrestd's answers and faults, by a stand-in that speaks v0.0.42 over a Slurm in memory.

It answers in the form of the recorded ``scontrol --json`` of 25.11 (the same data parser writes
both). The real one is met in test_rest_live.py and test_adapters.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from collectors.slurm.nodes import NodeState
from collectors.slurm.source import Options
from daemon.slurm.adapter import SlurmRefused, SlurmUnavailable
from daemon.slurm.choose import choose
from daemon.slurm.rest import RestAdapter
from daemon.slurm.rest_http import errors_of
from daemon.slurm.simulated import SimulatedSlurm

TOKEN = "eyJhbGciOi.JIUzI1.NiIs"


def record(node: NodeState) -> dict[str, object]:
    stamp = {"set": True, "infinite": False, "number": node.reason_time_ns // 10**9}
    return {
        "name": node.name,
        "state": [node.base.upper(), *sorted(node.flags)],
        "reason": node.reason,
        "reason_changed_at": stamp,
        "reason_set_by_user": node.reason_user,
        "comment": node.comment,
        "partitions": list(node.partitions),
        "gres": f"gpu:{node.gpus_configured}",
    }


class Stand:
    """A slurmrestd of 24.11 over a SimulatedSlurm. ``answer`` may replace what it says."""

    def __init__(self) -> None:
        self.slurm = SimulatedSlurm(
            [NodeState(f"n{i}", base="idle", partitions=("batch",)) for i in (1, 2, 3)],
            time.time_ns,
        )
        self.posts: list[dict[str, object]] = []
        self.answer: Callable[[str, str], tuple[int, object] | None] = lambda method, path: None
        stand = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply("GET", {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.reply("POST", json.loads(body))

            def reply(self, method: str, body: dict[str, object]) -> None:
                token = self.headers.get("X-SLURM-USER-TOKEN")
                status, told = stand.reply(method, self.path, body, token)
                raw = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *arguments: object) -> None:
                """Nothing is printed."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def reply(
        self, method: str, path: str, body: dict[str, object], token: str | None
    ) -> tuple[int, object]:
        if token != TOKEN:
            return 401, {"errors": [{"error": "Authentication failure"}]}
        replaced = self.answer(method, path)
        if replaced is not None:
            return replaced
        if not path.startswith("/slurm/v0.0.42/"):
            return 404, b"Unable find requested URL."
        if path.endswith("/ping/"):
            return 200, {"pings": [], "errors": [], "warnings": []}
        if method == "POST":
            self.posts.append(body)
            state = " ".join(body.get("state", ())).lower()  # type: ignore[arg-type]
            for name in body["name"]:  # type: ignore[attr-defined]
                if "comment" in body:
                    self.slurm.comment({name: str(body["comment"])}, lambda node: "")
                else:
                    self.slurm.set(name, user="tocsin", state=state,
                                   reason=str(body.get("reason", "")))  # fmt: skip
            return 200, {"errors": [], "warnings": []}
        nodes = [record(node) for node in self.slurm.nodes().values()]
        return 200, {"nodes": nodes, "errors": [], "warnings": []}


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.server.shutdown()
    made.server.server_close()


def adapter(url: str, folder: Path, token: str = TOKEN, deadline_seconds: float = 5) -> RestAdapter:
    file = folder / "token"
    file.write_text(f"SLURM_JWT={token}\n")
    return RestAdapter(
        Options(rest_url=url, rest_user="root", rest_token_file=file,
                deadline_seconds=deadline_seconds)
    )  # fmt: skip


def free(node: NodeState) -> str:
    return f"has the reason {node.reason!r}" if node.drain or node.reason else ""


def test_drain_undrain_and_comment_go_in_one_request_a_reason(stand: Stand, tmp_path: Path) -> None:
    rest = adapter(stand.url, tmp_path)
    outcome = rest.drain({"n1": "tocsin:a 1", "n2": "tocsin:a 1", "n3": "tocsin:b 2"}, free)
    assert set(outcome.done) == {"n1", "n2", "n3"}
    assert [post["name"] for post in stand.posts] == [["n1", "n2"], ["n3"]]
    assert stand.posts[0]["state"] == ["DRAIN"]
    assert rest.nodes(["n1"])["n1"].reason == "tocsin:a 1"
    outcome = rest.undrain(["n1", "n3"], lambda n: "" if n.reason == "tocsin:a 1" else "not ours")
    assert set(outcome.done) == {"n1"}
    assert outcome.skipped == {"n3": "not ours"}
    assert set(rest.comment({"n1": "tocsin 1: x"}, lambda n: "").done) == {"n1"}


def test_an_operators_drain_is_neither_changed_nor_lifted(stand: Stand, tmp_path: Path) -> None:
    stand.slurm.set("n1", state="drain", reason="ann: PSU")
    rest = adapter(stand.url, tmp_path)
    outcome = rest.drain({"n1": "tocsin:a 1", "n99": "tocsin:a 1"}, free)
    assert "ann: PSU" in outcome.skipped["n1"]
    assert "does not know" in outcome.skipped["n99"]
    assert stand.posts == []


@pytest.mark.parametrize("name", ["ALL", "n[1-3]", "n1,n2", ""])
def test_what_is_no_single_node_is_refused(stand: Stand, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no node name"):
        adapter(stand.url, tmp_path).drain({name: "x"}, free)


def test_an_entry_in_errors_is_a_failure_even_beside_nodes(stand: Stand, tmp_path: Path) -> None:
    rest = adapter(stand.url, tmp_path)
    assert rest.version == "v0.0.42"
    nodes = [record(node) for node in stand.slurm.nodes().values()]
    stand.answer = lambda method, path: (200, {"nodes": nodes, "errors": [{"error": "half"}]})
    with pytest.raises(SlurmUnavailable, match="half"):
        rest.nodes()


@pytest.mark.parametrize("told", [b"<html>", b"", b"[]", b'{"nodes": []}', b'{"nodes": 3}'])
def test_an_answer_without_nodes_is_never_an_empty_cluster(
    stand: Stand, tmp_path: Path, told: bytes
) -> None:
    rest = adapter(stand.url, tmp_path)
    assert rest.version
    stand.answer = lambda method, path: (200, told)
    with pytest.raises(SlurmUnavailable):
        rest.nodes()


def test_a_refused_write_is_refused_by_name(stand: Stand, tmp_path: Path) -> None:
    rest = adapter(stand.url, tmp_path)
    denied = {"errors": [{"error": "Access/permission denied"}]}
    stand.answer = lambda method, path: (500, denied) if method == "POST" else None
    with pytest.raises(SlurmRefused, match="permission denied"):
        rest.drain({"n1": "tocsin:a 1"}, free)


def test_a_write_without_an_answer_is_unknown(stand: Stand, tmp_path: Path) -> None:
    rest = adapter(stand.url, tmp_path, deadline_seconds=3.0)
    assert rest.version
    done = threading.Event()

    def slow(method: str, path: str) -> None:
        if method == "POST":
            done.wait(60)

    stand.answer = slow
    outcome = rest.drain({"n1": "tocsin:a 1"}, free)
    done.set()
    assert set(outcome.unknown) == {"n1"}


def test_a_bad_token_and_a_dead_server_are_named(stand: Stand, tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match="refuses the token") as caught:
        adapter(stand.url, tmp_path, "wrong").nodes()
    assert caught.value.kind == "authentication"
    assert "wrong" not in str(caught.value)
    with pytest.raises(SlurmUnavailable) as caught:
        adapter("http://127.0.0.1:9", tmp_path).nodes()
    assert caught.value.kind == "stopped"


def test_what_25_11_says_of_a_token_that_ran_out_asks_for_the_token(
    stand: Stand, tmp_path: Path
) -> None:
    rest = adapter(stand.url, tmp_path)
    assert rest.version
    told = {"errors": [{"description": "Failure to query nodes", "error_number": 1007,
                        "error": "Protocol authentication error"}]}  # fmt: skip
    stand.answer = lambda method, path: (511, told)
    with pytest.raises(SlurmUnavailable, match="is the token valid"):
        rest.nodes()
    # slurmctld's answer may be what could not be read: a write is not known to have failed.
    stand.answer = lambda method, path: (511, told) if method == "POST" else None
    assert set(rest.drain({"n1": "tocsin:a 1"}, free).unknown) == {"n1"}


FIXTURES = Path(__file__).parents[2] / "fixtures/slurm"


def test_26_05_tells_when_slurmctld_was_started_and_older_ones_say_that_they_do_not(
    stand: Stand, tmp_path: Path
) -> None:
    """Recorded from slurmrestd 26.05.3; of the configuration itself only some lines are kept."""
    conf = (FIXTURES / "26.05/rest-conf.json").read_bytes()
    with pytest.raises(SlurmUnavailable, match=r"v0\.0\.42 does not tell") as caught:
        adapter(stand.url, tmp_path).controller_start_ns()
    assert caught.value.kind == "missing"

    def newer(method: str, path: str) -> tuple[int, object]:
        if path == "/slurm/v0.0.45/ping/":
            return 200, {"pings": [], "errors": []}
        return (200, conf) if path == "/slurm/v0.0.45/conf" else (404, b"")

    stand.answer = newer
    rest = adapter(stand.url, tmp_path)
    assert rest.controller_start_ns() == 1_796_050_826 * 10**9
    conf = b'{"slurm_conf": {}, "slurm_conf_meta": {}, "errors": []}'
    with pytest.raises(SlurmUnavailable, match="no BOOT_TIME"):
        rest.controller_start_ns()
    conf = b'{"errors": [{"error": "Unable to contact slurm controller (connect failure)"}]}'
    with pytest.raises(SlurmUnavailable, match="Unable to contact"):
        rest.controller_start_ns()


@pytest.mark.parametrize(("release", "version"), [("25.11", "v0.0.44"), ("26.05", "v0.0.45")])
def test_what_a_real_slurmrestd_told_is_read(
    stand: Stand, tmp_path: Path, release: str, version: str
) -> None:
    """Recorded: n1 was drained and resumed, n2 is drained, nobody touched n3."""
    left = "ann: swap the PSU" if release == "25.11" else ""  # 26.05 clears it
    nodes = (FIXTURES / release / "rest-nodes.json").read_bytes()

    def told(method: str, path: str) -> tuple[int, object]:
        if path == f"/slurm/{version}/ping/":
            return 200, {"pings": [], "errors": []}
        return (200, nodes) if path == f"/slurm/{version}/nodes/" else (404, b"")

    stand.answer = told
    found = adapter(stand.url, tmp_path).nodes()
    assert {node.name: (node.words, node.reason) for node in found.values()} == {
        "n1": ("IDLE", left), "n2": ("IDLE+DRAIN", "ann: look at the fan"), "n3": ("IDLE", ""),
    }  # fmt: skip
    assert found["n2"].reason_user == "root"
    assert {node.gpus_configured for node in found.values()} == {8}


def test_errors_are_read_in_every_form() -> None:
    assert errors_of({"errors": []}) == ""
    assert errors_of({"errors": [{"description": "a", "error": "b"}]}) == "b a"
    assert errors_of({"errors": ["c"]}) == "c"
    assert errors_of({"errors": {"x": 1}}) != ""
    assert errors_of({"errors": [{}]}) != ""


# ---- the choice --------------------------------------------------------------------------------


def test_the_adapter_is_chosen_with_a_reason() -> None:
    both = Options(rest_url="http://h:6820")
    assert choose(both, which=lambda tool: tool)[0].name == "cli"
    made, why = choose(both, which=lambda tool: None)
    assert made.name == "rest"
    assert "no scontrol" in why
    made, why = choose(Options(), which=lambda tool: None)
    assert made.name == "cli"
    assert "not found" in why
    assert choose(Options(adapter="rest", rest_url="http://h:1"))[0].name == "rest"
    with pytest.raises(ValueError, match="rest_url"):
        choose(Options(adapter="rest"))


def test_a_slurmrestd_that_was_upgraded_in_place_is_spoken_to_in_its_new_version(
    stand: Stand, tmp_path: Path
) -> None:
    rest = adapter(stand.url, tmp_path)
    assert set(rest.nodes()) == {"n1", "n2", "n3"}

    def newer(method: str, path: str) -> tuple[int, object] | None:
        if not path.startswith("/slurm/v0.0.44/"):
            return 404, b"Unable find requested URL."
        nodes = [record(node) for node in stand.slurm.nodes().values()]
        return 200, {"nodes": nodes, "pings": [], "errors": []}

    stand.answer = newer
    with pytest.raises(SlurmUnavailable):
        rest.nodes()
    assert set(rest.nodes()) == {"n1", "n2", "n3"}
    assert rest.version == "v0.0.44"
