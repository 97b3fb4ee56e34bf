"""The head: receives readings, keeps them, judges, decides, and acts through one place.

The cycle, in the order of its life::

    gateway or own source -> store (durable) -> watch -> judge -> decide (pure) -> Drains -> alerts

Three threads beside the event loop, each for one kind of work, so that none waits for another:
``watch`` (readings and judgement, in order), ``hand`` (ledger and every write to Slurm, one at a
time) and one for each of the head's own sources. An urgent event wakes the judge at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar, TypeVarTuple

import structlog

from collectors.sample import Sample, source_reading
from collectors.slurm.nodes import NodeState
from collectors.slurm.source import SlurmSource
from daemon import __version__
from daemon.alerts.active import Alert, active_alerts, of_head, of_senders, with_owners
from daemon.alerts.tell import Alerts, make_ways
from daemon.beside import Beside, BesideTools
from daemon.checkpoint import Checkpoint
from daemon.clock import Clock
from daemon.config import Config, store_directory
from daemon.decision_log import DecisionLog
from daemon.drains.drains import Drains, Returned
from daemon.drains.identity import Identities, seen_in
from daemon.drains.ledger import Ledger
from daemon.drains.setback import nothing_later
from daemon.drains.tend import DoesJobSteps, Tender
from daemon.fleet import fleet_points
from daemon.gate.gateway import Gateway
from daemon.intake import Intake
from daemon.jobs.idle import IdleJobs
from daemon.jobs.met import Met
from daemon.learning.desk import Learning
from daemon.learning.jobs import Jobs
from daemon.past_jobs import PastJobs
from daemon.points import (
    HEAD_NODE,
    head_reading,
    risk_samples,
    risks_by_node,
)
from daemon.policy.cases import LedgerView
from daemon.policy.decide import Situation, decide
from daemon.policy.decisions import Action, Decision, Mode
from daemon.policy.groups import Groups
from daemon.recovery import restore
from daemon.refused import Refused
from daemon.returns import Returns
from daemon.schedule import Schedule
from daemon.slurm.adapter import SlurmAdapter
from daemon.slurm.fenced import Fence
from daemon.slurm.mining import Accounting, Past, mine
from daemon.slurm.proving import Proving
from daemon.slurm_desk import SlurmDesk
from daemon.source_loop import DirectOutlet, SourceLoop
from daemon.sources import make_all
from daemon.stages import Stages
from daemon.store.commit import GroupCommit
from daemon.store.embedded import Store
from daemon.store.errors import StoreUnavailableError
from daemon.store.influx import InfluxSink
from models.features import FeatureEngine
from models.rival import Rival
from models.rules import Rules
from models.silence import SilenceTracker
from models.voices import Risk
from models.watch import Judgement, Watch

log = structlog.get_logger("tocsin.head")

_SELF = (HEAD_NODE, "agent")

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


# An urgent event wakes the judge after so long: its companions of the same fault come along.
GATHER_SECONDS = 0.05
# Within so long slurmctld has heard again of a node that it took back (about 1 s on 22.05).
RESPONDS_SECONDS = 2.0
RISK_PERIOD_SECONDS = 60.0
# Risks are of hours: scoring 80,000 GPUs at each judgement would tell no more.
SCORE_SECONDS = 15.0
ROLL_PERIOD_SECONDS = 60.0
UPKEEP_PERIOD_SECONDS = 3600.0
FLEET_PERIOD_SECONDS = 60.0
HISTORY_PERIOD_SECONDS = 86_400.0
IDENTITY_PERIOD_SECONDS = 60.0


def new_watch(config: Config) -> Watch:
    """A watch with the rules, the features and the models that this version ships."""
    silence = SilenceTracker(config.silence)
    return Watch(Rules(), silence, FeatureEngine(), [Rival()], score_seconds=SCORE_SECONDS)


class Head:
    """Everything between the gateway and Slurm. One instance, one event loop."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        adapter: SlurmAdapter,
        slurm: SlurmSource,
        speed: float = 1.0,
        rng: random.Random | None = None,
        job_tools: DoesJobSteps | None = None,
        prover: Proving | None = None,
        fence: Fence | None = None,
        accounting: Accounting | None = None,
        beside: BesideTools | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.adapter = adapter
        self.desk = SlurmDesk(slurm, adapter, config.groups, clock.monotonic)
        self.speed = speed
        self.state_dir = config.head.state_dir
        # Why this head must not act, where another one may take over from it.
        self.fence = fence
        self.store = Store(store_directory(config), config.store, clock.now_ns, fence=fence)
        self.group = GroupCommit(self.store)
        self.watch = new_watch(config)
        self.ledger = Ledger(self.store.database)
        nothing_later(self.ledger, clock.now_ns())
        above = config.policy.common_cause_job_nodes
        self.past_jobs = PastJobs(self.store.database, above)
        self.learning = Learning(config, self.ledger, self.store.directory)
        self.watch.use(self.learning.judging)
        self.stages = Stages()
        self.drains = Drains(
            adapter, self.ledger, config.policy, config.mode, clock.monotonic,
            prover=prover, stages=self.stages)  # fmt: skip
        self.beside = Beside(beside, adapter, self.ledger, config.policy, config.mode, self.stages)
        self.identities = Identities(self.ledger)
        # In shadow mode nothing in Slurm is touched, jobs included.
        acts = job_tools is not None and config.mode is not Mode.SHADOW
        self.tender = (
            Tender(job_tools, self.store.database, self.ledger, config.policy.jobs, self.stages)
            if acts and job_tools is not None
            else None
        )
        days = config.store.keep_days
        self.past = Past(accounting, self.store.database, days) if accounting else None
        self.ways = make_ways(config.alerts, clock.monotonic)
        self.alerts = Alerts(
            config.alerts,
            cluster=config.slurm.cluster,
            state_file=self.state_dir / "alerts.json",
            ways=self.ways,
        )
        self.idle_jobs = IdleJobs(config.jobs)
        self.met = Met(self.store.database, config.policy.cost)
        self.schedule = Schedule(speed=speed, rng=rng)
        self.learning_jobs = Jobs(self)
        self._urgent = asyncio.Event()
        self.intake = Intake(self.group, self.watch, clock, self.wake)
        self.fleet_points: Sequence[Sample] = ()
        self.sink = InfluxSink(self.store, config.influxdb) if config.influxdb.url else None
        self.outlet = DirectOutlet(self.intake.keep, self.wake, clock.now_ns)
        sources = make_all(config.head.sources, HEAD_NODE, self.state_dir, now_ns=clock.now_ns)
        self.loops = [SourceLoop(one, HEAD_NODE, self.outlet, clock.now_ns) for one in sources]
        self.gateway: Gateway | None = None
        self._refused = Refused(clock.monotonic)
        self.judgement = Judgement(clock.now_ns())
        self.decisions: tuple[Decision, ...] = ()
        self.risk_of: Mapping[str, Mapping[str, Risk]] = {}
        self.view: LedgerView = self.ledger.view(clock.now_ns())
        self._returns = Returns(self.watch, self.view.returned_ns)
        self._checkpoint = Checkpoint(self.state_dir, self.watch, self.store)
        self.active: list[Alert] = []
        self._faults: dict[str, str] = {}
        self.started_seconds = clock.monotonic()
        self._hand_thread = ThreadPoolExecutor(1, "tocsin-hand")
        self._judging = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._risk_written_seconds = float("-inf")
        self._decisions = DecisionLog(self.ledger.decisions_since(-1)[0])

    # ---- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Restores what was known, reads Slurm once, and starts the jobs."""
        restored = await self.intake.in_turn(self._restore)
        log.info("watch_restored", **restored)
        await self.read_slurm()
        config = self.config
        every = self.schedule.every
        period, most = self.desk.source.period_seconds, self.desk.source.deadline_seconds + 5
        every("slurm", period, most, self.read_slurm, delay_seconds=period)
        every("judge", config.head.judge_seconds, 60.0, self.judge)
        often, save = config.head.checkpoint_seconds, self._checkpoint.when_rested(self.checkpoint)
        every("checkpoint", often, 120.0, save, delay_seconds=often)
        every("self", 10.0, 10.0, self._report)
        self.schedule.every_blocking(
            "roll", ROLL_PERIOD_SECONDS, 600.0, self._roll, delay_seconds=ROLL_PERIOD_SECONDS
        )
        self.schedule.every_blocking(
            "upkeep",
            UPKEEP_PERIOD_SECONDS,
            3000.0,
            lambda: self.store.upkeep(self.clock.now_ns()),
            delay_seconds=300.0,
        )
        if self.past is not None:
            every("history", HISTORY_PERIOD_SECONDS, 400.0, self._mine, delay_seconds=60.0)
        every("fleet", FLEET_PERIOD_SECONDS, 30.0, self._write_fleet)
        self.learning_jobs.begin()
        every("identity", IDENTITY_PERIOD_SECONDS, 30.0, self._look_who_is_there)
        for one in self.loops:
            period = one.source.period_seconds
            every(one.source.name, period, one.deadline_seconds + 30, one.turn)
        self._spawn(self._answer_urgent())
        if self.sink is not None:
            self._spawn(self.sink.run())
        for way in self.ways:
            self._spawn(way.run())
        self.schedule.start()
        log.info(
            "head_starts",
            version=__version__,
            mode=config.mode.value,
            nodes=len(self.nodes),
            adapter=self.adapter.name,
        )

    async def stop(self) -> None:
        """Ends jobs, writes the last checkpoint, closes the store. Safe after a failed start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*list(self._tasks), return_exceptions=True)
        late = await self.schedule.stop(grace_seconds=5.0)
        if late:
            log.warning("left_behind", jobs=late)
        await self._checkpoint.last(self.checkpoint)
        await self.group.close()
        self.intake.close()
        self._hand_thread.shutdown(wait=False, cancel_futures=True)
        for close in (self.learning_jobs.close, *(loop.close for loop in self.loops)):
            close()
        self.desk.source.close()
        self.store.close()
        log.info("head_ends")

    def _restore(self) -> dict[str, object]:
        returned_ns = self.view.returned_ns
        found = restore(self.state_dir, self.watch, self.store, self.clock.now_ns(), returned_ns)
        return {"checkpoint": found.checkpoint, "samples": found.samples}

    # ---- Slurm ------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """The nodes as Slurm last showed them."""
        return self.desk.nodes

    async def read_slurm(self) -> None:
        """One cycle of the ``slurm`` source; then the ledger is held against what it said."""
        batch = await asyncio.to_thread(self.desk.read, self.clock.now_ns())
        await self._keep(
            head_reading(one) if one.measurement == "source" else one for one in batch.samples
        )
        reading = self.desk.source.latest
        if not batch.up or reading is None:
            log.warning("slurm_not_read", why=batch.fault)
            self.drains.not_read()
            return
        known = {*reading.nodes, HEAD_NODE}
        now_ns = self.clock.now_ns()
        await self.intake.in_turn(self.intake.latest.keep_only, known, now_ns)
        run = self.stages.run
        await self.by_hand(lambda: run("past jobs", self.past_jobs.observe, reading.jobs, now_ns))
        returned = await self.by_hand(self.drains.reconcile, reading.nodes, now_ns)
        if self.drains.reconciled:
            self.desk.show(reading)
        await self.returned(returned)
        if self.tender is not None:
            tend = self.tender.tend
            await self.by_hand(lambda: run("care for jobs", tend, reading.jobs, now_ns))
        await self.by_hand(lambda: run("beside", self.beside.step, self.situation(), now_ns))
        await self._keep([*await self.by_hand(self.drains.take_news), *self.beside.take_news()])
        await self.by_hand(self.look_at_ledger)
        self._faults.update(self.stages.end())

    async def _keep(self, samples: Iterable[Sample]) -> None:
        """Keeps what was read; that the store cannot is told by itself, and stops nothing here."""
        with contextlib.suppress(StoreUnavailableError):
            await self.intake.keep(list(samples))

    async def returned(self, nodes: Sequence[Returned]) -> None:
        """Nodes that came back into service: what was certain of them before is spent."""
        for one in nodes:
            log.info("node_returned", node=one.node)
        if nodes:
            await self.intake.in_turn(self._returns.tell, dict(nodes))
            self._spawn(self._look_again([one.node for one in nodes]))

    async def _look_again(self, names: list[str]) -> None:
        """Slurm shows a node that it takes back as not responding until its slurmd has answered:
        a fault in that moment must not wait for the next whole reading."""
        await asyncio.sleep(RESPONDS_SECONDS / self.speed)
        await self.by_hand(self.desk.read_again, names)
        self.wake()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- judgement --------------------------------------------------------------------

    async def judge(self) -> None:
        """One judgement, its decisions, what they do, and what people are told of it."""
        async with self._judging:
            now_ns = self.clock.now_ns()
            expected = self.desk.expected_gpus()
            await self.intake.in_turn(self._returns.tell, self.view.returned_ns)
            judgement = await self.intake.in_turn(self.watch.judge, now_ns, expected, self.groups())
            # Our own sources are told by their faults; the head itself is no silent node.
            heard = [one for one in judgement.silences if (one.node, one.cause) != _SELF]
            facts = (*judgement.facts, *self.beside.facts)
            judgement = replace(judgement, silences=tuple(heard), facts=facts)
            # Where learned models fail, what is certain is acted on all the same.
            acting = self.stages.run("learning", self.learning.acting, judgement)
            self.judgement = judgement = acting or replace(judgement, risks=())
            self.risk_of = risks_by_node(judgement.risks)
            try:
                self.decisions = await self.by_hand(self._decide_and_act, now_ns)
                self._faults["ledger"] = ""
            except StoreUnavailableError as error:
                # Nothing is done that cannot be written down first; people are told why.
                self.decisions, self._faults["ledger"] = (), str(error)
            self._faults["store"] = self.store.counts.fault
            self._faults["disk"] = self.store.counts.short
            self._faults["store's files"] = self.store.files_at_fault()
            self._faults["InfluxDB outbox"] = self.sink.loss() if self.sink else ""
            self._faults["tokens file"] = getattr(self.gateway and self.gateway.tokens, "fault", "")
            # Silences have an alert of their own, with a time to settle.
            spoken = [one for one in self.decisions if one.voice != "silence"]
            out = {name for name, node in self.nodes.items() if node.drain or node.down}
            events, options = judgement.group_events, self.config.alerts
            self.active = active_alerts(
                spoken, judgement.silences, len(self.nodes), now_ns, options, out, events
            )
            self.active += of_head(self._faults.items(), now_ns)
            self.active += self.learning.alerts(now_ns)
            loud = (self.gateway.loud() if self.gateway else "", self.outlet.budget.loud())
            self.active += of_senders("; ".join(filter(None, loud)), now_ns)
            self.active += await self.idle_jobs.alerts(self.intake, self.desk, now_ns)
            self.active = with_owners(self.active, self.desk.jobs.values())
            tell = self.alerts.update
            await self.by_hand(lambda: self.stages.run("alerts", tell, self.active, now_ns))
            self.intake.flow.mark(self.clock.monotonic())
            await self._write_decisions()
            await self._write_risks(judgement)

    def situation(self) -> Situation:
        """What is known now, for policy."""
        judgement, cut = self.judgement, self.gateway.admission.cut if self.gateway else {}
        return Situation(
            nodes=self.nodes, slurm_age_seconds=self.desk.age_seconds, facts=judgement.facts,
            silences=judgement.silences, risks=judgement.risks, coverage=judgement.coverage,
            groups=self.groups(), group_events=judgement.group_events, jobs=self.desk.jobs,
            ran=self.past_jobs.on, refused=self._refused.lately({**cut, **self.outlet.budget.cut}),
        )  # fmt: skip

    def groups(self) -> Groups:
        """The groups of each node: as configured, by Slurm, by the fabric."""
        told = [getattr(loop.source, "groups", None) for loop in self.loops]
        return self.desk.groups(*(groups() for groups in told if groups is not None))

    def _decide_and_act(self, now_ns: int) -> tuple[Decision, ...]:
        """In the hand thread: nothing else writes to ledger or Slurm meanwhile."""
        config = self.config
        decisions = decide(
            self.situation(), config.policy, self.ledger.view(now_ns), config.mode, now_ns
        )
        final = tuple(self.drains.carry_out(decisions, now_ns))
        self.stages.run("learning", self.learning.record, self.situation(), now_ns)
        self.stages.run("faults of jobs", self.met.look, self.judgement, self.desk, now_ns)
        # What was read back after the write is as new as a reading: slurmctld is not asked twice.
        shown = self.drains.take_shown()
        self.desk.saw(shown)
        fresh = (one.node for one in final if one.action is Action.DRAIN and one.guard is None)
        self.desk.read_again([name for name in fresh if name not in shown])
        self.look_at_ledger()
        return final

    def look_at_ledger(self) -> None:
        """Takes the snapshot that the page shows. In the hand thread."""
        self.view = self.ledger.view(self.clock.now_ns())

    async def by_hand(
        self, function: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Runs ``function`` in the one thread that may touch ledger and Slurm."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._hand_thread, function, *arguments)

    def wake(self) -> None:
        """Judges at once: an urgent event came, or an operator spoke."""
        self._urgent.set()

    async def _answer_urgent(self) -> None:
        while True:
            await self._urgent.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._urgent.clear()
            try:
                await self.judge()
            except Exception as error:
                log.exception("judgement_failed", why=str(error))

    # ---- housekeeping -----------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Writes down what the watch knows."""
        await self._checkpoint.save(self.intake.in_turn, self.clock.now_ns)

    async def _write_decisions(self) -> None:
        """What the ledger has newly recorded, as ``decision`` points for the store."""
        sequence = self._decisions.sequence
        newest, fresh = await self.by_hand(self.ledger.decisions_since, sequence)
        await self._decisions.write(newest, fresh, self.intake.keep)

    async def _write_risks(self, judgement: Judgement) -> None:
        now_seconds = self.clock.monotonic()
        if now_seconds - self._risk_written_seconds < RISK_PERIOD_SECONDS:
            return
        self._risk_written_seconds = now_seconds
        await self.intake.keep(risk_samples(judgement))

    async def _report(self) -> None:
        await self.intake.keep([self.reading()])

    def reading(self) -> Sample:
        """The head's own ``source`` reading."""
        faults = [
            f"{name}: {state.fault}" for name, state in self.schedule.jobs.items() if state.fault
        ]
        return head_reading(
            source_reading(
                "",
                "head",
                self.clock.now_ns(),
                up=not faults,
                duration_seconds=0.0,
                age_seconds=0.0,
                fault="; ".join(faults),
            )
        )

    def _roll(self) -> None:
        try:
            self.store.roll(self.clock.now_ns())
        finally:  # where it failed for want of room, room is what it needs
            self.store.make_room()

    async def _mine(self) -> None:
        if self.past is not None:
            await mine(self.past, self.group.write, self.clock.now_ns())

    async def _write_fleet(self) -> None:
        """The fleet in a few points, so that a dashboard of 10,000 nodes stays fast."""
        now_ns = self.clock.now_ns()
        self.fleet_points = await self.intake.in_turn(fleet_points, self.intake.latest, now_ns)
        if self.fleet_points:
            await self.intake.keep(self.fleet_points)

    async def _look_who_is_there(self) -> None:
        """Nodes and GPUs that were replaced begin their history anew."""
        now_ns = self.clock.now_ns()
        seen = await self.intake.in_turn(seen_in, self.intake.latest, now_ns)
        if told := await self.by_hand(self.identities.check, seen, now_ns):
            await self.intake.keep(told)

    def store_words(self) -> str:
        """How the store fares, in a few words."""
        counts = self.store.counts
        words = f"embedded, {counts.samples} readings since the start"
        if counts.fault:
            words = f"embedded: {counts.fault}"
        if self.sink is not None:
            fault = self.sink.fault()
            words += f"; InfluxDB {fault}" if fault else f"; InfluxDB {self.sink.sent_lines} lines"
        return words
