"""What the head writes of itself: risks, decisions, its own ``source`` reading, and its flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collectors.sample import Sample, clip, sample
from daemon.policy.candidates import ahead, combined, node_risks
from daemon.policy.decisions import Decision
from daemon.policy.newest import of_newest
from models.horizons import label
from models.voices import Entity, Risk
from models.watch import Judgement

# The node tag of the head's own ``source`` readings: no Slurm node can be called so.
HEAD_NODE = "(head)"


@dataclass(slots=True)
class Flow:
    """How much comes in: values a second, smoothed over about half a minute."""

    values: int = 0
    values_per_second: float = 0.0
    _marked_seconds: float = field(default=0.0)
    _marked_values: int = field(default=0)

    def mark(self, now_seconds: float) -> None:
        """Called once a judgement."""
        span = now_seconds - self._marked_seconds
        if span < 1.0:
            return
        rate = (self.values - self._marked_values) / span
        self.values_per_second += (rate - self.values_per_second) * min(1.0, span / 30.0)
        self._marked_seconds, self._marked_values = now_seconds, self.values


def head_reading(reading: Sample) -> Sample:
    """A ``source`` reading of the head itself, under the node name HEAD_NODE."""
    tags = {**dict(reading.tags), "node": HEAD_NODE}
    return sample(reading.measurement, reading.time_ns, reading.fields, **tags)


@of_newest
def risks_by_node(risks: Iterable[Risk]) -> Mapping[str, Mapping[str, Risk]]:
    """The highest risk of each device of each node; the whole node's under ""."""
    return _RisksByNode(risks)


class _RisksByNode(Mapping[str, Mapping[str, Risk]]):
    """Worked out node by node when somebody looks: mostly nobody does before the next scores."""

    def __init__(self, risks: Iterable[Risk]) -> None:
        self._held: dict[str, list[Sequence[Risk]]] = {}
        for (node, _), held in node_risks(risks).items():
            self._held.setdefault(node, []).append(held)
        self._found: dict[str, Mapping[str, Risk]] = {}

    def __getitem__(self, node: str) -> Mapping[str, Risk]:
        found = self._found.get(node)
        if found is None:
            found = self._found[node] = _by_device(node, self._held[node])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _by_device(node: str, of_models: Iterable[Sequence[Risk]]) -> dict[str, Risk]:
    devices: dict[str, Risk] = {}
    for held in of_models:
        whole = replace(
            held[0],
            entity=Entity("node", node),
            probability=combined(held),
            outlook=ahead(held),
        )
        for risk in (*held, whole):
            device = risk.entity.device
            if device or risk is whole:
                known = devices.get(device)
                if known is None or risk.probability > known.probability:
                    devices[device] = risk
    return devices


def decision_samples(decisions: Sequence[Decision]) -> list[Sample]:
    """Recorded decisions as ``decision`` points, each at a time of its own."""
    points = []
    for place, one in enumerate(decisions):
        fields: dict[str, float | str] = {
            "reason": clip(one.reason),
            "guard": one.guard.value if one.guard else "",
            "id": one.id,
            "probability": float(one.probability),
        }
        tags = {"node": one.node or HEAD_NODE, "action": one.action.value}
        points.append(sample("decision", one.time_ns + place, fields, **tags))
    return points


def risk_samples(judgement: Judgement) -> list[Sample]:
    """The risks of a judgement as ``risk`` points; the riskiest of each node and component."""
    highest: dict[tuple[str, str], tuple[float, Sample]] = {}
    for risk in judgement.risks:
        key = (risk.entity.node, risk.entity.kind)
        if key in highest and highest[key][0] >= risk.probability:
            continue
        point = sample(
            "risk",
            judgement.now_ns,
            {
                "probability": float(risk.probability),
                "horizon_seconds": float(risk.horizon_seconds),
                **_beside(risk),
                "model": risk.model,
                "device": risk.entity.device,
            },
            node=risk.entity.node,
            component=risk.entity.kind,
        )
        highest[key] = (risk.probability, point)
    return [point for _, point in highest.values()]


def _beside(risk: Risk) -> dict[str, float]:
    """The horizons beside the model's own, ``{"probability_1h": 0.01, "probability_7d": 0.4}``."""
    return {
        f"probability_{label(seconds)}": float(probability)
        for seconds, probability in risk.outlook
        if seconds != risk.horizon_seconds
    }
