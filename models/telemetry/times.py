"""Times of foreign tables as ours."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

TIME = pa.timestamp("ns", tz="UTC")
# A time of day and its offset from UTC.
_ZONED = r":\d\d(\.\d+)?[+-]\d\d(:?\d\d)?$"


def utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as UTC nanoseconds: ISO text, numbers of nanoseconds, or times (UTC without a zone).

    Raises pyarrow.ArrowException.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        if pc.all(pc.utf8_is_digit(column)).as_py():
            return column.cast(pa.int64()).cast(TIME)
        text = pc.replace_substring(pc.replace_substring_regex(column, "Z$", "+00:00"), "T", " ")
        plain = pc.replace_substring_regex(text, r"\+00:00$", "")
        if pc.any(pc.match_substring_regex(plain, _ZONED)).as_py():
            return text.cast(TIME)  # then each must say its zone
        column = plain.cast(pa.timestamp("ns"))
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        column = pc.assume_timezone(column, "UTC")
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    return column.cast(TIME)
