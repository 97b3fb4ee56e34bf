"""Runs the probes of idle nodes: the one place that submits and cancels their jobs.

The order survives a kill: a row first, then the job, found again by its name. A probe gives way:
its job is cancelled as soon as a job waits for that node's partitions, or anybody drains it.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.sample import Sample, clip, sample
from collectors.slurm.nodes import NodeState
from daemon.drains.hand import SELF
from daemon.drains.ledger import SECOND_NS, Ledger
from daemon.policy.decisions import Mode
from daemon.proofs.idle import IdleOptions, Verdict, due, facts, room, unfit, verdict, wanted
from daemon.proofs.idle_records import IdleProbe, IdleRecords
from daemon.proofs.proof import ProofOptions, parse_result
from daemon.slurm.adapter import SlurmError, SlurmRefused
from daemon.slurm.idling import IdleTools
from daemon.slurm.proving import ProofJob
from daemon.stages import Stages
from models.voices import Fact

# A submission whose answer never came shows its job within so long, or never.
SUBMIT_NS = 30 * SECOND_NS
# A job that has not started after so long is taken back: the node is wanted after all.
START_NS = 90 * SECOND_NS
# Ends that say nothing of the node.
_EVICTED = frozenset({"CANCELLED", "PREEMPTED", "DEADLINE", "REVOKED"})
_HURT = frozenset({"NODE_FAIL", "BOOT_FAIL"})


class IdleProber:
    """``step`` once a reading of Slurm, in the one thread that may write to ledger and Slurm."""

    def __init__(
        self,
        tools: IdleTools | None,
        ledger: Ledger,
        options: IdleOptions,
        proof: ProofOptions,
        mode: Mode,
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages or Stages()
        self._tools = tools if mode is not Mode.SHADOW else None
        self._ledger = ledger
        self._options = options
        self._proof = proof
        self._idle_ns: dict[str, int] = {}
        self.records = IdleRecords(ledger.database)
        # What people should know of the nodes, for the next judgement.
        self.facts: tuple[Fact, ...] = ()
        # What probes came to since it was last taken away, for the store.
        self.news: list[Sample] = []
        self._told_anew = False
        self._look_at_facts()

    def step(self, nodes: Mapping[str, NodeState], out: frozenset[str], now_ns: int) -> None:
        """Follows what runs, and begins what is due. ``out``: nodes that tocsin holds, that
        people locked, or of which a fact speaks.
        """
        self._see_idle(nodes, now_ns)
        tools = self._tools
        if tools is None:
            return
        # What is under way is followed first: where that fails, nothing more is begun.
        try:
            self._follow_all(tools, nodes, out, now_ns)
            self._begin_due(tools, nodes, out, now_ns)
        except SlurmError:
            pass  # nothing is concluded; the next cycle asks again
        if self._told_anew:
            self._look_at_facts()

    def _see_idle(self, nodes: Mapping[str, NodeState], now_ns: int) -> None:
        fit = {name for name, node in nodes.items() if not unfit(node)}
        self._idle_ns = {name: self._idle_ns.get(name, now_ns) for name in fit}

    # ---- what runs -----------------------------------------------------------------------------

    def _follow_all(
        self, tools: IdleTools, nodes: Mapping[str, NodeState], out: frozenset[str], now_ns: int
    ) -> None:
        under_way = self.records.open()
        if not under_way:
            return
        pressed = wanted(tools.pending())
        away: list[SlurmError] = []

        def follow(probe: IdleProbe) -> None:
            try:
                self._follow(tools, probe, nodes, out, pressed, now_ns)
            except SlurmError as error:
                away.append(error)

        for probe in under_way:
            self._stages.run(f"idle probe of {probe.node}", follow, probe)
            if away:
                raise away[0]

    def _follow(
        self,
        tools: IdleTools,
        probe: IdleProbe,
        nodes: Mapping[str, NodeState],
        out: frozenset[str],
        pressed: frozenset[str],
        now_ns: int,
    ) -> None:
        job = tools.find_job(probe.job_name)
        if job is None:
            if now_ns - probe.begun_ns > SUBMIT_NS:
                self._end(probe, "", "Slurm does not know its job", now_ns)
        elif job.ended:
            self._judge(probe, job, now_ns)
        elif why := self._gives_way(probe, job, nodes, out, pressed, now_ns):
            tools.cancel(job.id)
            self._end(probe, job.id, f"gave way: {why}", now_ns)

    def _gives_way(
        self,
        probe: IdleProbe,
        job: ProofJob,
        nodes: Mapping[str, NodeState],
        out: frozenset[str],
        pressed: frozenset[str],
        now_ns: int,
    ) -> str:
        node = nodes.get(probe.node)
        if node is None or node.drain or node.failed or node.down or probe.node in out:
            return f"{probe.node} is {node.words if node else 'gone'}, or held"
        if pressed & {*probe.partitions, self._options.partition}:
            return "a job waits for it"
        if job.state == "PENDING" and now_ns - probe.begun_ns > START_NS:
            return "it did not start"
        most_ns = START_NS + int((self._options.job_seconds + 120) * SECOND_NS)
        return "its time is over" if now_ns - probe.begun_ns > most_ns else ""

    def _judge(self, probe: IdleProbe, job: ProofJob, now_ns: int) -> None:
        result = parse_result(job.comment)
        if result is None and job.state in _EVICTED:
            self._end(probe, job.id, f"gave way: its job was {job.state}", now_ns)
            return
        if result is None and job.state in _HURT:
            self._end(probe, job.id, f"its job ended {job.state}: that is told by others", now_ns)
            return
        if result is None:
            said = Verdict("failed:job", f"its job ended {job.state} without a result")
            self._end(probe, job.id, said.text, now_ns, said)
            return
        figures = result.figures
        probes = self._proof.probes_for(probe.features.split(","))
        peers, own = self.records.peers(probe, figures), self.records.own(probe, figures)
        said = verdict(result, probes, peers, own, self._options)
        words = " ".join(f"{name}={value:.4g}" for name, value in figures.items())
        with self._ledger.together():
            self.records.keep_figures(probe, figures, now_ns)
            self._end(probe, job.id, f"{said.text}; {words}", now_ns, said)

    def _end(
        self, probe: IdleProbe, job: str, text: str, now_ns: int, said: Verdict | None = None
    ) -> None:
        """It is over: with ``said`` where it came to a result."""
        kept = said if said is not None else Verdict("", text)
        with self._ledger.together():
            self.records.end(probe, said is not None, kept, now_ns)
            self._say(probe.node, "idle_probe_ends", text, now_ns)
        code = "none" if said is None else (said.key.partition(":")[0] or "passed")
        fields: dict[str, float | str] = {
            "severity": 1.0 if kept.key else 0.0,
            "text": clip(text),
            "jobs": job,
        }
        self.news.append(
            sample("slurm_event", now_ns, fields, node=probe.node, kind="idle_probe", code=code)
        )
        self._told_anew = True

    def _look_at_facts(self) -> None:
        self._told_anew = False
        self.facts = facts(self.records.told(), self._options) if self._options.every_hours else ()

    # ---- what begins ---------------------------------------------------------------------------

    def _begin_due(
        self, tools: IdleTools, nodes: Mapping[str, NodeState], out: frozenset[str], now_ns: int
    ) -> None:
        known = self.records.known(self._idle_ns, now_ns)
        if not room(known, self._options):
            return
        under_way = frozenset(one.node for one in self.records.open())
        # Slurm is asked who waits only where a node is due.
        if not due(nodes, known, out | under_way, frozenset(), self._options, now_ns):
            return
        pressed = wanted(tools.pending())
        for name in due(nodes, known, out | under_way, pressed, self._options, now_ns):
            self._begin(tools, nodes[name], now_ns)

    def _begin(self, tools: IdleTools, node: NodeState, now_ns: int) -> None:
        probes = self._proof.probes_for(node.features)
        if not probes:
            return
        with self._ledger.together():
            probe = self.records.begin(node.name, node.features, node.partitions, now_ns)
            self._say(node.name, "idle_probe", ", ".join(probes), now_ns)
        partition = node.partitions[0] if node.partitions else ""
        try:
            tools.submit(probe.job_name, node.name, partition, probes)
        except SlurmRefused as error:
            self._end(probe, "", f"Slurm took no job: {error}", now_ns)

    def _say(self, node: str, verb: str, text: str, now_ns: int) -> None:
        self._ledger.say(now_ns, user=SELF, verb=verb, node=node, text=text)
