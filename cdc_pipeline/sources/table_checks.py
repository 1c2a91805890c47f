"""What every source requires of a table: its folder in the lake, and its columns."""

from collections.abc import Collection, Iterable
from itertools import pairwise

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import SourceError, UsageError
from cdc_pipeline.record import OWN_PREFIX, TableName, TableSchema, history_name
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.types import resolve


def check_folder(settings: TableSettings, listed: Iterable[TableSettings]) -> None:
    """Raises SourceError for tables whose folders differ only in capitals: some disks make one folder of them.

    The same holds for a table with the name of another one's history table, and for one whose name, or whose history
    table's, cannot be a folder.
    """
    try:
        name, folder = settings.name.lower(), lake_key(settings.table).lower()
        if settings.history:
            lake_key(history_name(settings.table))
    except UsageError as error:
        raise SourceError(f"{settings.name}: {error.found}", expected=error.expected, remedy=error.remedy) from error
    for other in listed:
        if other.history and _folder(history_name(other.table)) == folder:
            raise SourceError(
                f"the table {settings.name} has the name of the history table of {other.name}",
                expected="tables whose folders in the lake stay apart",
                remedy="rename it, or leave history out of pipeline.yml for the other",
            )
        if other.name.lower() != name or other.table == settings.table:
            continue
        if _folder(other.table) == folder:
            raise SourceError(
                f"the tables {settings.name} and {other.name} differ only in capitals",
                expected="tables whose folders in the lake stay apart where capitals do not count",
                remedy="rename one of them, or list it in a pipeline with a lake of its own",
            )


def _folder(table: TableName) -> str:
    """Returns the folder as it is where capitals do not count, "" for a table that cannot have one."""
    try:
        return lake_key(table).lower()
    except UsageError:
        return ""


def check_keyless(settings: TableSettings, key: Collection[str]) -> None:
    """Raises SourceError for a keyless table whose history is to be kept, or whose deletes are to be soft."""
    if not key and (settings.history or settings.deletes == "soft"):
        name, what = ("history", "is to be kept") if settings.history else ("deletes", "are to be soft")
        raise SourceError(
            f"the table {settings.name} has no id, and its {name} {what}",
            expected="an id, by which a row is found again",
            remedy=f"leave {name} out of pipeline.yml for this table, or give it an id",
        )


def check_id_types(settings: TableSettings, schema: TableSchema) -> None:
    """Raises SourceError for an id with an array: slice files and lake files are sorted by id, and arrays cannot be."""
    for column in schema.key_columns:
        if resolve(column.type).element is not None:
            raise SourceError(
                f"the column {column.name} in the id of {settings.name} is of the type {column.type}",
                expected="an id without arrays: the files of slices and of the lake are sorted by it",
                remedy="name other columns in id of pipeline.yml, or leave the table out; a column of a database may"
                " also be kept as text: name it in as_text",
            )


def check_named_columns(settings: TableSettings, key: tuple[str, ...], names: Collection[str]) -> None:
    """Raises SourceError if the id, a time of the rows or partition_by names a column that is not among `names`."""
    partitions = (part.column for part in settings.partition_by)
    _check_named(settings, (*key, settings.create_time, settings.update_time, *partitions), names)


def check_as_text(settings: TableSettings, names: Collection[str]) -> None:
    """Raises SourceError if as_text names a column that a new table does not have. A known one may have dropped it."""
    _check_named(settings, settings.as_text, names)


def _check_named(settings: TableSettings, named: Iterable[str | None], names: Collection[str]) -> None:
    for name in named:
        if name is not None and name not in names:
            raise SourceError(
                f"the table {settings.name} has no column {name!r}",
                expected=f"one of {', '.join(sorted(names))}",
                remedy="correct id, create_time, update_time, partition_by or as_text in pipeline.yml",
            )


def check_excluded(settings: TableSettings, key: Collection[str], names: Collection[str]) -> None:
    """Raises SourceError if pipeline.yml excludes a column of the id, or one that a new table does not have.

    A misspelt name would let the column into the lake.
    """
    for name in settings.exclude_columns:
        if name in key or name not in names:
            found = "in its id" if name in key else "not in the table"
            raise SourceError(
                f"exclude_columns of {settings.name} names {name!r}, which is {found}",
                expected=f"one of {', '.join(sorted(set(names) - set(key)))}",
                remedy="correct exclude_columns in pipeline.yml",
            )


def check_column_names(settings: TableSettings, names: Collection[str]) -> None:
    """Raises SourceError for reserved names, and for names that differ only in capitals, which Spark ignores."""
    reserved = next((name for name in sorted(names) if name.lower().startswith(OWN_PREFIX)), None)
    if reserved is not None:
        raise SourceError(
            f"the table {settings.name} has a column {reserved!r}",
            expected="no column that begins with _cdc_: those are the pipeline's own",
            remedy="rename the column",
        )
    for name, next_name in pairwise(sorted(sorted(names), key=str.lower)):
        if name.lower() == next_name.lower():
            raise SourceError(
                f"the columns {name!r} and {next_name!r} of the table {settings.name} differ only in capitals",
                expected="names that stay apart where capitals do not count, as in Spark and in Delta",
                remedy="rename one of them, or leave the table out of pipeline.yml",
            )
