"""From voices to candidates: which node should be drained, for what, and in which words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daemon.policy.cases import LedgerView
from daemon.policy.decisions import decision_id
from daemon.policy.names import SHORT_ID_CHARACTERS
from daemon.policy.newest import of_newest
from daemon.slurm.adapter import plain_text
from models.horizons import by_label
from models.voices import Fact, Outlook, Remedy, Risk

# How each reason of ours begins.
OUR_WORDS = "tocsin:"
# `sinfo -R` shows 20 characters: "tocsin:" leaves 13 for code, blank and part.
_SHORT_CHARACTERS = 13
_CODE_CHARACTERS_MIN = 3
# Whatever a device calls itself, the case's id must still fit behind it.
_PART_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node that a voice wants out of service, or told of, with everything it says."""

    id: str
    node: str
    device: str
    component: str
    rule: str
    code: str
    voice: str
    onset_ns: int
    severity: int
    remedy: Remedy
    probability: float
    text: str
    advice: str
    said: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()  # what else stands against the node
    newest_onset_ns: int = 0  # of all facts that want it drained, the last one's onset
    newest: str = ""  # and its code and device

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sorts facts, the gravest and the oldest first."""
        # Of two witnesses of one fault the kernel's Xid tells more than "lost" does.
        other = int(self.rule != "xid")
        return (-int(self.voice == "fact"), -self.severity, other, self.onset_ns)


def of_facts(facts: Iterable[Fact], risks: Mapping[str, float]) -> list[Candidate]:
    """One candidate a fact that asks for an alert or a drain."""
    found = []
    for fact in facts:
        if fact.remedy is Remedy.NONE:
            continue
        entity = fact.entity
        found.append(
            Candidate(
                id=decision_id(entity.node, fact.rule, entity.device, fact.onset_ns),
                node=entity.node,
                device=entity.device,
                component=entity.kind,
                rule=fact.rule,
                code=fact.code,
                voice="fact",
                onset_ns=fact.onset_ns,
                severity=fact.severity,
                remedy=fact.remedy,
                probability=1.0,
                text=fact.text,
                advice=fact.advice,
                said={
                    "rule": fact.rule,
                    "code": fact.code,
                    "remedy": fact.remedy.value,
                    "onset_ns": fact.onset_ns,
                    "text": fact.text,
                    "evidence": list(fact.evidence),
                    "risk": risks.get(entity.node),
                },
            )
        )
    return found


@of_newest
def node_risks(risks: Iterable[Risk]) -> Mapping[tuple[str, str], Sequence[Risk]]:
    """The risks of each (node, model), the highest first. Entities of one model only combine."""
    found: dict[tuple[str, str], list[Risk]] = {}
    for risk in risks:
        found.setdefault((risk.entity.node, risk.model), []).append(risk)
    for held in found.values():
        held.sort(key=lambda risk: (-risk.probability, risk.entity))
    return found


@of_newest
def model_chances(risks: Iterable[Risk]) -> Mapping[tuple[str, str], float]:
    """The node's probability by each (node, model)."""
    return {key: combined(held) for key, held in node_risks(risks).items()}


@of_newest
def node_chances(risks: Iterable[Risk]) -> Mapping[str, float]:
    """The highest of these of each node that has any."""
    found: dict[str, float] = {}
    for (node, _), probability in model_chances(risks).items():
        found[node] = max(found.get(node, 0.0), probability)
    return found


def combined(risks: Sequence[Risk]) -> float:
    """The node's probability: 1 - product of (1 - p) over its parts."""
    left = 1.0
    for risk in risks:
        left *= 1.0 - min(1.0, max(0.0, risk.probability))
    return 1.0 - left


def ahead(risks: Sequence[Risk]) -> Outlook:
    """The node's probability within each horizon; empty when a model tells of its own alone."""
    if len(risks) == 1:
        return risks[0].outlook
    left = {seconds: 1.0 for risk in risks[:1] for seconds, _ in risk.outlook}
    for risk in risks:
        for seconds, probability in risk.outlook:
            left[seconds] = left.get(seconds, 1.0) * (1.0 - min(1.0, max(0.0, probability)))
    return tuple((seconds, 1.0 - safe) for seconds, safe in left.items())


def of_risks(
    told: Iterable[Risk], threshold: float, ledger: LedgerView, now_ns: int
) -> list[Candidate]:
    """One candidate a node and model whose combined probability reaches ``threshold``."""
    found = []
    for (node, model), probability in model_chances(told).items():
        if probability < threshold:
            continue
        risks = node_risks(told)[node, model]
        top = risks[0]
        rule = f"risk:{model}"
        onset_ns = ledger.onsets.get((node, rule, top.entity.device), now_ns)
        found.append(
            Candidate(
                id=decision_id(node, rule, top.entity.device, onset_ns),
                node=node,
                device=top.entity.device,
                component=top.entity.kind,
                rule=rule,
                code="risk",
                voice=top.voice,
                onset_ns=onset_ns,
                severity=2,
                remedy=Remedy.DRAIN,
                probability=probability,
                text="; ".join(signal.text for signal in top.signals[:2]) or "likely to fail",
                advice="look at the signals before a job is hurt",
                said={
                    "model": model,
                    "horizon_seconds": top.horizon_seconds,
                    "probability": probability,
                    "outlook": by_label(ahead(risks)),
                    "onset_ns": onset_ns,
                    "threshold": threshold,
                    "parts": [
                        {
                            "device": risk.entity.device,
                            "component": risk.entity.kind,
                            "probability": risk.probability,
                            "signals": [
                                {
                                    "feature": signal.feature,
                                    "value": signal.value,
                                    "weight": signal.weight,
                                    "text": signal.text,
                                }
                                for signal in risk.signals[:8]
                            ],
                        }
                        for risk in risks[:8]
                    ],
                },
            )
        )
    return found


def short_device(device: str) -> str:
    """A part in few characters: ``gpu3``; a PCI address without its domain where that is 0."""
    return re.sub(r"^0{4,8}:", "", device)[:_PART_CHARACTERS]


def head_of_reason(code: str, device: str) -> str:
    """``tocsin:x79 gpu3``: owner, cause and part within the 20 characters of ``sinfo -R``.

    >>> head_of_reason("x79", "gpu3"), head_of_reason("vanished", "0000:9b:00")
    ('tocsin:x79 gpu3', 'tocsin:vanishe 9b:00')
    """
    part = short_device(device)
    if not part:
        return f"tocsin:{code[:_SHORT_CHARACTERS]}"
    room = max(_CODE_CHARACTERS_MIN, _SHORT_CHARACTERS - 1 - len(part))
    return f"tocsin:{code[:room]} {part}"


def short_id(case: str, ids: Iterable[str]) -> str:
    """The shortest head of ``case``, of four digits or more, that no other id shares."""
    others = [other for other in ids if other != case and other[:SHORT_ID_CHARACTERS] == case[:4]]
    length = SHORT_ID_CHARACTERS
    while length < len(case) and any(other[:length] == case[:length] for other in others):
        length += 1
    return case[:length]


def reason_of(candidate: Candidate, ids: Iterable[str], risk: float | None) -> str:
    """What Slurm is given: printable ASCII, at most 200 characters, the gist in the first 20."""
    name = short_id(candidate.id, ids)
    probability = candidate.probability if candidate.voice != "fact" else risk
    parts = [
        f"{head_of_reason(candidate.code, candidate.device)} {name}",
        candidate.text.replace(";", ",")[:110],
        # A risk that rounds to nothing says nothing beside a fact.
        f"risk {probability:.2f}/{_horizon(candidate)}" if (probability or 0.0) >= 0.005 else "",
        f"tocsin explain {name}",
    ]
    return plain_text("; ".join(part for part in parts if part))


def _horizon(candidate: Candidate) -> str:
    hours = float(candidate.said.get("horizon_seconds") or 86_400.0) / 3600.0
    return f"{hours:g}h"
