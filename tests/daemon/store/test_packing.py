"""A sample that cannot be packed costs itself, and never the rows of others in its frame."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collectors.sample import sample
from daemon.frames import frame
from daemon.store.embedded import Store
from daemon.store.packing import Packer, open_frame
from daemon.store.tail import Tail


@pytest.mark.parametrize(
    ("time_ns", "fields"),
    [
        (253_402_300_799 * 10**9, {"a": 1.0, "b": 2.0}),  # the last second of the year 9999
        (7, {"a": 1.0, "b": 10**400}),
        (7, {"a": 1.0, "b": None}),
        (7, {"a": 1.0, "b": "text", "c": 10**400}),
    ],
)
def test_what_cannot_be_packed_leaves_the_frame_whole(time_ns: int, fields: Any) -> None:
    packer = Packer()
    plain = {name: "x" if isinstance(value, str) else 1.0 for name, value in fields.items()}
    packer.add([sample("event", 1, plain, node="n1")])
    with pytest.raises((ValueError, TypeError, OverflowError)):
        packer.add([sample("event", time_ns, fields, node="n2")])
    packer.add([sample("event", 2, plain, node="n1")])
    (columns,) = open_frame(packer.payload()).columns()
    assert columns.times.tolist() == [1, 2]
    assert columns.numbers.tolist() == [[1.0] * columns.numbers.shape[1]] * 2
    assert len(columns.series) == 2


def test_a_frame_at_odds_with_itself_stops_neither_start_nor_reader_nor_sink(
    tmp_path: Path,
) -> None:
    """Its checksum is right: an earlier version wrote it so."""
    packer = Packer()
    packer.add([sample("event", 1, {"severity": 1.0}, node="n1", kind="k")])
    odd = packer.payload().replace(b'"rows":1', b'"rows":2')
    with closing(Store(tmp_path)) as store:
        tail = Tail(tmp_path, "sink")
        store.append([sample("event", 2, {"severity": 1.0}, node="n1", kind="k")])
        store.commit()
    path = next((tmp_path / "spool").iterdir())
    path.write_bytes(frame(odd) + path.read_bytes())
    with closing(Store(tmp_path)) as store:
        assert store.read("event", 0, 10).num_rows == 1
        found = tail.read()
        assert found is not None
        assert [one.rows for one in found[0]] == [1]
        store.roll(2**62, everything=True)
        assert store.read("event", 0, 10).num_rows == 1
        assert len(list((tmp_path / "damaged").iterdir())) == 1
