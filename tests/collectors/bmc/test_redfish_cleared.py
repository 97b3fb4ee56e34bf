"""A log that was cleared, on a BMC that falls silent before its new entries are read."""

from typing import Any

import pytest

from collectors.bmc.points import Readings
from collectors.bmc.redfish_entries import LogCursor, read_new

URI = "/redfish/v1/Systems/1/LogServices/SEL/Entries"


class Silent:
    """Gives the first page; what follows is answered only from the second time on."""

    def __init__(self) -> None:
        self.asked = 0

    async def get(self, uri: str, fresh_only: bool = False) -> dict[str, Any]:
        del fresh_only
        if uri == URI:
            first = {"Id": "2", "Created": "2026-06-02T00:00:00Z", "Message": "two"}
            return {
                "Members": [first],
                "Members@odata.count": 2,
                "Members@odata.nextLink": URI + "?$skip=1",
            }
        self.asked += 1
        if self.asked == 1:
            raise TimeoutError
        return {"Members": [{"Id": "1", "Created": "2026-06-01T00:00:00Z", "Message": "one"}]}


async def test_a_cleared_log_is_told_though_the_bmc_fell_silent_at_first() -> None:
    cursor = LogCursor(newest_ns=1, highest=0, count=30, started=True)
    client: Any = Silent()
    now_ns = 1_780_000_000_000_000_000

    async def read() -> list[str]:
        told = await read_new(client, URI, cursor, "n1", now_ns, 100, 10, Readings())
        return [one.tag("code") for one in told]

    with pytest.raises(TimeoutError):
        await read()
    assert "log_cleared" in await read()
    assert "log_cleared" not in await read()
