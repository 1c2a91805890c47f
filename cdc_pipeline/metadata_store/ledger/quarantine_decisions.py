"""What was decided about quarantined events: replayed or dropped."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, func, update

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.states import QuarantineState

_EVENT = models.quarantine


def decide(connection: Connection, which: ColumnElement[bool], state: QuarantineState, **values: Any) -> int:
    """Sets the state, the time if it was undecided, and further columns; returns the number of events."""
    decided_at = func.coalesce(_EVENT.c.decided_at, func.clock_timestamp())
    return connection.execute(update(_EVENT).where(which).values(state=state, decided_at=decided_at, **values)).rowcount


def drop_waiting(connection: Connection, which: ColumnElement[bool], reason: str) -> int:
    """Drops the events that are neither replayed nor dropped yet; returns their number."""
    waits = which & (_EVENT.c.state == QuarantineState.WAITING)
    return decide(connection, waits, QuarantineState.DROPPED, decision=reason)


def drop_events_of_snapshot(connection: Connection, snapshot_id: str) -> None:
    """Drops the quarantined rows of a snapshot that will never be published."""
    drop_waiting(connection, _EVENT.c.snapshot_id == snapshot_id, f"the snapshot {snapshot_id} was not published")
