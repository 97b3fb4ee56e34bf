"""Bursts of errors that look like the precursor of a fault and end without one.

A precursor grows until it strikes; a burst goes on at one rate and stops. Without bursts any
error at all would foretell a failure, which no real fleet shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.simulate.benign import BURSTS, Happening
from models.simulate.scenario import FaultRates
from models.simulate.state import State

SECOND_NS = 1_000_000_000
HBM_ERRORS_PER_SECOND = 0.002  # corrected errors at the end of the precursor of class hbm
MOST_DIP = 0.5  # share of fan speed


class Bursts:
    """The bursts under way. ``step`` adds what they count to the state."""

    def __init__(
        self, state: State, faults: Mapping[str, FaultRates], rng: np.random.Generator
    ) -> None:
        self.state = state
        self.rng = rng
        self.rates = {
            what: HBM_ERRORS_PER_SECOND if name == "hbm" else faults[name].strength.value
            for what, name in BURSTS.items()
            if name in faults
        }
        self.under_way: list[tuple[int, Happening]] = []  # (end, burst)

    def begin(self, one: Happening) -> None:
        """A burst starts."""
        if one.what in self.rates:
            self.under_way.append((one.time_ns + int(one.seconds * SECOND_NS), one))

    def step(self, now_ns: int, dt_seconds: float) -> None:
        """What the bursts did in the ``dt_seconds`` before ``now_ns``."""
        state = self.state
        for _, one in self.under_way:
            node, row = one.node, one.node * state.gpus + one.gpu
            if state.down[node]:
                continue
            rate = one.strength * self.rates[one.what]
            if one.what == "fan_dip":
                state.fan_loss[node] = max(state.fan_loss[node], min(rate, MOST_DIP))
                continue
            count = float(self.rng.poisson(rate * dt_seconds))
            if one.what == "edac_burst":
                state.edac_corrected[node] += count
            elif one.what == "symbol_burst":
                state.ib_symbol[node] += count
            elif one.what == "nvlink_burst":
                state.nvlink_crc[row] += count
            else:
                state.ecc_corrected[row] += count
        self.under_way = [(end_ns, one) for end_ns, one in self.under_way if end_ns > now_ns]
