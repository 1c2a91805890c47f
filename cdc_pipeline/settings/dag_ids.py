"""Names of tables -> DAG ids that Airflow accepts. Two tables never get the same id."""

import re
from hashlib import sha256

from cdc_pipeline.record import TableName

_PLAIN = re.compile(r"[^A-Za-z0-9_]|(?<=_)_|^_|_$")
_LONGEST = 248
"""Airflow allows 250. It also names a folder of logs `dag_id=<id>`, and file systems allow 255 characters there."""


def slice_dag_id(table: TableName) -> str:
    """`cdc_slice__db__schema__table`. All but letters, digits and single underscores becomes `-<code point>-`.

    A longer id than Airflow allows ends with a hash instead, after three underscores, which no other id contains.
    """
    whole = "__".join(("cdc_slice", *(_plain(part) for part in (table.database, table.schema, table.table))))
    end = f"___{sha256(whole.encode()).hexdigest()[:16]}"
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - len(end)] + end


def _plain(name: str) -> str:
    return _PLAIN.sub(lambda found: f"-{ord(found[0]):X}-", name)
