"""The pipeline's source made ready and registered, and the consumer that reads it from where the registry stands."""

from cdc_pipeline.source_setup.reading import ConsumerRuns, retried
from cdc_pipeline.source_setup.set_up import SetUp, SourceSetup

__all__ = ["ConsumerRuns", "SetUp", "SourceSetup", "retried"]
