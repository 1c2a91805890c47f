"""What pipeline.yml declares of a table whose events may not carry types."""

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.types import changed_types, widest


def declared_schema(table: TableSettings) -> TableSchema | None:
    """Returns the schema that pipeline.yml declares; None if it leaves the id or an id column to the events."""
    if not table.id or not set(table.id) <= table.columns.keys():
        return None
    columns = tuple(Column(name=name, type=type_) for name, type_ in table.columns.items())
    return TableSchema(columns=columns, key=table.id)


def refuse_changed_types(table: TableSettings, known: KnownTable | None) -> None:
    """Raises SettingsError if pipeline.yml changed the type of a column.

    The lake cannot change the types with which it began, so it would refuse every later slice.
    """
    if known is None:
        return
    declared = tuple(Column(name=name, type=type_) for name, type_ in table.columns.items())
    for before, column in changed_types(widest(known.columns), declared):
        raise SettingsError(
            f"{table.name} has the column {column.name} as {column.type} in pipeline.yml",
            expected=f"{before.type}, as it began: the lake keeps its types",
            remedy="set it back; for another type, read the events again under another name and lake",
        )
