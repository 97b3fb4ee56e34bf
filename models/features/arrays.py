"""Named arrays over rows that grow together, reset together and are saved together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.floating[Any]]
Times = NDArray[np.int64]
Rows = NDArray[np.int64]

Columns = list[int] | slice  # which gauges or counters of a family
ALL = slice(None)

NEVER_NS = -(2**62)  # "never seen": far before any time, and safe to subtract from one


class Arrays:
    """Arrays of shape [capacity, ...]; the capacity doubles when rows run out."""

    def __init__(self) -> None:
        self.capacity = 0
        self.arrays: dict[str, Array] = {}
        self._fills: dict[str, Any] = {}

    def add(self, name: str, tail: tuple[int, ...], fill: float, dtype: Any = np.float64) -> None:
        """Declares an array of shape [rows, *tail] whose new rows hold ``fill``."""
        self.arrays[name] = np.full((self.capacity, *tail), fill, dtype)
        self._fills[name] = fill

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def reserve(self, rows: int) -> None:
        """Makes room for ``rows`` rows."""
        if rows <= self.capacity:
            return
        capacity = max(rows, 2 * self.capacity, 16)
        for name, old in self.arrays.items():
            new = np.full((capacity, *old.shape[1:]), self._fills[name], old.dtype)
            new[: self.capacity] = old
            self.arrays[name] = new
        self.capacity = capacity

    def reset(self, row: int) -> None:
        """Forgets everything about one row."""
        for name, array in self.arrays.items():
            array[row] = self._fills[name]

    def set_back(self, rows: Rows | slice, to_ns: Times | int, above_ns: Times | int) -> None:
        """Moments (``*_ns``) of ``rows`` later than ``above_ns`` become ``to_ns``.

        Both are one moment, or one for each row.
        """
        for name, array in self.arrays.items():
            if name.endswith("_ns"):
                moments = array[rows]
                tail = (-1,) + (1,) * (moments.ndim - 1)
                to, above = (np.reshape(one, tail) for one in (to_ns, above_ns))
                array[rows] = np.where(moments > above, to, moments)

    def first(self, rows: int) -> dict[str, Array]:
        """The first ``rows`` rows of every array: no copies, they change with the next reading."""
        return {name: array[:rows] for name, array in self.arrays.items()}

    def load(self, saved: dict[str, Array], rows: int) -> None:
        """Takes back what :meth:`first` gave. Raises ValueError when the shapes differ."""
        if set(saved) != set(self.arrays):
            raise ValueError("the checkpoint keeps other statistics than this version")
        self.reserve(rows)
        for name, array in self.arrays.items():
            new = saved[name]
            if new.shape != (rows, *array.shape[1:]) or new.dtype != array.dtype:
                raise ValueError(f"the checkpoint's {name} has another shape")
            array[:rows] = new
