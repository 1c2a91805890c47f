"""A source table that changed: added columns are added to the lake, any other difference is refused by name."""

from pyspark.sql import SparkSession

from cdc_pipeline.errors import CdcError
from cdc_pipeline.lake.columns import OWN_TYPES, definition, needs_mapping
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.table_ddl import MAPPING, property_list
from cdc_pipeline.record import Column
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import resolve


class SchemaConflict(CdcError):
    """A person decides: the lake never casts or drops on its own."""


def add_missing_columns(
    session: SparkSession, table: LakeTable, columns: tuple[Column, ...], url: str, on_step: OnStep
) -> list[tuple[str, str]]:
    """ALTER the lake table so that it has all of `columns` and of our own. Raises SchemaConflict for a changed type
    or id. Gives name and Spark type of every source column that the lake has afterwards.

    A column that the source dropped stays in the lake with the values it has.
    """
    target = table_at(url)
    with step(on_step, "lake_schema.read"):
        fields = session.read.format("delta").load(url).schema.fields
    lake = {field.name: field.dataType.simpleString().upper() for field in fields}
    names = [column.name for column in columns]
    problems = [f"the id column {name!r} is gone" for name in table.schema.key if name not in names]
    problems += [
        f"{column.name!r} is {column.type} ({resolve(column.type).spark}) and {lake[column.name]} in the lake"
        for column in columns
        if column.name in lake and lake[column.name] != resolve(column.type).spark
    ]
    if problems:
        raise SchemaConflict(
            f"the schema of {table.name} no longer fits its lake table: {'; '.join(problems)}",
            expected="the lake's columns with their types, and new ones beside them",
            remedy="take a new snapshot of the table into a new lake table",
        )
    added = [column for column in columns if column.name not in lake]
    own = [f"{name} {type_}" for name, type_ in OWN_TYPES if name not in lake]
    ours = {*(name for name, _ in OWN_TYPES), *(partition.lake_column for partition in table.partition_by)}
    everything = [(name, type_) for name, type_ in lake.items() if name not in ours]
    everything += [(column.name, resolve(column.type).spark) for column in added]
    if not added and not own:
        return everything
    if needs_mapping([column.name for column in added]) and not needs_mapping(list(lake)):
        with step(on_step, "lake_schema.map"):
            session.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({property_list(MAPPING)})").collect()
    with step(on_step, "lake_schema.alter"):
        definitions = ", ".join([*map(definition, added), *own])
        session.sql(f"ALTER TABLE {target} ADD COLUMNS ({definitions})").collect()
    return everything
