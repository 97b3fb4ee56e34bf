"""NVLink sums of one GPU: links that are up, and error counters over all of its links.

NVLink 2 to 4 count replays, recoveries and CRC errors (fields 161, 162, 163 by link, or the older
nvmlDeviceGetNvLinkErrorCounter). NVLink 5 has other counters: packets received with errors (208)
stand for CRC errors, link recovery events (215, or 213 + 214) for recoveries, blocks sent again
by physical layer retransmission (295) for replays. Source: nvml.h, "NVML_FI_DEV_NVLINK_*".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pynvml as nvml

from collectors.gpu.nvml_fields import ABSENT_CODES, Values, fields

LINK_COUNT_FIELD = 91
STATE_FIELD = 165
# By the name of the sum: the fields whose numbers add up to it; the first row that answers wins.
COUNTERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "nvlink_crc_errors_total": ((163,), (208,)),
    "nvlink_replays_total": ((161,), (295,)),
    "nvlink_recoveries_total": ((162,), (215,), (213, 214)),
}
OLD_COUNTERS = {
    "nvlink_replays_total": 0,
    "nvlink_recoveries_total": 1,
    "nvlink_crc_errors_total": 2,
}
LINKS_MOST = 36  # nvml.h: NVML_NVLINK_MAX_LINKS


class Links:
    """The links of one GPU, and the last count of each.

    A link that is down often answers nothing. Its last count stays in the sum, for a sum that
    shrinks would look like a counter that was reset.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], float] = {}
        self._rows: dict[str, tuple[int, ...]] | None = None

    def read(self, handle: Any) -> tuple[Values, dict[str, int]]:
        """Sums by field name, and error codes by field name. Both empty without NVLink."""
        count = self._count(handle)
        if not count:
            return {}, {}
        states, trouble = self._states(handle, count)
        values: Values = {}
        if states:
            values["nvlink_links_active"] = float(sum(states))
        for name, code in self._counters(handle, count).items():
            trouble[name] = code
        for name in COUNTERS:
            known = [self._last[name, link] for link in range(count) if (name, link) in self._last]
            if known:
                values[name] = sum(known)
        return values, trouble

    def _count(self, handle: Any) -> int:
        ((code, number),) = fields(handle, [LINK_COUNT_FIELD])
        if code == 0:
            return min(int(number), LINKS_MOST)
        if code not in ABSENT_CODES:
            raise nvml.NVMLError(code)
        for link in range(LINKS_MOST):
            try:
                nvml.nvmlDeviceGetNvLinkState(handle, link)
            except nvml.NVMLError as error:
                if error.value not in ABSENT_CODES:
                    raise
                return link
        return LINKS_MOST

    def _states(self, handle: Any, count: int) -> tuple[list[bool], dict[str, int]]:
        states: list[bool] = []
        trouble: dict[str, int] = {}
        answers = fields(handle, [(STATE_FIELD, link) for link in range(count)])
        for link, (code, number) in enumerate(answers):
            state = number
            if code in ABSENT_CODES:
                try:
                    state, code = float(nvml.nvmlDeviceGetNvLinkState(handle, link)), 0
                except nvml.NVMLError as error:
                    code = int(error.value)
            if code == 0:
                states.append(state == 1)
            elif code not in ABSENT_CODES:
                trouble["nvlink_links_active"] = code
        return ([] if trouble else states), trouble

    def _counters(self, handle: Any, count: int) -> dict[str, int]:
        """Takes the counts of all links into ``_last``; error codes by field name."""
        trouble: dict[str, int] = {}
        if self._rows is None:
            self._rows = self._choose(handle, count)
        asked = [
            (name, link, number)
            for name, row in self._rows.items()
            for link in range(count)
            for number in row
        ]
        answers = fields(handle, [(number, link) for _, link, number in asked]) if asked else []
        sums: dict[tuple[str, int], float] = {}
        for (name, link, _), (code, value) in zip(asked, answers, strict=True):
            if code == 0:
                sums[name, link] = sums.get((name, link), 0.0) + value
            elif code not in ABSENT_CODES:
                trouble[name] = code
        self._last.update(sums)
        for name in COUNTERS.keys() - self._rows.keys():
            code = self._old(handle, name, range(count))
            if code and code not in ABSENT_CODES:
                trouble[name] = code
        return trouble

    def _choose(self, handle: Any, count: int) -> dict[str, tuple[int, ...]]:
        """For each sum, the fields that this board answers for any of its links."""
        rows = {}
        for name, choices in COUNTERS.items():
            for row in choices:
                asked = [(number, link) for number in row for link in range(count)]
                if any(code == 0 for code, _ in fields(handle, asked)):
                    rows[name] = row
                    break
        return rows

    def _old(self, handle: Any, name: str, links: Iterable[int]) -> int:
        """The counter by the call of drivers that lack the fields; the last error code."""
        trouble = 0
        for link in links:
            try:
                value = nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, OLD_COUNTERS[name])
            except nvml.NVMLError as error:
                trouble = int(error.value)
                if trouble == 13:  # the library has no such function
                    break
            else:
                self._last[name, link] = float(value)
        return trouble
