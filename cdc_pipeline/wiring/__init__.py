"""The only package that builds stores, lake, workers and operations from the settings."""

from cdc_pipeline.time_slice import utc_now
from cdc_pipeline.wiring.adapters import source_of
from cdc_pipeline.wiring.opening import (
    LakeFactory,
    configured_endpoints,
    left_on_termination,
    open_pipeline,
    opened_pipeline,
)
from cdc_pipeline.wiring.pipeline import Pipeline

__all__ = [
    "LakeFactory",
    "Pipeline",
    "configured_endpoints",
    "left_on_termination",
    "open_pipeline",
    "opened_pipeline",
    "source_of",
    "utc_now",
]
