"""Bodies of plain lines that are read at once: the same samples as line by line, or not at all."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors import lines
from collectors.line_bodies import can_be_known, numbers_of
from collectors.line_reader import LineError, fold_lines, read_line
from collectors.lines import LINE_LIMIT_BYTES, Decoder
from collectors.sample import Sample

NOW_NS = 1_800_000_000_000_000_000
KNOWN = {("a",), ("a", "b"), ("b", "a"), ("a:b",), ("}",)}
# Pieces of lines that hold what JSON or Python would read in a way of their own.
PIECES = [
    "a",
    "b",
    "=",
    ",",
    "1.5",
    "-0.0",
    "2",
    "-0",
    "5e-05",
    "2E3",
    "{",
    "}",
    "[",
    "]",
    ":",
    ".",
    "},{",
]
PIECES += ["={=", "a=1.5", ",b=2.5", "b=1.5,a=2.5", "true", "null", "NaN", "Infinity", "1e999"]
PIECES += ["5e-05", "2E3"]
PIECES += ["1.5e3", "1.", ".5", "+1.5", "1_0.5", "01.5", "a.b", "=}", "\n", "\nm ", " 7", " ", "#"]


def taught() -> Decoder:
    """A decoder that has met the layouts of KNOWN."""
    decoder = Decoder()
    for names in KNOWN:
        decoder.decode(("m " + ",".join(f"{name}=1.5" for name in names)).encode(), NOW_NS)
    return decoder


def line_by_line(body: bytes) -> tuple[list[Sample], list[int], list[str]]:
    """What the exact reader makes of a body."""
    samples, numbers, problems = [], [], []
    for number, line in fold_lines(body, LINE_LIMIT_BYTES):
        try:
            sample = read_line(line, NOW_NS, 1)
        except LineError as error:
            problems.append(f"{number}: {error}")
            continue
        if sample is not None:
            samples.append(sample)
            numbers.append(number)
    return samples, numbers, problems


def written(sample: Sample) -> str:
    """A sample to the last bit: -0.0 is not 0.0, 1 is not 1.0."""
    return repr((sample.measurement, sample.tags, list(sample.fields.items()), sample.time_ns))


good_lines = st.lists(
    st.sampled_from(["m a=1.5", "m b=-0.0,a=2.5 7", "m a=1e3,b=2.5", "m a=0.1,b=2.5 9", "m }=1.5"]),
    min_size=1,
    max_size=4,
).map("\n".join)


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """Good lines with something odd in one place or two: the nearer to good, the more dangerous."""
    text = draw(good_lines)
    for piece in draw(st.lists(st.sampled_from(PIECES), max_size=2)):
        at = draw(st.integers(2, len(text)))
        text = text[:at] + piece + text[at + draw(st.integers(0, 2)) :]
    return text[2:]


@settings(max_examples=500, deadline=None)
@given(spoilt() | st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_odd_bodies_mean_what_they_mean_line_by_line(text: str) -> None:
    body = b"m " + text.encode()
    decoded = taught().decode(body, NOW_NS)
    samples, numbers, problems = line_by_line(body)
    assert list(map(written, decoded.samples)) == list(map(written, samples))
    assert decoded.numbers == numbers
    assert [f"{one.number}: {one.problem}" for one in decoded.problems] == problems


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_float_is_read_to_the_last_bit(values: list[float]) -> None:
    body = "\n".join(f"m a={value!r} {place}" for place, value in enumerate(values))
    read = [one.fields["a"] for one in taught().decode(body.encode(), NOW_NS).samples]
    assert [struct.pack("d", one) for one in read] == [struct.pack("d", one) for one in values]


@settings(deadline=None)
@given(st.from_regex(r"-?[0-9]{1,30}\.[0-9]{1,30}([eE][-+]?[0-9]{1,2})?", fullmatch=True))
def test_numbers_that_nobody_rounded_before_are_rounded_as_ever(text: str) -> None:
    (read,) = taught().decode(f"m a={text}".encode(), NOW_NS).samples
    assert struct.pack("d", read.fields["a"]) == struct.pack("d", float(text))


def test_agents_bodies_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of this would be for nothing, and nobody would notice."""
    decoder = taught()
    monkeypatch.setattr(lines, "read_line", None)
    monkeypatch.setattr(decoder, "_plain", None)
    body = b"m,node=n1 a=1.5,b=-0.25 7\n\nm,node=n2 b=2.0,a=3.5e-07 8\n"
    decoded = decoder.decode(body, NOW_NS)
    assert [one.fields for one in decoded.samples] == [
        {"a": 1.5, "b": -0.25},
        {"b": 2.0, "a": 3.5e-07},
    ]
    assert decoded.numbers == [1, 3]


@pytest.mark.parametrize(
    "texts",
    [
        (b"a=1.5}", b"{b=2.5"),
        (b"a=1.5,b", b":2.5"),  # the text between two lines lies in a name
        (b"a=[1.5", b"a=1.5]"),
        (b"a=[{=x=1.5", b"b=2.5}]"),
        (b"a=[1.5]",),
        (b"a=1.5,a.b=2",),
        (b"a=1",),
        (b"a=1,b=2e5",),
        (b"a=true,b=.5e5",),
        (b"a=-0,b=2e5",),
        (b"a=true.",),
        (b"a=1e999.",),
        (b"a=9.9e307,b=9.9e307,a=9.9e307",),
        (b"c=1.5",),  # not met before
        (b"a=1.5,b=2.5,",),
        (b"",),
    ],
)
def test_what_is_odd_is_left_to_the_reader_of_lines(texts: tuple[bytes, ...]) -> None:
    assert numbers_of(texts, KNOWN) is None


@pytest.mark.parametrize("time", ["9" * 5000, "9" * 20, "9223372036854775807", "-7", "007", "7."])
def test_times_are_read_as_ever(time: str) -> None:
    body = f"m a=1.5 {time}\nm a=2.5 8".encode()
    samples, _, problems = line_by_line(body)
    decoded = taught().decode(body, NOW_NS)
    assert list(map(written, decoded.samples)) == list(map(written, samples))
    assert [f"{one.number}: {one.problem}" for one in decoded.problems] == problems


def test_a_line_that_is_too_long_is_refused_here_too() -> None:
    decoder = Decoder(line_limit_bytes=40)
    for _ in range(2):
        decoded = decoder.decode(b"m a=1.5 7\nm,t=" + b"x" * 40 + b" a=1.5 7", NOW_NS)
        assert decoded.numbers == [1]
        assert [one.problem for one in decoded.problems] == ["longer than 40 bytes"]


def test_numbers_without_a_point_but_an_exponent_are_read_here() -> None:
    assert numbers_of((b"a=5e-05,b=-2E3", b"a=1.5"), KNOWN) == [{"a": 5e-05, "b": -2e3}, {"a": 1.5}]


def test_names_with_a_point_are_not_known_here() -> None:
    assert not can_be_known(("a", "b.c"))
    decoder = Decoder()
    for _ in range(2):
        (sample,) = decoder.decode(b"m b.c=1", NOW_NS).samples
        assert written(sample) == written(Sample("m", (), {"b.c": 1.0}, NOW_NS))


def test_a_decoder_that_forgets_names_forgets_them_here_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "_CACHE_LIMIT", 300)
    decoder = Decoder()
    for number in range(50):
        decoder.decode(f"m a{number}=1.5".encode(), NOW_NS)
    assert len(decoder._known) == len(decoder._layouts) <= 3
