"""Makes the source ready, registers it, and opens the consumer that reads it from the registered offsets."""

from cdc_pipeline.source_setup.reading import ConsumerRuns, retried
from cdc_pipeline.source_setup.set_up import SetUp, SourceSetup

__all__ = ["ConsumerRuns", "SetUp", "SourceSetup", "retried"]
