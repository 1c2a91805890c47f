"""Settings of DynamoDB tables that are read by their streams."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.aws import AwsStreams
from cdc_pipeline.settings.templates import filled


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
