"""Rows of a lake table as registers, as Spark SQL.

A row without STATE is plain: each of its columns has the row's version. Otherwise STATE says a column's version, and in
front of it, maybe, LAPSED: this is a dead row and the column was not told when it died; or LACKED: nothing told the
column since the deletion before, but an update of that version whose schema lacks it, so that it is NULL.
"""

from collections.abc import Sequence

from cdc_pipeline.lake.fold_sql import FoldShape
from cdc_pipeline.lake.protocol import KeyRange, joined
from cdc_pipeline.lake.quoting import identifier, literal, text_literal
from cdc_pipeline.record import DELETED, STATE, VERSION

LAPSED, LACKED = "!", "+"
MOST_BROADCAST_ROWS = 100_000
BLOCK = 1 << 14
"""Of key values. Spark writes every number into the Java code that it generates for a statement, a text it does not.

A claim finds the code of the one before compiled, and quick by now, where it names the same numbers: so a range is
widened to whole blocks, which is little beside the rows of a file. A power of two keeps within every integer type.
"""
HIDDEN = f"coalesce({DELETED}, false)"
DELETION = f"coalesce({STATE}.deletion, IF({HIDDEN}, {VERSION}, ''))"


def lake_rows(shape: FoldShape, lake: str, ids: str, *, ranges: tuple[KeyRange, ...] = (), few: bool) -> str:
    """Lake rows whose id is in `ids` (SQL): id, `_cdc_lake_*`, and per column `_cdc_t<n>` and its version `_cdc_r<n>`.

    `few`: the ids, and their rows, fit into the memory of every executor, which spares the table a shuffle.
    """
    columns = "".join(
        f", t.{identifier(name)} AS _cdc_t{place},"
        f" coalesce(try_element_at(t.{STATE}.columns, {text_literal(name)}), t.{VERSION}) AS _cdc_r{place}"
        for place, name in shape.others
    )
    within = f" WHERE {within_ranges(shape.key[0], ranges)}" if ranges else ""
    hint = "/*+ BROADCAST(id) */ " if few else ""
    return f"""
        SELECT {hint}{shape.keys("t.")}, t.{VERSION} AS _cdc_lake_version, {HIDDEN} AS _cdc_lake_hidden,
               {DELETION} AS _cdc_lake_deletion{columns}
        FROM {lake} AS t LEFT SEMI JOIN ({ids}) AS id ON {shape.same("t", "id")}{within}"""


def within_ranges(first_key: str, ranges: tuple[KeyRange, ...]) -> str:
    """Mentions the target only, which is all that spares it files. Numbers are widened to whole blocks."""
    column = f"t.{identifier(first_key)}"
    parts = _whole_blocks(ranges)
    return f"({' OR '.join(f'{column} BETWEEN {literal(part.low)} AND {literal(part.high)}' for part in parts)})"


def _whole_blocks(ranges: tuple[KeyRange, ...]) -> Sequence[KeyRange]:
    """Ranges of numbers from the beginning to the end of a block; those that touch become one."""
    spans = [
        (low & -BLOCK, (high | BLOCK - 1) + 1) for low, high in ranges if isinstance(low, int) and isinstance(high, int)
    ]
    return [KeyRange(low, end - 1) for low, end in joined(spans)] if len(spans) == len(ranges) else ranges


def told_version(column: str) -> str:
    """The version of the newest event that told the column; "" if none is known."""
    return f"IF(startswith({column}, '{LACKED}'), '', trim(LEADING '{LAPSED}' FROM {column}))"


def lacked_version(column: str) -> str:
    return f"IF(startswith({column}, '{LACKED}'), substr({column}, 2), '')"
