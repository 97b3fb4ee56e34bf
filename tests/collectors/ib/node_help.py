"""What the tests of a node's InfiniBand share."""

from __future__ import annotations

from collectors.ib.infiniband import Infiniband, Options, make
from collectors.sample import Batch, Context, Sample
from tests.collectors.contract import NOW_NS

SECOND = 1_000_000_000


def link_events(batch: Batch) -> list[tuple[str, str]]:
    return [
        (one.tag("code"), one.text("device"))
        for one in batch.samples
        if one.measurement == "event" and one.tag("kind") == "link"
    ]


def ports(batch: Batch) -> dict[str, Sample]:
    return {
        f"{one.tag('device')}/{one.tag('port')}": one
        for one in batch.samples
        if one.measurement == "ib_port"
    }


def learned(context: Context, **options: object) -> Infiniband:
    """A source that has seen its ports active for longer than it takes to expect them."""
    source = make(Options(**options), context)
    assert isinstance(source, Infiniband)
    source.collect(NOW_NS)
    source.collect(NOW_NS + 700 * SECOND)
    return source
