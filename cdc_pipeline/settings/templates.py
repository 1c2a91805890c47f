"""Names of topics, streams and tables, made from a template and the parts of a table's name."""

import re
from collections.abc import Callable

from cdc_pipeline.record import TableName

PLACEHOLDER = re.compile(r"\{(database|schema|table)\}")


def filled(template: str, table: TableName, written: Callable[[str], str] = str) -> str:
    """Returns the template with the parts of the table's name in place of {database}, {schema} and {table}.

    `written`: how a part is written there.
    """
    parts = {"database": table.database, "schema": table.schema, "table": table.table}
    return PLACEHOLDER.sub(lambda found: written(parts[found[1]]), template)
