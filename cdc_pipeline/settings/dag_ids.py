"""Names of tables -> DAG ids that Airflow accepts. Two tables never get the same id."""

import re

from cdc_pipeline.record import TableName

_PLAIN = re.compile(r"[^A-Za-z0-9_]|(?<=_)_|^_|_$")


def slice_dag_id(table: TableName) -> str:
    """`cdc_slice__db__schema__table`. All but letters, digits and single underscores becomes `-<code point>-`."""
    return "__".join(("cdc_slice", *(_plain(part) for part in (table.database, table.schema, table.table))))


def _plain(name: str) -> str:
    return _PLAIN.sub(lambda found: f"-{ord(found[0]):X}-", name)
