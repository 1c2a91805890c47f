"""Settings of Kinesis streams that carry events of Debezium or of AWS DMS, and of DynamoDB tables."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.templates import filled
from cdc_pipeline.settings.work import SourceWithoutUrl


class AwsStreams(SourceWithoutUrl):
    """How AWS is reached."""

    region: str | None = Field(default=None, description="default: the one of the environment or the profile")
    endpoint: str | None = Field(default=None, description="URL of the server; default: AWS")
    profile: str | None = Field(default=None, description="a profile of the file with credentials")
    credentials_file: str | None = Field(
        default=None, description="a file with credentials, as AWS's tools write it, relative to pipeline.yml"
    )

    @property
    def uses_aws(self) -> bool:
        return True


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


class DynamodbSource(AwsStreams):
    """Tables of AWS DynamoDB, read by their streams. Credentials are found as those of Kinesis are."""

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "as_text": "a stream does not contain texts of the values, so leave it out",
        "exclude_columns": "only the columns that columns lists are read, so leave it out",
    }
    kind: Literal["dynamodb"] = Field(description="tables of AWS DynamoDB")
    table: str = Field(
        default="{table}",
        min_length=1,
        description="name in DynamoDB of each table, with {database}, {schema}, {table}",
    )
    rest_column: str | None = Field(
        default=None,
        min_length=1,
        description="a column for all attributes that are no columns, as one JSON object; default: they are not read",
    )
    begin: Literal["first", "kept"] = Field(
        default="first",
        description="refuse a table that is older than its stream can show, or begin with what the stream still keeps",
    )
    reads_per_second: int = Field(default=4, ge=1, description="most reads of one shard")

    def name_of(self, table: TableName) -> str:
        """Returns the table's name in DynamoDB."""
        return filled(self.table, table)
