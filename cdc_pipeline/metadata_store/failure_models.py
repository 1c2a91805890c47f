"""The tables of what goes wrong: tables that fail, and slice files that are not what was registered."""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKeyConstraint, Integer, Table, Text

from cdc_pipeline.metadata_store.columns import table_id, time
from cdc_pipeline.metadata_store.models import metadata

failing_table = Table(
    "failing_table",
    metadata,
    table_id(primary_key=True),
    Column("failures", Integer, nullable=False),
    time("failing_since", nullable=False),
    time("failed_at", nullable=False),
    time("next_try_at", nullable=False),
    Column("outage", Boolean, nullable=False),
    Column("error", Text, nullable=False),
)

damaged_slice = Table(
    "damaged_slice",
    metadata,
    Column("table_id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("found", Text, nullable=False),
    Column("expected", Text, nullable=False),
    time("first_seen_at", nullable=False),
    time("last_seen_at", nullable=False),
    ForeignKeyConstraint(["table_id", "number"], ["cdc.slice.table_id", "cdc.slice.number"]),
)
