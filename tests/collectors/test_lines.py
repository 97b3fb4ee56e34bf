import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.lines import LINE_LIMIT_BYTES, Decoder, decode, encode
from collectors.sample import Sample, sample

NOW_NS = 1_780_000_000_000_000_000


def one(line: bytes, precision: str = "ns") -> Sample:
    decoded = Decoder().decode(line, NOW_NS, precision)
    assert not decoded.problems, decoded.problems
    (found,) = decoded.samples
    return found


def refusal(line: bytes) -> str:
    decoded = Decoder().decode(line, NOW_NS)
    assert not decoded.samples, decoded.samples
    (problem,) = decoded.problems
    return problem.problem


GOOD = [
    (b"m,b=2,a=1 f=1 7", sample("m", 7, {"f": 1.0}, a="1", b="2")),
    (b"m f=12i,g=-3i,h=5u 7", sample("m", 7, {"f": 12.0, "g": -3.0, "h": 5.0})),
    (b"m f=9223372036854775807i 7", sample("m", 7, {"f": 9223372036854775807.0})),
    (b"m f=t,g=TRUE,h=false 7", sample("m", 7, {"f": 1.0, "g": 1.0, "h": 0.0})),
    (b"m f=.5,g=5.,h=1e+5,i=-1E-3 7", sample("m", 7, {"f": 0.5, "g": 5.0, "h": 1e5, "i": -1e-3})),
    (b'm f="a\\"b\\\\c\\d" 7', sample("m", 7, {"f": 'a"b\\c\\d'})),
    (b'm f="a,b=c d",g=2 7', sample("m", 7, {"f": "a,b=c d", "g": 2.0})),
    (b'm f="" 7', sample("m", 7, {"f": ""})),
    (b'm f="a\nb",g=1 7', sample("m", 7, {"f": "a\nb", "g": 1.0})),
    (b"m,a=x\\,y\\=z\\ w f=1 7", sample("m", 7, {"f": 1.0}, a="x,y=z w")),
    (b"m,a=x\\y f=1 7", sample("m", 7, {"f": 1.0}, a="x\\y")),
    (b"m\\,x\\ y f\\ g=1 7", sample("m,x y", 7, {"f g": 1.0})),
    (b'm,a="x" f=1 7', sample("m", 7, {"f": 1.0}, a='"x"')),
    ('m,ö=ü f="日本" 7'.encode(), sample("m", 7, {"f": "日本"}, ö="ü")),
    (b"m f=1", sample("m", NOW_NS, {"f": 1.0})),
    (b"m f=1\r\n", sample("m", NOW_NS, {"f": 1.0})),
    (b"m f=1 7\r\n", sample("m", 7, {"f": 1.0})),
    (b"m f=1 -5", sample("m", -5, {"f": 1.0})),
    (b"  m  f=1  7  ", sample("m", 7, {"f": 1.0})),
    (b"m f=1,f=2 7", sample("m", 7, {"f": 2.0})),
    (b"m time=1,f=2 7", sample("m", 7, {"f": 2.0})),
    (b"# a comment\n\n  # another\nm f=1 7\n", sample("m", 7, {"f": 1.0})),
    (b'm f="\xff" 7', sample("m", 7, {"f": "\ufffd"})),
]


@pytest.mark.parametrize(("line", "expected"), GOOD, ids=[repr(line) for line, _ in GOOD])
def test_takes_what_influxdb_takes_with_the_same_meaning(line: bytes, expected: Sample) -> None:
    assert one(line) == expected


REFUSED = [
    (b"m,a=1,a=2 f=1 7", "duplicate tags"),
    (b"m,time=1 f=1 7", '"time"'),
    (b"m f=NaN 7", "invalid number"),
    (b"m f=inf 7", "invalid number"),
    (b"m f=-Infinity 7", "invalid number"),
    (b"m f=1e999 7", "out of range"),
    (b"m f=9223372036854775808i 7", "out of range"),
    (b"m f=-1u 7", "out of range"),
    (b"m f=1_0 7", "invalid number"),
    (b"m f=+1 7", "invalid number"),
    (b"m f=0x10 7", "invalid number"),
    (b"m f=\xd9\xa1 7", "invalid number"),
    (b"m f=1 1_0", "bad timestamp"),
    (b"m f=1 1.5", "bad timestamp"),
    (b"m f=1 7 7", "bad timestamp"),
    (b"m f=1 9223372036854775807", "outside range"),
    (b'm f="x 7', "unbalanced quotes"),
    (b'm f="x"y 7', "after the closing quote"),
    (b'm f=1,f="x" 7', "type conflict"),
    (b"m,a= f=1", "missing tag value"),
    (b"m,=a f=1", "missing tag key"),
    (b"m,a=1=2 f=1", "invalid tag format"),
    (b",a=1 f=1", "missing measurement"),
    (b"m", "missing fields"),
    (b"m time=1 7", "missing fields"),
    (b"m f 7", "invalid field format"),
    (b"m f= 7", "missing field value"),
    (b"m =1 7", "missing field key"),
    (b"m f=1,  7", "invalid field format"),
    (b"m f=" + b"1" * LINE_LIMIT_BYTES, "longer than"),
    (b"m," + b",".join(b"t%d=1" % i for i in range(99)) + b" f=1", "more than 32 tags"),
]


@pytest.mark.parametrize(("line", "why"), REFUSED, ids=[repr(line[:30]) for line, _ in REFUSED])
def test_refuses_the_line_and_says_why(line: bytes, why: str) -> None:
    assert why in refusal(line)


@pytest.mark.parametrize("line", [line for line, _ in REFUSED if b"\n" not in line])
def test_a_line_seen_before_is_judged_as_strictly(line: bytes) -> None:
    # The names of a good line are kept; a bad line with the same names must not ride on them.
    decoder = Decoder()
    good = b"m f=1 7\nm,a=1 f=1 7\nm f=1,g=2 7\nm f_a=1,g=2 7"
    assert len(decoder.decode(good + b"\n" + good, NOW_NS).samples) == 8
    assert decoder.decode(line, NOW_NS).problems


def test_misplaced_separators_do_not_pass_for_a_known_layout() -> None:
    decoder = Decoder()
    decoder.decode(b"m a=1,b=2 7", NOW_NS)
    for line in (b"m a,1=b,2 7", b"m a,1=b=2 7", b"m a=1=b=2 7", b"m a=1,b,2 7"):
        decoded = decoder.decode(line, NOW_NS)
        assert decoded.problems, line


def test_bad_lines_are_named_by_number_and_cost_no_good_one() -> None:
    body = b'm f=1 1\nm f=oops 2\nm f="a\nb" 3\nm f="open 5\nm f=4 6\n'
    decoded = Decoder().decode(body, NOW_NS)
    assert [s.time_ns for s in decoded.samples] == [1, 3, 6]
    assert [(p.number, p.line) for p in decoded.problems] == [(2, "m f=oops 2"), (5, 'm f="open 5')]


@pytest.mark.parametrize(("precision", "unit"), [("s", 10**9), ("ms", 10**6), ("us", 10**3)])
def test_precision_scales_the_time(precision: str, unit: int) -> None:
    assert one(b"m f=1 1780000000", precision).time_ns == 1780000000 * unit
    assert decode(b"m f=1 3\nm f=1 3", 0, precision).samples[1].time_ns == 3 * unit


def test_an_unknown_precision_is_an_error() -> None:
    with pytest.raises(ValueError, match="precision"):
        decode(b"m f=1", 0, "weeks")


names = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\0"), min_size=1
).filter(lambda name: not name.endswith("\\") and name != "time" and name == name.strip())
numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(blacklist_categories=("Cs",)))
samples = st.builds(
    Sample,
    names.filter(lambda name: not name.startswith("#")),
    st.dictionaries(names, names, max_size=5).map(lambda tags: tuple(sorted(tags.items()))),
    st.dictionaries(
        names.filter(lambda name: not re.search(r'\\[\\,= "]', name)),
        numbers | texts,
        min_size=1,
        max_size=5,
    ),
    st.integers(-(2**62), 2**62),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(samples, max_size=5))
def test_what_is_encoded_is_decoded_exactly(written: list[Sample]) -> None:
    for _ in range(2):  # the second time by the cached names
        decoded = decode(encode(written), NOW_NS)
        assert not decoded.problems
        assert decoded.samples == written


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.text('mf=, 1"\\\n\ti.-e#', max_size=60).map(str.encode))
def test_any_bytes_give_samples_or_problems_never_an_exception(body: bytes) -> None:
    decoded = decode(body, NOW_NS)
    for found in decoded.samples:
        assert found.measurement
        assert found.fields
        assert all(isinstance(v, str) or math.isfinite(v) for v in found.fields.values())


def test_what_the_format_cannot_hold_is_changed_or_left_out() -> None:
    odd = Sample("#m", (("a", "x\ny"), ("b", "z\\")), {"f": float("nan"), "g": 1.0}, 7)
    assert encode([odd, Sample("m", (), {"f": float("inf")}, 7)]) == b"_m,a=x\\ y,b=z/ g=1.0 7\n"


def test_hostile_bodies_cost_no_more_than_their_size() -> None:
    started = time.process_time()
    for body in (b'm f="' + b"\n" * 300_000, b'm f="\n' * 50_000, b'm f="a\n",' * 40_000):
        Decoder().decode(body, NOW_NS)
    assert time.process_time() - started < 10
