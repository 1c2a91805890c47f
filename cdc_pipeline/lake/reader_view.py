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


def reader_view_sql(table: LakeTable, url: str, names: Sequence[str]) -> str:
    """Returns a statement for Spark. `url` is where Spark finds the lake's table; `names` come from `read_columns`.

    The view is named `<schema>_<table>`, that of a history table `<schema>_<table>_history`. Characters that Spark does
    not allow in a view's name become `_`.
    """
    own = _OF_HISTORY if table.is_history else ()
    columns = ", ".join(map(identifier, (*names, *own)))
    name = identifier(_NOT_IN_A_NAME.sub("_", f"{table.name.schema}_{table.name.table}"))
    return (
        f"CREATE OR REPLACE VIEW {name} AS SELECT {columns} FROM {table_at(url)}"
        f" WHERE NOT coalesce({identifier(DELETED)}, false)"
    )
