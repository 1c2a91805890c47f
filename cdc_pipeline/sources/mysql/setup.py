"""Plans the set-up of a MariaDB or MySQL source: what it lacks, and which tables can be read."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pymysql.connections import Connection

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.known import Document, KnownTable
from cdc_pipeline.sources.mysql.catalogue import (
    BinlogServer,
    MysqlCatalogueTable,
    read_cascade,
    read_server,
    read_tables,
)
from cdc_pipeline.sources.mysql.markers import MarkerTable
from cdc_pipeline.sources.mysql.server_checks import (
    check_array_index,
    check_cascade,
    check_images,
    check_new_columns,
    check_server,
)
from cdc_pipeline.sources.mysql.shape import TableShape, may_be_mixed_up, why_retaken, with_order_of
from cdc_pipeline.sources.table_checks import check_column_names, check_folder, check_keyless, check_named_columns
from cdc_pipeline.types.mysql_charsets import KNOWN

MARK = "row"
"""Every table is registered as published in this way: the log has its whole rows."""
_ENGINES = frozenset({"innodb", "rocksdb"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMysqlTable:
    """A table that passed every check.

    `shapes`: those that its events may have, oldest first. `before`: see `FoundTable`. `excluded`: columns of which its
    events need no values.
    """

    name: TableName
    key: tuple[str, ...]
    shapes: tuple[TableShape, ...]
    before: tuple[Document, ...]
    excluded: tuple[str, ...]

    @property
    def schema(self) -> TableSchema:
        return self.shapes[-1].schema(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlPlan:
    """The state of the source. `stale`, `mendable`, `refused`, `statements`: see `SourceSurvey`.

    `looked_at`: the end of the log, read before the tables: changes up to it are in what was read. That of `server` is
    a later one.
    `begun`: the log's last transaction when the stream was set up, as the source keeps it; None before that.
    """

    server: BinlogServer
    looked_at: int
    begun: str | None
    tables: tuple[PlannedMysqlTable, ...]
    stale: Mapping[TableName, TableStale]
    mendable: frozenset[TableName]
    refused: Mapping[TableName, SourceError]
    statements: tuple[str, ...]


def plan_source(
    connection: "Connection[Any]",
    markers: MarkerTable,
    tables: Sequence[TableSettings],
    known: Mapping[TableName, KnownTable],
    begun_again: Collection[TableName] = (),
) -> MysqlPlan:
    """Plans the set-up. Changes nothing. Raises SourceError for a problem of the whole stream.

    A problem of one table does not stop the others. `known`: the registered tables, of which those in `begun_again` are
    treated as new ones.
    """
    listed = {table.table: table.read_as_text for table in tables}
    # Read before the tables, since another look at them shows what changes behind it, and once more after them, so that
    # the catalogue is never newer than the server's end.
    looked_at = read_server(connection).end
    found = read_tables(connection, list(listed), listed)
    server = read_server(connection)
    check_server(connection, server)
    look = _ListedTables(
        connection=connection, listed=tables, found=found, server=server, registered=known, begun_again=begun_again
    )
    ready = look.tables()
    return MysqlPlan(
        server=server,
        looked_at=looked_at,
        begun=markers.begun(connection),
        tables=tuple(ready),
        stale=look.stale,
        mendable=frozenset(look.mendable),
        refused=look.refused,
        statements=markers.missing_statements(connection),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedTables:
    """Checks the listed tables, and collects those that cannot be read."""

    connection: "Connection[Any]"
    listed: Sequence[TableSettings]
    found: Mapping[TableName, MysqlCatalogueTable]
    server: BinlogServer
    registered: Mapping[TableName, KnownTable]
    begun_again: Collection[TableName]
    stale: dict[TableName, TableStale] = field(default_factory=dict)
    mendable: set[TableName] = field(default_factory=set)
    refused: dict[TableName, SourceError] = field(default_factory=dict)
    cascades: dict[TableName, str | None] = field(default_factory=dict)
    """Of tables of MariaDB that were looked at."""

    def tables(self) -> list[PlannedMysqlTable]:
        """Returns the tables that can be read. Puts the others into `stale` or `refused`."""
        ready = []
        for settings in self.listed:
            name = settings.table
            before = None if name in self.begun_again else self.registered.get(name)
            try:
                if before is None:
                    check_folder(settings, () if name in self.registered else self.listed)
                    ready.append(self.new_for_lake(settings))
                else:
                    ready.append(self.known(settings, before, self.new(settings)))
            except TableStale as error:
                self.stop(settings, error)
            except SourceError as error:
                self.refuse(settings, before, error)
        return ready

    def new_for_lake(self, settings: TableSettings) -> PlannedMysqlTable:
        """As `new`, for a table of which the lake has no rows, or will have others."""
        new = self.new(settings)
        check_new_columns(settings, new.key, new.shapes[-1])
        return new

    def new(self, settings: TableSettings) -> PlannedMysqlTable:
        """Checks a table that is to be read from now on. Raises SourceError if it cannot be read."""
        found = self.found.get(settings.table)
        if found is None:
            raise SourceError(
                f"the source has no table {settings.name}, or the user may not read it",
                expected="the tables of pipeline.yml in the source: the second part of a name is the server's database",
                remedy=f"create it, or run GRANT SELECT ON {settings.table.schema}.{settings.table.table} TO the"
                " pipeline's user, or take it out of pipeline.yml",
            )
        key = settings.id or found.primary_key
        _check_table(settings, found, key)
        check_cascade(settings, self.cascade(found))
        check_array_index(settings, found.array_index)
        check_images(settings, key, found.primary_key, self.server)
        known = self.registered.get(found.name)
        before = () if known is None else known.description
        return PlannedMysqlTable(
            name=found.name,
            key=key,
            shapes=(self.numbered(found, known),),
            before=before,
            excluded=settings.exclude_columns,
        )

    def cascade(self, found: MysqlCatalogueTable) -> str | None:
        if not self.server.dialect.is_mariadb:
            return found.cascade
        if found.name not in self.cascades:
            self.cascades[found.name] = read_cascade(self.connection, found.name)
        return self.cascades[found.name]

    def numbered(self, found: MysqlCatalogueTable, known: KnownTable | None) -> TableShape:
        """Returns the present shape. A column keeps its number as long as the name is there, also after new snapshots.

        Without a recorded shape, as after a rebuild of the metadata store, the schema of the newest slice has the
        numbers. A column that was registered without a number gets one with the table's next snapshot.
        """
        numbers, highest = dict[str, int | None](), 0
        shapes = () if known is None else _recorded(known)
        if shapes:
            numbers, highest = shapes[-1].numbers, shapes[-1].highest
        elif known is not None and known.schema is not None:
            numbers = {column.name: column.number for column in known.schema.columns}
        if found.name in self.begun_again:
            numbers = {name: number for name, number in numbers.items() if number is not None}
        end = self.server.end
        return replace(found.shape, generation=end, looked_at=end).numbered(numbers, highest)

    def known(self, settings: TableSettings, known: KnownTable, new: PlannedMysqlTable) -> PlannedMysqlTable:
        """Checks a registered table. Raises TableStale if it cannot be read further."""
        known.check_not_stale()
        known.check_key(new.key)
        known.check_excluded(settings.exclude_columns)
        shapes, now = _recorded(known), new.shapes[-1]
        if not shapes:
            return replace(new, shapes=(_adopted(settings, known, now),))
        # Older versions also recorded shapes that may be mixed up.
        is_mixed_up = may_be_mixed_up((*shapes, now))
        if now.is_now(shapes[-1]) and not is_mixed_up:
            return replace(new, shapes=shapes)
        fixed = {
            *known.key,
            *(part.column for part in settings.partition_by),
            *(name for name in (settings.create_time, settings.update_time) if name is not None),
        }
        reason = why_retaken(shapes[-1], now, fixed)
        if reason is None and settings.on_schema_change == "stop":
            reason = "its columns changed, and on_schema_change is stop"
        if reason is None and is_mixed_up:
            reason = "it lost columns and has the same names again: rows do not show which of them they have"
        if reason is not None:
            raise TableStale(
                f"{known.name} changed: {reason}", table=known.name, expected="a change that its events show whole"
            )
        followed = with_order_of(shapes[-1], now)
        kept = shapes[:-1] if followed.generation == shapes[-1].generation else shapes
        return replace(new, shapes=(*kept, followed))

    def stop(self, settings: TableSettings, error: TableStale) -> None:
        """Records a stale table. A new snapshot repairs it if it passes the checks of a new one."""
        try:
            self.new_for_lake(settings)
            self.mendable.add(settings.table)
        except SourceError as refusal:
            error = TableStale.by(refusal, settings.table)
        self.stale[settings.table] = error

    def refuse(self, settings: TableSettings, before: KnownTable | None, error: SourceError) -> None:
        """Records a table that cannot be read: a registered one is stale, and no snapshot alone repairs it."""
        if before is None:
            self.refused[settings.table] = error
            return
        self.stale[settings.table] = TableStale.by(error, settings.table)


def _recorded(known: KnownTable) -> tuple[TableShape, ...]:
    """Returns the recorded shapes, oldest first; nothing if the newest slice is newer than they are."""
    shapes = tuple(map(TableShape.from_json, known.description))
    is_older = shapes and known.schema is not None and known.schema.generation > shapes[-1].generation
    return () if is_older else shapes


def _adopted(settings: TableSettings, known: KnownTable, now: TableShape) -> TableShape:
    """Returns the first shape of a table for which the metadata store has none that is recent enough.

    Raises TableStale unless the columns of the newest slice are those of the catalogue. Whatever changed them and back
    again since then is in the log as statements.
    """
    if known.schema is None:
        return now
    known.check_columns(now.schema(known.key).without(settings.exclude_columns))
    return replace(now, generation=known.schema.generation, looked_at=known.schema.generation)


def execute_plan(connection: "Connection[Any]", statements: Sequence[str]) -> None:
    """Runs statements that `missing_statements` returned. Each commits by itself and may be run again."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _check_table(settings: TableSettings, found: MysqlCatalogueTable, key: tuple[str, ...]) -> None:
    if found.kind != "BASE TABLE" or found.engine.lower() not in _ENGINES:
        raise SourceError(
            f"{settings.name} is a {found.kind.lower()} of the engine {found.engine or 'none'}",
            expected="an InnoDB table without system versioning: only such a table has a consistent snapshot",
            remedy=f"run ALTER TABLE {settings.table.schema}.{settings.table.table} ENGINE = InnoDB, or leave it out",
        )
    for column in found.shape.columns:
        if not column.type:
            raise SourceError(
                f"the column {column.name} of {settings.name} is of the type {column.written}",
                expected="a type that docs/reference/types.md names for this server",
                remedy="change the column to such a type, for example binary(16) or year(4); if the type is marked"
                " mariadb-5.3, run ALTER TABLE … FORCE with mysql56_temporal_format = ON; or leave the table out",
            )
        # MySQL shows none for a list of binary labels
        charset = column.charset or ("binary" if column.mysql_type.labels else None)
        if charset is not None and charset not in KNOWN:
            raise SourceError(
                f"the column {column.name} of {settings.name} is in the character set {charset}",
                expected=f"one of {', '.join(sorted(KNOWN))}",
                remedy=f"run ALTER TABLE … MODIFY {column.name} … CHARACTER SET utf8mb4, or leave the table out",
            )
    check_named_columns(settings, key, found.shape.names)
    check_keyless(settings, key)
    check_column_names(settings, found.shape.names)
