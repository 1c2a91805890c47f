"""SQL for readers: a view of a table as its source has it, without hidden rows and the pipeline's own columns."""

import re
from collections.abc import Sequence

from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at
from cdc_pipeline.record import DELETED

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def reader_view_sql(table: LakeTable, url: str, names: Sequence[str]) -> str:
    """Returns a statement for Spark. `url` is where Spark finds the lake's table; `names` come from `read_columns`.

    The view is named `<schema>_<table>`. Characters that Spark does not allow in a view's name become `_`.
    """
    columns = ", ".join(map(identifier, names))
    name = identifier(_NOT_IN_A_NAME.sub("_", f"{table.name.schema}_{table.name.table}"))
    return (
        f"CREATE OR REPLACE VIEW {name} AS SELECT {columns} FROM {table_at(url)}"
        f" WHERE NOT coalesce({identifier(DELETED)}, false)"
    )
