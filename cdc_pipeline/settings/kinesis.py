"""Settings of Kinesis streams that carry the events of Debezium or of AWS DMS."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.aws import AwsStreams
from cdc_pipeline.settings.templates import filled


class KinesisSource(AwsStreams):
    """Streams of AWS Kinesis with JSON of Debezium or of AWS DMS.

    Credentials are found as AWS's own tools find them: environment, profile, file, the machine's role.
    """

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "as_text": "the events do not contain the source's text, so leave it out"
    }
    kind: Literal["kinesis"] = Field(description="streams of AWS Kinesis")
    stream: str = Field(
        min_length=1,
        description="stream of each table, with {database}, {schema} and {table} in it; or one for all tables",
    )
    format: Literal["debezium", "dms"] = Field(default="debezium", description="who wrote the records")
    begin: Literal["first", "kept"] = Field(
        default="first",
        description="where a stream is read from: its very first record, or the oldest one that it still keeps",
    )
    reads_per_second: int = Field(
        default=4, ge=1, description="most reads of one shard; all readers of a shard together have five a second"
    )

    def stream_of(self, table: TableName) -> str:
        """Returns the name of the stream with the table's events."""
        return filled(self.stream, table)
