"""Refuses tables of which the stream or a copy would leave out rows, and those with unfit generated columns.

Checks the table and each of its partitions.
"""

from collections.abc import Sequence

import psycopg2.extensions

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.postgres.publication import FIRST_VERSION_WITH_GENERATED, Publication
from cdc_pipeline.sources.postgres.table_parts import UNLOGGED, TablePart, parts_that_hide
from cdc_pipeline.sources.postgres.tables import STORED, VIRTUAL, CatalogueTable

_MOST_SHOWN = 3
_TO_LOG = {
    "foreign": "ALTER TABLE ... DETACH PARTITION, or list the table on the server that has its rows",
    UNLOGGED: "ALTER TABLE ... SET LOGGED, as cdc setup-source --print-sql prints it",
}
"""By why changes of a part are not in the log: what an administrator runs."""


def check_logged(name: TableName, parts: Sequence[TablePart]) -> None:
    """Raises SourceError if changes of a part are not in the log."""
    for kind, remedy in _TO_LOG.items():
        found = [part.sql for part in parts if part.not_in_log == kind]
        if found:
            raise SourceError(
                f"changes of {_shown(found)} are not in the server's log: {kind} tables",
                expected=f"ordinary tables, whose changes the log has, as {name} and its partitions",
                remedy=f"run {remedy}",
            )


def check_readable(name: TableName, parts: Sequence[TablePart]) -> None:
    """Raises SourceError if the pipeline's role does not see all rows. A copy needs that; the stream does not.

    A copy reads each partition by its own name, so rights and policies of the partitioned table do not count.
    """
    unread = [part.sql for part in parts if not (part.uses_schema and part.reads)]
    if unread:
        what = f"the table {name}" if unread == [parts[0].sql] else f"{_shown(unread)} of the table {name}"
        raise SourceError(
            f"{what} cannot be read",
            expected="SELECT on it, or on each of its partitions, and USAGE on their schemas, for the snapshot",
            remedy=f"run GRANT SELECT ON {_shown(unread)} TO the pipeline's role: cdc setup-source --print-sql prints"
            " all that is missing",
        )
    filtered = [part.sql for part in parts if part.is_filtered]
    if filtered:
        raise SourceError(
            f"row-level security hides rows of {_shown(filtered)} from the pipeline's role",
            expected=f"a role that sees every row of {name}: the stream has them all",
            remedy="run ALTER ROLE ... BYPASSRLS for the pipeline's role, as cdc setup-source --print-sql prints it;"
            " or, if nobody may do that, make it a member of the role that owns the table",
        )


def check_identity(settings: TableSettings, parts: Sequence[TablePart], key: Sequence[str], *, is_new: bool) -> None:
    """Raises SourceError unless updates and deletes of each part carry the id, or the whole row of a keyless table.

    `is_new`: see `parts_that_hide`.
    """
    name = settings.table
    hiding = parts_that_hide(parts, key, is_new=is_new)
    statements = [f"ALTER TABLE {part.sql} REPLICA IDENTITY FULL" for part in hiding]
    if not key and hiding:
        raise SourceError(
            f"the table {name} has no id, and its updates and deletes do not carry the whole row",
            expected="a primary key, id in pipeline.yml with columns that no two rows share, or whole old rows",
            remedy="run " + _shown(statements, "; "),
        )
    if hiding:
        is_named = hiding[0] is parts[0]
        where = name if is_named else f"the partition {hiding[0].sql} of {name}"
        found = f"deletes of {where} do not carry {', '.join(hiding[0].lacking(key))}"
        if not hiding[0].identity and not (is_named and parts[1:]):
            found = (
                f"the server refuses updates and deletes of {where} once it is published: it has no replica identity"
            )
        raise SourceError(
            found,
            expected="an id within the table's replica identity, and that of each of its partitions",
            remedy=f"run {_shown(statements, '; ')}, or USING a unique index on the id",
        )


def check_unique(name: TableName, parts: Sequence[TablePart], key: Sequence[str]) -> None:
    """Raises SourceError if two rows may share the id within a transaction: the last event of an id may be a delete."""
    if parts[0].may_repeat(key):
        columns = ", ".join(key)
        raise SourceError(
            f"only a deferrable constraint makes {columns} of {name} unique: rows may share it within a transaction",
            expected="an id that the server checks with each row: else its last event may be the delete of another row",
            remedy=f"make that constraint NOT DEFERRABLE; or create a unique index on {columns} and run ALTER TABLE"
            f" {parts[0].sql} REPLICA IDENTITY USING INDEX; or set id in pipeline.yml to other columns",
        )


def check_generated(settings: TableSettings, found: CatalogueTable, key: Sequence[str]) -> None:
    """Raises SourceError for generated columns whose values do not follow from the table's events.

    An excluded column may be computed in any way.
    """
    generated = [name for name in key if name not in found.columns]
    if generated:
        raise SourceError(
            f"the id of {found.name} has the generated column {generated[0]!r}",
            expected="an id of columns that are written: deletes do not contain others",
            remedy="set id in pipeline.yml to such columns",
        )
    otherwise = [name for name in found.computed_otherwise if name not in settings.exclude_columns]
    if otherwise:
        raise SourceError(
            f"partitions of {found.name} compute {', '.join(otherwise)} otherwise than itself",
            expected="one expression: an event does not name its partition",
            remedy="give the partitions the expression of the table, or list them instead of it",
        )


def check_writes_go_on(
    connection: psycopg2.extensions.connection, found: CatalogueTable, publication: Publication | None
) -> None:
    """Raises SourceError if the source would refuse updates and deletes of the table once it is published."""
    if connection.server_version < FIRST_VERSION_WITH_GENERATED or not found.has_whole_rows:
        return
    if VIRTUAL in found.generated:
        raise SourceError(
            f"{found.name} has REPLICA IDENTITY FULL and virtual generated columns: PostgreSQL refuses its updates and"
            " deletes once it is published",
            expected="another replica identity, or stored columns",
            remedy="give it a key and that as its replica identity, or make those columns STORED",
        )
    if STORED in found.generated and publication is not None and not publication.tells_generated:
        raise SourceError(
            f"{found.name} has REPLICA IDENTITY FULL and generated columns: PostgreSQL refuses its updates and deletes"
            " once this publication holds it",
            expected="a publication with publish_generated_columns = stored",
            remedy="run what cdc setup-source --print-sql prints",
        )


def _shown(texts: Sequence[str], separator: str = ", ") -> str:
    more = len(texts) - _MOST_SHOWN
    return separator.join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
