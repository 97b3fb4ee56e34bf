"""A sample that cannot be packed costs itself, and never the rows of others in its frame."""

from __future__ import annotations

from typing import Any

import pytest

from collectors.sample import sample
from daemon.store.packing import Packer, open_frame


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
