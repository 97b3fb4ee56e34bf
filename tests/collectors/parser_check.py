"""What every parser owes, whatever it was fed."""

from __future__ import annotations

from collectors.sample import Problem, Sample


def check(samples: list[Sample], problems: list[Problem]) -> None:
    """The shape that every parser owes."""
    seen = set()
    for one in samples:
        assert isinstance(one, Sample)
        assert one.fields
        assert isinstance(one.time_ns, int)
        assert list(one.tags) == sorted(one.tags)
        assert all(isinstance(value, str) and value for _, value in one.tags)
        for name, value in one.fields.items():
            assert isinstance(value, (float, str)), f"{name} is {value!r}"
            assert not isinstance(value, float) or value == value, f"{name} is no number"
        key = (one.measurement, one.tags, one.time_ns)
        assert key not in seen, key
        seen.add(key)
    for problem in problems:
        assert isinstance(problem, Problem)
        assert problem.problem.strip()
        assert "Traceback" not in problem.problem
