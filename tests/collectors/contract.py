"""What every source owes: inherit SourceContract and hand in ``healthy`` and ``unavailable``.

    class TestNvml(SourceContract):
        module = collectors.gpu.nvml

        @pytest.fixture
        def healthy(self, context): return nvml.make(nvml.Options(), context)

        @pytest.fixture
        def unavailable(self, context): return nvml.make(nvml.Options(...), context)

``healthy`` can read something on this machine or tree; ``unavailable`` cannot read at all.
The fixture ``context`` gives an empty tree as ``root`` and an empty ``state_dir``; override it
where the source needs files.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel, ValidationError

from collectors.sample import (
    Batch,
    Context,
    Cycle,
    Metric,
    Sample,
    Source,
    SourceUnavailable,
)

NODE = "n7"
NOW_NS = 1_760_000_000_000_000_000
HEAVY = ("numpy", "pyarrow", "sklearn", "pandas")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """An empty world: no /sys, no /proc, nothing remembered."""
    root = tmp_path / "root"
    state = tmp_path / "state"
    root.mkdir()
    state.mkdir()
    return Context(node=NODE, state_dir=state, root=root, now_ns=lambda: NOW_NS)


class SourceContract:
    """Inherited by the tests of each source."""

    module: ModuleType
    # The node that every sample names; '' for a source that reads what belongs to no node.
    node: str = NODE

    @pytest.fixture
    def context(self, tmp_path: Path) -> Context:
        root = tmp_path / "root"
        state = tmp_path / "state"
        root.mkdir(exist_ok=True)
        state.mkdir(exist_ok=True)
        return Context(node=NODE, state_dir=state, root=root, now_ns=lambda: NOW_NS)

    # ---- what is declared ----------------------------------------------------------------

    def test_metrics_are_declared_once_each_with_words(self) -> None:
        metrics: tuple[Metric, ...] = self.module.METRICS
        assert metrics
        assert isinstance(metrics, tuple)
        names = [(metric.measurement, metric.name) for metric in metrics]
        assert len(names) == len(set(names))
        for metric in metrics:
            assert metric.help.strip(), metric.name
            assert metric.low <= metric.high, metric.name

    def test_options_have_defaults_and_refuse_unknown_keys(self) -> None:
        options: type[BaseModel] = self.module.Options
        made = options()
        assert made.period_seconds > 0  # type: ignore[attr-defined]
        assert made.deadline_seconds > 0  # type: ignore[attr-defined]
        with pytest.raises(ValidationError):
            options(no_such_option=1)
        with pytest.raises(ValidationError):
            made.period_seconds = 1.0  # type: ignore[attr-defined]

    def test_importing_it_loads_nothing_heavy(self) -> None:
        program = (
            f"import sys; import {self.module.__name__}; "
            f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
        )
        root = str(Path(__file__).resolve().parents[2])
        answer = subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert answer.stdout.strip() == "[]"

    # ---- what a good cycle gives ---------------------------------------------------------

    def test_a_healthy_source_gives_samples_that_keep_the_contract(self, healthy: Source) -> None:
        try:
            batch = Cycle(healthy, NODE).run(NOW_NS)
            assert batch.up, batch.fault
            assert len(batch.samples) > 1
            check_batch(self.module, healthy, batch, self.node)
        finally:
            healthy.close()

    def test_a_second_cycle_keeps_the_contract_too(self, healthy: Source) -> None:
        try:
            cycle = Cycle(healthy, NODE)
            cycle.run(NOW_NS)
            batch = cycle.run(NOW_NS + 10_000_000_000)
            check_batch(self.module, healthy, batch, self.node)
        finally:
            healthy.close()

    # ---- what a bad cycle gives ----------------------------------------------------------

    def test_an_unavailable_source_says_so_in_words(self, unavailable: Source) -> None:
        try:
            with pytest.raises(SourceUnavailable) as caught:
                unavailable.collect(NOW_NS)
            words = str(caught.value)
            assert len(words) > 10
            assert "Traceback" not in words
            assert "\n" not in words
        finally:
            unavailable.close()

    def test_an_unavailable_source_still_writes_its_source_reading(
        self, unavailable: Source
    ) -> None:
        try:
            cycle = Cycle(unavailable, NODE)
            for turn in range(3):
                batch = cycle.run(NOW_NS + turn)
                assert not batch.up
                check_batch(self.module, unavailable, batch, self.node)
        finally:
            unavailable.close()

    # ---- how it ends -----------------------------------------------------------------------

    def test_closing_twice_is_harmless(self, healthy: Source) -> None:
        healthy.collect(NOW_NS)
        healthy.close()
        healthy.close()

    def test_closing_before_the_first_cycle_is_harmless(self, healthy: Source) -> None:
        healthy.close()
        healthy.close()

    def test_it_names_itself_and_its_times(self, healthy: Source) -> None:
        assert isinstance(healthy, Source)
        assert healthy.name
        assert healthy.name == healthy.name.strip().lower()
        assert healthy.period_seconds > 0
        assert healthy.deadline_seconds > 0
        healthy.close()


def check_batch(module: ModuleType, source: Source, batch: Batch, node: str = NODE) -> None:
    """Every rule about one closed Batch (one that Cycle.run returned)."""
    assert batch.source == source.name
    # A source of many devices may write a reading for each under another name; its own is one.
    readings = [
        one
        for one in batch.samples
        if one.measurement == "source" and one.tag("source") == source.name
    ]
    assert len(readings) == 1, "exactly one source reading a cycle"
    assert readings[0].number("up") == (1.0 if batch.up else 0.0)
    if not batch.up:
        assert readings[0].text("fault")
    told = [one for one in batch.samples if one.measurement != "source"]
    check_samples(module, told, node)
    for problem in batch.problems:
        assert problem.problem
        assert "Traceback" not in problem.problem


def check_samples(module: ModuleType, samples: list[Sample], node: str = NODE) -> None:
    """Every rule about samples: declared, typed, bounded, tagged and never doubled."""
    metrics = {(metric.measurement, metric.name): metric for metric in module.METRICS}
    seen = set()
    for one in samples:
        assert one.fields, f"{one.measurement} {one.tags}: a point without fields"
        assert isinstance(one.time_ns, int)
        assert one.time_ns > 0
        assert list(one.tags) == sorted(one.tags)
        for name, value in one.tags:
            assert isinstance(value, str), f"tag {name} is not text"
            assert value, f"tag {name} is empty"
        if node:
            assert one.tag("node") == node
        key = (one.measurement, one.tags, one.time_ns)
        assert key not in seen, f"twice in one batch: {key}"
        seen.add(key)
        for name, value in one.fields.items():
            metric = metrics.get((one.measurement, name))
            assert metric is not None, f"{one.measurement}.{name} is not in METRICS"
            if metric.kind == "text":
                assert isinstance(value, str), f"{name} should be text, is {value!r}"
            else:
                assert type(value) is float, f"{name} should be a float, is {value!r}"
                assert metric.accepts(value), f"{name} out of its bounds: {value}"
