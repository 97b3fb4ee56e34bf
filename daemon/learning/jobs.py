"""What the head does about learning, hour by hour and at night, and an operator's word on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from daemon.config import store_directory
from daemon.drains.record import points, read
from daemon.learning.desk import SELF
from daemon.learning.night import NightError, command, due, name_of, train
from daemon.learning.shelf import ShelfError
from daemon.schedule import OwnThread

if TYPE_CHECKING:
    from daemon.head import Head
    from models.features import FeatureFrame
    from models.learned import LearnedRisk

log = structlog.get_logger("tocsin.learning")

LOOK_SECONDS = 3600.0
NIGHT_LOOK_SECONDS = 600.0
Result = TypeVar("Result")

# The deadline of the job beyond that of its child.
_SPARE_SECONDS = 120.0


class Jobs:
    """The jobs of learning over one head."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._learning = head.learning
        # Not the shared pool: a model that takes for ever would fill it, and Slurm is read there;
        # nor does a head that is told to end wait for it.
        self._thread = OwnThread("tocsin-learning")
        self._running: asyncio.Future[Any] | None = None

    def begin(self) -> None:
        """Puts the jobs on the head's schedule."""
        every = self._head.schedule.every
        every("learning", LOOK_SECONDS, 900.0, self.look, delay_seconds=300.0)
        seconds = self._head.config.risk.shadow_seconds
        every("record", LOOK_SECONDS, 60.0, self.record, delay_seconds=120.0)
        every("shadow", seconds, 300.0, self.shadow, delay_seconds=min(30.0, seconds))
        deadline = self._head.config.learning.deadline_seconds + _SPARE_SECONDS
        every("training", NIGHT_LOOK_SECONDS, deadline, self.night, delay_seconds=600.0)

    async def look(self) -> None:
        """One look at all parts; once a day scoreboard and drift."""
        head, learning = self._head, self._learning
        now_ns = head.clock.now_ns()
        if learning.choice.model is not None:
            frame = await self._frame(learning.choice.model, now_ns)
            await self._apart(lambda: learning.look(frame, now_ns))
        hour = head.config.learning.hour
        if due(now_ns, learning.book.marked_ns("count"), hour):
            points = await self._apart(lambda: learning.count(now_ns))
            learning.book.mark("count", now_ns)
            await head.intake.keep(points)

    async def record(self) -> None:
        """What the drains that were made came to, as a point an hour."""
        head = self._head
        gpus = {name: node.gpus_configured for name, node in head.nodes.items()}
        now_ns, cost = head.clock.now_ns(), head.config.policy.cost
        found = await asyncio.to_thread(read, head.store.database, gpus, now_ns, cost)
        await head.intake.keep(points(found, head.config.slurm.cluster, now_ns))

    async def shadow(self) -> None:
        """A model whose gate is off scores, beside the judgement: no fact waits for it."""
        learning = self._learning
        await self._free()
        model = learning.shadow
        if model is not None:
            now_ns = self._head.clock.now_ns()
            frame = await self._frame(model, now_ns)
            learning.overheard(model, await self._apart(lambda: model.score(frame, now_ns)))

    async def _apart(self, work: Callable[[], Result]) -> Result:
        """Runs ``work`` in the one thread of learning, when it is free."""
        await self._free()
        # Shielded: cancelling cannot stop a thread, only hide that it still runs.
        running = self._thread.submit(work)
        self._running = running
        return await asyncio.shield(running)

    async def _free(self) -> None:
        while self._running is not None and not self._running.done():
            await asyncio.wait({self._running})

    def close(self) -> None:
        """Waits for nothing that runs."""
        self._thread.close()

    async def _frame(self, model: LearnedRisk, now_ns: int) -> FeatureFrame:
        """The features that ``model`` looks at, now."""
        frame = self._head.watch.features.frame
        return await self._head.intake.in_turn(frame, now_ns, tuple(model.needs), model.needs)

    async def night(self) -> None:
        """Trains when it is due or asked for; promotes what is better."""
        head, learning, options = self._head, self._learning, self._head.config.learning
        now_ns = head.clock.now_ns()
        in_turn = options.enabled and due(now_ns, learning.book.marked_ns("training"), options.hour)
        if not (in_turn or learning.asked):
            return
        learning.asked = False
        learning.book.mark("training", now_ns)
        name = name_of(now_ns, learning.shelf.names())
        champion = learning.choice.path if learning.choice.model is not None else None
        out = learning.shelf.path(name)
        argv = command(options, store_directory(head.config), out, champion)
        log.info("training_starts", model=name, champion=str(champion or ""))
        try:
            answer = await train(argv, options.deadline_seconds)
        except NightError as error:
            learning.night_fault = str(error)
            log.warning("training_failed", why=str(error))
            return
        log.info("training_ended", model=name, state=answer.state, why=answer.why)
        if await head.by_hand(learning.trained, name, answer, head.clock.now_ns()):
            try:
                await self.promote(name, SELF, answer.why)
            except ShelfError as error:
                learning.night_fault = str(error)

    async def promote(self, name: str, user: str, why: str) -> str:
        """``name`` scores from the next judgement on. Raises ShelfError."""
        head, learning = self._head, self._learning
        try:
            return await head.by_hand(learning.promote, name, user, why, head.clock.now_ns())
        finally:
            await head.intake.in_turn(head.watch.use, learning.judging)

    async def rollback(self, user: str) -> str:
        """What scored before scores again. Raises ShelfError."""
        head, learning = self._head, self._learning
        try:
            return await head.by_hand(learning.rollback, user, head.clock.now_ns())
        finally:
            await head.intake.in_turn(head.watch.use, learning.judging)

    def ask(self, user: str) -> str:
        """A person wants a training now. Runs at the job's next turn."""
        self._learning.asked = True
        now_ns = self._head.clock.now_ns()
        self._head.ledger.say(now_ns, user=user, verb="model_retrain")
        return f"a training begins within {NIGHT_LOOK_SECONDS / 60:g} min; tocsin model shows it"
