"""The tables of slice requests and of the resident workers that take them."""

from sqlalchemy import Boolean, Column, Integer, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSON

from cdc_pipeline.metadata_store.models.columns import State, one_of, table_id, time
from cdc_pipeline.metadata_store.models.ledger import metadata
from cdc_pipeline.metadata_store.states import RequestState

slice_request = Table(
    "slice_request",
    metadata,
    table_id(primary_key=True),
    Column("request_id", Uuid, nullable=False),
    Column("by_hand", Boolean, nullable=False),
    Column("state", State(RequestState), nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("worker", Text),
    time("requested_at", nullable=False),
    time("taken_at"),
    time("ended_at"),
    Column("report", JSON(none_as_null=True)),
    Column("error", Text),
    Column("log", Text),
    time("goes_on_until"),
    one_of("state", RequestState),
)

resident_worker = Table(
    "resident_worker",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("stream", Text, nullable=False),
    time("expires_at", nullable=False),
)
