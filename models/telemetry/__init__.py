"""Telemetry directories: the tables of design section 3 as files, in order of time."""

from models.telemetry.chunk import Chunk
from models.telemetry.reader import Telemetry
from models.telemetry.truth import read_truth, write_truth
from models.telemetry.writer import TelemetryWriter

__all__ = ["Chunk", "Telemetry", "TelemetryWriter", "read_truth", "write_truth"]
