"""One node as the grid and ``tocsin nodes`` show it. Pure: what is known in, a NodeView out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.slurm.nodes import NodeState
from daemon.clock import NANOSECONDS
from daemon.latest import NodeNow
from daemon.page.view import NodeView
from daemon.policy.cases import Case
from daemon.policy.decisions import Action, Decision, Guard
from models.horizons import by_label
from models.voices import Fact, Remedy, Risk

# A GPU is late after so many of its own intervals: sites read at their own pace.
_MISSED = 4
# From this probability on a GPU is marked as at risk.
RISK_MARK = 0.1


def node_view(
    node: NodeState,
    now: NodeNow | None,
    facts: Sequence[Fact],
    risks: Mapping[str, Risk],
    decision: Decision | None,
    held: Case | None,
    *,
    silent: bool,
    now_ns: int,
    silent_ns: int,
) -> NodeView:
    """``risks`` is by device, "" for the node itself; ``held`` the case that holds the node."""
    whole = risks.get("")
    voice, code, device = _loudest(facts, decision, silent)
    guard = decision.guard if decision is not None else None
    return NodeView(
        name=node.name,
        state=sorted_state(node),
        slurm_state=node.words,
        owner="tocsin" if held is not None else "other" if _out(node) else "",
        reason=node.reason,
        voice=voice,
        guard=guard.value if guard is not None and guard is not Guard.OURS else "",
        risk=whole.probability if whole is not None else None,
        device=device,
        code=code,
        gpus=node.gpus_configured,
        gpus_allocated=node.gpus_allocated,
        gpu_marks=gpu_marks(node, now, facts, risks, now_ns, silent_ns),
        jobs=len(node.jobs),
        group=group_of(node),
        heard_seconds=(
            max(0.0, (now_ns - now.heard_ns) / NANOSECONDS)
            if now is not None and now.heard_ns
            else None
        ),
        outlook=by_label(whole.outlook) if whole is not None else {},
    )


def sorted_state(node: NodeState) -> str:
    """Slurm's state as people sort it."""
    if node.down or not node.responding or node.failed:
        return "down"
    if node.draining:
        return "draining"
    if node.drained:
        return "drained"
    if node.busy:
        return "busy"
    return "idle" if node.base == "idle" else "unknown"


def group_of(node: NodeState) -> str:
    """Where the grid puts it: a feature that names a rack, else its first partition."""
    for feature in node.features:
        if feature.startswith("rack"):
            return feature
    return node.partitions[0] if node.partitions else ""


def gpu_marks(
    node: NodeState,
    now: NodeNow | None,
    facts: Sequence[Fact],
    risks: Mapping[str, Risk],
    now_ns: int,
    silent_ns: int,
) -> str:
    """One letter a GPU: see NodeView."""
    gpus = now.gpus if now is not None else {}
    count = max([node.gpus_configured, *(index + 1 for index in gpus)], default=0)
    accused = {fact.entity.device for fact in facts if fact.remedy is not Remedy.NONE}
    lost = {fact.entity.device for fact in facts if fact.rule in _LOST_RULES or fact.code == "x79"}
    marks = []
    for index in range(min(count, 256)):
        device = f"gpu{index}"
        gpu = gpus.get(index)
        risk = risks.get(device)
        if device in lost or (gpu is not None and gpu.lost):
            marks.append("x")
        elif device in accused:
            marks.append("f")
        elif gpu is None:
            marks.append("?")
        elif now_ns - gpu.arrival_ns > max(silent_ns, _MISSED * gpu.step_ns):
            marks.append("s")
        elif risk is not None and risk.probability >= RISK_MARK:
            marks.append("r")
        else:
            marks.append(".")
    return "".join(marks)


_LOST_RULES = frozenset({"gpu_lost", "gpu_vanished"})


def _out(node: NodeState) -> bool:
    return node.drain or node.down or node.failed


def _loudest(
    facts: Sequence[Fact], decision: Decision | None, silent: bool
) -> tuple[str, str, str]:
    """The voice that speaks loudest of the node now, its code and its part."""
    if decision is not None and decision.action is not Action.ALERT:
        return decision.voice, decision.code, decision.device
    loud = [fact for fact in facts if fact.remedy is not Remedy.NONE]
    if loud:
        worst = max(loud, key=lambda fact: (fact.remedy is Remedy.DRAIN, fact.severity))
        return "fact", worst.code, worst.entity.device
    if silent:
        return "silence", "silent", ""
    if decision is not None:
        return decision.voice, decision.code, decision.device
    return "", "", ""
