"""The settings that every source has. Each source adds its own in a class ``Options``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """How often a source is read and how long one reading may take.

    A source inherits from this and sets its own defaults. Unknown keys are
    refused: a misspelt option must not look like one that has no effect.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    period_seconds: float = Field(default=10.0, gt=0, le=86_400)
    deadline_seconds: float = Field(default=8.0, gt=0, le=3_600)
