"""Verifies that lake equals source: compares the source's rows as of one position with the lake version of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Event

from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.errors import CdcError, LeaseBusy
from cdc_pipeline.lake.differences import Comparison
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.shape import Shape
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.operations.held_cuts import POLL, HeldCuts, begun_history, is_in, shown_shape, shown_version
from cdc_pipeline.operations.source_copies import SourceCopies
from cdc_pipeline.operations.source_setup.registered import known_table
from cdc_pipeline.operations.table_errors import result_or_error
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.protocol import Source

_NOT_COMPARED = "table not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result for one table as of `position` (in the source's notation), at `time` by the source's clock.

    Only columns that both source and lake have at the position are compared. `columns_missing`: columns of the source
    that the lake lacks. `columns_extra`: columns that readers of the lake see and the source lacks. `rows_withheld`:
    rows of the source with a value that the lake's type cannot hold; `why_withheld`: the reasons. `history`: the
    comparison with the rows that the table's history has for the position; None if no history has begun. `problem`:
    why nothing was compared; `comparison` is None then.
    """

    table: TableName
    position: str
    time: datetime
    lake_version: int | None = None
    comparison: Comparison | None = None
    history: Comparison | None = None
    columns_missing: tuple[str, ...] = ()
    columns_extra: tuple[str, ...] = ()
    rows_withheld: int = 0
    why_withheld: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_equal(self) -> bool:
        differs = self.problem or self.columns_missing or self.columns_extra or self.rows_withheld
        found = [self.comparison, *filter(None, (self.history,))]
        return not differs and all(each is not None and each.differing_rows == 0 for each in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Compares tables of source and lake."""

    work: TableWork
    source: Source
    worker: SliceWorker
    cuts: HeldCuts
    copies: SourceCopies

    def verify(
        self, tables: Sequence[TableName], *, timeout: timedelta = timedelta(minutes=10)
    ) -> tuple[Verified, ...]:
        """Compares every row of all tables as of one position, also while the source is written to.

        The stream is cut exactly at the position, so a lake version exists that equals the source there. The running
        consumer makes that cut; without one, this process reads the stream. This process or another worker applies the
        slices up to the cut. Each table gets its own result; one that is stale, fails or has no snapshot does not delay
        the others.

        `timeout`: for the cut, and then again for the lake to reach it.
        """
        verdicts = dict[TableName, Verified]()
        with self.cuts.held(timeout, purpose="verify") as (held, boundary):
            deadline = time.monotonic() + timeout.total_seconds()
            while left := [table for table in tables if table not in verdicts]:
                is_over = time.monotonic() >= deadline
                for table in left:
                    found = self._verdict(table, held, boundary)
                    if found is None and is_over:
                        found = _not_compared(table, held, "it was not applied up to the position in the time given")
                    if found is not None:
                        verdicts[table] = found
                if len(verdicts) < len(tables):
                    Event().wait(POLL.total_seconds())
        return tuple(verdicts[table] for table in tables)

    def verify_against(self, tables: Sequence[TableName], database: Source) -> tuple[Verified, ...]:
        """Compares every row of the lake, as it is now, with a database that feeds the pipeline's source.

        No position ties the two together, so nothing is cut and nothing is applied: the caller applies what is
        registered. Equal means that this lake version has exactly the database's rows. A difference may be a change
        that is on its way, unless the database is at rest and its connector has sent everything.
        """
        with database.hold_position("verify", name=self.cuts.new_id().hex[:8]) as held:
            return tuple(self._against(table, held, database) for table in tables)

    def _against(self, table: TableName, held: HeldPosition, database: Source) -> Verified:
        found = result_or_error(lambda: self._compared_now(table, held, database), table, otherwise=_NOT_COMPARED)
        return _not_compared(table, held, str(found)) if isinstance(found, CdcError) else found

    def _compared_now(self, table: TableName, held: HeldPosition, database: Source) -> Verified:
        fence = self.work.lake.read_fence(self.work.lake_table(table))
        if fence is None:
            return _not_compared(table, held, "the lake has no commit of it: run cdc apply")
        return self._compared(table, held, fence.lake_version, database, as_of=None)

    def _verdict(self, table: TableName, held: HeldPosition, boundary: Boundary) -> Verified | None:
        """Returns the table's result; None while another worker applies the missing slices."""
        found = result_or_error(lambda: self._compared_at(table, held, boundary), table, otherwise=_NOT_COMPARED)
        return _not_compared(table, held, str(found)) if isinstance(found, CdcError) else found

    def _compared_at(self, table: TableName, held: HeldPosition, boundary: Boundary) -> Verified | None:
        version = self._lake_version_at(table, boundary)
        return None if version is None else self._compared(table, held, version, self.source, as_of=held.version)

    def _lake_version_at(self, table: TableName, boundary: Boundary) -> int | None:
        """Applies slices if needed and returns the lake version at the boundary; None while another worker applies.

        That version exists, because no claim crosses a requested boundary.
        """
        version = shown_version(self.work, self.work.lake_table(table), boundary)
        if version is not None:
            return version
        if (self.work.store.tables.table(table).cutoff_offset or "") > boundary.position:
            raise CdcError(
                f"{table} cannot be verified: a newer snapshot was published meanwhile",
                expected="a snapshot from before the position",
                remedy="run cdc verify again",
            )
        try:
            ended = self.worker.slice_to_lake(table).ended
        except LeaseBusy:
            return None
        row = self.work.store.tables.table(table)
        if self.work.store.snapshot_history.published_snapshot(row.table_id) is None:
            raise CdcError(f"{table} cannot be verified: {ended}", remedy="run cdc snapshot first")
        return shown_version(self.work, self.work.lake_table(table), boundary)

    def _compared(
        self, table: TableName, held: HeldPosition, version: int, database: Source, *, as_of: str | None
    ) -> Verified:
        """Compares the columns that the source's catalogue has at the position, whether or not they are registered.

        `as_of`: the version of the source that a history is compared for; None: what it has now.
        """
        registered = self.work.lake_table(table)
        shape = shown_shape(self.work, registered, version)
        with database.copy_at(held.exported) as source:
            row = self.work.store.tables.table(table)
            columns = tuple(
                column
                for column in source.columns(known_table(self.work.store, row))
                if column.name not in row.excluded_columns
            )
            if not columns:
                raise CdcError(
                    f"the source has no table {table}", remedy="make it again, or take it out of pipeline.yml"
                )
            known = self.work.store.tables.known_columns(row.table_id)
            common = tuple(column for column in columns if is_in(shape, column))
            names = {column.name for column in common}
            verdict = Verified(
                table=table,
                position=held.shown,
                time=held.time,
                lake_version=version,
                columns_missing=tuple(column.name for column in columns if column.name not in names),
                columns_extra=_extra(registered, shape, {column.name for column in columns}, known),
            )
            if not common or not names.issuperset(registered.schema.key):
                return replace(verdict, problem="the columns of its id are not both in the source and in the lake")
            schema = TableSchema(columns=_as_in_lake(registered, known, common), key=registered.schema.key)
            compared = replace(registered, schema=schema)
            with self.copies.of(table, source, schema) as copy:
                comparison = self.work.lake.compare(compared, copy.key, version)
                history = self._history(compared, copy.key, as_of)
        withheld = replace(verdict, rows_withheld=copy.rows_withheld, why_withheld=copy.why_withheld)
        return replace(withheld, comparison=comparison, history=history)

    def _history(self, table: LakeTable, source_key: str, as_of: str | None) -> Comparison | None:
        """Compares the rows that the history has for the position.

        A history still has its rows of the position, so its latest version is compared.
        """
        begun = begun_history(self.work.lake, table)
        return None if begun is None else self.work.lake.compare(begun[0], source_key, begun[1], as_of=as_of)


def _not_compared(table: TableName, held: HeldPosition, problem: str) -> Verified:
    return Verified(table=table, position=held.shown, time=held.time, problem=problem)


def _extra(registered: LakeTable, shape: Shape, in_source: set[str], known: Sequence[Column]) -> tuple[str, ...]:
    """Returns the columns that readers see and the source lacks, without dropped columns that will be kept hidden.

    A column that the source never had, which somebody added to the lake, is no dropped one.
    """
    dropped = {column.name for column in known if registered.keeps_dropped} - {*registered.schema.names}
    return tuple(name for name in shape.shown if name not in in_source | dropped)


def _as_in_lake(registered: LakeTable, known: Sequence[Column], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Returns the columns with the types that they have in the lake: a value that does not fit is a difference."""
    with_number = [column for column in registered.schema.columns if column.number is not None]
    numbered = {column.number: column.type for column in with_number}
    types = {column.name: column.type for column in (*columns, *known)}
    return tuple(replace(column, type=numbered.get(column.number) or types[column.name]) for column in columns)
