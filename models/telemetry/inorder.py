"""Rows in order of time, however many there are and however they came: sorted runs on disk, merged.

Memory holds one run while it is filled, and a few thousand rows of each run while they are merged.
Rows of one time stay in the order in which they came, and in one piece.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

_RUN_BYTES = 64 * 1024 * 1024
_BATCH_ROWS = 8 * 1024
_PIECE_ROWS = 500_000
# All GPUs of ten thousand nodes say twenty quantities in 1.6 million rows of one time.
_ONE_TIME_ROWS = 5_000_000


def in_order(
    tables: Iterable[pa.Table], time: str, scratch: Path, run_bytes: int = _RUN_BYTES
) -> Iterator[pa.Table]:
    """All rows of ``tables`` (same columns) sorted by ``time``, a timestamp without nulls.

    What does not fit into memory lies in a folder of its own in ``scratch`` meanwhile. Raises
    ValueError for more rows of one time than any fleet has, and OSError.
    """
    with contextlib.ExitStack() as stack:
        runs: list[_Run] = []
        folder: Path | None = None
        waiting: list[pa.Table] = []
        size = 0
        for table in tables:
            waiting.append(table)
            size += table.nbytes
            if size >= run_bytes:
                if folder is None:
                    folder = Path(tempfile.mkdtemp(prefix=".sorting-", dir=scratch))
                    stack.callback(shutil.rmtree, folder, ignore_errors=True)
                path = folder / f"{len(runs)}.arrow"
                runs.append(_spill(_sorted(waiting, time), path, time))
                stack.callback(runs[-1].close)
                waiting, size = [], 0
        if waiting:
            runs.append(_Run(_batches(_sorted(waiting, time)), time))
        yield from _gathered(_merged(runs, time))


class _Run:
    """Sorted rows, of which a few are in memory."""

    def __init__(
        self, batches: Iterator[pa.Table], time: str, file: pa.NativeFile | None = None
    ) -> None:
        self._batches = batches
        self._time = time
        self._file = file
        self.rows: pa.Table | None = next(batches, None)
        self.ended = False  # nothing is left but ``rows``

    def last(self) -> pa.Scalar | None:
        """Up to where all its rows are in memory, but for later ones of that very time."""
        if self.rows is None or self.ended:
            return None
        return self.rows.column(self._time)[-1]

    def more(self) -> None:
        """Takes some more rows into memory."""
        following = next(self._batches, None)
        if following is None:
            self.ended = True
        else:
            self.rows = pa.concat_tables([one for one in (self.rows, following) if one is not None])

    def before(self, time: pa.Scalar | None) -> pa.Table | None:
        """Takes out the rows that are earlier than ``time``; all without one."""
        if self.rows is None:
            return None
        if time is None:
            found, self.rows = self.rows, None
            return found
        count = pc.sum(pc.less(self.rows.column(self._time), time)).as_py() or 0
        found = self.rows.slice(0, count)
        rest = self.rows.slice(count)
        self.rows = rest if rest.num_rows else next(self._batches, None)
        return found if count else None

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()


def _merged(runs: list[_Run], time: str) -> Iterator[pa.Table]:
    while runs:
        ends = [end for run in runs if (end := run.last()) is not None]
        cut = min(ends, key=lambda end: end.value) if ends else None
        found = [table for run in runs if (table := run.before(cut)) is not None]
        if found:
            yield _sorted(found, time) if len(found) > 1 else found[0]
        elif cut is not None:  # all that is in memory of one run is of the same time
            for run in runs:
                if run.last() == cut:
                    run.more()
            if sum(run.rows.num_rows for run in runs if run.rows is not None) > _ONE_TIME_ROWS:
                raise ValueError(f"over {_ONE_TIME_ROWS} rows of one time are no readings")
        runs = [run for run in runs if run.rows is not None]


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= _PIECE_ROWS:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _sorted(tables: list[pa.Table], time: str) -> pa.Table:
    """In order of time, and as they came where that is the same: the sort is a stable one."""
    return pa.concat_tables(tables).sort_by(time)


def _batches(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, _BATCH_ROWS):
        yield table.slice(start, _BATCH_ROWS)


def _spill(table: pa.Table, path: Path, time: str) -> _Run:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=_BATCH_ROWS)
    file = pa.OSFile(str(path))
    reader = pa.ipc.open_file(file)
    batches = (
        pa.Table.from_batches([reader.get_batch(number)])
        for number in range(reader.num_record_batches)
    )
    return _Run(batches, time, file)
