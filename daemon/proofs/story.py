"""What a node's proofs came to, in words: for ``tocsin explain``, a ticket, and the store."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from collectors.sample import Sample, clip, sample
from daemon.page.view import Explanation, SignalView, iso
from daemon.policy.cases import Case
from daemon.proofs.proof import PEERS_MIN, ProofOptions
from daemon.proofs.records import Proof, ProofRecords, Step

_STANDS = {
    Step.RESERVING: "its reservation is being made",
    Step.OPENING: "it is reserved for tocsin alone, and being undrained inside that",
    Step.RUNNING: "it is reserved for tocsin alone, and its job runs or waits",
    Step.RELEASING: "it passed, and its clean window runs before the reservation is deleted",
    Step.CLOSING: "it is being drained again, and its reservation deleted after that",
    Step.LEAVING: "somebody drained it meanwhile: only our reservation is deleted",
}


def proof_sample(proof: Proof, job: str, why: str, figures: str, now_ns: int) -> Sample:
    """One job of a proof as a ``slurm_event``: ``why`` it is no pass, or empty."""
    text = f"proof of {proof.node}, job {job}: {why or 'passed'}; {figures}"
    return sample(
        "slurm_event",
        now_ns,
        {"severity": 2.0 if why else 0.0, "text": clip(text), "jobs": job},
        node=proof.node,
        kind="proof",
        code="proof_failed" if why else "proof_passed",
    )


def with_proofs(
    told: Explanation, case: Case, records: ProofRecords, options: ProofOptions
) -> Explanation:
    """``told`` with what the proofs of its case came to; unchanged where there were none."""
    proofs = records.of_case(case.id)
    if not proofs:
        return told
    last = proofs[-1]
    signals = list(_signals(last, records, options))
    sentences = [*told.sentences, *(_sentence(one, options) for one in proofs[-3:])]
    if last.step is Step.OVER and "failed" in last.text:
        sentences.append("For a ticket: " + ticket(told, last, signals))
    return replace(told, sentences=tuple(sentences), signals=(*told.signals, *signals))


def ticket(told: Explanation, proof: Proof, signals: Sequence[SignalView]) -> str:
    """What a vendor or a colleague needs to know of a node that failed its proof, in one line."""
    decision = told.decision
    what = decision.reason if decision is not None else told.title
    figures = ", ".join(f"{one.name.removeprefix('proof ')} {one.value:.4g}" for one in signals)
    parts = [
        f"node {told.node}",
        f"drained for: {what}",
        f"{proof.text} at {iso(proof.ended_ns)}",
        f"figures: {figures or 'none'}",
    ]
    if told.evidence:
        parts.append(f"evidence: {told.evidence[0]}")
    if decision is not None and decision.advice:
        parts.append(f"advice: {decision.advice}")
    return "; ".join(parts)


def _sentence(proof: Proof, options: ProofOptions) -> str:
    asked = f", asked by {proof.user}" if proof.user else ""
    begun = f"Proof begun {iso(proof.begun_ns)}{asked}: "
    if proof.step is Step.OVER:
        return f"{begun}{proof.text}, ended {iso(proof.ended_ns)}."
    passes = f"{proof.passes} of {options.passes} passed" if proof.passes else "none passed yet"
    return f"{begun}{_STANDS[proof.step]}; {passes}."


def _signals(proof: Proof, records: ProofRecords, options: ProofOptions) -> Iterator[SignalView]:
    """Each figure's last value, with the least that it needed."""
    newest = {figure: (value, time_ns) for time_ns, figure, value in records.figures(proof)}
    peers = records.peers(proof, newest)
    minima = {
        figure: least
        for probe in options.probes.values()
        for figure, least in probe.minimum.items()
    }
    for figure, (value, time_ns) in newest.items():
        limit = minima.get(figure)
        text = f"measured {iso(time_ns)}"
        others = peers[figure]
        if len(others) >= PEERS_MIN:
            median = statistics.median(others)
            limit = max(limit or 0.0, median * options.peers_share)
            text += f"; {len(others)} peers have {median:.4g}"
        yield SignalView(f"proof {figure}", value, limit, None, text)
