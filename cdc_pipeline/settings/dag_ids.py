"""Tables -> names that Airflow accepts, no two tables with the same one."""

import re

from cdc_pipeline.record import TableName

_PLAIN = re.compile(r"[^A-Za-z0-9_]|(?<=_)_|^_|_$")


def slice_dag_id(table: TableName) -> str:
    """`cdc_slice__db__schema__table`; what is no letter, digit or single underscore becomes `-` and its code."""
    return "__".join(("cdc_slice", *(_plain(part) for part in (table.database, table.schema, table.table))))


def _plain(name: str) -> str:
    return _PLAIN.sub(lambda found: f"-{ord(found[0]):X}-", name)
