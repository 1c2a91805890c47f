"""Puts the events of the log into transactions: changes of tables, marker messages and commits, with their positions.

A transaction begins with its GTID and ends with its commit; a statement that changes a table itself is a transaction of
its own. Events of tables that are not read are skipped; their transactions still end, at their positions.
"""

from collections.abc import Collection, Mapping
from typing import Any

import structlog
from pymysqlreplication.event import (
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    GtidEvent,
    MariadbGtidEvent,
    QueryEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from cdc_pipeline.errors import DecodeError, TableStale
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.mysql.binlog import decoded_rows, row_octets
from cdc_pipeline.sources.mysql.changes import ChangeGroup, Place
from cdc_pipeline.sources.mysql.gtid_set import LogPlace
from cdc_pipeline.sources.mysql.log_runs import LogTransaction
from cdc_pipeline.sources.mysql.logged_statements import LoggedStatement, statement_of
from cdc_pipeline.sources.mysql.prepared import LookBack, PreparedTransactions, Tables, completed_by, xid_of
from cdc_pipeline.sources.mysql.row_image import RowImage
from cdc_pipeline.sources.mysql.statements import (
    Effect,
    begins_transaction,
    commits,
    effects_of,
    is_partial_rollback,
    takes_back,
)
from cdc_pipeline.sources.mysql.streamed_table import BinlogTable
from cdc_pipeline.sources.mysql.table_map import LogColumn, log_columns
from cdc_pipeline.sources.mysql.tagged_gtids import TaggedGtid
from cdc_pipeline.sources.protocol import Marker

log = structlog.get_logger()

_MICROSECONDS = 1_000_000
_MESSAGE, _PIPELINE = "message", "pipeline"


class TransactionReader:
    """Takes events in the order of the log. `batch_*` and `take_batch` give what came since the last batch.

    `tables`: the tables that are read, by database and name. `marker_table`: database and name of the table of marker
    messages; `pipeline`: whose messages count. `start`: the place behind which the log is read. `prepared`: the XA
    transactions that are prepared there; `look_back`: finds the tables that they changed. `takes_any_case`: see
    `BinlogServer`.
    """

    def __init__(
        self,
        tables: Mapping[tuple[str, str], BinlogTable],
        *,
        marker_table: tuple[str, str],
        pipeline: str,
        start: LogPlace,
        prepared: PreparedTransactions,
        look_back: LookBack,
        takes_any_case: bool,
    ) -> None:
        self._takes_any_case = takes_any_case
        self.prepared = prepared
        self._look_back = look_back
        self.tables = tables
        self._marker_table = marker_table
        self._pipeline = pipeline
        self._start = start
        self.last = start.last
        """The last transaction that was begun."""
        self._before = start.last
        self.rows = 0
        self.octets = 0
        self._open: Place | None = None
        self._touched: set[TableName] = set()
        self._left: set[TableName] = set()
        """Tables of which an earlier batch has rows of the open transaction."""
        self._named: set[tuple[str, str]] = set()
        self._is_alone: bool | None = False
        self._is_unfinished = False
        self._maps: dict[int, tuple[tuple[str, str], tuple[LogColumn, ...]]] = {}
        self._groups: list[ChangeGroup] = []
        self._newest: dict[TableName, ChangeGroup] = {}
        self._ended: list[tuple[LogTransaction, int]] = []
        self._markers: list[Marker] = []

    @property
    def is_empty(self) -> bool:
        """Returns whether there is no batch to take: a marker alone waits for the end of its transaction."""
        return not (self._groups or self._ended)

    def take_batch(self) -> tuple[list[ChangeGroup], list[tuple[LogTransaction, int]], list[Marker]]:
        """Returns the changes, the ended transactions with their commit times, and the markers since the last call."""
        batch = self._groups, self._ended, self._markers
        if self._open is not None:
            self._left |= self._touched
        self._groups, self._newest, self._ended, self._markers = [], {}, [], []
        self.rows = self.octets = 0
        return batch

    def add(self, event: Any) -> None:
        """Takes one event. Raises TableStale or StreamMoved for a table that cannot be read on as it is."""
        match event:
            case MariadbGtidEvent() | GtidEvent() | TaggedGtid():
                self._begin(event)
            case FormatDescriptionEvent():
                self._begin_file()
            case TableMapEvent():
                self._maps[event.table_id] = (event.schema, event.table), log_columns(event.columns)
                self._named.add((event.schema, event.table))
            case PartialUpdateRowsEvent():
                self._refuse_parts(event)
            case WriteRowsEvent() | UpdateRowsEvent() | DeleteRowsEvent():
                self._add_rows(event)
            case XidEvent():
                self._end()
            case XAPrepareEvent():
                self._prepare(event)
            case QueryEvent() | ExecuteLoadQueryEvent():
                self._add_statement(statement_of(event))

    def _begin_file(self) -> None:
        """Leaves out a transaction without an end: the server crashed, and undid it. Its number is given again."""
        if self._open is not None:
            self._take_back()
            self._open, self.last = None, self._before

    def _begin(self, event: Any) -> None:
        self._before, self.last = self.last, self._start.next(event, self.last)
        commit_time = event.timestamp * _MICROSECONDS
        self._open = Place(commit_position=self.last.position, ordinal=0, commit_time=commit_time)
        self._is_alone = self._start.is_alone(event)
        self._is_unfinished = self._start.is_unfinished(event)
        self._touched.clear()
        self._left.clear()
        self._named.clear()
        self._maps.clear()

    def _end(self) -> None:
        if self._open is not None:
            self._ended.append((self.last, self._open.commit_time))
        self._open = None

    def _take_back(self) -> None:
        """Leaves out the rows of the open transaction: set-up checks that every listed table has an engine for them."""
        _refuse(self._left, "was changed in a transaction that was rolled back")
        for group in self._groups:
            group.take_back(self.last.position)
        self._groups = [group for group in self._groups if group.events]
        self._markers = [marker for marker in self._markers if marker.commit_position != self.last.position]
        self._newest.clear()

    def _next_place(self) -> Place:
        if self._open is None:
            raise DecodeError(
                "the source's log has a change outside of any transaction",
                expected="the GTID of its transaction before it",
                remedy="check the binary log with mariadb-binlog --verify-binlog-checksum",
            )
        self._open = Place(
            commit_position=self._open.commit_position,
            ordinal=self._open.ordinal + 1,
            commit_time=self._open.commit_time,
        )
        return self._open

    def _add_rows(self, event: Any) -> None:
        name, columns = self._maps[event.table_id]
        if name == self._marker_table:
            self._add_markers(event)
            return
        table = self.tables.get(name)
        if table is None or not table.is_read(self.last.position):
            return
        bitmaps = [event.columns_present_bitmap]
        if isinstance(event, UpdateRowsEvent):
            bitmaps.append(event.columns_present_bitmap2)
        octets = row_octets(event)
        layout, rows = table.rows(columns, octets, bitmaps)
        self.octets += len(octets)
        self._touched.add(table.name)
        group = self._newest.get(table.name)
        if group is None or group.schema is not layout.schema:
            group = ChangeGroup(table=table.name, schema=layout.schema, computed=layout.computed)
            self._newest[table.name] = group
            self._groups.append(group)
        for images in rows:
            self.rows += 1
            _add_change(group, event, images, self._next_place())

    def _add_markers(self, event: Any) -> None:
        """Reads messages by the library: the pipeline's own table has only texts and a number."""
        if isinstance(event, DeleteRowsEvent):
            return
        for row in decoded_rows(event):
            before, after = row.get("before_values", {}), row.get("after_values") or row.get("values", {})
            owner = after.get(_PIPELINE) or before.get(_PIPELINE)
            if owner == self._pipeline and after.get(_MESSAGE):
                self._markers.append(Marker(text=after[_MESSAGE], commit_position=self.last.position))

    def _add_statement(self, statement: LoggedStatement) -> None:
        if self._is_alone is None:
            self._is_alone = not begins_transaction(statement.text)
            if not self._is_alone:
                return
        if self._is_last(statement.text):
            self._end()
            return
        if is_partial_rollback(statement.text):
            _refuse(self._touched, "was changed in a transaction of which a part was rolled back")
            return
        if not self._is_unfinished:
            self._add_effects(statement)
        if self._is_alone:
            self._end()

    def _is_last(self, statement: str) -> bool:
        """Returns whether the statement ends the open transaction. Takes what that does to rows."""
        if takes_back(statement):
            self._take_back()
            return True
        completed = completed_by(statement)
        if completed is not None:
            self._refuse_unseen(self.prepared.complete(completed, self.last.position, self._look_back))
        return completed is not None or commits(statement)

    def _add_effects(self, statement: LoggedStatement) -> None:
        """Takes what a statement does to listed tables. A TRUNCATE may be of a temporary table with the same name."""
        for effect in effects_of(statement.text, statement.database, sql_mode=statement.sql_mode):
            for (schema, name), table in self.tables.items():
                is_named = effect.concerns(schema, name, in_any_case=self._takes_any_case)
                if is_named and table.is_read(self.last.position):
                    is_doubtful = effect.effect is Effect.TRUNCATED and statement.is_of_session
                    self._add_effect(table, Effect.ROWS if is_doubtful else effect.effect)

    def _add_effect(self, table: BinlogTable, effect: Effect) -> None:
        if effect is not Effect.TRUNCATED:
            table.take(effect, self.last.position)
            return
        schema = table.present(self.last.position)
        group = ChangeGroup(table=table.name, schema=schema)
        group.truncate(self._next_place())
        self._newest.pop(table.name, None)
        self._groups.append(group)

    def _refuse_parts(self, event: Any) -> None:
        name, _ = self._maps[event.table_id]
        table = self.tables.get(name)
        if table is not None and table.is_read(self.last.position):
            raise TableStale(
                f"{table.name} was changed in a session that logs parts of JSON values",
                table=table.name,
                expected="whole values: binlog_row_value_options without PARTIAL_JSON",
            )

    def _prepare(self, event: XAPrepareEvent) -> None:
        """Takes the end of an XA transaction's rows. MySQL writes XA COMMIT … ONE PHASE in this way, too."""
        if not event.one_phase:
            self.prepared.prepare(xid_of(event), self.last, self._named)
            _refuse(self._touched, "was changed in an XA transaction, which may still be rolled back")
        self._end()

    def _refuse_unseen(self, changed: Tables | None) -> None:
        """Raises TableStale for a table that an XA COMMIT changes: its snapshot may be older, without these rows."""
        for name, table in sorted(self.tables.items()):
            if table.is_read(self.last.position) and (changed is None or name in changed):
                doubt = "may have been" if changed is None else "was"
                raise TableStale(
                    f"{table.name} {doubt} changed by an XA transaction that was prepared earlier in the log",
                    table=table.name,
                    expected="rows that the log shows with their commit",
                )


def _refuse(tables: Collection[TableName], what: str) -> None:
    for name in sorted(tables):
        raise TableStale(f"{name} {what}", table=name, expected="transactions that commit as a whole or not at all")


def _add_change(group: ChangeGroup, event: Any, images: tuple[RowImage, ...], place: Place) -> None:
    if isinstance(event, UpdateRowsEvent):
        group.update(images[0], images[1], place)
    elif isinstance(event, WriteRowsEvent):
        group.insert(images[0], place)
    else:
        group.delete(images[0], place)
