"""How much one sender may say: lines and bytes in a second, with room for catching up.

Each sender has a bucket that fills at its rate. Who has something left is let in whatever the
size of what comes, and what it was is taken off afterwards, into debt if need be: so a sender
that has used up its share is turned away before its body is read, and a batch that is larger
than the bucket passes all the same. Relays (``*``) speak for many nodes and have no bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemon.gate.tokens import ANY_NODE

# A sender that was slowed counts as loud for so long: people are told of it meanwhile.
LOUD_SECONDS = 600.0


@dataclass(slots=True)
class _Bucket:
    lines: float
    size_bytes: float
    at_seconds: float
    slowed_seconds: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Rate:
    """So much in a second for long, and so much at once."""

    per_second: float
    burst: float

    def filled(self, level: float, passed_seconds: float) -> float:
        """``level`` after some time."""
        return min(self.burst, level + passed_seconds * self.per_second)

    def wait_seconds(self, level: float) -> float:
        """Until there is something left again; 0 when there is."""
        return 0.0 if level >= 1.0 else (1.0 - level) / self.per_second


class Rates:
    """The buckets of all senders. One for each token's node, so their number is bounded."""

    def __init__(self, lines: Rate, size_bytes: Rate) -> None:
        self.lines = lines
        self.size_bytes = size_bytes
        self._buckets: dict[str, _Bucket] = {}

    def wait(self, node: str, now_seconds: float) -> float:
        """Seconds that the sender for ``node`` has to wait before it is heard; 0: none."""
        if node == ANY_NODE:
            return 0.0
        bucket = self._bucket(node, now_seconds)
        wait_seconds = max(
            self.lines.wait_seconds(bucket.lines), self.size_bytes.wait_seconds(bucket.size_bytes)
        )
        if wait_seconds:
            bucket.slowed_seconds = now_seconds
        return wait_seconds

    def spend(self, node: str, lines: int, size_bytes: int, now_seconds: float) -> None:
        """Takes off what the sender has said; a request counts as a line at least."""
        if node != ANY_NODE:
            bucket = self._bucket(node, now_seconds)
            bucket.lines -= max(1, lines)
            bucket.size_bytes -= size_bytes

    def loud(self, now_seconds: float) -> list[str]:
        """The nodes whose senders were slowed lately."""
        return sorted(
            node
            for node, bucket in self._buckets.items()
            if now_seconds - bucket.slowed_seconds < LOUD_SECONDS
        )

    def _bucket(self, node: str, now_seconds: float) -> _Bucket:
        bucket = self._buckets.get(node)
        if bucket is None:
            bucket = self._buckets[node] = _Bucket(
                self.lines.burst, self.size_bytes.burst, now_seconds
            )
            return bucket
        passed_seconds = max(0.0, now_seconds - bucket.at_seconds)
        bucket.lines = self.lines.filled(bucket.lines, passed_seconds)
        bucket.size_bytes = self.size_bytes.filled(bucket.size_bytes, passed_seconds)
        bucket.at_seconds = now_seconds
        return bucket
