"""Reads a PostgreSQL slot in batches of change events, over psycopg2's replication connection."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

import psycopg2
from psycopg2.extras import LogicalReplicationConnection

from cdc_pipeline.errors import SourceChanged, StreamMoved, TableStale
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.sources.known import Document, PartitionProgress
from cdc_pipeline.sources.pgoutput.decoder import DecodedBatch, PgOutputDecoder
from cdc_pipeline.sources.pgoutput.messages import RelationChange, Truncate
from cdc_pipeline.sources.pgoutput.row_groups import group_events, truncate_event
from cdc_pipeline.sources.pgoutput.rows import RowGroup
from cdc_pipeline.sources.postgres.catalogue import Server
from cdc_pipeline.sources.postgres.generated_columns import GeneratedColumns
from cdc_pipeline.sources.postgres.open_tables import OpenTables
from cdc_pipeline.sources.postgres.planned_table import PlannedTable
from cdc_pipeline.sources.postgres.position import lsn_text
from cdc_pipeline.sources.postgres.publication import Publication, read_publication
from cdc_pipeline.sources.postgres.receiver import SlotReceiver
from cdc_pipeline.sources.postgres.session import (
    MESSAGE_PREFIX,
    answering,
    bound_waits,
    connect,
    connect_for_replication,
)
from cdc_pipeline.sources.postgres.shape import SourceShape, is_partition, is_running
from cdc_pipeline.sources.postgres.streamed_table import StreamedTable
from cdc_pipeline.sources.postgres.table_parts import read_parts
from cdc_pipeline.sources.postgres.tables import read_shapes
from cdc_pipeline.sources.protocol import EventBatch, Marker, TableEvents
from cdc_pipeline.sources.table_events import events_or_stale
from cdc_pipeline.steps import OnStep, no_step, step


class PostgresStream:
    """Implements `ChangeStream` for a slot. Reads from the slot's position; the caller skips what is registered.

    The slot is confirmed only up to the *start* of a registered transaction's commit. So that transaction is sent again
    at every start, and shows that this is the log that was registered.

    Tables are identified by their oid: a new table under an old name is another table. `start`: everything that commits
    before it is registered. `passes`: a position at which a transaction must end; if none does, this is not the log
    that was registered. `marks`: how each table is published now.
    """

    def __init__(
        self,
        *,
        url: str,
        slot: str,
        publication: str,
        stream_partitions: int,
        tables: Sequence[PlannedTable],
        marks: Mapping[TableName, str],
        server: Server,
        start: int = 0,
        passes: int | None = None,
        on_step: OnStep = no_step,
    ) -> None:
        self.position = start
        self._stream_partitions = stream_partitions
        self._open_tables = OpenTables(tables=tables, marks=marks)
        self._on_step = on_step
        self._tables = {table.oid: StreamedTable(table, start) for table in tables}
        self._passes = passes
        self._publication = publication
        self._decoder = PgOutputDecoder()
        connection = connect_for_replication(url)
        _check_server(connection, server)
        self._sql_connection = connect(url)
        self._sql_connection.autocommit = True
        bound_waits(self._sql_connection)
        self._generated = GeneratedColumns(self._sql_connection, on_step)
        self._receiver = SlotReceiver(connection, self._sql_connection, slot=slot, of=publication)

    def read(self, wait: timedelta) -> EventBatch | None:
        payloads = self._receiver.take(wait)
        return self._events(self._decoder.feed(payloads)) if payloads else None

    def progress_at(self, position: int) -> dict[int, PartitionProgress]:
        """Returns the same offset for every stream partition, since all are read from one log."""
        return {
            number: PartitionProgress(offset=encode_position(position)) for number in range(self._stream_partitions)
        }

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        del is_heartbeat  # both kinds are the same: the stream shows only committed transactions
        with answering(), self._sql_connection.cursor() as cursor:
            cursor.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MESSAGE_PREFIX, text))

    def check(self, registered: Mapping[TableName, str | None]) -> dict[TableName, list[Document]]:
        """Compares the present catalogue with that of the opening, by which all events until now were decoded."""
        with step(self._on_step, "source.check"):
            publication = self._published()
            shapes = self._shapes(list(self._tables))
            with answering():
                parts = read_parts(self._sql_connection, self._tables, with_rights=False)
        return self._open_tables.check(publication, shapes, parts, registered)

    def _published(self) -> Publication | None:
        with answering():
            return read_publication(self._sql_connection, self._publication)

    def confirm(self, commit_position: int) -> None:
        self._receiver.confirm(commit_position)

    def close(self) -> None:
        self._receiver.close()
        with contextlib.suppress(psycopg2.Error):
            self._sql_connection.close()

    def _events(self, decoded: DecodedBatch) -> EventBatch:
        self._check_passed(decoded)
        for change in decoded.relations:
            self._check_partition(change)
        events = [found for change in _in_order(decoded) for found in self._changes(change)]
        own = [message for message in decoded.messages if message.prefix == MESSAGE_PREFIX]
        return EventBatch(
            events=tuple(
                sorted(events, key=lambda table: int(table.commit_position[0]) if len(table.commit_position) else 0)
            ),
            transactions=decoded.transactions,
            markers=tuple(
                Marker(text=message.content.decode(errors="replace"), commit_position=message.commit_lsn)
                for message in own
                if message.commit_lsn is not None
            ),
        )

    def _check_passed(self, decoded: DecodedBatch) -> None:
        if self._passes is None:
            return
        ends = decoded.transactions.end_position
        if (ends == self._passes).any():
            self._passes = None
        elif (ends > self._passes).any():
            raise SourceChanged(
                f"the source's log goes over {lsn_text(self._passes)} to {lsn_text(int(ends[ends > self._passes][0]))}",
                expected=f"the registered transaction that ends at {lsn_text(self._passes)}",
                remedy="the server was set back and written to since: run cdc setup-source --begin-again,"
                " then cdc snapshot",
            )

    def _changes(self, change: RowGroup | Truncate) -> list[TableEvents]:
        if isinstance(change, Truncate):
            tables = [self._tables[oid] for oid in change.relation_oids if oid in self._tables]
            read = [table for table in tables if table.is_read(change.commit_lsn)]
            return [truncate_event(table.name, table.present(change.commit_lsn), change) for table in read]
        table = self._tables.get(change.relation.oid)
        if table is None or not table.is_read(int(change.commit_lsn[-1])):
            return []
        change = change.since(table.start)
        shape = self._shape(change, table)
        schema = shape.schema(table.key).without(table.excluded)
        whole = self._generated.added_to(change, shape, table.name, table.key, table.excluded)
        return [events_or_stale(lambda: group_events(whole, table.name, schema, self._stream_partitions), table.name)]

    def _check_partition(self, change: RelationChange) -> None:
        """Raises TableStale for a partition whose old rows lack the id, and for one that was gone too early.

        That is before the catalogue was read, so that its rows may be lost. The server describes a partition before its
        first event, which belongs to the partitioned table, and that table right before the partition. A partition of a
        table that is not read, such as a stale one, concerns no other.
        """
        relation = change.relation
        table = self._tables.get(change.described_after or 0)
        if table is None or not table.is_read(change.commit_lsn) or relation.oid in self._tables:
            return
        known = any(str(relation.oid) in (shape.leaves or ()) for shape in table.shapes)
        if known:
            table.check_old_rows(relation)
            return
        if not table.has_columns({column.name for column in relation.columns}):
            return
        publication = self._published()
        own = TableName(database=table.name.database, schema=relation.namespace, table=relation.name)
        if publication is not None and publication.of(own) is not None:
            return
        if is_partition(self._sql_connection, relation.oid):
            table.check_old_rows(relation)
        else:
            raise TableStale(
                f"{table.name} had a partition {relation.namespace}.{relation.name} between two looks at the catalogue",
                table=str(table.name),
                expected="a partition that stays while the table is read: nothing shows what became of its rows",
            )

    def _shapes(self, oids: Sequence[int]) -> dict[int, SourceShape]:
        known = {oid: table.newest for oid, table in self._tables.items()} | self._open_tables.newest
        return read_shapes(self._sql_connection, oids, known)

    def _shape(self, change: RowGroup, table: StreamedTable) -> SourceShape:
        """Returns the shape of events with these columns, of which the first commits at the first position.

        Raises StreamMoved if the catalogue has changed since the stream was opened, or will have once the transaction
        is visible. Raises TableStale if it has not: the table had these columns only between two reads of it.
        """
        relation = change.relation
        shape = table.shape(relation, int(change.commit_lsn[0]))
        if shape is not None:
            return shape
        is_invisible = is_running(self._sql_connection, int(change.xid[0]))  # asked before the catalogue is read
        now = self._shapes([table.oid]).get(table.oid)
        if is_invisible or now is None or not now.is_now(table.newest):
            raise StreamMoved(
                f"{table.name} has other columns than when its stream was opened",
                remedy="open the consumer again: what changed is found then",
            )
        raise TableStale(
            f"an event of {table.name} shows columns ({', '.join(column.name for column in relation.columns)}) that the"
            " catalogue has never shown: the table changed twice between two looks at it",
            table=str(table.name),
            expected=f"({', '.join(column.name for column in table.newest.streamed)}), or those before",
        )


def _in_order(decoded: DecodedBatch) -> list[RowGroup | Truncate]:
    """Sorts changes by the position of their first event, since shapes follow each other in the order of the log."""

    def place(change: RowGroup | Truncate) -> tuple[int, int]:
        if isinstance(change, Truncate):
            return change.commit_lsn, change.ordinal
        return int(change.commit_lsn[0]), int(change.ordinal[0])

    return sorted((*decoded.groups, *decoded.truncates), key=place)


def _check_server(connection: LogicalReplicationConnection, server: Server) -> None:
    """Raises StreamMoved if the streaming connection leads to another server than the one that was checked."""
    with answering(), connection.cursor() as cursor:
        cursor.execute("IDENTIFY_SYSTEM")
        system_identifier, timeline, *_ = cursor.fetchone() or ("", 0)
    if (system_identifier, timeline) != (server.system_identifier, server.timeline):
        raise StreamMoved(
            f"the source is now system {system_identifier}, timeline {timeline}",
            expected=f"system {server.system_identifier}, timeline {server.timeline}, as a moment ago",
            remedy="open the consumer again: it is checked again then",
        )
