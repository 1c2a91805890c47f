"""The patterns of pipeline.yml -> the tables that the source has now, kept in a file beside it."""

import structlog

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings import PostgresSource, Settings
from cdc_pipeline.settings.table_patterns import matching
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.session import session

log = structlog.get_logger()

_PARTS = 3
_TABLES = """
-- a partition comes under the name of its table
SELECT current_database(), n.nspname::text, c.relname::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""


def matching_tables(source_url: str, settings: Settings) -> tuple[str, ...]:
    """Raises SettingsError for a source that is no database, or where no table matches."""
    if not isinstance(settings.source, PostgresSource):
        raise SettingsError(
            "include names tables by pattern, and the source is no database that could be asked for them",
            expected="tables, each by its name",
            remedy="list them under tables in pipeline.yml",
        )
    with session(source_url) as connection:
        names = [".".join(row) for row in rows(connection, _TABLES)]
    for name in names:
        if len(name.split(".")) != _PARTS:
            log.warning("a table with a dot in its name matches no pattern", table=name)
    found = matching(
        (name for name in names if len(name.split(".")) == _PARTS), include=settings.include, exclude=settings.exclude
    )
    if not found:
        raise SettingsError(
            f"no table of the source matches {', '.join(settings.include)}",
            expected=f"at least one of its {len(names)} tables",
            remedy="mend include or exclude in pipeline.yml",
        )
    return found
