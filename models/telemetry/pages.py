"""What a Parquet file unpacks to, found out before anything of it is unpacked.

The footer says how large everything is, and it may lie: a page of a few kilobytes can ask for two
gigabytes, and the reader gives them. So the header of each page is read (a few dozen bytes), as
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift has it, in
Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).

The footer's words on columns are read here as well: where they are at odds with the schema, Arrow
(to 26 at least) ends the process that asks it for them.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from models.telemetry.unpack import TooLargeError

# Writers make pages of a megabyte, a few of up to a hundred.
_PAGE_LIMIT_BYTES = 256 * 1024**2
# One page of each column is unpacked at a time.
_ROW_OF_PAGES_LIMIT_BYTES = 1024**3
COLUMNS_LIMIT = 4096
_FIXED_LIMIT_BYTES = 64
_DELTA_BYTE_ARRAY = 7
_DEPTH_LIMIT = 8
_RECORDS_LIMIT = 1_000_000
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    0, 1, 2, 3, 7, 8, 9, 10, 11, 12,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What a file is when it is unpacked: ``pages_bytes`` as it is encoded, and its table."""

    pages_bytes: int
    rows: int
    columns: int
    group_rows: int  # of the largest group of rows

    @property
    def table_bytes(self) -> int:
        """Of all its rows in memory, its texts as dictionaries."""
        return 8 * self.rows * self.columns

    @property
    def group_bytes(self) -> int:
        """Of its largest group of rows."""
        return 8 * self.group_rows * self.columns


def look_at(path: Path) -> Unpacked:
    """What ``path`` unpacks to. Raises ValueError for what is no flat table or no honest one."""
    try:
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
        return _look_at(path, metadata, schema)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {str(error)[:300]}") from error


def _look_at(path: Path, metadata: pq.FileMetaData, schema: pa.Schema) -> Unpacked:
    if metadata.num_columns > COLUMNS_LIMIT:
        raise ValueError(
            f"{path} has {metadata.num_columns} columns; a table has {COLUMNS_LIMIT} at most"
        )
    _check_flat(path, metadata, schema)
    total = largest = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for group in _groups(path, data, metadata):
            largest = max(largest, group.rows)
            at_once = 0
            for name, chunk in zip(schema.names, group.chunks, strict=True):
                size, page = _sizes(path, data, name[:60], chunk)
                total += size
                at_once += page
            if at_once > _ROW_OF_PAGES_LIMIT_BYTES:
                raise TooLargeError(
                    f"{path}: a page of each column is {at_once} bytes unpacked;"
                    f" {_ROW_OF_PAGES_LIMIT_BYTES} are the most"
                )
    return Unpacked(total, metadata.num_rows, metadata.num_columns, largest)


def _check_flat(path: Path, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
    """One value a row: lists and raw bytes are no readings, and can be of any size."""
    for one in schema:
        if pa.types.is_nested(one.type):
            name = one.name[:60]
            raise ValueError(f"{path}: column {name!r} holds lists or records, not readings")
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        name = str(column.path)[:60]
        if column.max_repetition_level > 0 or len(schema) != metadata.num_columns:
            raise ValueError(f"{path}: column {name!r} holds lists or records, not readings")
        kind = schema.field(place).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        raw = column.physical_type == "BYTE_ARRAY" and not text and not pa.types.is_decimal(kind)
        wide = column.physical_type == "FIXED_LEN_BYTE_ARRAY" and column.length > _FIXED_LIMIT_BYTES
        if raw or wide:
            raise ValueError(f"{path}: column {name!r} holds bytes, not readings")


@dataclass(slots=True)
class _Chunk:
    """One column of one group of rows, as the footer says it."""

    values: int = 0
    packed: int = 0
    data_at: int = 0
    dictionary_at: int = 0


@dataclass(slots=True)
class _Group:
    """One group of rows."""

    rows: int = 0
    chunks: list[_Chunk] = field(default_factory=list)


def _groups(path: Path, data: mmap.mmap, metadata: pq.FileMetaData) -> list[_Group]:
    """What the footer says of the groups of rows. Raises ValueError."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    try:
        groups = _Footer(data, start).groups if start >= 0 else []
    except (IndexError, RecursionError) as error:
        raise ValueError(f"{path}: its footer is damaged") from error
    columns = {len(group.chunks) for group in groups}
    if len(groups) != metadata.num_row_groups or columns - {metadata.num_columns}:
        raise ValueError(f"{path}: its footer is damaged")
    return groups


def _sizes(path: Path, data: mmap.mmap, name: str, column: _Chunk) -> tuple[int, int]:
    """Bytes of all pages of a column in a group, and of the largest. Raises ValueError."""
    at = column.data_at
    if 0 < column.dictionary_at < at:
        at = column.dictionary_at
    end = min(at + column.packed, len(data))
    if at < 0 or column.packed < 0:
        raise ValueError(f"{path}: column {name!r} is damaged")
    total = largest = values = 0
    # As the reader does, until as many values have come as there are.
    while at < end and values < column.values:
        try:
            page = _Header(data, at)
        except (IndexError, RecursionError) as error:
            raise ValueError(f"{path}: column {name!r} has a damaged page") from error
        if page.size < 0 or page.packed < 0 or page.values < 0:
            raise ValueError(f"{path}: column {name!r} has a damaged page")
        if page.size > _PAGE_LIMIT_BYTES:
            raise TooLargeError(
                f"{path}: a page of column {name!r} is {page.size} bytes unpacked;"
                f" {_PAGE_LIMIT_BYTES} are the most"
            )
        if page.encoding == _DELTA_BYTE_ARRAY:
            raise ValueError(
                f"{path}: column {name!r} is written by common beginnings (DELTA_BYTE_ARRAY), which"
                " may be texts without end; write it with dictionaries"
            )
        total += page.size
        largest = max(largest, page.size)
        values += page.values
        at = page.end + page.packed
    return total, largest


class _Compact:
    """A record in Thrift's compact protocol. Raises IndexError where it is none."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self._at = at

    def _fields(self, take: Callable[[int, int, int], bool], depth: int) -> None:
        """Goes through a record; ``take`` answers whether it has read the field."""
        if depth > _DEPTH_LIMIT:
            raise IndexError
        number = 0
        while (byte := self._byte()) != _STOP:
            kind = byte & 15
            number = number + (byte >> 4) if byte >> 4 else self._integer()
            if not take(number, kind, depth):
                self._skip(kind, depth)

    def _skip(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._at += 1
        elif kind < _DOUBLE:
            self._varint()
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        elif kind in (_LIST, _SET):
            byte = self._byte()
            count = byte >> 4 if byte >> 4 != 15 else self._varint()
            for _ in range(count):
                self._skip_item(byte & 15, depth)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip_item(kinds >> 4, depth)
                self._skip_item(kinds & 15, depth)
        elif kind == _STRUCT:
            self._fields(lambda number, kind, depth: False, depth + 1)
        else:
            raise IndexError

    def _skip_item(self, kind: int, depth: int) -> None:
        """An item of a list: there, a truth value takes a byte."""
        if kind in (_TRUE, _FALSE):
            self._at += 1
            return
        if depth > _DEPTH_LIMIT:
            raise IndexError
        self._skip(kind, depth + 1)

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise IndexError

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


class _Footer(_Compact):
    """What the footer says of the groups of rows and their columns."""

    __slots__ = ("groups",)

    def __init__(self, data: mmap.mmap, at: int) -> None:
        super().__init__(data, at)
        self.groups: list[_Group] = []
        self._fields(self._of_file, 0)

    def _of_file(self, number: int, kind: int, depth: int) -> bool:
        if number != 4 or kind != _LIST:
            return False
        for _ in range(self._records()):
            self.groups.append(_Group())
            self._fields(self._of_group, depth + 1)
        return True

    def _of_group(self, number: int, kind: int, depth: int) -> bool:
        if number == 1 and kind == _LIST:
            for _ in range(self._records()):
                self.groups[-1].chunks.append(_Chunk())
                self._fields(self._of_chunk, depth + 1)
        elif number == 3:
            self.groups[-1].rows = self._integer()
        else:
            return False
        return True

    def _of_chunk(self, number: int, kind: int, depth: int) -> bool:
        if number != 3 or kind != _STRUCT:
            return False
        self._fields(self._of_column, depth + 1)
        return True

    def _of_column(self, number: int, kind: int, depth: int) -> bool:
        chunk = self.groups[-1].chunks[-1]
        if number == 5:
            chunk.values = self._integer()
        elif number == 7:
            chunk.packed = self._integer()
        elif number == 9:
            chunk.data_at = self._integer()
        elif number == 11:
            chunk.dictionary_at = self._integer()
        else:
            return False
        return True

    def _records(self) -> int:
        byte = self._byte()
        if byte & 15 != _STRUCT:
            raise IndexError
        count = byte >> 4 if byte >> 4 != 15 else self._varint()
        if count > _RECORDS_LIMIT:
            raise IndexError
        return count


class _Header(_Compact):
    """The header of one page. Raises IndexError where it is none."""

    __slots__ = ("encoding", "end", "packed", "size", "values")

    def __init__(self, data: mmap.mmap, at: int) -> None:
        super().__init__(data, at)
        self.size = self.packed = self.values = 0
        self.encoding = -1
        self._fields(self._of_page, 0)
        self.end = self._at

    def _of_page(self, number: int, kind: int, depth: int) -> bool:
        if number == 2:
            self.size = self._integer()
        elif number == 3:
            self.packed = self._integer()
        elif number == 5 and kind == _STRUCT:
            self._fields(self._of_data, depth + 1)
        elif number == 8 and kind == _STRUCT:
            self._fields(self._of_data_2, depth + 1)
        else:
            return False
        return True

    def _of_data(self, number: int, kind: int, depth: int) -> bool:
        if number == 1:
            self.values = self._integer()
        elif number == 2:
            self.encoding = self._integer()
        else:
            return False
        return True

    def _of_data_2(self, number: int, kind: int, depth: int) -> bool:
        if number == 1:
            self.values = self._integer()
        elif number == 4:
            self.encoding = self._integer()
        else:
            return False
        return True
