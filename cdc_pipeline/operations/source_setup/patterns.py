"""Finds the tables of the source that match the patterns of pipeline.yml."""

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.table_patterns import matching
from cdc_pipeline.sources.protocol import Source


def matching_tables(source: Source, settings: Settings) -> tuple[str, ...]:
    """Returns the tables that the source has now and that match `include` and `exclude`.

    Raises SettingsError if the source cannot list its tables, or if no table matches.
    """
    names = source.list_tables()
    found = matching(names, include=settings.include, exclude=settings.exclude)
    if not found:
        raise SettingsError(
            f"no table of the source matches {', '.join(settings.include)}",
            expected=f"at least one of its {len(names)} tables",
            remedy="correct include or exclude in pipeline.yml",
        )
    return found
