"""Settings of Kinesis streams that carry the events of Debezium or of AWS DMS."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.work import Frozen

_PLACEHOLDER = re.compile(r"\{(database|schema|table)\}")


class KinesisSource(Frozen):
    """Streams of AWS Kinesis with JSON of Debezium or of AWS DMS.

    Credentials are found as AWS's own tools find them: environment, profile, file, the machine's role.
    """

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "as_text": "the events do not contain the source's text, so leave it out"
    }
    kind: Literal["kinesis"]
    stream: str = Field(
        min_length=1,
        description="stream of each table, with {database}, {schema} and {table} in it; or one for all tables",
    )
    format: Literal["debezium", "dms"] = Field(default="debezium", description="who wrote the records")
    begin: Literal["first", "kept"] = Field(
        default="first",
        description="where a stream is read from: its very first record, or the oldest one that it still keeps",
    )
    region: str | None = Field(default=None, description="default: the one of the environment or the profile")
    endpoint: str | None = Field(default=None, description="URL of the server; default: AWS")
    profile: str | None = Field(default=None, description="a profile of the file with credentials")
    credentials_file: str | None = Field(
        default=None, description="a file with credentials, as AWS's tools write it, relative to pipeline.yml"
    )
    reads_per_second: int = Field(
        default=4, ge=1, description="most reads of one shard; all readers of a shard together have five a second"
    )
    slice_rows: int = Field(default=200_000, ge=1, description="a slice is also cut when it holds this many rows")

    @property
    def url(self) -> str:
        """AWS's streams have no URL of their own."""
        return ""

    def folders(self, base: Path) -> tuple[Path, ...]:
        """Streams are read by their names."""
        del base
        return ()

    def stream_of(self, table: TableName) -> str:
        """Returns the name of the stream with the table's events."""
        parts = {"database": table.database, "schema": table.schema, "table": table.table}
        return _PLACEHOLDER.sub(lambda found: parts[found[1]], self.stream)
