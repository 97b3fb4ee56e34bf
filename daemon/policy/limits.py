"""Section ``[policy]``: how far tocsin may go. The defaults suit a cluster that never saw it.

Every number has its unit in its name. Shares are of all nodes that Slurm knows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import Field, field_validator

from daemon.drains.jobcare import JobCare
from daemon.drains.reboots import RebootOptions
from daemon.drains.soft import SoftOptions
from daemon.policy.cost import CostOptions
from daemon.policy.decisions import Mode
from daemon.policy.holdout import HoldOut
from daemon.proofs.idle import RULE as IDLE_RULE
from daemon.proofs.idle import IdleOptions
from daemon.proofs.proof import ProofOptions
from daemon.settings import Section
from models.rule_table import RULES

# What a mode can be set for: the rules of facts, a risk, and the steps softer than a drain.
_NAMES = frozenset({*RULES, "heat", IDLE_RULE, "risk", "soft"})
# From the most careful to the least: the more careful of two modes holds.
_FORCE = {Mode.SHADOW: 0, Mode.APPROVE: 1, Mode.ACT: 2}


class Limits(Section):
    """What a drain needs, and how many there may be.

    ``rules`` sets a mode for one rule (``xid``, ``gpu_lost``, ``row_remap_failed`` ...); a rule
    never goes further than the daemon's own ``mode``. Risk has a mode of its own: certain
    facts may act long before a probability is trusted.
    """

    rules: dict[str, Mode] = Field(default_factory=dict)
    risk_mode: Mode = Mode.SHADOW
    # A node is proposed for a drain from this probability of failure on.
    risk_threshold: float = Field(default=0.9, ge=0.01, le=1.0)

    # Node states older than this are not acted on.
    slurm_age_seconds_max: float = Field(default=90.0, gt=0, le=3600)
    # How much of a node must be heard before what is *not* heard of it counts.
    coverage_min: float = Field(default=0.5, ge=0, le=1)
    # How much of the fleet must be heard before a risk counts.
    fleet_coverage_min: float = Field(default=0.5, ge=0, le=1)
    # Rules that conclude from what is missing or stands still: a fault of our own reader
    # looks just like that, so these need the reader of that node to be well.
    absence_rules: frozenset[str] = frozenset({"gpu_vanished", "gpu_count", "pcie_gone"})

    # Caps. On a small cluster a share rounds to nothing: nodes_min may be held always.
    drains_per_hour: int = Field(default=4, ge=0, le=10_000)
    drained_nodes_max: int = Field(default=16, ge=0, le=10_000)
    drained_share_max: float = Field(default=0.05, ge=0, le=1)
    partition_share_max: float = Field(default=0.25, ge=0, le=1)
    group_share_max: float = Field(default=0.5, ge=0, le=1)
    nodes_min: int = Field(default=1, ge=0, le=1000)

    # More nodes than this with the same rule within the window have one common cause.
    common_cause_nodes: int = Field(default=10, ge=1, le=100_000)
    # What began so close together counts as having begun at once, however long ago.
    common_cause_window_seconds: float = Field(default=600.0, gt=0, le=86_400)
    # The same, counted in one rack, leaf switch, PDU or reservation.
    common_cause_group_nodes: int = Field(default=6, ge=1, le=100_000)
    # The same, counted on the nodes of one job that ran there when it began.
    common_cause_job_nodes: int = Field(default=3, ge=1, le=100_000)

    # The breaker opens, and no node is drained until a person closes it, when within its
    # window so many drains were made, or so many of them were called wrong, or so many nodes
    # ask for a drain at once.
    breaker_window_seconds: float = Field(default=86_400.0, gt=0, le=30 * 86_400)
    breaker_drains: int = Field(default=20, ge=1, le=100_000)
    breaker_wrong_verdicts: int = Field(default=3, ge=1, le=1000)
    breaker_candidates: int = Field(default=40, ge=1, le=100_000)

    # A node that came back is not drained again for a *risk* so soon.
    hold_down_seconds: float = Field(default=3600.0, ge=0, le=30 * 86_400)
    # So many drains of one node within the window: the advice is to replace the part, and the
    # node stays drained, locked, until a person has said tocsin unlock.
    flap_drains: int = Field(default=3, ge=1, le=1000)
    flap_window_seconds: float = Field(default=30 * 86_400.0, gt=0, le=365 * 86_400)

    # How many people must say yes to a proposal; each counts once.
    approvals_needed: int = Field(default=1, ge=1, le=5)
    # A proposal that nobody answered is no longer one; it may be made again.
    approval_seconds: float = Field(default=86_400.0, gt=0, le=30 * 86_400)
    # A drain whose outcome is unknown is written again for so long, then judged anew.
    intent_seconds: float = Field(default=600.0, gt=0, le=86_400)
    # A drain that is gone after a restart of slurmctld was forgotten by it, if it was seen in
    # Slurm within so long before; otherwise a person lifted it.
    forgotten_seconds: float = Field(default=600.0, ge=0, le=86_400)

    # A node that others hold and that has a fault too gets a line in its Comment, if that is
    # empty or tocsin's own.
    note_foreign: bool = True

    # What a drain for a risk may cost.
    cost: CostOptions = CostOptions()

    # On which nodes a risk is recorded and drains nothing, so that it can be judged.
    holdout: HoldOut = HoldOut()

    # What is done for a risk that does not drain.
    soft: SoftOptions = SoftOptions()

    # What is done for the jobs on a node that is drained.
    jobs: JobCare = JobCare()

    # Whether a drained node is rebooted where that is the step to take.
    reboot: RebootOptions = RebootOptions()

    # What a drained node must pass before it returns.
    proof: ProofOptions = ProofOptions()

    # Whether idle nodes are probed, and how often.
    idle: IdleOptions = IdleOptions()

    @field_validator("rules")
    @classmethod
    def _known_rules(cls, value: dict[str, Mode]) -> dict[str, Mode]:
        _check_names(value)
        return value

    @field_validator("absence_rules")
    @classmethod
    def _known_absence_rules(cls, value: frozenset[str]) -> frozenset[str]:
        _check_names(value)
        return value

    def mode_of(self, rule: str, voice: str, daemon: Mode) -> Mode:
        """The mode that holds for ``rule``: the most careful of the daemon's and its own.

        >>> Limits(rules={"xid": Mode.APPROVE}).mode_of("xid", "fact", Mode.ACT)
        <Mode.APPROVE: 'approve'>
        """
        own = self.rules.get(rule, daemon if voice == "fact" else self.risk_mode)
        return min(own, daemon, key=_FORCE.__getitem__)

    def share(self, nodes: int, share: float) -> int:
        """How many of ``nodes`` a share allows: rounded down, but never less than nodes_min."""
        return max(self.nodes_min, int(nodes * share))


def _check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a rule that does not exist: what it was to hold back would act."""
    unknown = sorted(set(names) - _NAMES)
    if not unknown:
        return
    close = difflib.get_close_matches(unknown[0], _NAMES, n=1, cutoff=0.6)
    hint = f'did you mean "{close[0]}"?' if close else "tocsin explain ID names a case's rule"
    raise ValueError(f"there is no rule {unknown[0][:60]!r}; {hint}")
