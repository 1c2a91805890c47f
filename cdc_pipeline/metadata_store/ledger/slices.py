"""Reads registered slices: the next ones to apply, without splitting a boundary, and those that wait."""

from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, func, or_, select

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.metadata_store.states import QuarantineState, SliceState

_SLICE, _BOUNDARY = models.slice_table, models.boundary


class Slices(OfStore):
    def next_slices(
        self, table_id: int, *, after_number: int, most_slices: int, most_rows: int
    ) -> tuple[RegisteredSlice, ...]:
        """Returns consecutive slices from after_number + 1 on, without splitting the slices of a boundary.

        The slices of the first boundary are returned even when they exceed `most_slices` or `most_rows`. Slices after
        the next requested boundary are left out, whether or not the table has a slice at that boundary. Reads at most
        `most_slices` and one boundary more. Raises RegistryError when slice after_number + 1 is missing.
        """
        with self.database.transaction("slice.read_next") as connection:
            following = _with_boundary().where(_SLICE.c.table_id == table_id).order_by(_SLICE.c.number)
            rows = connection.execute(following.where(_SLICE.c.number > after_number).limit(most_slices)).all()
            if rows:
                of_last = _SLICE.c.boundary_id == rows[-1].boundary_id, _SLICE.c.number > rows[-1].number
                rows = [*rows, *connection.execute(following.where(*of_last))]
            found = [_registered(row) for row in rows]
            end = _next_requested(connection, found[0].boundary_id) if found else None
        if found and found[0].number != after_number + 1:
            raise RegistryError(
                f"the slice after number {after_number} of table {table_id} is number {found[0].number}",
                expected=f"number {after_number + 1}",
                remedy="take a new snapshot of the table if its lake was restored from before the slices that are kept;"
                " otherwise the metadata store lost rows: restore it",
            )
        within = [row for row in found if end is None or row.boundary_id <= end]
        return _whole_boundaries(within, most_slices, most_rows)

    def slices(self, table_id: int, first: int, last: int) -> tuple[RegisteredSlice, ...]:
        """Returns slices `first` to `last`, both included, in the order of their numbers."""
        return self._read(_SLICE.c.table_id == table_id, _SLICE.c.number.between(first, last))

    def waiting_through(self, table_id: int, number: int) -> tuple[RegisteredSlice, ...]:
        """Returns slices at or below `number` that are not applied or superseded, in the order of their numbers."""
        return self._read(
            _SLICE.c.table_id == table_id, _SLICE.c.number <= number, _SLICE.c.state == SliceState.REGISTERED
        )

    def truncated_through(self, table_id: int, number: int) -> str:
        """Returns the greatest version of a truncate in the slices at or below `number`; "" if there is none."""
        query = select(func.max(_SLICE.c.truncated_at)).where(
            _SLICE.c.table_id == table_id, _SLICE.c.number <= number, _SLICE.c.truncated_at.is_not(None)
        )
        with self.database.transaction("slice.read_truncated") as connection:
            return connection.scalar(query) or ""

    def awaits_late(self, table_id: int) -> bool:
        """Returns whether events older than applied ones may still arrive, by a replay or by a repair."""
        event, table = models.quarantine.c, models.source_table.c
        is_quarantined = exists().where(event.table_id == table_id, event.state == QuarantineState.WAITING)
        is_late = exists().where(_SLICE.c.table_id == table_id, _SLICE.c.late, _SLICE.c.state == SliceState.REGISTERED)
        is_under_repair = exists().where(table.table_id == table_id, table.under_repair)
        with self.database.transaction("slice.await_late") as connection:
            return bool(connection.scalar(select(or_(is_quarantined, is_late, is_under_repair))))

    def _read(self, *conditions: ColumnElement[bool]) -> tuple[RegisteredSlice, ...]:
        with self.database.transaction("slice.read") as connection:
            rows = connection.execute(_with_boundary().where(*conditions).order_by(_SLICE.c.number)).all()
        return tuple(_registered(row) for row in rows)


def _with_boundary() -> Select[*tuple[object, ...]]:
    return select(_SLICE, _BOUNDARY.c.position, _BOUNDARY.c.commit_time, _BOUNDARY.c.requested).join(
        _BOUNDARY, _BOUNDARY.c.boundary_id == _SLICE.c.boundary_id
    )


def _registered(row: Row[*tuple[Any, ...]]) -> RegisteredSlice:
    values = row._asdict()
    return RegisteredSlice(**values | {"key_ranges": tuple((low, high) for low, high in values["key_ranges"])})


def _next_requested(connection: Connection, boundary_id: int) -> int | None:
    """Returns the id of the stream's first requested boundary at or after this one; None if there is none."""
    first = _BOUNDARY.alias()
    of_stream = select(first.c.stream).where(first.c.boundary_id == boundary_id).scalar_subquery()
    query = select(func.min(_BOUNDARY.c.boundary_id)).where(
        _BOUNDARY.c.stream == of_stream, _BOUNDARY.c.requested, _BOUNDARY.c.boundary_id >= boundary_id
    )
    found = connection.scalar(query)
    return None if found is None else int(found)


def _whole_boundaries(found: list[RegisteredSlice], most_slices: int, most_rows: int) -> tuple[RegisteredSlice, ...]:
    taken: list[RegisteredSlice] = []
    rows = 0
    for _, group in groupby(found, key=lambda row: row.boundary_id):
        of_boundary = list(group)
        rows += sum(row.rows for row in of_boundary)
        if taken and (len(taken) + len(of_boundary) > most_slices or rows > most_rows):
            break
        taken.extend(of_boundary)
    return tuple(taken)
