"""What rasdaemon kept: its database, and what the real ras-mc-ctl (0.6.8) printed of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collectors.kernel import rasdaemon
from collectors.kernel.ras_text import parse
from collectors.kernel.rasdaemon import Options, Rasdaemon
from collectors.sample import Batch, Context, Sample, Source, SourceUnavailable
from models.rules import Rules
from models.voices import Remedy
from tests.collectors.contract import NODE, SourceContract

FOLDER = Path(__file__).parents[2] / "fixtures" / "host"
# 2026-11-30 02:50 UTC, after the rows of the fixtures.
NOW_NS = 1_796_007_000_000_000_000
SECOND = 10**9

EXPECTED = {
    ("edac", "corrected", "CPU_SrcID#0_MC#1_Chan#0_DIMM#1"),
    ("edac", "uncorrected", "MC0"),
    ("aer", "corrected", "0000:3b:00"),
    ("aer", "nonfatal", "0000:9b:00"),
    ("aer", "fatal", "0000:9b:00"),
    ("mce", "corrected", "cpu12 bank7"),
    ("mce", "uncorrected", "cpu3 bank1"),
    ("mce", "corrected", "DIMM_A3"),
    ("mce", "memory_failure", ""),
    ("filesystem", "io_error", "259:1"),
    ("driver", "devlink", "0000:1c:00"),
}


def told(samples: list[Sample] | tuple[Sample, ...]) -> set[tuple[str, str, str]]:
    return {(one.tag("kind"), one.tag("code"), one.text("device")) for one in samples}


def build(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript((FOLDER / "ras-mc_event.sql").read_text())
        database.commit()
    return path


def add(path: Path, label: str, kind: str = "Corrected") -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "INSERT INTO mc_event (timestamp, err_count, err_type, err_msg, label, mc)"
            " VALUES ('2026-11-30 02:48:00 +0000', 1, ?, 'words', ?, 0)",
            (kind, label),
        )
        database.commit()


# ---- text ------------------------------------------------------------------------------------


def test_every_row_that_ras_mc_ctl_prints_is_read() -> None:
    samples, problems = parse((FOLDER / "ras-mc-ctl-full-errors.txt").read_text(), NODE, NOW_NS)
    assert told(samples) == EXPECTED
    assert problems == []
    uncorrected = next(one for one in samples if one.text("device") == "MC0")
    assert uncorrected.time_ns == 1_796_006_510 * SECOND  # 03:41:50 in a zone of its own
    dimm = next(one for one in samples if "DIMM#1" in one.text("device"))
    assert dimm.number("count") == 3.0


def test_the_database_says_the_same_as_its_printed_form(tmp_path: Path) -> None:
    body = build(tmp_path / "ras.db").read_bytes()
    samples, problems = parse(body, NODE, NOW_NS)
    assert (told(samples), problems) == (EXPECTED, [])


def test_a_summary_gives_its_counts_as_of_now() -> None:
    text = (FOLDER / "ras-mc-ctl-full-summary.txt").read_text()
    samples, problems = parse(text, NODE, NOW_NS)
    assert problems == []
    assert {one.time_ns // SECOND for one in samples} == {NOW_NS // SECOND}
    assert ("edac", "corrected", "CPU_SrcID#0_MC#1_Chan#0_DIMM#1") in told(samples)
    assert {one.tag("kind") for one in samples} == {"edac", "aer", "mce", "filesystem", "driver"}


@pytest.mark.parametrize("name", ["ras-mc-ctl-empty-errors.txt", "ras-mc-ctl-empty-summary.txt"])
def test_no_errors_is_neither_event_nor_problem(name: str) -> None:
    assert parse((FOLDER / name).read_text(), NODE, NOW_NS) == ([], [])


def test_a_section_of_a_later_version_is_left_out_and_told() -> None:
    row = "1 2026-11-30 02:47:00 +0000 error: {}\n"
    text = (
        "Memory failure events:\n"
        + row.format("pfn=0x1, page_type=dirty LRU page, action_result=Recovered")
        + "\nCXL AER uncorrectable errors:\n"
        + row.format("memdev=mem0, host=0000:0c:00.0, serial=0x1, error_status='Cache parity'")
        + "No CXL (other) events.\n"
    )
    samples, problems = parse(text, NODE, NOW_NS)
    assert [one.tag("code") for one in samples] == ["memory_failure"]
    assert [one.problem for one in problems] == [
        "CXL AER uncorrectable errors: a section that is not read"
    ]


def test_a_line_that_is_cut_off_or_changed_costs_only_itself() -> None:
    text = (FOLDER / "ras-mc-ctl-full-errors.txt").read_text().replace("Uncorrected error(s)", "U")
    samples, problems = parse(text, NODE, NOW_NS)
    assert len(samples) == len(EXPECTED) - 1
    assert ["mc_event" in one.problem for one in problems] == [True]


@pytest.mark.parametrize(
    "text", ["", "hello\n", b"SQLite format 3\0 and nothing else", b"\xff\xfe"]
)
def test_other_text_is_a_problem(text: str | bytes) -> None:
    samples, problems = parse(text, NODE, NOW_NS)
    assert samples == []
    assert problems


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build(tmp_path_factory.mktemp("ras") / "ras.db").read_bytes()


@given(cut=st.integers(0, 40_000), flip=st.integers(0, 40_000), value=st.integers(0, 255))
@example(cut=28_673, flip=3_964, value=128)  # the name of a column is no UTF-8
def test_a_broken_database_gives_no_traceback(body: bytes, cut: int, flip: int, value: int) -> None:
    broken = bytearray(body)
    broken[flip % len(broken)] = value
    parse(bytes(broken[: max(cut, 100)]), NODE, NOW_NS)


def test_a_database_that_would_keep_us_busy_for_ever_is_given_up_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bad.db"
    endless = "WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c) SELECT id FROM c"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE VIEW mc_event AS {endless}")
        database.execute("CREATE TABLE aer_event (id INTEGER PRIMARY KEY, err_type TEXT)")
        database.execute("INSERT INTO aer_event VALUES (1, 'Corrected')")
        database.commit()
    samples, problems = parse(path.read_bytes(), NODE, NOW_NS)
    assert (told(samples), problems) == ({("aer", "corrected", "")}, [])


# ---- the source ------------------------------------------------------------------------------


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "state").mkdir()
    return Context(NODE, tmp_path / "state", tmp_path / "root", lambda: NOW_NS)


@pytest.fixture
def database(context: Context) -> Path:
    return build(context.root / "var/lib/rasdaemon/ras-mc_event.db")


class TestContract(SourceContract):
    module = rasdaemon

    @pytest.fixture
    def healthy(self, context: Context, database: Path) -> Source:
        return rasdaemon.make(Options(), context)

    @pytest.fixture
    def unavailable(self, context: Context) -> Source:
        return rasdaemon.make(Options(), context)


def start(context: Context) -> Rasdaemon:
    return rasdaemon.make(Options(), context)


def labels(batch: Batch) -> list[str]:
    return [one.text("device") for one in batch.samples]


def test_each_row_is_told_once_over_restarts_too(context: Context, database: Path) -> None:
    first = start(context)
    assert told(first.collect(NOW_NS).samples) == EXPECTED
    assert first.collect(NOW_NS + SECOND).samples == ()
    first.acknowledge()
    add(database, "DIMM_B1")
    again = start(context)
    assert labels(again.collect(NOW_NS + 2 * SECOND)) == ["DIMM_B1"]


def test_what_was_not_made_safe_is_told_again(context: Context, database: Path) -> None:
    start(context).collect(NOW_NS)  # and the agent is killed before it could keep it
    assert told(start(context).collect(NOW_NS).samples) == EXPECTED


def test_a_database_that_was_begun_anew_is_read_from_its_start(
    context: Context, database: Path
) -> None:
    source = start(context)
    source.collect(NOW_NS)
    database.unlink()
    build(database)
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("DELETE FROM mc_event")
        opened.execute("DELETE FROM aer_event")
        opened.commit()
    add(database, "DIMM_C1")
    assert "DIMM_C1" in labels(source.collect(NOW_NS + SECOND))


def test_a_first_look_does_not_tell_of_earlier_boots(context: Context, database: Path) -> None:
    (context.root / "proc").mkdir()
    (context.root / "proc/stat").write_text("btime 1796006580\n")  # 02:43:00
    kinds = {one.tag("kind") for one in start(context).collect(NOW_NS).samples}
    assert kinds == {"mce", "filesystem", "driver"}


def test_a_change_under_way_is_waited_for_and_rasdaemon_is_never_kept_from_writing(
    context: Context, database: Path
) -> None:
    source = start(context)
    source.collect(NOW_NS)
    with closing(sqlite3.connect(database, isolation_level=None, timeout=0)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("DELETE FROM disk_errors")
        writer.execute(
            "INSERT INTO mc_event (timestamp, err_type, label) "
            "VALUES ('2026-11-30 02:48:00 +0000', 'Corrected', 'DIMM_D1')"
        )
        with pytest.raises(SourceUnavailable, match="under way"):
            source.collect(NOW_NS + SECOND)
        writer.execute("COMMIT")
    assert labels(source.collect(NOW_NS + 2 * SECOND)) == ["DIMM_D1"]


def test_without_a_database_the_words_say_what_to_do(context: Context) -> None:
    with pytest.raises(SourceUnavailable, match="--record"):
        start(context).collect(NOW_NS)


def test_an_uncorrected_memory_error_that_only_rasdaemon_told_is_a_fact(
    context: Context, database: Path
) -> None:
    rules = Rules()
    for one in start(context).collect(NOW_NS).samples:
        rules.observe(one, one.time_ns + SECOND)
    facts = {(fact.rule, fact.remedy) for fact in rules.facts(NOW_NS, {NODE: 0})}
    assert ("memory_uncorrected", Remedy.DRAIN) in facts
    assert ("pcie", Remedy.ALERT) in facts
