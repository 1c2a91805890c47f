"""SQL for readers: a view of a table as its source has it, without hidden rows and the pipeline's own columns.

The view of a history table has the columns that say when each version of a row was valid.
"""

import re
from collections.abc import Sequence

from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at
from cdc_pipeline.record import CURRENT, DELETED, END_VERSION, VALID_FROM, VALID_TO, VERSION

_OF_HISTORY = (VERSION, END_VERSION, VALID_FROM, VALID_TO, CURRENT)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def view_name(table: LakeTable) -> str:
    """`<schema>_<table>`, for a history table `<schema>_<table>_history`. What Spark does not allow in it becomes `_`.

    Views of two tables may thus have the same name. Capitals do not count: Spark ignores them.
    """
    return _NOT_IN_A_NAME.sub("_", f"{table.name.schema}_{table.name.table}")


def reader_view_sql(table: LakeTable, url: str, names: Sequence[str]) -> str:
    """Returns a statement for Spark. `url` is where Spark finds the lake's table; `names` come from `read_columns`."""
    own = _OF_HISTORY if table.is_history else ()
    columns = ", ".join(map(identifier, (*names, *own)))
    return (
        f"CREATE OR REPLACE VIEW {identifier(view_name(table))} AS SELECT {columns} FROM {table_at(url)}"
        f" WHERE NOT coalesce({identifier(DELETED)}, false)"
    )
