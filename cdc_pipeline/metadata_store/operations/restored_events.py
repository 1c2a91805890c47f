"""Puts quarantined events back into a store that is rebuilt, with what was decided about them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import batches
from cdc_pipeline.metadata_store.ledger.quarantine_decisions import drop_waiting
from cdc_pipeline.metadata_store.states import QuarantineState

_EVENT, _SNAPSHOT = models.quarantine, models.snapshot
FORGOTTEN = "it was replayed or dropped before the cut files that are kept; the store was restored from before that"
_DECISION = ("state", "slice_number", "decision", "decided_at")
_MOVE_NUMBERS = text("""
    SELECT setval(numbers.name, greatest(max(quarantine_id), nextval(numbers.name)))
    FROM cdc.quarantine, pg_get_serial_sequence('cdc.quarantine', 'quarantine_id') AS numbers (name) GROUP BY name
    """)
"""New events get numbers behind those that are in use."""


def restore_events(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts the events that the store does not have. `rows`: columns of `cdc.quarantine`, all with the same names.

    An event keeps its number where that is free. Rows of a snapshot that the store does not have are left out. An event
    that the store has and that waits gets the decision of `rows`, if there is one.
    """
    if not rows:
        return
    known = _known(connection, rows)
    snapshots = _snapshots(connection, rows)
    for row in rows:
        if known.get(_key(row)) is QuarantineState.WAITING and row.get("state", "waiting") != "waiting":
            _decide(connection, row)
    columns = [column.name for column in _EVENT.c if column.name in rows[0]]
    missing = [
        {name: row[name] for name in columns}
        for row in map(_typed, rows)
        if _key(row) not in known and (row["snapshot_id"] is None or row["snapshot_id"] in snapshots)
    ]
    if not missing:
        return
    stored = insert(_EVENT).on_conflict_do_nothing().returning(_EVENT.c.quarantine_id)
    numbers = set(connection.scalars(stored, missing))
    connection.execute(_MOVE_NUMBERS)
    others = [
        {name: value for name, value in row.items() if name != "quarantine_id"}
        for row in missing
        if row["quarantine_id"] not in numbers
    ]
    if others:
        connection.execute(insert(_EVENT).on_conflict_do_nothing(), others)


def drop_forgotten(
    connection: Connection, rows: Sequence[Mapping[str, Any]], table_ids: Collection[int], position: str
) -> None:
    """Drops the tables' events of cuts up to `position` that wait and are not among `rows`.

    `rows`: what the base of the chain has of the quarantine, and so all that waited when it was made. The store was
    restored from before: these events were decided, and no base or cut file says so any more. The lake has what was
    replayed.
    """
    in_base = {_key(row) for row in rows}
    waiting = select(_EVENT.c.quarantine_id, _EVENT.c.table_id, _EVENT.c.snapshot_id, _EVENT.c.place).where(
        _EVENT.c.table_id.in_(table_ids),
        _EVENT.c.snapshot_id.is_(None),
        _EVENT.c.state == QuarantineState.WAITING,
        func.split_part(_EVENT.c.place, "-", 1).collate("C") <= position,
    )
    found = connection.execute(waiting).mappings().all()
    forgotten = [row["quarantine_id"] for row in found if _key(dict(row)) not in in_base]
    for batch in batches(forgotten):
        drop_waiting(connection, _EVENT.c.quarantine_id.in_(batch), FORGOTTEN)


def _typed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The base of a chain has states as texts."""
    return {**row, "state": QuarantineState(row["state"])} if "state" in row else row


def _key(row: Mapping[str, Any]) -> tuple[int, str | None, str]:
    return row["table_id"], row["snapshot_id"], row["place"]


def _known(
    connection: Connection, rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[int, str | None, str], QuarantineState]:
    """Events of these that the store has, and their states."""
    places = {row["place"] for row in rows}
    query = select(_EVENT.c.table_id, _EVENT.c.snapshot_id, _EVENT.c.place, _EVENT.c.state)
    found = connection.execute(query.where(_EVENT.c.place.in_(places)))
    return {(row.table_id, row.snapshot_id, row.place): row.state for row in found}


def _snapshots(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    named = {row["snapshot_id"] for row in rows if row["snapshot_id"] is not None}
    return set(connection.scalars(select(_SNAPSHOT.c.snapshot_id).where(_SNAPSHOT.c.snapshot_id.in_(named))))


def _decide(connection: Connection, row: Mapping[str, Any]) -> None:
    table_id, snapshot_id, place = _key(row)
    connection.execute(
        update(_EVENT)
        .where(
            _EVENT.c.table_id == table_id,
            _EVENT.c.snapshot_id == snapshot_id,
            _EVENT.c.place == place,
            _EVENT.c.state == QuarantineState.WAITING,
        )
        .values({name: row[name] for name in _DECISION} | {"state": QuarantineState(row["state"])})
    )
