"""journalctl -o export, as journalctl 252 wrote it: fields as text and as bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.kernel import export as kernel_export
from collectors.kernel.lines import parse

FIXTURES = Path(__file__).parents[2] / "fixtures/kernel"
BODY = (FIXTURES / "journal-252.export").read_bytes()
NOW_NS = 1_796_007_000_000_000_000


def codes(body: bytes) -> list[tuple[str, str]]:
    samples, _ = parse(body, "n3", NOW_NS)
    return [(one.tag("kind"), one.tag("code")) for one in samples]


def test_entries_of_the_kernel_are_read_whether_text_or_bytes() -> None:
    samples, problems = parse(BODY, "n3", NOW_NS)
    assert codes(BODY) == [("xid", "79"), ("xid", "31"), ("filesystem", "readonly")]
    assert problems == []
    assert samples[0].time_ns == 1_796_006_510_250_000_000
    assert samples[1].text("process") == "tr\ufffdiner"


def test_bytes_with_line_ends_make_no_lines_of_their_own() -> None:
    """The third entry is a program's; its message holds a copy of an Xid after a line end."""
    assert "NVRM: Xid (PCI:0000:1b:00): 79, pid=1\nNVRM" in BODY.decode("latin-1")
    assert ("xid", "79") in codes(BODY)
    assert codes(BODY).count(("xid", "79")) == 1


@pytest.mark.parametrize("cut", [BODY.index(b"MESSAGE\n") + 12, len(BODY) - 30])
def test_an_entry_that_is_cut_off_is_left_out_and_told(cut: int) -> None:
    samples, problems = parse(BODY[:cut], "n3", NOW_NS)
    assert samples[0].tag("code") == "79"
    assert ["cut off" in one.problem for one in problems] == [True]


def test_a_length_that_lies_costs_the_rest_and_no_memory() -> None:
    at = BODY.index(b"MESSAGE\n") + 8
    samples, problems = parse(BODY[:at] + b"\xff" * 8 + BODY[at + 8 :], "n3", NOW_NS)
    assert [one.tag("code") for one in samples] == ["79"]
    assert problems


def test_what_is_no_field_costs_its_entry_only() -> None:
    body = BODY.replace(b"_TRANSPORT=kernel\n", b"what is this\n", 1)
    assert codes(body) == [("xid", "31"), ("filesystem", "readonly")]


def test_other_logs_are_no_export() -> None:
    assert not kernel_export.is_export(b"MESSAGE=hello\n")
    assert not kernel_export.is_export(b"Nov 30 02:41:47 gpu07 kernel: hello\n")


@given(st.binary(max_size=400), st.integers(0, len(BODY)))
def test_no_bytes_give_a_traceback(noise: bytes, at: int) -> None:
    parse(BODY[:at] + noise + BODY[at:], "n3", NOW_NS)
    list(kernel_export.records(noise))


@pytest.mark.parametrize(
    "form", ["short-monotonic", "short-delta", "short-iso-precise", "with-unit", "verbose"]
)
def test_every_form_of_journalctl_tells_programs_from_the_kernel(form: str) -> None:
    text = (FIXTURES / f"journal-252.{form}.txt").read_bytes()
    samples, problems = parse(text, "n3", NOW_NS)
    assert [(one.tag("code"), one.text("device")) for one in samples] == [
        ("79", "0000:9b:00"),
        ("readonly", "nvme0n1p2"),
    ]
    assert problems == []
