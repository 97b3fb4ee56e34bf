"""The InfluxDB sink: everything that the store commits, sent on as line protocol.

It follows the store's spool (:mod:`daemon.store.tail`), so an outage of hours, a restart or
a kill of either side loses nothing and doubles nothing: InfluxDB keeps equal points once.
Writes go through ``influxdb-client``, synchronous and with ready lines, to ``/api/v2/write``;
a server that answers 404 there (InfluxDB before 1.8) gets v1's ``/write``.

Run against real servers in the tests: InfluxDB 1.6.7 and VictoriaMetrics 1.79. InfluxDB
1.8, 2 and 3 were not run here; their requests and answers follow their documents:
https://docs.influxdata.com/influxdb/v2/api/ and
https://docs.influxdata.com/influxdb/v1/tools/api/#influxdb-2x-api-compatibility-endpoints
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import random
from collections.abc import Callable
from typing import Any

import urllib3

from collectors.lines import encode
from collectors.sample import Sample
from daemon.agent.delivery import Answer, Delivery, DeliveryCounts, retry_after_seconds
from daemon.agent.uplink import TokenError, read_token
from daemon.schedule import OwnThread
from daemon.store.embedded import Store, samples_of
from daemon.store.influx_options import InfluxOptions
from daemon.store.packing import Frame
from daemon.store.tail import Position, Tail

log = logging.getLogger("tocsin.influx")

V2_PATH, V1_PATH = "/api/v2/write", "/write"


class InfluxWriter:
    """Posts bodies through influxdb-client. Blocking; for one thread.

    Authorization: ``Token TOKEN`` (2, 3), ``Token USER:PASSWORD`` (1.8 at v2's path), Basic
    (v1's path), or none.
    """

    def __init__(self, options: InfluxOptions) -> None:
        # Takes a second of CPU to load: only where there is an InfluxDB.
        from influxdb_client.client.influxdb_client import InfluxDBClient

        self.options = options
        self.path = V2_PATH
        self._client: Any = InfluxDBClient(
            url=options.url,
            token="-",  # noqa: S106 (each request says its own)
            org=options.org,
            timeout=int(options.request_deadline_seconds * 1000),
            verify_ssl=options.verify_certificate,
            ssl_ca_cert=str(options.ca_file) if options.ca_file else None,
            retries=False,
        )

    def post(self, body: bytes) -> Answer:
        """Sends gzipped lines; never raises for what the server or network does."""
        try:
            answer = self._post(body)
            if answer.status == 404 and self.path == V2_PATH and not _names_a_bucket(answer.body):
                log.info("%s knows no %s; using %s", self.options.url, V2_PATH, V1_PATH)
                self.path = V1_PATH
                answer = self._post(body)
        except TokenError as error:
            return Answer(401, str(error).encode())
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return Answer(0, f"{type(error).__name__}: {error}".encode())
        return answer

    def _post(self, body: bytes) -> Answer:
        from influxdb_client.rest import ApiException

        headers = {
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Encoding": "gzip",
            **self._authorization(),
        }
        try:
            self._client.api_client.rest_client.request(
                "POST",
                self.options.url + self.path,
                query_params=self._query(),
                headers=headers,
                body=body,
                _request_timeout=int(self.options.request_deadline_seconds * 1000),
            )
        except ApiException as error:
            told: Any = error.body
            said = told if isinstance(told, bytes) else str(told or "").encode()
            headers_back: Any = error.headers or {}
            asked = headers_back.get("Retry-After", "")
            return Answer(
                int(error.status or 0),
                said or str(error.reason).encode(),
                retry_after_seconds(asked),
            )
        return Answer(204)

    def _query(self) -> list[tuple[str, str]]:
        options = self.options
        if self.path == V2_PATH:
            return [("org", options.org), ("bucket", options.bucket), ("precision", "ns")]
        database, _, policy = options.bucket.partition("/")
        return [("db", database), ("precision", "ns"), *([("rp", policy)] if policy else [])]

    def _authorization(self) -> dict[str, str]:
        """Read for each request, so that a renewed secret needs no restart."""
        if self.options.token_file is not None:
            return {"Authorization": f"Token {read_token(self.options.token_file)}"}
        if not self.options.username:
            return {}
        password = read_token(self.options.password_file)
        pair = f"{self.options.username}:{password}"
        if self.path == V2_PATH:
            return {"Authorization": f"Token {pair}"}
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


def _names_a_bucket(body: bytes) -> bool:
    """InfluxDB answers 404 too, when bucket, organisation or (1.8) database do not exist."""
    return b"not found" in body and any(
        word in body for word in (b"bucket", b"organization", b"database")
    )


class InfluxSink:
    """Follows a store and sends what it commits. :meth:`run` in the head's loop."""

    def __init__(
        self,
        store: Store,
        options: InfluxOptions,
        rng: random.Random | None = None,
        keep: Callable[[Sample], bool] = lambda sample: True,
    ) -> None:
        self.options = options
        self.tail = Tail(store.directory, "influxdb", options.outbox_limit_bytes)
        self.writer = InfluxWriter(options)
        self.keep = keep
        self.sent_lines = 0
        self._broken = ""
        self._thread = OwnThread("tocsin-influx")
        self.delivery = Delivery(
            self._post,
            f"InfluxDB {options.url}",
            self.tail.directory / "quarantine.lines",
            options.quarantine_limit_bytes,
            options.backoff_limit_seconds,
            rng or random.Random(),  # noqa: S311 (spreads load, guards nothing)
        )
        store.tails.append(self.tail)

    @property
    def counts(self) -> DeliveryCounts:
        """What became of the requests; ``fault`` says why nothing arrives now."""
        return self.delivery.counts

    async def run(self) -> None:
        """Sends for ever; cancel it to stop. Whatever goes wrong once (no file to be had, a disk
        that fails) is said and tried again: it must not end the sending for good."""
        while True:
            try:
                more = await self.step()
            except Exception as error:
                if not self._broken:
                    log.exception("InfluxDB %s: nothing is sent", self.options.url)
                self._broken, more = f"{type(error).__name__}: {error}", False
            else:
                self._broken = ""
            if not more:
                await asyncio.sleep(self.options.poll_seconds)

    async def step(self) -> bool:
        """Sends one piece, or waits as the server asks; False when nothing waits."""
        found = await asyncio.to_thread(self._next)
        if found is None:
            return False
        body, lines, position = found
        if body:
            delay_seconds = await self.delivery.send(body)
            if delay_seconds is not None:
                await asyncio.sleep(delay_seconds)
                return True
            self.sent_lines += lines
        await asyncio.to_thread(self.tail.done, position)
        return True

    def _next(self) -> tuple[bytes, int, Position] | None:
        piece = self.tail.read(self.options.batch_lines)
        if piece is None:
            return None
        frames, position = piece
        samples = [sample for sample in _samples(frames) if self.keep(sample)]
        lines = encode(samples)
        return (gzip.compress(lines, 1) if lines else b""), len(samples), position

    async def _post(self, body: bytes, key: str) -> Answer:
        return await self._thread.submit(lambda: self.writer.post(body))

    async def close(self) -> None:
        """Lets go of thread and connections."""
        self._thread.close()
        await asyncio.to_thread(self.writer.close)

    def fault(self) -> str:
        """One line for people: what is wrong, what it cost; empty when all is well."""
        told = [one for one in (self._broken, self.counts.fault, self.loss()) if one]
        if self.counts.quarantined_lines:
            told.append(f"{self.counts.quarantined_lines} lines refused, see quarantine.lines")
        return "; ".join(told)

    def loss(self) -> str:
        """What the outbox's bound has cost, in words; empty when nothing."""
        dropped = self.tail.dropped_rows
        return f"{dropped} samples dropped: the outbox was full" if dropped else ""


def _samples(frames: list[Frame]) -> list[Sample]:
    found: list[Sample] = []
    for frame in frames:
        for columns in frame.columns():
            found.extend(samples_of(columns))
    return found


def query_influxql(options: InfluxOptions, statement: str, deadline_seconds: float = 30.0) -> Any:
    """The JSON text of one InfluxQL query (1.x, 2.x and 3.x all speak it at ``/query``).

    Raises what influxdb-client and urllib3 raise.
    """
    writer = InfluxWriter(options)
    writer.path = V1_PATH
    database, _, policy = options.bucket.partition("/")
    query = [("db", database), ("q", statement), ("epoch", "ns")]
    try:
        answer = writer._client.api_client.rest_client.request(
            "GET",
            options.url + "/query",
            query_params=[*query, *([("rp", policy)] if policy else [])],
            headers={"Accept": "application/json", **writer._authorization()},
            _request_timeout=int(deadline_seconds * 1000),
        )
        return answer.data
    finally:
        writer.close()
