"""The pipeline's source made ready and registered, and the consumer that reads it from where the registry stands."""

from cdc_pipeline.source_setup.log_watch import look_at_log
from cdc_pipeline.source_setup.new_beginning import begin_stream_again
from cdc_pipeline.source_setup.reading import consume, consume_until_idle, open_consumer, retried
from cdc_pipeline.source_setup.set_up import SetUp, missing_sql, oldest_version_to_come, set_up_source

__all__ = [
    "SetUp",
    "begin_stream_again",
    "consume",
    "consume_until_idle",
    "look_at_log",
    "missing_sql",
    "oldest_version_to_come",
    "open_consumer",
    "retried",
    "set_up_source",
]
