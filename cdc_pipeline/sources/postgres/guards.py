"""Checks registered tables: a table stops if its stream would lack changes, or have changes of another table."""

from collections.abc import Sequence
from dataclasses import replace

import psycopg2.extensions

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.publication import Publication
from cdc_pipeline.sources.postgres.shape import SourceShape
from cdc_pipeline.sources.postgres.shape_changes import Followed, Retaken, compare_shapes
from cdc_pipeline.sources.postgres.tables import CatalogueTable

_NAME_NOW = """
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = %s
"""


def check_known(
    connection: psycopg2.extensions.connection,
    settings: TableSettings,
    known: KnownTable,
    found: CatalogueTable | None,
    publication: Publication | None,
) -> None:
    """Raises TableStale unless the stream has every change of this table since it was registered."""
    name = settings.table
    known.check_not_stale()
    if found is None or found.oid != known.source_id:
        raise _another_table(connection, name, known, found)
    known.check_key(settings.id or found.primary_key)
    known.check_excluded(settings.exclude_columns)
    published = None if publication is None else publication.of(name)
    if published is None or (known.published_as and published.mark != known.published_as):
        left = "is not in the publication" if published is None else "was published otherwise in between"
        raise TableStale(
            f"{name} {left}: changes of it may be missing",
            table=str(name),
            expected="the publication to hold the table, unchanged since it was registered",
        )


def _another_table(
    connection: psycopg2.extensions.connection, name: TableName, known: KnownTable, found: CatalogueTable | None
) -> TableStale:
    expected = f"oid {known.source_id}, of which the lake was made"
    if found is not None:
        return TableStale(f"{name} was made again and has oid {found.oid}", table=str(name), expected=expected)
    now = rows(connection, _NAME_NOW, (known.source_id,))
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


def followed_shapes(settings: TableSettings, known: KnownTable, found: CatalogueTable) -> tuple[SourceShape, ...]:
    """Returns the shapes that coming events of the table may have, oldest first; the last one is the catalogue's now.

    A new shape has the generation 0 until its position in the log is known. Raises TableStale for a change that needs a
    new snapshot, and for any change if the settings say `on_schema_change: stop`.
    """
    shapes = tuple(map(SourceShape.from_json, known.description))
    if not shapes or (known.schema is not None and known.schema.generation > shapes[-1].generation):
        return (_adopted(settings, known, found, shapes[-1] if shapes else None),)
    fixed = {
        *known.key,
        *settings.exclude_columns,
        *(part.column for part in settings.partition_by),
        *(name for name in (settings.create_time, settings.update_time) if name is not None),
    }
    change = compare_shapes(shapes[-1], found.shape, fixed)
    if isinstance(change, Retaken):
        raise _changed(settings, change.reason)
    if not isinstance(change, Followed):
        if shapes[-1].shows([column.look for column in change.shape.columns]):
            return (*shapes[:-1], change.shape)
        # The lake's columns stay, but events from before still show another length, precision or domain.
        _check_distinct_shapes(settings, shapes, change.shape)
        return (*shapes, replace(change.shape, generation=0))
    if settings.on_schema_change == "stop":
        raise _changed(settings, "its columns changed, and on_schema_change is stop")
    _check_distinct_shapes(settings, shapes, change.shape)
    return (*shapes, change.shape)


def _adopted(
    settings: TableSettings, known: KnownTable, found: CatalogueTable, earlier: SourceShape | None
) -> SourceShape:
    """Returns the first shape of a table for which the metadata store has none that is recent enough.

    `earlier`: the newest one that it has, as of the table's snapshot if the store was rebuilt. Raises TableStale unless
    the columns of the newest slice are those of the catalogue and nothing else shows that rows changed without events.
    """
    if known.schema is None:
        return found.shape
    known.check_columns(found.shape.schema(known.key).without(settings.exclude_columns))
    if earlier is None and found.shape.leaves is not None:
        raise _changed(settings, "the store does not know which partitions it had")
    change = None if earlier is None else compare_shapes(earlier, found.shape)
    if isinstance(change, Retaken):
        raise _changed(settings, change.reason)
    missing = {column.number: column.missing for column in known.schema.columns}
    columns = tuple(replace(column, missing=missing.get(column.number)) for column in found.shape.columns)
    return replace(found.shape, columns=columns, generation=known.schema.generation)


def _check_distinct_shapes(settings: TableSettings, shapes: Sequence[SourceShape], new: SourceShape) -> None:
    """Raises TableStale if events of the new shape look like those of an earlier shape with other columns."""
    for shape in shapes:
        same = shape.appearance == new.appearance
        if same and [column.number for column in shape.streamed] != [column.number for column in new.streamed]:
            raise _changed(settings, "it changed its columns and has the same names and types again")


def _changed(settings: TableSettings, reason: str) -> TableStale:
    return TableStale(
        f"{settings.name} changed: {reason}",
        table=settings.name,
        expected="a change that its stream describes completely",
    )
