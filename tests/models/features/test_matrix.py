"""How samples become a matrix: whatever fields they have, in whatever order."""

import numpy as np

from collectors.sample import sample
from models.features.matrix import matrix


def test_samples_of_one_layout_and_of_many_give_the_same_numbers() -> None:
    rows = [
        sample("gpu", 1, {"a": 1.0, "b": 2.0, "c": 3.0}),
        sample("gpu", 2, {"b": 5.0, "a": 4.0}),
        sample("gpu", 3, {"c": 6.0, "text": "no number"}),
        sample("gpu", 4, {"a": 7.0, "b": 8.0, "c": 9.0}),
        sample("gpu", 5, {"z": 1.0}),
    ]
    nan = float("nan")
    expected = [[3.0, 1.0, nan], [nan, 4.0, nan], [6.0, nan, nan], [9.0, 7.0, nan], [nan] * 3]
    np.testing.assert_array_equal(
        matrix([one.fields for one in rows], ("c", "a", "missing")), expected
    )
    for row, one in zip(expected, rows, strict=True):
        np.testing.assert_array_equal(matrix([one.fields], ("c", "a", "missing")), [row])
