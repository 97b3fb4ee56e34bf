"""The embedded store holds what was committed, reads it from spool and Parquet alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sample import sample
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.parts import HOUR_NS, list_parts, read_part
from daemon.store.segments import list_segments
from daemon.store.tables import to_rows
from tests.daemon.store.keeping import END_NS, START_NS, gpu, keep, rows


def test_what_is_committed_is_read_from_spool_and_from_parquet(store: Store) -> None:
    keep(store, gpu("n2", 0, 0, temperature_celsius=40.0), gpu("n1", 1, 0, power_watts=70.5))
    expected = [
        {"time": 0, "node": "n1", "gpu": "1", "uuid": "GPU-n1-1", "power_watts": 70.5},
        {"time": 0, "node": "n2", "gpu": "0", "uuid": "GPU-n2-0", "temperature_celsius": 40.0},
    ]
    assert rows(store) == expected
    assert store.roll(START_NS, everything=True) == 1
    assert list_segments(store.spool_directory) == []
    assert rows(store) == expected
    keep(store, gpu("n1", 1, 5, power_watts=71.0))
    assert len(rows(store)) == 3


def test_what_is_not_committed_is_not_there(store: Store) -> None:
    store.append([gpu("n1", 0, 0, power_watts=1.0)])
    assert rows(store) == []


def test_rows_are_cut_by_time_tags_and_fields(store: Store) -> None:
    for second in range(10):
        for node in ("n1", "n2"):
            keep(store, gpu(node, 0, second, power_watts=float(second), temperature_celsius=1.0))
        if second == 4:
            store.roll(START_NS, everything=True)
    table = store.read(
        "gpu", START_NS + 3 * 10**9, START_NS + 6 * 10**9, {"node": "n2"}, ["power_watts"]
    )
    assert table.column("power_watts").to_pylist() == [3.0, 4.0, 5.0]
    assert table.column_names == ["time", "node", "gpu", "uuid", "power_watts"]
    assert set(table.column("node").to_pylist()) == {"n2"}
    assert len(rows(store, tags={"node": ["n1", "n2"]})) == 20
    assert rows(store, tags={"rack": "r1"}) == []
    assert rows(store, tags={"node": "n9"}) == []
    assert rows(store, "nothing") == []


def test_the_same_point_is_stored_once_and_its_last_value_counts(store: Store) -> None:
    keep(store, gpu("n1", 0, 0, power_watts=1.0, temperature_celsius=30.0))
    keep(store, gpu("n1", 0, 0, power_watts=2.0))
    expected = {"power_watts": 2.0, "temperature_celsius": 30.0}
    for _ in range(2):
        (row,) = rows(store)
        assert expected.items() <= row.items()
        store.roll(START_NS, everything=True)
    keep(store, gpu("n1", 0, 0, memory_used_bytes=5.0))
    for _ in range(2):
        (row,) = rows(store)
        assert (expected | {"memory_used_bytes": 5.0}).items() <= row.items()
        store.roll(START_NS, everything=True)


def test_late_rows_go_to_their_own_hour(store: Store) -> None:
    keep(store, gpu("n1", 0, 7200, power_watts=3.0))
    store.roll(START_NS, everything=True)
    keep(store, gpu("n1", 0, 0, power_watts=1.0), gpu("n1", 0, -3600, power_watts=0.0))
    keep(store, gpu("n1", 0, 3600, power_watts=2.0))
    store.roll(START_NS, everything=True)
    assert [row["power_watts"] for row in rows(store)] == [0.0, 1.0, 2.0, 3.0]
    hours = {part.start_ns for part in list_parts(store.parquet_directory, "gpu")}
    assert hours == {START_NS + h * HOUR_NS for h in (-1, 0, 1, 2)}


def test_new_fields_and_tags_join_the_old_ones(store: Store) -> None:
    keep(store, sample("host", START_NS, {"load_1m": 1.0}, node="n1"))
    store.roll(START_NS, everything=True)
    keep(store, sample("host", START_NS, {"mce_total": 2.0}, node="n1", rack="r1"))
    found = rows(store, "host")
    assert found == [
        {"time": 0, "node": "n1", "load_1m": 1.0},
        {"time": 0, "node": "n1", "rack": "r1", "mce_total": 2.0},
    ]


def test_a_field_that_is_a_text_one_day_keeps_both(store: Store) -> None:
    keep(store, sample("event", START_NS, {"code_value": 1.5}, node="n1"))
    store.roll(START_NS, everything=True)
    keep(store, sample("event", START_NS + 1, {"code_value": "none"}, node="n1"))
    keep(store, sample("event", START_NS + 2, {"code_value": 2.0}, node="n1"))
    assert [row["code_value"] for row in rows(store, "event")] == ["1.5", "none", "2.0"]


def test_a_field_called_like_a_tag_gets_another_name(store: Store) -> None:
    keep(store, sample("event", START_NS, {"device": "0000:9b:00"}, node="n1", device="gpu3"))
    (row,) = rows(store, "event")
    assert (row["device"], row["device_1"]) == ("gpu3", "0000:9b:00")


def test_odd_names_of_measurements_are_safe_on_disk(store: Store, tmp_path: Path) -> None:
    for name in ("../evil", ".", "..", "a/b", "ä ö"):
        keep(store, sample(name, START_NS, {"f": 1.0}, node="n1"))
    store.roll(START_NS, everything=True)
    assert sorted(store.measurements()) == sorted(["../evil", ".", "..", "a/b", "ä ö"])
    for name in store.measurements():
        assert len(rows(store, name)) == 1
    assert not (tmp_path.parent / "evil").exists()


def test_events_land_in_sqlite_once_however_often_they_are_replayed(store: Store) -> None:
    event = sample(
        "event",
        START_NS,
        {"text": "Xid 79", "severity": 3.0, "device": "0000:9b:00", "pid": 7.0, "process": "p"},
        node="n1",
        kind="xid",
        code="79",
    )
    for _ in range(3):
        keep(store, event)
    (found,) = store.events("n1")
    assert (found.kind, found.code, found.severity, found.device) == (
        "xid",
        "79",
        3.0,
        "0000:9b:00",
    )
    assert store.events(kinds=["aer"]) == []
    assert store.events(since_ns=START_NS + 1) == []
    assert store.events(min_severity=3.0) == [found]


def test_a_batch_mark_is_durable_with_its_samples(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([gpu("n1", 0, 0, power_watts=1.0)], ("n1", "abc", 5))
    assert not store.marks.seen("n1", "abc", 5)
    store.commit()
    for _ in range(3):
        assert store.marks.seen("n1", "abc", 5)
        assert store.marks.seen("n1", "abc", 4)
        assert not store.marks.seen("n1", "abc", 6)
        assert not store.marks.seen("n2", "abc", 5)
        store.roll(START_NS, everything=True)
        store.close()
        store = Store(tmp_path)
    store.close()


def test_a_second_writer_is_refused_and_a_reader_is_not(store: Store, tmp_path: Path) -> None:
    keep(store, gpu("n1", 0, 0, power_watts=1.0))
    with pytest.raises(StoreUnavailableError, match="another process has it open"):
        Store(tmp_path)
    code = (
        "import sys; from pathlib import Path; from daemon.store.reader import Reader;"
        f"print(Reader(Path(sys.argv[1])).read('gpu', {START_NS}, {END_NS}).num_rows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


points = st.tuples(
    st.sampled_from(["n1", "n2"]),
    st.integers(0, 5),
    st.dictionaries(
        st.sampled_from("abc"),
        st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
        min_size=1,
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(points, max_size=5) | st.just("roll") | st.just("reopen"), max_size=8))
def test_the_store_holds_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    directory = tmp_path_factory.mktemp("model")
    store = Store(directory)
    model: dict[tuple[str, int], dict[str, Any]] = {}
    text: set[str] = set()  # a field that was a text once is one everywhere
    for step in steps:
        if step == "roll":
            store.roll(START_NS, everything=True)
        elif step == "reopen":
            store.close()
            store = Store(directory)
        else:
            for node, second, fields in step:
                # One commit each: within one, points of different fields have no order.
                keep(store, sample("event", START_NS + second, dict(fields), node=node))
                model.setdefault((node, second), {}).update(fields)
                text |= {name for name, value in fields.items() if isinstance(value, str)}
    table = store.read("event", START_NS, START_NS + 100)
    found = {
        (row["node"], row["time_ns"] - START_NS): {
            name: row[name] for name in "abc" if row.get(name) is not None
        }
        for row in to_rows(table)
    }
    store.close()
    for key, fields in model.items():
        assert set(found[key]) == set(fields)
        for name, value in fields.items():
            kept = found[key][name]
            assert isinstance(kept, str) == (name in text)
            assert (kept if isinstance(value, str) else float(kept)) == value
    assert len(found) == len(model)


def test_one_node_of_many_is_read_without_reading_the_others(store: Store) -> None:
    for second in range(4):
        keep(store, *(gpu(f"n{i:05d}", 0, second, power_watts=float(i)) for i in range(40_000)))
    expected = [7.0] * 4
    assert [row["power_watts"] for row in rows(store, tags={"node": "n00007"})] == expected
    store.roll(START_NS, everything=True)
    assert [row["power_watts"] for row in rows(store, tags={"node": "n00007"})] == expected
    (part,) = list_parts(store.parquet_directory, "gpu")
    table = read_part(part.path, None, {"node": "n00007"})
    assert table.num_rows < 70_000, "only the row groups that may hold the node"
    assert read_part(part.path, None, {}, END_NS).num_rows == 0
    assert rows(store, tags={"node": "zzz"}) == []


@pytest.mark.parametrize("step_hours", [-1, 1])
def test_a_clock_that_jumps_an_hour_loses_nothing(tmp_path: Path, step_hours: int) -> None:
    now_ns = [START_NS]
    store = Store(tmp_path, now_ns=lambda: now_ns[0])
    for second in range(100):
        if second == 50:
            now_ns[0] += step_hours * HOUR_NS
        now_ns[0] += 10**9
        keep(store, sample("gpu", now_ns[0], {"number": float(second)}, node="n1"))
        if second % 9 == 0:
            store.roll(now_ns[0])
    store.roll(now_ns[0], everything=True)
    store.upkeep(now_ns[0] + 3 * HOUR_NS)
    assert sorted(row["number"] for row in rows(store)) == [float(n) for n in range(100)]
    store.close()


def test_text_that_is_no_unicode_is_kept_as_far_as_it_is(store: Store) -> None:
    odd = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
    fields = {"text": odd, odd: 1.0}
    keep(store, sample("event", START_NS, fields, node="n1", kind=odd))
    for _ in range(2):
        (row,) = rows(store, "event")
        assert row["text"] == row["kind"] == "caf? ?"
        store.roll(START_NS, everything=True)
    assert list_segments(store.spool_directory) == []


def test_a_frame_that_nobody_can_read_does_not_stop_the_rolling(store: Store) -> None:
    keep(store, gpu("n1", 0, 0, power_watts=1.0))
    store._writer.append(b"\x02\0\0\0{}", 1, START_NS)  # a right checksum around nonsense
    store._writer.rotate()
    keep(store, gpu("n1", 0, 1, power_watts=2.0))
    assert [row["power_watts"] for row in rows(store)] == [1.0, 2.0]
    assert store.roll(START_NS, everything=True) == 2
    assert [row["power_watts"] for row in rows(store)] == [1.0, 2.0]
    assert len(list((store.directory / "damaged").iterdir())) == 1
