"""``tocsin check``: is the configuration sound, and what works on this machine?"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from collectors.sample import Cycle, Source
from daemon.config import DEFAULT_FILE, Config, read
from daemon.settings import ConfigError, load

EXAMPLES = """examples:
  tocsin check                                   the packaged file
  tocsin check --config agent.toml --role agent  an agent's, on its own node
  tocsin check --json

Lists every fault of the configuration at once, with line, path and the key that was probably
meant; then reads each source once and says what works here, and why not. Exit code 0: all is
well; 1: the configuration is sound and a source does not work; 2: the configuration is not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried: ``ok``, and what was found in words."""

    name: str
    ok: bool
    text: str


def options(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of ``tocsin check``."""
    del verb
    parser.epilog = EXAMPLES
    parser.add_argument("--config", type=Path, help=f"default: {DEFAULT_FILE}")
    parser.add_argument("--role", choices=["head", "agent", "auto"], default="auto")
    parser.add_argument("--no-sources", action="store_true", help="only the configuration")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, verb: str) -> int:
    """Checks and prints."""
    del verb
    role = arguments.role
    try:
        if role == "auto":
            role = role_of(arguments.config)
        config = read(arguments.config, role)
    except ConfigError as error:
        if arguments.json:
            faults = [asdict(fault) for fault in error.faults]
            print(json.dumps({"ok": False, "file": str(error.file or ""), "faults": faults}))
            return 2
        raise
    findings = [] if arguments.no_sources else list(tried(config, role))
    file = arguments.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    ok = all(finding.ok for finding in findings)
    if arguments.json:
        rows = [asdict(finding) for finding in findings]
        print(json.dumps({"ok": ok, "role": role, "file": str(file or ""), "findings": rows}))
    else:
        print(f"{file or 'no file: the defaults'}: sound, as {role}; mode {config.mode.value}")
        for finding in findings:
            print(f"  {'ok ' if finding.ok else 'NO '} {finding.name}: {finding.text}")
    return 0 if ok else 1


def role_of(file: Path | None) -> str:
    """``agent`` when the file speaks of an agent and not of a head, else ``head``."""
    path = file or DEFAULT_FILE
    if file is None and not path.exists():
        return "head"
    try:
        named = load(Config, path).model_fields_set
    except ConfigError as error:
        # Its faults are listed together with what is wrong outside the file, if it can be.
        raise ConfigError(error.file, error.faults) from error
    return "agent" if "agent" in named and "head" not in named else "head"


def tried(config: Config, role: str) -> list[Finding]:
    """Each source of the role read once; for the head also Slurm and the listeners."""
    with tempfile.TemporaryDirectory(prefix="tocsin-check-") as folder:
        if role == "agent":
            return _agent_findings(config, Path(folder))
        return _head_findings(config, Path(folder))


def _agent_findings(config: Config, folder: Path) -> list[Finding]:
    from daemon.cli.agent import make_sources

    section = config.agent.model_copy(update={"state_dir": folder})
    return [_read_once(source, section.node) for source in make_sources(section)]


def _head_findings(config: Config, folder: Path) -> list[Finding]:
    from daemon.points import HEAD_NODE
    from daemon.reach import make_slurm_source
    from daemon.sources import make_all

    source = make_slurm_source(config, folder)
    found = _read_once(source, "")
    if found.ok and source.latest is not None:
        found = Finding("slurm", True, f"{len(source.latest.nodes)} nodes read")
    polled = make_all(config.head.sources, HEAD_NODE, folder)
    return [
        found,
        *_adapter_findings(config),
        *_lease_findings(config),
        _model_finding(config),
        *(_read_once(one, HEAD_NODE) for one in polled),
    ]


def _model_finding(config: Config) -> Finding:
    """Which learned model scores beside the rival, or why it is refused."""
    from daemon.learning.choice import choose
    from daemon.learning.shelf import Shelf

    found = choose(config.risk, Shelf(config.head.state_dir / "models"))
    return Finding("learned model", not found.refused, found.words)


def _adapter_findings(config: Config) -> list[Finding]:
    """Which adapter writes to Slurm and why, whether it gets an answer, and what it may do."""
    from daemon.reach import make_reach
    from daemon.slurm.adapter import SlurmError

    reach = make_reach(config)
    adapter = reach.adapter
    name = f"adapter {adapter.name}"
    found = [Finding(name, True, f"chosen: {reach.why}")]
    try:
        # One node that does not exist: the shortest question that slurmctld itself answers.
        adapter.nodes(["tocsin-probe"])
        found.extend(Finding(name, True, line) for line in adapter.describe())
    except SlurmError as error:
        found.append(Finding(name, False, f"{error.kind or 'failed'}: {error}"))
    finally:
        adapter.close()
    proof = config.policy.proof
    if proof.when != "never":
        asked = f"when {proof.when}: {', '.join(proof.probes) or 'no probe'}"
        words = asked if reach.prover is not None else f"off in shadow mode ({asked})"
        found.append(Finding("proof", bool(proof.probes), words))
    return found


def _lease_findings(config: Config) -> list[Finding]:
    """Who acts, where two heads share the cluster."""
    from daemon.standby import make_lease

    lease = make_lease(config)
    if lease is None:
        return []
    words = lease.words()
    return [Finding("lease", "cannot be read" not in words, words)]


def _read_once(source: Source, node: str) -> Finding:
    try:
        started = time.monotonic()
        batch = Cycle(source, node).run(time.time_ns())
        took = time.monotonic() - started
    finally:
        source.close()
    if not batch.up:
        return Finding(source.name, False, batch.fault)
    samples = len(batch.samples) - 1
    problems = f", {len(batch.problems)} problems" if batch.problems else ""
    first = f" ({batch.problems[0].problem})" if batch.problems else ""
    return Finding(source.name, True, f"{samples} samples in {took:.2f} s{problems}{first}")
