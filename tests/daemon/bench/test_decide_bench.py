"""``tocsin bench decide`` measures what it says: each case opened once, and seen again."""

from __future__ import annotations

from pathlib import Path

from daemon.bench.decide import bench_decide
from daemon.drains.ledger import Ledger
from daemon.store.database import Database


def test_every_case_is_opened_once(tmp_path: Path) -> None:
    figures = list(bench_decide(tmp_path, nodes=12, steps=2))
    assert [figure.unit for figure in figures] == ["s"] * 6
    cases = sorted(
        len(Ledger(Database(path)).decisions(limit=1000)) for path in tmp_path.glob("*.db")
    )
    # Calm: nothing. Told of: one decision a node. Asking: a refusal a node.
    assert cases == [0, 12, 12]
