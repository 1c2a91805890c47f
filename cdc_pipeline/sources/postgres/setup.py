"""Plans the set-up of a PostgreSQL source: the statements that make it ready, and the tables that cannot be read."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psycopg2.extensions
import structlog

from cdc_pipeline.errors import SourceAway, SourceError, TableStale
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.sources.postgres.catalogue import Server, Slot, TypeRow, read_server, read_slot, read_types
from cdc_pipeline.sources.postgres.guards import check_known, followed_shapes
from cdc_pipeline.sources.postgres.part_guards import (
    check_generated,
    check_identity,
    check_logged,
    check_readable,
    check_unique,
    check_writes_go_on,
)
from cdc_pipeline.sources.postgres.planned_table import PlannedTable
from cdc_pipeline.sources.postgres.publication import Publication, PublicationTable, read_publication
from cdc_pipeline.sources.postgres.session import answering, bound_waits
from cdc_pipeline.sources.postgres.shape import SourceShape, read_end
from cdc_pipeline.sources.postgres.slot import check_server, check_slot_kind, write_first_message
from cdc_pipeline.sources.postgres.statements import publication_statements, slot_statements
from cdc_pipeline.sources.postgres.tables import CatalogueTable, read_table
from cdc_pipeline.sources.table_checks import (
    check_as_text,
    check_column_names,
    check_excluded,
    check_folder,
    check_id_types,
    check_keyless,
    check_named_columns,
)
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """The state of the source, and the statements that are still to be executed, in order.

    `stale`: registered tables that cannot be read further, each with the reason; a new snapshot repairs the `mendable`
    ones. `refused`: tables that were never read and cannot be read, each with the reason. `adding`: the statements that
    add one table each to a publication that exists, with the table.
    """

    server: Server
    slot: Slot | None
    publication: Publication | None
    tables: tuple[PlannedTable, ...]
    stale: Mapping[TableName, TableStale]
    mendable: frozenset[TableName]
    refused: Mapping[TableName, SourceError]
    statements: tuple[str, ...]
    adding: Mapping[str, TableName]


def plan_source(
    connection: psycopg2.extensions.connection,
    source: PostgresSource,
    tables: Sequence[TableSettings],
    known: Mapping[TableName, KnownTable] | None = None,
    begun_again: Collection[TableName] = (),
    *,
    keeps_slot: bool = True,
) -> SourcePlan:
    """Plans the set-up. Changes nothing. Raises SourceError for a problem of the whole stream.

    `known`: the registered tables. If it is given, a problem of one table does not stop the others; if it is None, that
    problem is raised, too. Treats the tables in `begun_again` as new ones. `keeps_slot` False: the slot is replaced.
    """
    bound_waits(connection)
    server = read_server(connection)
    check_server(server, source)
    slot = read_slot(connection, source.slot)
    check_slot_kind(slot, source, server)
    publication = read_publication(connection, source.publication)
    look = _Look(
        connection=connection, publication=publication, listed=tables, registered=known, begun_again=begun_again
    )
    found = look.tables(read_types(connection))
    end = read_end(connection)
    missing = [table.name for table in found if look.published(table.name) is None]
    is_new = publication is None
    has_slot = keeps_slot and slot is not None
    publishing = publication_statements(connection, source, missing, is_new=is_new, has_slot=has_slot)
    return SourcePlan(
        server=server,
        slot=slot,
        publication=publication,
        tables=tuple(_placed(table, end, begins=table.name in begun_again) for table in found),
        stale=look.stale,
        mendable=frozenset(look.mendable),
        refused=look.refused,
        statements=(*publishing, *slot_statements(connection, source, slot)),
        adding={} if is_new else dict(zip(publishing, missing, strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Checks the listed tables of a source, and collects those that cannot be read."""

    connection: psycopg2.extensions.connection
    publication: Publication | None
    listed: Sequence[TableSettings]
    registered: Mapping[TableName, KnownTable] | None
    begun_again: Collection[TableName]
    stale: dict[TableName, TableStale] = field(default_factory=dict)
    mendable: set[TableName] = field(default_factory=set)
    refused: dict[TableName, SourceError] = field(default_factory=dict)

    def tables(self, types: Mapping[int, TypeRow]) -> list[PlannedTable]:
        """Returns the tables that can be read. Puts the others into `stale` or `refused`."""
        registered, found = self.registered or {}, []
        for table in self.listed:
            before = None if table.table in self.begun_again else registered.get(table.table)
            in_catalogue = None
            try:
                shapes = [SourceShape.from_json(document) for document in before.description[-1:]] if before else []
                known = {shape.oid: shape for shape in shapes}
                in_catalogue = read_table(self.connection, types, table.table, table.read_as_text, known)
                if before is None:
                    check_folder(table, () if table.table in registered else self.listed)
                    new = self.new(table, in_catalogue)
                    _check_column_lists(table, new)
                    found.append(new)
                else:
                    found.append(self.known(table, before, in_catalogue))
            except TableStale as error:
                self.stop(table, before, in_catalogue, error)
            except SourceError as error:
                if self.registered is None or error.retryable:
                    raise
                self.refused[table.table] = error
        return found

    def published(self, name: TableName) -> PublicationTable | None:
        return None if self.publication is None else self.publication.of(name)

    def new(self, settings: TableSettings, found: CatalogueTable | None, *, is_new: bool = True) -> PlannedTable:
        """Checks a table that is to be read from now on. Raises SourceError if it cannot be read.

        `is_new` False: its rows are in the lake, so only its changes need to be read.
        """
        table = _check_table(settings, found, is_new=is_new)
        published = self.published(table.name)
        if found is not None and published is None:
            check_writes_go_on(self.connection, found, self.publication)
        if self.publication is not None and published is not None:
            _check_published(table, self.publication, published)
        return table

    def known(self, settings: TableSettings, known: KnownTable, found: CatalogueTable | None) -> PlannedTable:
        """Checks a registered table. Raises TableStale if it cannot be read further."""
        try:
            check_known(self.connection, settings, known, found, self.publication)
            table = self.new(settings, found, is_new=False)
        except TableStale:
            raise
        except SourceError as error:
            raise TableStale.by(error, settings.name) from error
        if found is None:
            return table
        followed = replace(table, shapes=followed_shapes(settings, known, found))
        _warn_unless_readable(table.name, found)
        return followed

    def stop(
        self, settings: TableSettings, known: KnownTable | None, found: CatalogueTable | None, error: TableStale
    ) -> None:
        """Records a stale table. It is mendable if it could be read as a new one.

        A table that somebody removed from the publication is not mendable: only a person may add it again.
        """
        self.stale[settings.table] = error
        try:
            table = self.new(settings, found)
        except SourceError:
            return
        try:
            _check_column_lists(settings, table)
        except SourceError as refusal:
            self.stale[settings.table] = TableStale.by(refusal, settings.name)
            return
        if self.published(settings.table) is not None or (known is not None and table.oid != known.source_id):
            self.mendable.add(settings.table)


def _warn_unless_readable(name: TableName, found: CatalogueTable) -> None:
    try:
        check_readable(name, found.parts)
    except SourceError as error:
        log.warning("the table's next copy would fail", found=error.found, expected=error.expected, remedy=error.remedy)


def _check_column_lists(settings: TableSettings, table: PlannedTable) -> None:
    names = [column.name for column in table.shapes[-1].columns]
    check_as_text(settings, names)
    check_excluded(settings, table.key, names)


def _placed(table: PlannedTable, end: int, *, begins: bool) -> PlannedTable:
    """Sets `end` as the generation of a new shape: events that commit after `end` have this shape or a later one.

    The first shape of a table keeps the generation 0, since it holds for every event.
    """
    newest = table.shapes[-1]
    if newest.generation or (len(table.shapes) == 1 and not begins):
        return table
    return replace(table, shapes=(*table.shapes[:-1], replace(newest, generation=end)))


def execute_plan(connection: psycopg2.extensions.connection, plan: SourcePlan, on_step: OnStep) -> SourcePlan:
    """Runs each statement in its own transaction: a slot cannot be created in a transaction that has written.

    Returns the plan with the statements that were run. A table that the server does not let the role publish, or that
    is in use for too long, is in `refused`; raises that SourceError if no table is left.
    """
    connection.rollback()
    connection.autocommit = True
    run: list[str] = []
    refused: dict[TableName, SourceError] = {}
    for statement in plan.statements:
        try:
            with step(on_step, "source.set_up"), answering(), connection.cursor() as cursor:
                cursor.execute(statement)
            run.append(statement)
        except SourceError as error:
            if isinstance(error, SourceAway) or statement not in plan.adding or len(refused) + 1 == len(plan.tables):
                raise
            refused[plan.adding[statement]] = error
    with step(on_step, "source.set_up"), answering():
        write_first_message(connection)
    return replace(plan, statements=tuple(run), refused={**plan.refused, **refused})


def _check_published(table: PlannedTable, publication: Publication, published: PublicationTable) -> None:
    hidden = published.hides(column.number for column in table.shapes[-1].streamed)
    if publication.is_whole and not published.has_row_filter and not hidden:
        return
    left_out = "columns" if hidden else "rows" if published.has_row_filter else "kinds of changes"
    raise SourceError(
        f"the publication leaves out {left_out} of {table.name}",
        expected="every insert, update, delete and truncate with all its columns",
        remedy="drop the table from the publication and add it whole, and SET (publish = 'insert, update, delete,"
        " truncate')",
    )


def _check_table(settings: TableSettings, found: CatalogueTable | None, *, is_new: bool) -> PlannedTable:
    name = settings.table
    if found is None:
        raise SourceError(
            f"the source has no table {name}",
            expected="every table of pipeline.yml in the source",
            remedy="create it, or take it out of pipeline.yml",
        )
    if not found.is_table:
        raise SourceError(
            f"{name} is not a table (relkind {found.relkind})",
            expected="an ordinary or partitioned table: only their changes are in the log",
            remedy="name the tables that lie under it",
        )
    check_logged(name, found.parts)
    if is_new:
        check_readable(name, found.parts)
    key = settings.id or found.primary_key
    names = [column.name for column in found.shape.columns]
    check_named_columns(settings, key, names)
    check_id_types(settings, found.schema(key))
    check_keyless(settings, key)
    check_generated(settings, found, key)
    check_column_names(settings, names)
    check_unique(name, found.parts, key)
    check_identity(settings, found.parts, key, is_new=is_new)
    return PlannedTable(
        name=name,
        oid=found.oid,
        key=key,
        primary_key=found.primary_key,
        shapes=(found.shape,),
        excluded=settings.exclude_columns,
    )
