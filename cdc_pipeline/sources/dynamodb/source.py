"""Tables of DynamoDB as a source."""

from collections.abc import Callable
from datetime import timedelta

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.aws import DynamodbSource
from cdc_pipeline.sources.dynamodb.records import TableRecords
from cdc_pipeline.sources.kinesis.shards import ShardClient
from cdc_pipeline.sources.kinesis.source import ShardSource


def dynamodb_source(
    settings: DynamodbSource, *, stream: str, tables: tuple[TableSettings, ...], connect: Callable[[], ShardClient]
) -> ShardSource:
    """Builds the source for tables of DynamoDB. `stream`: the pipeline's name.

    Raises SettingsError if two tables have one name in DynamoDB.
    """
    by_name: dict[str, TableSettings] = {}
    for table in tables:
        name = settings.name_of(table.table)
        if name in by_name:
            raise SettingsError(
                f"{by_name[name].name} and {table.name} are both {name!r} in DynamoDB",
                expected="one table of DynamoDB per table: a record does not name its table",
                remedy="write {schema} and {table} into source.table in pipeline.yml",
            )
        by_name[name] = table
    return ShardSource(
        stream=stream,
        kind=settings.kind,
        tables=tables,
        stream_of=settings.name_of,
        connect=connect,
        decode_line=TableRecords(tables=by_name, rest_column=settings.rest_column).content,
        begins_kept=settings.begin == "kept",
        pause=timedelta(seconds=1) / settings.reads_per_second,
        unfit={table.table: why for table in tables if (why := _why_unfit(table, settings.rest_column))},
    )


def _why_unfit(table: TableSettings, rest_column: str | None) -> str:
    if not (table.columns and table.id):
        return "items of DynamoDB have no schema: the table needs id and columns in pipeline.yml"
    if rest_column is not None and rest_column not in table.columns:
        return f"rest_column is {rest_column}, and columns of {table.name} does not have it"
    return ""
