"""Reads slurmctld through Slurm's own commands, and names what is wrong when it cannot.

One read of the nodes and one of the jobs is all that a cycle costs, whatever the cluster's
size. The form is chosen once: JSON of ``scontrol`` where it is spoken, else (22.05) its text where
that can be read in one way only and JSON of ``sinfo`` where it cannot, else text. Newer ones whose
JSON plugin is not installed are read as text too, and not at all where that is unclear. Learnt on
real controllers: ``sinfo --json`` of 22.05 ends with exit code 0 and *no* nodes when slurmctld is
away, so an answer without nodes is a failure, never an empty cluster; clients retry a missing
slurm.conf for 60 s, so it is looked for first.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collectors.command import Result, Runner
from collectors.sample import Problem, clip
from collectors.slurm.faults import GARBAGE, PLUGIN, UNCONFIGURED, SlurmTrouble, trouble
from collectors.slurm.hostlist import HostlistError, compress, expand, valid_name
from collectors.slurm.nodes import Nodes, local_ns, parse_nodes
from collectors.slurm.text_nodes import clear, clear_of_some, first_record

# 10,000 nodes are about 25 MB of scontrol's JSON.
OUTPUT_LIMIT_BYTES = 256 * 1024 * 1024
# What people wrote that makes a text unclear stands for hours: so often it is not tried again.
UNCLEAR_READS = 40
# Fixed formats whatever the head's environment says. Times are read as local time.
ENVIRONMENT = {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
# Hidden partitions too, and this cluster alone: where FederationParameters=fed_display is set the
# commands show all clusters of a federation, whose node names may be the same as ours.
_OURS = ("--all", "--local")
# The comment is the last: it is free text and may hold the separator, and whole lines. So each line
# of squeue's own begins with a word that is made up for each answer: whoever submits a job could
# else write other jobs into its comment, and have them signalled or requeued.
JOB_FORMAT = "%A|%i|%T|%u|%e|%M|%b|%P|%N|%k"
# The states in which a job holds nodes (squeue(1), "JOB STATE CODES").
JOB_STATES = "RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED"


@dataclass(frozen=True, slots=True)
class Job:
    """A job that holds nodes. ``key`` is what people type (``12_3`` for an array task).

    ``end_time_ns`` is when its limit ends it, 0 where it has none; ``elapsed_seconds`` how
    long it has run; ``gpus_per_node`` 0 where it did not ask per node.
    """

    id: str
    key: str
    state: str
    user: str
    nodes: tuple[str, ...]
    end_time_ns: int = 0
    elapsed_seconds: float = 0.0
    gpus_per_node: int = 0
    partition: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """How to reach the cluster: ``conf`` and ``binaries`` are None for Slurm's own defaults."""

    conf: Path | None = None
    binaries: Path | None = None

    def command(self, name: str, *arguments: str) -> list[str]:
        """An argument list for one of Slurm's commands."""
        return [str(self.binaries / name) if self.binaries else name, *arguments]

    def environment(self) -> dict[str, str]:
        """What the command's environment must hold besides the head's own."""
        return {**ENVIRONMENT, **({"SLURM_CONF": str(self.conf)} if self.conf else {})}

    def check(self) -> None:
        """Raises SlurmTrouble at once where a named slurm.conf does not exist."""
        named = self.conf or os.environ.get("SLURM_CONF")
        if named and not Path(named).exists():
            raise SlurmTrouble(
                UNCONFIGURED,
                f"there is no {named}: where is the cluster's slurm.conf?",
                not_sent=True,
            )


class SlurmReader:
    """Nodes and jobs, each in one request. Not for use from two threads at once."""

    def __init__(
        self,
        tools: Tools,
        runner: Runner,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tools = tools
        self._runner = runner
        self._monotonic = monotonic
        self._without_text = 0
        self._no_json: SlurmTrouble | None = None  # why this Slurm speaks none
        self._form = ""  # "scontrol", "sinfo" or "text", once one of them has answered
        self.reads_total = 0

    @property
    def form(self) -> str:
        """Which form of answer this Slurm gives; empty before the first read."""
        return self._form

    @property
    def without_json(self) -> bool:
        """Whether nodes are read as text because Slurm's JSON plugin is missing here."""
        return self._no_json is not None

    def nodes(
        self, names: Iterable[str] | None = None, deadline_seconds: float = 10.0
    ) -> tuple[Nodes, list[Problem]]:
        """All nodes, or those of ``names`` that exist. Raises SlurmTrouble."""
        self.tools.check()
        end = self._monotonic() + deadline_seconds
        wanted = None if names is None else sorted(set(names))
        if wanted is not None:
            bad = [name for name in wanted if not valid_name(name)]
            if bad:
                raise ValueError(f"no node name: {bad[0]!r}")
            if not wanted:
                return {}, []
        forms = (self._form,) if self._form else ("scontrol", "sinfo", "text")
        for form in forms:
            if form == "sinfo" and wanted is None and (found := self._read_text(end)):
                self._form = form
                return found
            result = self._ask(form, wanted, max(0.1, end - self._monotonic()))
            if b"unrecognized option" in result.stderr or b"invalid option" in result.stderr:
                continue
            if form != "text" and (missing := _no_json(result)) is not None:
                self._no_json = missing
                if form == "sinfo" and wanted is None:
                    # Its text can be read in more than one way: better nothing than a guess.
                    raise missing
                continue
            nodes, problems = self._answer(form, result, wanted, end)
            if form == "sinfo" and any(node.uncertain for node in nodes.values()):
                continue  # sinfo of this version groups nodes: its answer is not good enough
            if not nodes and wanted is None:
                raise self._why(result, problems, end)
            self._form = form
            return nodes, problems
        if self._form:
            # Slurm was upgraded in place and no longer speaks so: its new form is looked for.
            self._form = ""
            return self.nodes(wanted, max(0.1, end - self._monotonic()))
        raise SlurmTrouble(GARBAGE, "none of Slurm's commands gives nodes in a form that is known")

    def jobs(self, deadline_seconds: float = 10.0) -> dict[str, Job]:
        """The jobs that hold nodes, by id. Raises SlurmTrouble."""
        self.tools.check()
        mark = f"tocsin{secrets.token_hex(8)}|"
        # Not as an argument: those of a process can be read by everybody on its machine.
        result = self._run(
            "squeue", ("--noheader", *_OURS, f"--states={JOB_STATES}"), deadline_seconds,
            SQUEUE_FORMAT=f"{mark}{JOB_FORMAT}",
        )  # fmt: skip
        if not result.ok:
            raise trouble(result)
        return parse_jobs(result.text(), mark)

    def _read_text(self, end: float) -> tuple[Nodes, list[Problem]] | None:
        """All nodes as text, where this can be read in one way only.

        For 22.05, whose scontrol speaks no JSON: its sinfo takes 2 s of CPU to print 10,000 nodes
        as JSON, scontrol 0.13 s as text.
        """
        if self._without_text > 0:
            self._without_text -= 1
            return None
        result = self._ask("text", None, max(0.1, end - self._monotonic()))
        if not result.ok:
            raise trouble(result)
        if not clear(result.text()):
            self._without_text = 0 if self._no_json else UNCLEAR_READS
            return None
        nodes, problems = parse_nodes(result.stdout)
        return (nodes, []) if nodes and not problems else None

    def _ask(self, form: str, wanted: Sequence[str] | None, deadline_seconds: float) -> Result:
        names = [compress(wanted)] if wanted is not None else []
        what = "node" if wanted is not None else "nodes"
        if form == "scontrol":
            return self._run("scontrol", (*_OURS, "show", what, *names, "--json"), deadline_seconds)
        if form == "sinfo" and wanted is None:
            return self._run("sinfo", (*_OURS, "--json"), deadline_seconds)
        return self._run(
            "scontrol", (*_OURS, "--detail", "--oneliner", "show", what, *names), deadline_seconds
        )

    def _run(
        self, name: str, arguments: tuple[str, ...], deadline_seconds: float, **environment: str
    ) -> Result:
        self.reads_total += 1
        return self._runner.run(
            self.tools.command(name, *arguments),
            deadline_seconds=deadline_seconds,
            kind=f"slurm-{name}",
            env={**self.tools.environment(), **environment},
            output_bytes=OUTPUT_LIMIT_BYTES,
        )

    def _answer(
        self, form: str, result: Result, wanted: Sequence[str] | None, end: float
    ) -> tuple[Nodes, list[Problem]]:
        if wanted is None or form == "scontrol" or clear_of_some(result.text()):
            return self._read(result, wanted)
        # Text, and somebody's words in one node's may look like another: each is asked for alone.
        found: Nodes = {}
        problems: list[Problem] = []
        for name in wanted:
            result = self._ask(form, [name], max(0.1, end - self._monotonic()))
            own = replace(result, stdout=first_record(result.text()).encode())
            nodes, odd = self._read(own, [name])
            found.update(nodes)
            problems.extend(odd)
        return found, problems

    def _read(self, result: Result, wanted: Sequence[str] | None) -> tuple[Nodes, list[Problem]]:
        """The nodes of one answer. A failure is one, unless some of ``wanted`` do not exist."""
        said = result.stderr.decode("utf-8", "replace")
        unknown = wanted is not None and re.search(
            r"not found|Invalid node name", said + result.text()[-2000:]
        )
        if not result.ok and not (unknown and result.status == "ended"):
            raise trouble(result)
        nodes, problems = parse_nodes(result.stdout)
        if wanted is not None:
            if not nodes and problems and not unknown:
                # Nothing can be read in it: that is no word that these nodes do not exist.
                words = "; ".join(problem.problem for problem in problems[:3])
                raise SlurmTrouble(GARBAGE, f"{result.argv[0]} gives no nodes: {clip(words, 300)}")
            nodes = {name: node for name, node in nodes.items() if name in set(wanted)}
            problems = [
                p for p in problems if "not found" not in p.line and "no node in" not in p.problem
            ]
        return nodes, problems

    def _why(self, result: Result, problems: list[Problem], end: float) -> SlurmTrouble:
        """Why an answer held no nodes: asked of scontrol, which tells where sinfo does not."""
        probe = self._run(
            "scontrol",
            ("--oneliner", "show", "node", "tocsin-probe"),
            max(0.5, end - self._monotonic()),
        )
        if not probe.ok and b"not found" not in probe.stdout + probe.stderr:
            return trouble(probe)
        words = "; ".join(problem.problem for problem in problems[:3]) or "an empty list"
        return SlurmTrouble(GARBAGE, f"{result.argv[0]} gives no nodes: {clip(words, 300)}")


def _no_json(result: Result) -> SlurmTrouble | None:
    """What a command said that found no JSON plugin; None of any other."""
    if result.ok or result.status != "ended":
        return None
    error = trouble(result)
    return error if error.kind == PLUGIN else None


def parse_jobs(text: str, mark: str) -> dict[str, Job]:
    """squeue's lines in JOB_FORMAT behind ``mark``; a line that is none is left out."""
    jobs: dict[str, Job] = {}
    for line in text.split("\n"):
        parts = line.removeprefix(mark).strip().split("|", 9) if line.startswith(mark) else []
        if len(parts) != 10 or not parts[0].isdecimal():
            continue
        number, key, state, user, end, elapsed, gres, partition, where, said = parts
        try:
            nodes = tuple(expand(where))
        except HostlistError:
            continue
        match = re.search(r"gpu(?::[A-Za-z0-9_.-]+)?[:=](\d{1,5})", gres)
        jobs[number] = Job(
            id=number,
            key=key,
            state=state,
            user=user,
            nodes=nodes,
            end_time_ns=local_ns(end),
            elapsed_seconds=elapsed_seconds(elapsed),
            gpus_per_node=int(match[1]) if match else 0,
            partition=partition,
            comment="" if said in ("(null)", "N/A") else said[:1000],
        )
    return jobs


def elapsed_seconds(text: str) -> float:
    """Slurm's ``days-hours:minutes:seconds``; 0 where it is none.

    >>> elapsed_seconds("1-02:03:04"), elapsed_seconds("5:06")
    (93784.0, 306.0)
    """
    match = re.fullmatch(r"(?:(\d{1,6})-)?(?:(\d{1,3}):)?(\d{1,2}):(\d{2})", text.strip())
    if not match:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def jobs_by_node(jobs: Iterable[Job]) -> dict[str, tuple[str, ...]]:
    """Node to the ids of the jobs that hold it."""
    found: dict[str, list[str]] = {}
    for job in jobs:
        for node in job.nodes:
            found.setdefault(node, []).append(job.id)
    return {node: tuple(ids) for node, ids in found.items()}
