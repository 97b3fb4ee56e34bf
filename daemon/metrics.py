"""What the agent and the head write themselves, beside what the sources read."""

from __future__ import annotations

from collectors.sample import Metric

SOURCE_METRICS: tuple[Metric, ...] = (
    Metric("source", "up", "state", "1 when the cycle read something, 0 when it could not", 0, 1),
    Metric("source", "duration_seconds", "gauge", "how long the cycle took", 0),
    Metric("source", "age_seconds", "gauge", "since the last good cycle", 0),
    Metric("source", "fault", "text", "why the source could not read"),
    # The agent's reading of itself: tag source is "agent".
    Metric("source", "spool_batches", "gauge", "batches that wait for the head", 0),
    Metric("source", "spool_bytes", "gauge", "bytes that wait for the head", 0),
    Metric("source", "dropped_samples_total", "counter", "samples the spool had no room for", 0),
    Metric("source", "lost_spool_bytes_total", "counter", "spool the disk gave back damaged", 0),
    Metric("source", "quarantined_lines_total", "counter", "lines that the head refused", 0),
    Metric("source", "sent_samples_total", "counter", "samples that the head took", 0),
    Metric("source", "cpu_seconds_total", "counter", "processor time of the process", 0),
    Metric("source", "resident_bytes", "gauge", "largest resident memory of the process", 0),
)

RISK_METRICS: tuple[Metric, ...] = (
    Metric("risk", "probability", "gauge", "that the component fails within the horizon", 0, 1),
    Metric("risk", "horizon_seconds", "gauge", "the horizon", 0),
    Metric("risk", "probability_1h", "gauge", "that it fails within an hour", 0, 1),
    Metric("risk", "probability_7d", "gauge", "that it fails within a week", 0, 1),
    Metric("risk", "model", "text", "the model that said so"),
    Metric("risk", "device", "text", "the part that is at risk, gpu3; empty for the node"),
)

DECISION_METRICS: tuple[Metric, ...] = (
    Metric("decision", "reason", "text", "the reason, as Slurm shows it"),
    Metric("decision", "guard", "text", "the guard that said no; empty when none did"),
    Metric("decision", "id", "text", "the case; tocsin explain takes its first digits"),
    Metric("decision", "probability", "gauge", "of the risk behind it; 1 for a fact", 0, 1),
)

LEARNING_METRICS: tuple[Metric, ...] = (
    Metric("learning", "value", "gauge", "a figure of a model's day: scoreboard or drift"),
)

METRICS: tuple[Metric, ...] = (
    *SOURCE_METRICS,
    *RISK_METRICS,
    *DECISION_METRICS,
    *LEARNING_METRICS,
)
