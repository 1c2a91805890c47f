"""The statement that gives readers a table as its source has it: without hidden rows and our own columns."""

import re
from collections.abc import Sequence

from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at
from cdc_pipeline.record import DELETED

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def reader_view_sql(table: LakeTable, url: str, names: Sequence[str]) -> str:
    """For Spark; `url` is where it finds the lake's table, `names` as of `read_columns`.

    The view is named `<schema>_<table>`, with `_` for what Spark allows in no view's name.
    """
    columns = ", ".join(map(identifier, names))
    name = identifier(_NOT_IN_A_NAME.sub("_", f"{table.name.schema}_{table.name.table}"))
    return (
        f"CREATE OR REPLACE VIEW {name} AS SELECT {columns} FROM {table_at(url)}"
        f" WHERE NOT coalesce({identifier(DELETED)}, false)"
    )
