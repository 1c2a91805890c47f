"""Slices as a worker sees them: the next ones to apply, whole boundaries at a time."""

from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Connection, Select, exists, func, or_, select

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice, Waiting
from cdc_pipeline.metadata_store.models.states import QuarantineState, SliceState

_SLICE, _BOUNDARY = models.slice_table, models.boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    database: Database

    def next_slices(
        self, table_id: int, *, after_number: int, most_slices: int, most_rows: int
    ) -> tuple[RegisteredSlice, ...]:
        """Consecutive slices from after_number + 1 on; a boundary's slices are never parted.

        The first boundary comes whole even when it alone is over the caps. Nothing behind a requested boundary comes,
        whether or not the table has a slice at it.
        Reads no more than most_slices and one boundary.
        """
        with self.database.transaction("slice.read_next") as connection:
            partitions = _partitions(connection, table_id)
            query = _with_boundary().where(_SLICE.c.table_id == table_id, _SLICE.c.number > after_number)
            rows = connection.execute(query.order_by(_SLICE.c.number).limit(most_slices + partitions)).all()
            found = [RegisteredSlice(**row._asdict()) for row in rows]
            end = _requested_behind(connection, found[0].boundary_id) if found else None
        if found and found[0].number != after_number + 1:
            raise RegistryError(
                f"the slice after number {after_number} of table {table_id} is number {found[0].number}",
                expected=f"number {after_number + 1}",
                remedy="the metadata store lost rows: restore it, or take a new snapshot of the table",
            )
        within = [row for row in found if end is None or row.boundary_id <= end]
        return _whole_boundaries(within, most_slices, most_rows)

    def slices(self, table_id: int, first: int, last: int) -> tuple[RegisteredSlice, ...]:
        """Numbers first to last, both included, by number."""
        query = _with_boundary().where(_SLICE.c.table_id == table_id, _SLICE.c.number.between(first, last))
        with self.database.transaction("slice.read") as connection:
            rows = connection.execute(query.order_by(_SLICE.c.number)).all()
        return tuple(RegisteredSlice(**row._asdict()) for row in rows)

    def waiting_through(self, table_id: int, number: int) -> tuple[RegisteredSlice, ...]:
        """Those up to `number` that are not known to be in the lake."""
        query = _with_boundary().where(
            _SLICE.c.table_id == table_id, _SLICE.c.number <= number, _SLICE.c.state == SliceState.REGISTERED
        )
        with self.database.transaction("slice.read") as connection:
            rows = connection.execute(query.order_by(_SLICE.c.number)).all()
        return tuple(RegisteredSlice(**row._asdict()) for row in rows)

    def truncated_through(self, table_id: int, number: int) -> str:
        """The greatest version of a truncate in any registered slice up to `number`; "" for none."""
        query = select(func.max(_SLICE.c.truncated_at)).where(
            _SLICE.c.table_id == table_id, _SLICE.c.number <= number, _SLICE.c.truncated_at.is_not(None)
        )
        with self.database.transaction("slice.read_truncated") as connection:
            return connection.scalar(query) or ""

    def awaits_late(self, table_id: int) -> bool:
        """Whether events may still come that are older than what is applied by then: kept aside, replayed, repaired."""
        entry = models.quarantine.c
        kept = exists().where(entry.table_id == table_id, entry.state == QuarantineState.WAITING)
        replayed = exists().where(_SLICE.c.table_id == table_id, _SLICE.c.late, _SLICE.c.state == SliceState.REGISTERED)
        table = models.source_table.c
        repaired = exists().where(table.table_id == table_id, table.under_repair)
        with self.database.transaction("slice.await_late") as connection:
            return bool(connection.scalar(select(or_(kept, replayed, repaired))))

    def waiting(self, table_id: int) -> Waiting:
        query = select(func.count(), func.coalesce(func.sum(_SLICE.c.rows), 0)).where(
            _SLICE.c.table_id == table_id, _SLICE.c.state == SliceState.REGISTERED, _SLICE.c.path.is_not(None)
        )
        with self.database.transaction("slice.count_waiting") as connection:
            slices, rows = connection.execute(query).one()
        return Waiting(slices=slices, rows=int(rows))


def _with_boundary() -> Select[*tuple[object, ...]]:
    return select(_SLICE, _BOUNDARY.c.position, _BOUNDARY.c.commit_time, _BOUNDARY.c.requested).join(
        _BOUNDARY, _BOUNDARY.c.boundary_id == _SLICE.c.boundary_id
    )


def _partitions(connection: Connection, table_id: int) -> int:
    """The most slices that one boundary can have of the table."""
    query = (
        select(func.count())
        .select_from(models.source_table)
        .join(models.stream_partition, models.stream_partition.c.stream == models.source_table.c.stream)
        .where(models.source_table.c.table_id == table_id)
    )
    return connection.scalar(query) or 0


def _requested_behind(connection: Connection, boundary_id: int) -> int | None:
    """The first requested boundary of the stream at or behind this one."""
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
