"""Streaming features: what is remembered of every entity, at fixed cost per reading.

>>> from models.features import FeatureEngine
>>> engine = FeatureEngine()
>>> engine.frame(0).entities
[]
"""

from models.features.engine import FeatureEngine
from models.features.frame import FeatureFrame, KindFrame
from models.features.registry import Feature, feature, features

__all__ = ["Feature", "FeatureEngine", "FeatureFrame", "KindFrame", "feature", "features"]
