"""The section of pipeline.yml about a PostgreSQL source."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cdc_pipeline.settings.work import EMBEDDED, SourceSettings, StreamPartitions


class PostgresSource(SourceSettings):
    """A PostgreSQL 14 to 19 server with `wal_level = logical`; from 19 on `replica` is enough."""

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "columns": "PostgreSQL's catalogue has their types, so leave them out"
    }
    kind: Literal["postgres"] = Field(description="a PostgreSQL server")
    url: str = Field(default=EMBEDDED, description="postgresql://user@host/database; embedded: a database started here")
    publication: str = Field(
        default="cdc",
        pattern=r"^[a-z_][a-z0-9_]*$",
        max_length=63,
        description="the publication with the tables: small letters, digits and `_`, no digit first; at most 63",
    )
    slot: str = Field(
        default="cdc",
        pattern=r"^[a-z0-9_]+$",
        max_length=63,
        description="the replication slot, which only this pipeline reads: small letters, digits and `_`; at most 63",
    )
    stream_partitions: StreamPartitions = 1
    log_alarm_bytes: int = Field(
        default=64 << 30,
        ge=1 << 20,
        description="raise an alarm when the slot keeps back more of the source's log than this",
    )
