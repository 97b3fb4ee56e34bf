"""Training and judging by parts of a fleet: one after the other here, or side by side on Dask.

How a fleet is cut depends on its nodes alone, never on who does the work, and every part is
worked on with a seed of its own; so the results are the same bit for bit. A fleet of up to
NODES_A_PART nodes is one part. What compares with the fleet (the rival's spread of temperatures)
compares within the part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from models.dataset import STEP_NS, Progress, build_looks
from models.labels import Labels
from models.looks import Looks, put_together
from models.telemetry import Telemetry

NODES_A_PART = 500
CONNECT_SECONDS = 20
_SEED_STEP = 1_000_003

Item = TypeVar("Item")
Made = TypeVar("Made")


class Over(Protocol):
    """Does one piece of work for each item, in any order, and answers in the items' order."""

    def __call__(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """``[work(one) for one in items]``, wherever."""
        ...


class SpreadError(Exception):
    """Work cannot be spread as asked. The text says why and what to do."""


def in_process(work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """One after the other, here."""
    return [work(one) for one in items]


@contextlib.contextmanager
def spread(address: str | None) -> Iterator[Over]:
    """In this process (None), or on the Dask scheduler at ``address``. Raises SpreadError.

    Its workers must see the telemetry under the same path and have this version of tocsin. Dask
    sends pickled objects between its own processes: use a cluster that is yours.
    """
    if not address:
        yield in_process
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise SpreadError("Dask is not installed here: pip install 'tocsin[dask]'") from error
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SpreadError(f"no Dask scheduler answers at {address}: {error}") from error

    def on_cluster(work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        # Not pure: Dask may not answer with what the same call gave an hour ago.
        found: list[Made] = client.gather(client.map(work, list(items), pure=False))
        return found

    with contextlib.closing(client):
        yield on_cluster


def node_parts(telemetry: Telemetry) -> list[list[str] | None]:
    """The nodes of each part; [None] for a fleet that is one part."""
    names = telemetry.node_names()
    if len(names) <= NODES_A_PART:
        return [None]
    return [names[low : low + NODES_A_PART] for low in range(0, len(names), NODES_A_PART)]


@dataclass(frozen=True)
class Part:
    """One part of one directory. Picklable: it is opened where it is worked on."""

    telemetry: Telemetry
    nodes: list[str] | None
    number: int

    def open(self) -> Telemetry:
        """The part's readings."""
        if self.nodes is None:
            return self.telemetry
        return self.telemetry.of_nodes(self.nodes)


def parts_of(telemetry: Telemetry) -> list[Part]:
    """The parts of a directory."""
    return [Part(telemetry, names, at) for at, names in enumerate(node_parts(telemetry))]


@dataclass(frozen=True)
class _Build:
    horizons_ns: Sequence[int]
    labels: Labels
    negatives_share: float
    seed: int
    step_ns: int
    until_ns: int | None
    progress: Progress | None

    def __call__(self, part: Part) -> dict[str, Looks]:
        return build_looks(
            part.open(),
            horizons_ns=self.horizons_ns,
            labels=self.labels,
            negatives_share=self.negatives_share,
            seed=self.seed + _SEED_STEP * part.number,
            step_ns=self.step_ns,
            until_ns=self.until_ns,
            progress=self.progress,
        )


def build_parts(
    telemetry: Telemetry,
    over: Over = in_process,
    *,
    horizons_ns: Sequence[int],
    labels: Labels,
    negatives_share: float = 0.02,
    seed: int = 0,
    step_ns: int = STEP_NS,
    until_ns: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Looks]:
    """As :func:`models.dataset.build_looks`, part by part. ``labels`` are of the whole fleet."""
    parts = parts_of(telemetry)
    shown = progress if over is in_process and len(parts) == 1 else None
    work = _Build(horizons_ns, labels, negatives_share, seed, step_ns, until_ns, shown)
    return joined(over(work, parts))


def joined(parts: Sequence[Mapping[str, Looks]]) -> dict[str, Looks]:
    """Looks of several parts as one."""
    kinds = sorted({kind for part in parts for kind in part})
    return {kind: put_together([part[kind] for part in parts if kind in part]) for kind in kinds}
