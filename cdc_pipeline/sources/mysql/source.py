"""A MariaDB or MySQL server as a source. Its binary log is the stream; held snapshots copy its tables."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from cdc_pipeline.errors import LeaseBusy, SnapshotError, SourceError, SourceGap, UsageError
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.settings.mysql import MysqlSource
from cdc_pipeline.sources.copied_rows import HeldPosition, WrittenPosition
from cdc_pipeline.sources.database import DatabaseSource
from cdc_pipeline.sources.known import FoundTable, KeptLog, KnownStream, NewBeginning, StreamIdentity
from cdc_pipeline.sources.mysql.catalogue import BinlogServer, all_tables, read_server, read_shapes
from cdc_pipeline.sources.mysql.gtid import last_gtid, parse_gtid
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, parse_gtid_set
from cdc_pipeline.sources.mysql.held_snapshot import check_held, hold_snapshot, is_locked
from cdc_pipeline.sources.mysql.markers import MarkerTable
from cdc_pipeline.sources.mysql.server_checks import check_server
from cdc_pipeline.sources.mysql.session import MysqlAddress, address_of, rows, session
from cdc_pipeline.sources.mysql.setup import execute_plan, plan_source
from cdc_pipeline.sources.mysql.shape import TableShape
from cdc_pipeline.sources.mysql.survey import MysqlSurvey
from cdc_pipeline.sources.mysql.table_copy import MysqlCopy
from cdc_pipeline.steps import step


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlServer(DatabaseSource):
    """Implements `Source` for a MariaDB or MySQL server. `folder`: where relative paths of the settings start."""

    settings: MysqlSource
    folder: Path

    def list_tables(self) -> tuple[str, ...]:
        """Returns names whose first part is that of the listed tables: a server has no name of its own."""
        server = self.tables[0].table.database
        with session(self.address) as connection:
            names = [TableName(database=server, schema=schema, table=table) for schema, table in all_tables(connection)]
        ours = (self.markers.database, self.markers.table)
        return tuple(str(name) for name in names if (name.schema, name.table) != ours)

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        with session(self.address) as connection:
            statements = self.markers.missing_statements(connection)
            if not statements:
                plan_source(connection, self.markers, self.tables, known.tables())
        return statements

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> MysqlSurvey:
        """Surveys the server. If no table is registered and none can be read, raises the first refusal."""
        tables = known.tables()
        with session(self.address) as connection:
            registered = known.next_offset()  # read before the log's end, which a running consumer may pass meanwhile
            plan = plan_source(connection, self.markers, self.tables, tables)
            if not tables and not plan.tables:
                raise next(iter(plan.refused.values()))
            if registered is not None:
                _refuse_shorter_log(connection, plan.server, decode_position(registered))
            stale, mendable = plan.stale, plan.mendable
            again = stale.keys() & set(begin_again)
            if again:
                plan = plan_source(connection, self.markers, self.tables, tables, again)
        return MysqlSurvey(source=self, plan=plan, stale=stale, mendable=mendable)

    def begin_again(self, registered: str, channel: str) -> NewBeginning:
        """Begins at the log's present end. Raises SourceError if that is before the registered offset."""
        del channel  # a marker table that is not written any more keeps nothing
        with session(self.address) as connection:
            server = read_server(connection)
            check_server(connection, server)
            if server.end < decode_position(registered):
                raise SourceError(
                    f"the source's log ends at {str(server.place) or 'its beginning'}",
                    expected=f"a log that has passed the number {decode_position(registered) - 1}, up to which it is"
                    " registered",
                    remedy=server.dialect.how_to_pass(decode_position(registered), server.end),
                )
            with step(self.on_step, "source.set_up"):
                execute_plan(connection, self.markers.missing_statements(connection))
            server = read_server(connection)
            with step(self.on_step, "source.begin_again"):
                self.markers.begin_again(connection, str(server.place))
        return NewBeginning(
            identity=StreamIdentity(system=server.identity, timeline=0, channel=self.markers.sql),
            offset=encode_position(server.end),
            gap=f"transaction {decode_position(registered)} to {server.place}",
        )

    def position_of(self, text: str) -> WrittenPosition:
        """Reads MariaDB's GTID, whose transaction the rows contain, or `file:position`; MySQL's set of GTIDs."""
        with session(self.address) as connection:
            return WrittenPosition(position=written_position(connection, text))

    @contextmanager
    def hold_position(self, purpose: str, *, name: str) -> Iterator[HeldPosition]:
        """Holds a snapshot in this process, and serves it to others. See `hold_snapshot`."""
        lock = self._held_lock(purpose, name)
        listen_on, tables = self.settings.copy_address, [settings.table for settings in self.tables]
        with hold_snapshot(self.address, tables, lock=lock, listen_on=listen_on, on_step=self.on_step) as held:
            yield held

    def is_held(self, purpose: str, *, name: str) -> bool:
        with session(self.address) as connection:
            return is_locked(connection, self._held_lock(purpose, name))

    def send_marker(self, text: str) -> bool:
        with session(self.address) as connection:
            with step(self.on_step, "source.mark"):
                self.markers.send(connection, text)
            return is_locked(connection, self.lock)

    @contextmanager
    def copy_at(self, exported: str) -> Iterator[MysqlCopy]:
        check_held(exported)
        yield MysqlCopy(exported=exported, address=self.address, as_text=self.as_text, on_step=self.on_step)

    def check_copied(self, table: FoundTable, parts: int) -> None:
        del parts
        before = TableShape.from_json(table.description[-1])
        with step(self.on_step, "source.check"), session(self.address) as connection:
            now = read_shapes(connection, [table.name], self.as_text).get(table.name)
        if now is None or not now.is_now(before):
            raise SnapshotError(
                f"{table.name} changed while it was exported",
                expected="a table whose columns stay until its rows are copied",
                remedy="run cdc snapshot again",
            )

    def kept_log(self) -> KeptLog | None:
        """Returns None: the server keeps its log by time, not by its readers. Set-up checks that time."""
        return None

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes the pipeline's row of the table of marker messages; single tables have nothing on the source.

        Raises LeaseBusy while a consumer reads the stream.
        """
        del tables
        with session(self.address) as connection:
            self._refuse_reader(connection)
            if whole:
                with step(self.on_step, "source.leave"):
                    self.markers.leave(connection)
        return ()

    def _refuse_reader(self, connection: "Connection[Any]") -> None:
        if is_locked(connection, self.lock):
            raise LeaseBusy(
                f"a consumer reads the stream (it holds the lock {self.lock!r} on the source)",
                expected="nobody who registers more of what is to be removed",
                remedy="stop the consumer first",
            )

    @property
    def address(self) -> MysqlAddress:
        return address_of(self.settings, self.folder)

    @property
    def markers(self) -> MarkerTable:
        database, _, table = self.settings.marker_table.partition(".")
        return MarkerTable(database=database, table=table, pipeline=self.stream)

    @property
    def lock(self) -> str:
        return f"cdc:{self.stream}"

    def _held_lock(self, purpose: str, name: str) -> str:
        return f"cdc:{self.stream[:20]}:{purpose}:{name}"[:64]

    @property
    def as_text(self) -> dict[TableName, tuple[str, ...]]:
        return {table.table: table.read_as_text for table in self.tables}


def _refuse_shorter_log(connection: "Connection[Any]", server: BinlogServer, registered: int) -> None:
    if server.end < registered and server.dialect.latest_end(connection) < registered:
        raise SourceGap(
            f"the source's log ends at {str(server.place) or 'its beginning'}",
            expected=f"a log that has passed the number {registered - 1}, up to which it is registered",
            remedy="the server was set back, or RESET MASTER was run: run cdc setup-source --begin-again, then cdc"
            " snapshot",
        )


_FILE_AND_POSITION = re.compile(r"([^\s:]+):([0-9]{1,19})")


def written_position(connection: "Connection[Any]", text: str) -> int:
    """Returns the position behind the transaction of MariaDB's GTID, or behind what its log has before `file:position`.

    For MySQL, returns the position behind a set of GTIDs. Raises UsageError for other text, and for a position that the
    server's log does not have.
    """
    server = read_server(connection)
    is_mariadb = server.dialect.is_mariadb
    found = _in_mariadb(connection, text) if is_mariadb else _in_mysql(server, text)
    if found is None or found > server.end:
        form = "a GTID up to {}, or file:position of a binary log that the server still has" if is_mariadb else "{}"
        raise UsageError(
            f"--as-of {text!r} is no position of the source",
            expected=form.format(server.place) if is_mariadb else f"all GTIDs up to the export, within {server.place}",
            remedy="give what SHOW STATUS LIKE 'binlog_snapshot_%' showed in the export's transaction, as file:position"
            if is_mariadb
            else "give what SELECT @@GLOBAL.gtid_executed showed before the export's transaction began",
        )
    return found


def _in_mariadb(connection: "Connection[Any]", text: str) -> int | None:
    with suppress(SourceError):
        return parse_gtid(text).end
    placed = _FILE_AND_POSITION.fullmatch(text)
    if placed is None:
        return None
    ((before,),) = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (placed[1], int(placed[2])))
    if before is None:
        return None
    last = last_gtid(before.decode() if isinstance(before, bytes) else before)
    return 1 if last is None else last.end


def _in_mysql(server: BinlogServer, text: str) -> int | None:
    """Returns None for a set that is not whole: every UUID of the server has to be in it, from its first number on."""
    with suppress(SourceError):
        found, executed = parse_gtid_set(text), server.place
        if isinstance(executed, GtidSet) and executed.contains(found) and found.begins_like(executed):
            return found.end
    return None
