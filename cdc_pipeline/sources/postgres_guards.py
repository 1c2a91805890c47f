"""What stops a table whose changes were read before: the stream would no longer tell it whole, or tells another."""

from dataclasses import dataclass

import psycopg2.extensions

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.postgres_catalogue import CatalogueTable, rows
from cdc_pipeline.sources.postgres_publication import Publication

_NAME_NOW = """
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table as it was registered. `publication_mark` None: it is stale already, for `reason`."""

    oid: int
    key: tuple[str, ...]
    publication_mark: str | None
    reason: str


def check_known(
    connection: psycopg2.extensions.connection,
    settings: TableSettings,
    known: KnownTable,
    found: CatalogueTable | None,
    publication: Publication | None,
) -> None:
    """Raises TableStale unless every change since the table was registered comes, and comes as its own."""
    name = settings.table
    if known.publication_mark is None:
        raise TableStale(known.reason or f"{name} is stale", table=str(name), remedy=f"run cdc snapshot {name}")
    if found is None or found.oid != known.oid:
        raise _another_table(connection, name, known, found)
    key = settings.id or found.primary_key
    if key != known.key:
        raise TableStale(
            f"the id of {name} is now ({', '.join(key)})",
            table=str(name),
            expected=f"({', '.join(known.key)}), by which the lake knows its rows",
        )
    published = None if publication is None else publication.of(name)
    if published is None or (known.publication_mark and published.mark != known.publication_mark):
        left = "is not in the publication" if published is None else "was published otherwise in between"
        raise TableStale(
            f"{name} {left}: changes of it may be missing",
            table=str(name),
            expected=f"the publication to hold it as {known.publication_mark}",
        )


def _another_table(
    connection: psycopg2.extensions.connection, name: TableName, known: KnownTable, found: CatalogueTable | None
) -> TableStale:
    expected = f"oid {known.oid}, of which the lake was made"
    if found is not None:
        return TableStale(f"{name} was made again and has oid {found.oid}", table=str(name), expected=expected)
    now = rows(connection, _NAME_NOW, (known.oid,))
    if not now:
        return TableStale(
            f"{name} was dropped from the source",
            table=str(name),
            expected=expected,
            remedy=f"make it again and run cdc snapshot {name}, or take it out of pipeline.yml",
        )
    schema, table = now[0]
    return TableStale(
        f"{name} is now called {schema}.{table}",
        table=str(name),
        expected=expected,
        remedy=f"name it back and run cdc snapshot {name}, or list the new name in pipeline.yml instead",
    )
