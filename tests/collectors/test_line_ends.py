"""Ends of lines that were read before: the same samples as line by line, or not at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors import line_ends
from collectors.line_ends import Ends
from collectors.lines import Decoder
from tests.collectors.test_line_bodies import NOW_NS, line_by_line, written

END = "b=0.0,c=1.5,d=-0.0,e=2e5"
ENDS = [END, "b=7.0,c=1.5,d=-0.0,e=2e5"]
# What may stand where a line was cut, or pretend to.
PIECES = [",b=", ",b=0.0", END, "," + END, ",c=1.5", ",d=-0.0,e=2e5", "b=", ",", "=", "a=1.5", "x="]
PIECES += [
    ",e=2e5",
    "1",
    ".",
    "}",
    ",{",
    "[",
    "\n",
    "\nm ",
    " 7",
    "e",
    ",x=1.5",
    ",a=2.5",
    "bb=1.5",
]


def taught() -> Decoder:
    """A decoder that cuts lines of ``m`` before ``b``, and knows ENDS."""
    decoder = Decoder()
    for number in range(200):
        decoder.decode(f"m a={number}.5,{END} 7\nn x={number}.5 7".encode(), NOW_NS)
    for end in [ENDS[1], "bb=1.5", "x=1.5," + END]:
        for _ in range(2):
            decoder.decode(f"m a=1.5,{end}".encode(), NOW_NS)
    mark, known = decoder._ends.cut_of("m").known
    assert mark == b",b="
    assert set(known) >= {end.removeprefix("b=").encode() for end in ENDS}
    return decoder


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """Lines with known ends, and something odd in one place or two."""
    lines = st.builds("a={},{}{}".format, st.sampled_from(["1.5", "2.5", "3"]),
                      st.sampled_from(ENDS), st.sampled_from(["", " 7", " 8"]))  # fmt: skip
    text = "\nm ".join(draw(st.lists(lines, min_size=1, max_size=3)))
    for piece in draw(st.lists(st.sampled_from(PIECES), max_size=2)):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + piece + text[at + draw(st.integers(0, 4)) :]
    return text


TAUGHT = taught()


@settings(max_examples=500, deadline=None)
@given(spoilt() | st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_lines_with_known_ends_mean_what_they_mean_line_by_line(text: str) -> None:
    body = b"m " + text.encode()
    samples, numbers, problems = line_by_line(body)
    for _ in range(2):  # the second time by what the first taught
        decoded = TAUGHT.decode(body, NOW_NS)
        assert list(map(written, decoded.samples)) == list(map(written, samples))
        assert decoded.numbers == numbers
        assert [f"{one.number}: {one.problem}" for one in decoded.problems] == problems


def test_a_name_that_comes_twice_teaches_nothing() -> None:
    decoder = taught()
    body = f"m a=1.5,{END},a=2.5,{ENDS[1]}"
    samples, _, _ = line_by_line(body.encode())
    for _ in range(3):
        decoded = decoder.decode(body.encode(), NOW_NS)
        assert list(map(written, decoded.samples)) == list(map(written, samples))


def test_of_a_line_with_a_known_end_only_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of this would be for nothing, and nobody would notice."""
    decoder = taught()
    seen: list[bytes] = []
    whole = decoder._read

    def read(texts: list[bytes], *rest: object) -> object:
        seen.extend(texts)
        return whole(texts, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder, "_read", read)
    samples = decoder.decode(f"m a=1.5,{END} 7\nm a=2.5,{ENDS[1]} 8".encode(), NOW_NS).samples
    assert seen == [b"a=1.5", b"a=2.5"]
    assert [list(one.fields.items()) for one in samples] == [
        [("a", 1.5), ("b", 0.0), ("c", 1.5), ("d", -0.0), ("e", 2e5)],
        [("a", 2.5), ("b", 7.0), ("c", 1.5), ("d", -0.0), ("e", 2e5)],
    ]
    samples[0].fields["e"] = 9.0  # type: ignore[index]
    (again,) = decoder.decode(f"m a=1.5,{END} 7".encode(), NOW_NS).samples
    assert again.fields["e"] == 2e5, "each sample has fields of its own"


def test_the_cut_moves_behind_a_field_that_begins_to_change() -> None:
    decoder = taught()
    for number in range(400):
        end = f"b=0.0,c={number}.5,d=1.5,e=1.5,f=1.5,g=1.5"
        decoder.decode(f"m a=1.5,{end}".encode(), NOW_NS)
    mark, known = decoder._ends.cut_of("m").known
    assert (mark, list(known)) == (b",d=", [b"1.5,e=1.5,f=1.5,g=1.5"])


def test_lines_that_are_alike_nowhere_are_cut_nowhere() -> None:
    decoder = Decoder()
    for number in range(400):
        decoder.decode(f"m a=1.5,b=1.5,c=1.5,d=1.5,e={number}.5".encode(), NOW_NS)
    assert decoder._ends.cut_of("m").known == (b"", {})


def test_ends_are_kept_within_their_room() -> None:
    decoder = taught()
    decoder._ends = Ends(room_bytes=10_000)
    held: list[int] = []
    for number in range(2000):
        body = (
            f"m a={number}.5,{END}" if number < 200 else f"m a=1.5,b={number}.5,c=1.5,d=-0.0,e=2e5"
        )
        (one,) = decoder.decode(body.encode(), NOW_NS).samples
        assert len(one.fields) == 5
        assert decoder._ends.size_bytes <= 11_000
        held.append(len(decoder._ends.cut_of("m").known[1]))
    assert 10 < max(held) <= 11_000 // 800
    assert held[-1] < max(held), "and then they were forgotten"


def test_measurements_without_end_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_ends, "_MEASUREMENTS", 3)
    decoder = Decoder()
    for number in range(50):
        for _ in range(2):
            decoder.decode(f"m{number} a=1.5".encode(), NOW_NS)
    assert 0 < len(decoder._ends._cuts) <= 3


def read_whole(decoder: Decoder, body: bytes, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether ``body`` needs no look at single lines."""
    alone: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "_plain", lambda *_: alone.append(1))
        decoder.decode(body, NOW_NS)
    return not alone


def test_a_beginning_that_is_new_before_a_known_end_is_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One node has a field less than all others: its lines are not read one by one for ever."""
    decoder = taught()
    body = f"m a=1.5,{END} 7\nm a=1.5,n=2.5,{END} 8".encode()
    for _ in range(2):
        decoder.decode(body, NOW_NS)
    assert read_whole(decoder, body, monkeypatch)


def test_what_a_sender_of_many_layouts_has_forgotten_is_learned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = taught()
    body = f"m a=1.5,{END} 7\nm a=2.5,{ENDS[1]} 8".encode()
    assert read_whole(decoder, body, monkeypatch)
    decoder._layout_names = 10**9
    decoder._make_room(1)
    for _ in range(2):
        decoder.decode(body, NOW_NS)
    assert read_whole(decoder, body, monkeypatch)


def test_a_sender_that_invents_measurements_costs_nobody_the_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_ends, "_MEASUREMENTS", 3)
    decoder = taught()
    for number in range(50):
        for _ in range(2):
            decoder.decode(f"invented{number} a=1.5".encode(), NOW_NS)
    assert decoder._ends.cut_of("m").known[0] == b",b="


def test_a_short_end_is_reckoned_with_what_a_table_of_it_costs() -> None:
    decoder = taught()
    before = decoder._ends.size_bytes
    decoder.decode(b"m a=1.5,b=12.5", NOW_NS)
    decoder.decode(b"m a=1.5,b=12.5", NOW_NS)
    assert b"12.5" in decoder._ends.cut_of("m").known[1]
    assert decoder._ends.size_bytes - before > 500
