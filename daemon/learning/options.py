"""Sections ``[risk]`` and ``[learning]``: which model scores, and how this site learns."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from daemon.settings import Section


class RiskOptions(Section):
    """Section ``[risk]``: the learned model beside the rival, which always scores.

    Whether a risk may drain is policy's affair (``policy.risk_mode``); a model whose gate is off
    only ever scores in shadow.
    """

    # The model's folder. Without it the newest promoted one below state_dir/models scores, else
    # the one that comes with tocsin.
    model: Path | None = None
    # Let the model that comes with tocsin score, in shadow, until there is another. It was trained
    # on the simulator.
    shipped: bool = True
    # A model whose gate is off drains nothing and scores so often (a large fleet a third at a
    # time); one whose gate is on each 15 s.
    shadow_seconds: float = Field(default=120.0, ge=15, le=3600)


class LearningOptions(Section):
    """Section ``[learning]``: the nightly training on what this site has seen.

    It runs in a process of its own, nice and bounded, and reads the store. What it makes goes on
    only when it is better than what scores now, on later time, at the budget of false drains.
    """

    # Train at night. Drift and the scoreboard are kept all the same.
    enabled: bool = True
    # In which hour of the day, UTC.
    hour: int = Field(default=2, ge=0, le=23)
    # Failures that the store must hold before a training is worth its time.
    failures_min: int = Field(default=30, ge=14, le=100_000)
    # How much history is learned from.
    days: float = Field(default=90.0, ge=7, le=3650)
    # A larger fleet is learned from by a sample of so many nodes, drawn by a hash.
    nodes_max: int = Field(default=1000, ge=20, le=100_000)
    # Promote what is better without asking. If false it waits for `tocsin model promote`.
    promote: bool = True
    # False drains per 1000 node-days at which models are compared.
    budget_per_1000_node_days: float = Field(default=2.0, gt=0, le=100)
    # The training process: how long, how large, how much behind the head.
    deadline_seconds: float = Field(default=6 * 3600.0, ge=60, le=86_400)
    memory_bytes: int = Field(default=3 * 2**29, ge=2**29, le=2**40)
    nice: int = Field(default=15, ge=0, le=19)
    # So many models are kept beside those that were promoted last.
    keep_models: int = Field(default=10, ge=2, le=1000)
