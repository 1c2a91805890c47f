"""Removes what set-up created on a PostgreSQL server: the slot, and the tables of the publication."""

from collections.abc import Collection

import psycopg2.extensions
import structlog
from psycopg2 import sql
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from cdc_pipeline.errors import LeaseBusy, SourceAway, SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.postgres.catalogue import Slot, read_slot, rows
from cdc_pipeline.sources.postgres.publication import holds_schemas, read_publication
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.statements import only, published_tables
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()
# The server notices a moment later that a consumer has ended.
_RELEASED = Retrying(
    retry=retry_if_exception_type(LeaseBusy), stop=stop_after_delay(3), wait=wait_fixed(0.1), reraise=True
)


def leave_server(
    url: str, source: PostgresSource, tables: Collection[TableName], on_step: OnStep, *, whole: bool
) -> tuple[str, ...]:
    """Removes the tables from the publication. With `whole`, also drops the slot, and a publication that is then empty.

    Idempotent. Drops the slot first, since the server keeps log for it. Returns the statements that the role may not
    run. Raises LeaseBusy while a process reads the slot, also a moment later.
    """
    with session(url) as connection:
        connection.autocommit = True
        slot = _RELEASED(_unread_slot, connection, source)
        if whole and slot is not None:
            with step(on_step, "source.drop_slot"):
                rows(connection, "SELECT pg_drop_replication_slot(%s)", (source.slot,))
        statements = _publication_statements(connection, source, tables, whole=whole)
    return tuple(statement for statement in statements if not _is_run(url, statement, on_step))


def _unread_slot(connection: psycopg2.extensions.connection, source: PostgresSource) -> Slot | None:
    slot = read_slot(connection, source.slot)
    if slot is not None and slot.active_pid is not None:
        raise LeaseBusy(
            f"a consumer reads the slot {source.slot} (process {slot.active_pid} of the source)",
            expected="nobody who registers more of what is to be removed",
            remedy="stop the consumer first",
        )
    return slot


def _publication_statements(
    connection: psycopg2.extensions.connection, source: PostgresSource, tables: Collection[TableName], *, whole: bool
) -> list[str]:
    """Returns the statement that removes the tables; with `whole`, drops a publication that has no other tables.

    A publication that holds tables by their schema, or all tables, is not of the pipeline's making and stays.
    """
    publication = read_publication(connection, source.publication)
    if publication is None:
        return []
    members = published_tables(connection, source)
    ours = {(name.schema, name.table) for name in tables}
    name = sql.Identifier(source.publication)
    holds_more = publication.has_all or holds_schemas(connection, source.publication)
    if whole and members <= ours and not holds_more:
        return [sql.SQL("DROP PUBLICATION {}").format(name).as_string(connection)]
    leaving = [only(*member) for member in sorted(members & ours)]
    if not leaving:
        return []
    drop = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}")
    return [drop.format(name, sql.SQL(", ").join(leaving)).as_string(connection)]


def _is_run(url: str, statement: str, on_step: OnStep) -> bool:
    """Runs the statement. Returns False if the role may not run it."""
    try:
        with session(url) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            with step(on_step, "source.drop_publication"):
                cursor.execute(statement)
    except SourceAway:
        raise
    except SourceError as error:
        log.warning("left to an administrator", statement=statement, found=error.found)
        return False
    return True
