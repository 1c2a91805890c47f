"""Reads the binary log of MariaDB or MySQL in batches of change events."""

import contextlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pymysql.err import MySQLError
from pymysqlreplication.event import HeartbeatLogEvent

from cdc_pipeline.errors import SourceAway, SourceBusy, SourceError, StreamMoved
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.sources.known import Document, PartitionProgress
from cdc_pipeline.sources.mysql.binlog import BinlogReader
from cdc_pipeline.sources.mysql.catalogue import read_shapes
from cdc_pipeline.sources.mysql.gtid_set import LogHistory, LogPlace
from cdc_pipeline.sources.mysql.log_mark import LogMarks, next_begun
from cdc_pipeline.sources.mysql.log_runs import LogTransaction
from cdc_pipeline.sources.mysql.prepared import PreparedTransactions, Tables, prepared_tables
from cdc_pipeline.sources.mysql.session import answering, connect, refuses_reader, rows
from cdc_pipeline.sources.mysql.setup import MARK, MysqlPlan, PlannedMysqlTable
from cdc_pipeline.sources.mysql.streamed_table import BinlogTable, noted_changes
from cdc_pipeline.sources.mysql.transactions import TransactionReader
from cdc_pipeline.sources.protocol import EventBatch, Transactions
from cdc_pipeline.sources.table_events import events_or_stale
from cdc_pipeline.steps import step

if TYPE_CHECKING:
    from cdc_pipeline.sources.mysql.source import MysqlServer

GTID = "gtid"
"""Key in `PartitionProgress.last_position` for the text of the place in the log. No table has this name."""
XA = "xa"
"""The same, for the XA transactions that are prepared there."""
ALTERED = "altered"
"""The same, for the tables that changed before it in the way that the catalogue shows."""
LOG_MARK = "mark"
"""The same, for a transaction before it."""
_MOST_ROWS = 20_000
_MOST_OCTETS = 16 << 20
_MOST_MILLISECONDS = 500
_FIRST_SERVER_ID = 1 << 31
_READY = timedelta(seconds=10)
_ANSWER_SECONDS, _CLOSE_SECONDS, _PING_SECONDS, _SILENCE_SECONDS, _LOCK_SECONDS = 60, 3, 30, 300, 30
"""Limits of the session that has the lock. The server ends it after `_SILENCE_SECONDS` if the reader's machine is gone.

`_LOCK_SECONDS`: how long a write waits for another transaction. The reader would be gone before the server says why.
"""
_Found = TypeVar("_Found")


class MysqlStream:
    """Implements `ChangeStream` for a MariaDB or MySQL server. It holds a named lock, so there is one per pipeline.

    `start`: the place behind which the log is read; `noted`: what was registered there. `position`: everything that
    commits before it is registered.
    """

    _reader: BinlogReader | None = None
    _next_ping = 0.0

    def __init__(
        self,
        source: "MysqlServer",
        *,
        plan: MysqlPlan,
        tables: Sequence[PlannedMysqlTable],
        start: LogPlace,
        noted: Mapping[str, str],
        position: int,
    ) -> None:
        self.position = position
        self._source = source
        self._history = LogHistory(start)
        self._log_marks = LogMarks(noted.get(LOG_MARK, ""))
        self._tables = tuple(tables)
        self._marks = {table.name: MARK for table in self._tables}
        self._dialect = plan.server.dialect
        self._connection: Any = connect(source.address, read_timeout=_ANSWER_SECONDS)
        self._transactions = self._transaction_reader(start, noted, plan)
        try:
            self._take_lock(source.lock)
            self._check_log(start)
            self._reader = self._log_reader(source.settings.server_id or _server_id_of(source.lock), start)
            self._pending: Any = self._reader.wait_ready(_READY)
        except BaseException:
            self.close()
            raise

    def _check_log(self, start: LogPlace) -> None:
        """Raises SourceGap for a place that the log no longer has, or if it is another log since."""
        with answering():
            self._dialect.check_start(self._connection, start)
        mark = self._log_marks.first
        if mark is not None:
            mark.check(start, self._read_back(start.before(mark.transaction), next_begun))

    def _log_reader(self, server_id: int, start: LogPlace) -> BinlogReader:
        return BinlogReader(
            self._source.address,
            dialect=self._dialect,
            server_id=server_id,
            start=start,
            schemas=[self._source.markers.database, *(table.name.schema for table in self._tables)],
            tables=[self._source.markers.table, *(table.name.table for table in self._tables)],
        )

    def _look_back(self, xid: str, transaction: LogTransaction) -> Tables | None:
        return self._read_back(self._history.end().before(transaction), partial(prepared_tables, xid))

    def _read_back(self, start: LogPlace, find: Callable[[Callable[[], Any]], _Found | None]) -> _Found | None:
        """Reads from an earlier place by a reader with an id of its own: the server ends one of two alike.

        Returns None if the log does not have the place now. Raises SourceError if the server refuses the reader.
        """
        reader = self._log_reader(_server_id_of(f"{self._source.lock} back"), start)
        try:
            return find(partial(self._read_event, reader))
        except SourceError as error:
            if isinstance(error, SourceAway) or refuses_reader(error):
                raise
            return None
        finally:
            reader.close()

    def _transaction_reader(self, start: LogPlace, noted: Mapping[str, str], plan: MysqlPlan) -> TransactionReader:
        streamed = {
            (table.name.schema, table.name.table): BinlogTable(
                name=table.name,
                key=table.key,
                shapes=table.shapes,
                start=self.position,
                looked_at=plan.looked_at,
                noted=noted.get(ALTERED, ""),
                shows_computed=self._dialect.shows_computed,
                excluded=table.excluded,
                makes_column_keys=plan.server.makes_column_keys,
            )
            for table in self._tables
        }
        return TransactionReader(
            streamed,
            marker_table=(self._source.markers.database, self._source.markers.table),
            pipeline=self._source.markers.pipeline,
            start=start,
            prepared=PreparedTransactions(noted.get(XA, "")),
            look_back=self._look_back,
            takes_any_case=plan.server.takes_any_case,
        )

    def read(self, wait: timedelta) -> EventBatch | None:
        deadline = time.monotonic() + wait.total_seconds()
        end = None
        transactions = self._transactions
        while transactions.rows < _MOST_ROWS and transactions.octets < _MOST_OCTETS:
            event = self._next_event()
            now = time.monotonic()
            if not isinstance(event, HeartbeatLogEvent):
                transactions.add(event)
                end = end or now + _MOST_MILLISECONDS / 1000
                if not transactions.is_empty and now >= end:
                    break
            elif not transactions.is_empty:
                break
            elif now >= deadline:
                return None
        return self._batch()

    def progress_at(self, position: int) -> dict[int, PartitionProgress]:
        """Returns the same offset for every stream partition, since all are read from one log."""
        state = {
            GTID: str(self._history.place_at(position)),
            XA: self._transactions.prepared.text_at(position),
            ALTERED: noted_changes(self._transactions.tables.values(), position),
            LOG_MARK: self._log_marks.text_at(position),
        }
        noted = {key: text for key, text in state.items() if text or key == GTID}
        place = PartitionProgress(offset=encode_position(position), last_position=noted)
        return dict.fromkeys(range(self._source.settings.stream_partitions), place)

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        del is_heartbeat  # both kinds are the same: the log shows only committed transactions
        sent = self._source.markers.send(self._connection, text)
        if not sent:
            raise SourceError(
                f"the table {self._source.markers.sql} has no row of {self._source.markers.pipeline}",
                expected="the row that set-up made",
                remedy="run cdc setup-source",
            )

    def check(self, registered: Mapping[TableName, str | None]) -> dict[TableName, list[Document]]:
        """Compares the present catalogue with that of the opening, by which all events until now were decoded."""
        with step(self._source.on_step, "source.check"), answering():
            shapes = read_shapes(self._connection, [table.name for table in self._tables], self._source.as_text)
            has_lost = self._dialect.has_lost(self._connection, self._history.end())
        if has_lost:
            raise StreamMoved(
                "the source has deleted transactions from its log that were not read, or counts some that it never had",
                remedy="open the consumer again: the server says then whether its log has a gap",
            )
        wanted = {*registered, *self._marks}
        moved = {name for name in wanted if self._marks.get(name) != registered.get(name)}
        for table in self._tables:
            now = shapes.get(table.name)
            if now is None or not now.is_now(table.shapes[-1]):
                moved.add(table.name)
        if moved:
            raise StreamMoved(
                f"the source has {', '.join(sorted(map(str, moved)))} otherwise than when its stream was opened",
                remedy="open the consumer again: what changed is found then",
            )
        return {}

    def confirm(self, commit_position: int) -> None:
        """Does nothing: the server keeps its log by its own settings, not by its readers."""
        del commit_position

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._connection._read_timeout = _CLOSE_SECONDS  # noqa: SLF001 - a server that is away does not answer
        with contextlib.suppress(MySQLError), contextlib.closing(self._connection):
            # The server frees the lock of a connection that ends a moment later.
            rows(self._connection, "SELECT RELEASE_LOCK(%s)", (self._source.lock,))

    def _take_lock(self, name: str) -> None:
        with answering():
            lock_wait = f"CAST(LEAST(@@innodb_lock_wait_timeout, {_LOCK_SECONDS}) AS UNSIGNED)"
            waits = f"wait_timeout = {_SILENCE_SECONDS}, innodb_lock_wait_timeout = {lock_wait}"
            rows(self._connection, f"SET SESSION {waits}")
            taken = rows(self._connection, "SELECT GET_LOCK(%s, 0)", (name,))[0][0]
        if not taken:
            raise SourceBusy(
                f"another process reads the stream (it holds the lock {name!r} on the source)",
                expected="one consumer per pipeline",
                remedy="stop the other reader; of one that is gone, the server frees the lock within five minutes",
            )

    def _next_event(self) -> Any:
        if self._pending is not None:
            event, self._pending = self._pending, None
            return event
        if self._reader is None:
            raise StreamMoved("the stream is closed", remedy="open the consumer again")
        return self._read_event(self._reader)

    def _read_event(self, reader: BinlogReader) -> Any:
        if time.monotonic() > self._next_ping:
            with answering():
                rows(self._connection, "SELECT 1")
            self._next_ping = time.monotonic() + _PING_SECONDS
        return reader.next_event()

    def _batch(self) -> EventBatch | None:
        groups, ended, markers = self._transactions.take_batch()
        if not (groups or ended):
            return None
        for transaction, _ in ended:
            self._history.add(transaction)
        self._log_marks.add_batch(ended)
        ordered = sorted(groups, key=lambda group: group.first_position)
        return EventBatch(
            events=tuple(
                events_or_stale(partial(group.table_events, self._source.settings.stream_partitions), group.table)
                for group in ordered
            ),
            transactions=Transactions(
                commit_position=np.array([transaction.position for transaction, _ in ended], dtype=np.int64),
                end_position=np.array([transaction.end for transaction, _ in ended], dtype=np.int64),
                commit_time=np.array([committed for _, committed in ended], dtype=np.int64),
            ),
            markers=tuple(markers),
        )


def _server_id_of(lock: str) -> int:
    """Returns the default of `source.server_id`: from the name, in the upper half, which administrators seldom use."""
    return _FIRST_SERVER_ID + zlib.crc32(lock.encode()) % (_FIRST_SERVER_ID - 1)
