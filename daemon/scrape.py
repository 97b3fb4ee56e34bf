"""``GET /metrics``: the newest readings as Prometheus text, for those who scrape.

The newest reading of each GPU and source, the fleet's summary, the risks, and what gateway and
store did. ``?node=`` (many times) narrows it to some nodes. A fleet of more GPUs than
``GPUS_LIMIT`` is told by its summary alone unless nodes are named: 80,000 GPUs would be half a
million series a scrape, which neither side wants; what is left out is counted in the answer.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict

from aiohttp import web

from collectors.sample import Sample, sample
from daemon import fleet
from daemon.exposition import CONTENT_TYPE, counts_sample, expose
from daemon.head import Head
from daemon.latest import GPU_FIELDS
from daemon.points import risk_samples
from daemon.schema import fields

GPUS_LIMIT = 16_000
NODES_ASKED_LIMIT = 1000
# However many scrape: so often is the text made anew.
_KEPT_SECONDS = 5.0


class Scrape:
    """Answers scrapes of one head."""

    def __init__(self, head: Head, gpus_limit: int = GPUS_LIMIT) -> None:
        self.head = head
        self.gpus_limit = gpus_limit
        self._turn = asyncio.Lock()
        self._kept: tuple[float, bytes] | None = None

    async def answer(self, request: web.Request) -> web.Response:
        """``GET /metrics``."""
        nodes = request.query.getall("node", [])
        if len(nodes) > NODES_ASKED_LIMIT:
            raise web.HTTPBadRequest(text=f"ask for at most {NODES_ASKED_LIMIT} nodes")
        # One at a time: a fleet's text takes a second of a core, and memory.
        async with self._turn:
            body = await self._body(nodes)
        response = web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
        response.headers["Cache-Control"] = "no-store"
        if len(body) > 2000:
            response.enable_compression()
        return response

    async def _body(self, nodes: Sequence[str]) -> bytes:
        now = asyncio.get_running_loop().time()
        if not nodes and self._kept is not None and now - self._kept[0] < _KEPT_SECONDS:
            return self._kept[1]
        text = await asyncio.to_thread(self.text, frozenset(nodes))
        body = text.encode("utf-8", "replace")
        if not nodes:
            self._kept = (now, body)
        return body

    def text(self, nodes: Collection[str] = ()) -> str:
        """The text for some nodes, or for all."""
        return expose(self._samples(nodes), [*fields().values(), *fleet.METRICS])

    def _samples(self, nodes: Collection[str]) -> Iterator[Sample]:
        head = self.head
        now_ns = head.clock.now_ns()
        if not nodes:
            yield from self._own(now_ns)
            yield from head.fleet_points
        for one in risk_samples(head.judgement):
            if not nodes or one.tag("node") in nodes:
                yield one
        yield from self._newest(nodes, now_ns)

    def _own(self, now_ns: int) -> Iterator[Sample]:
        """What the head itself did."""
        head = self.head
        if head.gateway is not None:
            yield counts_sample("gateway", asdict(head.gateway.counts), now_ns)
        store = {k: v for k, v in asdict(head.store.counts).items() if isinstance(v, int)}
        yield counts_sample("store", store, now_ns)
        counts = {
            "nodes": len(head.nodes),
            "nodes_heard": len(head.intake.latest.nodes),
            "facts": len(head.judgement.facts),
            "silences": len(head.judgement.silences),
            "held": len(head.view.held),
            "own_series": head.outlet.budget.series,
            "own_refused_samples": head.outlet.budget.refused,
            "values_per_second": head.intake.flow.values_per_second,
        }
        yield counts_sample("head", counts, now_ns)
        if head.sink is not None:
            sent = {
                "sent_lines": head.sink.sent_lines,
                "quarantined_lines": head.sink.counts.quarantined_lines,
                "dropped_samples": head.sink.tail.dropped_rows,
                "failures": head.sink.counts.failures,
            }
            yield counts_sample("influxdb", sent, now_ns)

    def _newest(self, nodes: Collection[str], now_ns: int) -> Iterator[Sample]:
        """The newest reading of each source and GPU, and how old it is."""
        left_out = told = 0
        for name, now in list(self.head.intake.latest.nodes.items()):
            if nodes and name not in nodes:
                continue
            for source, one in list(now.sources.items()):
                reading = {
                    "up": float(one.up),
                    "age_seconds": one.age_seconds,
                    "heard_age_seconds": max(0, now_ns - one.arrival_ns) / 1e9,
                }
                yield sample("source", one.time_ns, reading, node=name, source=source)
            gpus = list(now.gpus.items())
            if not nodes and told + len(gpus) > self.gpus_limit:
                left_out += len(gpus)
                continue
            told += len(gpus)
            for index, gpu in gpus:
                values = {
                    known: value
                    for known, value in zip(GPU_FIELDS, gpu.values, strict=True)
                    if value is not None
                }
                values |= {
                    "lost": float(gpu.lost),
                    "heard_age_seconds": max(0, now_ns - gpu.arrival_ns) / 1e9,
                }
                yield sample("gpu", gpu.time_ns, values, node=name, gpu=str(index), uuid=gpu.uuid)
        if left_out:
            yield counts_sample("exposition", {"left_out_gpus": left_out}, now_ns)


def scrape_routes(head: Head) -> list[web.RouteDef]:
    """The route for the page's listener and the operator's socket."""
    return [web.get("/metrics", Scrape(head).answer)]
