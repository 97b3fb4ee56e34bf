"""Whatever a parser is fed, it answers with samples and problems, in bounded time and memory."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.parsers import PARSERS
from tests.collectors.parser_check import check

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
NOW_NS = 1_760_000_000_000_000_000
TEXTS = sorted(path for path in FIXTURES.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", sorted(PARSERS))
class TestEveryParser:
    def test_nothing_is_read_from_nothing(self, name: str) -> None:
        for text in ("", b"", "\n", b"\0", "\ufeff", b"\xff\xfe\x00"):
            samples, problems = PARSERS[name](text, "n1", NOW_NS)
            assert samples == []
            check(samples, problems)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(text=st.one_of(st.binary(max_size=2000), st.text(max_size=2000)))
    def test_random_text_never_raises(self, name: str, text: bytes | str) -> None:
        check(*PARSERS[name](text, "n1", NOW_NS))

    def test_other_tools_output_never_raises(self, name: str) -> None:
        for path in TEXTS:
            check(*PARSERS[name](path.read_bytes()[:200_000], "n1", NOW_NS))

    def test_cut_off_and_damaged_texts_never_raise(self, name: str) -> None:
        chance = random.Random(name)
        for path in chance.sample(TEXTS, min(len(TEXTS), 25)):
            raw = path.read_bytes()[:60_000]
            for _ in range(4):
                check(*PARSERS[name](raw[: chance.randrange(len(raw) + 1)], "n1", NOW_NS))
                damaged = bytearray(raw)
                for _ in range(min(len(raw), 20)):
                    damaged[chance.randrange(len(raw))] = chance.randrange(256)
                check(*PARSERS[name](bytes(damaged), "n1", NOW_NS))

    @pytest.mark.parametrize(
        "piece",
        [b"a", b"\n", b",", b"<a>", b"{", b"[", b"0 ", b'"', b"GPU 0: x (UUID: ", b"| ", b"\xc3"],
    )
    def test_a_long_monotonous_text_takes_bounded_memory_and_ends(
        self, name: str, piece: bytes
    ) -> None:
        # A reader that backtracks would not end within the test's own time limit.
        text = piece * (200_000 // len(piece))
        tracemalloc.start()
        try:
            check(*PARSERS[name](text, "n1", NOW_NS))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 60_000_000, f"{peak / 1e6:.0f} MB for 0.2 MB of text"


def test_the_node_tag_is_the_one_handed_in() -> None:
    path = FIXTURES / "gpu/smi/q-x_v12_535.xml"
    samples, _ = PARSERS["nvidia-smi-xml"](path.read_bytes(), "gpu-0017", NOW_NS)
    assert {one.tag("node") for one in samples} == {"gpu-0017"}
