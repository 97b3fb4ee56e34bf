"""Samples as Prometheus text, for those who scrape: bounded, numbers only.

``tocsin_<measurement>_<field>{tag="value"} number``; times are left out, so that what a node
said a minute ago does not look stale to a server that reads a clock of its own.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from collectors.sample import Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LIMIT_BYTES = 16 * 1024 * 1024

_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")
_KINDS = {"gauge": "gauge", "counter": "counter", "state": "gauge"}


def expose(
    samples: Iterable[Sample],
    metrics: Iterable[Metric] = (),
    limit_bytes: int = LIMIT_BYTES,
) -> str:
    """The text for ``samples``; of the same series the last one counts.

    When it would be longer than ``limit_bytes``, whole series are left out and
    ``tocsin_exposition_left_out_series`` says how many.
    """
    known = {(metric.measurement, metric.name): metric for metric in metrics}
    families: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in samples:
        labels = _labels(one.tags)
        for name, value in one.fields.items():
            if isinstance(value, float):
                families[one.measurement, name][labels] = value
    lines: list[str] = []
    size = left_out = 0
    for (measurement, field), series in sorted(families.items()):
        name = _NOT_A_NAME.sub("_", f"tocsin_{measurement}_{field}")
        head = _head(name, known.get((measurement, field)))
        block = [*head, *(f"{name}{labels} {value!r}" for labels, value in sorted(series.items()))]
        length = sum(map(len, block)) + len(block)
        if size + length > limit_bytes:
            left_out += len(series)
            continue
        lines.extend(block)
        size += length
    if left_out:
        lines.append(f"tocsin_exposition_left_out_series {left_out}")
    return "\n".join([*lines, ""])


def _head(name: str, metric: Metric | None) -> list[str]:
    if metric is None or metric.kind not in _KINDS:
        return [f"# TYPE {name} untyped"]
    text = metric.help.replace("\\", "\\\\").replace("\n", " ")
    return [f"# HELP {name} {text}", f"# TYPE {name} {_KINDS[metric.kind]}"]


def _labels(tags: Iterable[tuple[str, str]]) -> str:
    pairs = [f'{_NOT_A_NAME.sub("_", name)}="{_escape(value)}"' for name, value in tags]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def counts_sample(measurement: str, counts: Mapping[str, float], time_ns: int) -> Sample:
    """A sample of plain counts (what the gateway and the store did), for :func:`expose`."""
    return Sample(measurement, (), {name: float(value) for name, value in counts.items()}, time_ns)
