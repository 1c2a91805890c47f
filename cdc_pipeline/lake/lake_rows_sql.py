"""Reads rows of a lake table as registers, as Spark SQL.

A row without STATE is plain: each of its columns has the row's version. Otherwise STATE has the version of
each column that differs, possibly after one of two marks:

- LAPSED: the row is deleted, and the column was not known when it was deleted.
- LACKED: no event since the last delete had a value for the column, but the schema of an update of that version lacks
  the column. So the column is NULL, and the row is not incomplete.
"""

from collections.abc import Sequence

from cdc_pipeline.lake.deduplicate_sql import ClaimShape
from cdc_pipeline.lake.key_ranges import joined
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.lake.quoting import identifier, literal, text_literal
from cdc_pipeline.lake.registers import LACKED, LAPSED
from cdc_pipeline.record import DELETED, STATE, VERSION

MOST_BROADCAST_ROWS = 100_000
BLOCK = 1 << 14
"""The width of a block of key values; a power of two, so that bounds stay within every integer type.

Spark writes every number, but no text, into the Java code that it generates for a statement. A claim that names the
same numbers as the one before reuses its compiled code. So ranges are widened to whole blocks, which adds little
compared with the rows of a file.
"""
HIDDEN = f"coalesce({DELETED}, false)"
DELETION = f"coalesce({STATE}.deletion, IF({HIDDEN}, {VERSION}, ''))"


def lake_rows(
    shape: ClaimShape,
    lake: str,
    ids: str | None,
    *,
    ranges: tuple[KeyRange, ...] = (),
    few: bool,
    carried: Sequence[str] = (),
) -> str:
    """Returns SQL for the lake rows whose id is in `ids` (SQL); None: all rows of `lake`.

    It has the id, the row's `_cdc_lake_version`, `_cdc_lake_hidden` and `_cdc_lake_deletion`, `carried`, and per
    register the value `_cdc_lake_value_<n>` and its version `_cdc_lake_version_<n>`, which may have a mark. `few`: the
    ids and their rows fit into the memory of every executor, so that the table needs no shuffle.
    """
    columns = "".join(
        f", {register.value('lake.')} AS _cdc_lake_value_{register.number},"
        f" coalesce(try_element_at(lake.{STATE}.columns, {text_literal(register.first)}), lake.{VERSION})"
        f" AS _cdc_lake_version_{register.number}"
        for register in shape.registers
    )
    columns += "".join(f", lake.{name}" for name in carried)
    wanted = "" if ids is None else f" LEFT SEMI JOIN ({ids}) AS wanted ON {shape.same('lake', 'wanted')}"
    within = f" WHERE {within_ranges(shape.key[0], ranges)}" if ranges else ""
    hint = "/*+ BROADCAST(wanted) */ " if few and wanted else ""
    return f"""
        SELECT {hint}{shape.keys("lake.")}, lake.{VERSION} AS _cdc_lake_version, {HIDDEN} AS _cdc_lake_hidden,
               {DELETION} AS _cdc_lake_deletion{columns}
        FROM {lake} AS lake{wanted}{within}"""


def within_ranges(first_key: str, ranges: tuple[KeyRange, ...]) -> str:
    """Returns a condition on the target's key. It mentions the target only; otherwise Delta could not skip files by it.

    Numbers are widened to whole blocks.
    """
    column = f"lake.{identifier(first_key)}"
    parts = _whole_blocks(ranges)
    return f"({' OR '.join(f'{column} BETWEEN {literal(part.low)} AND {literal(part.high)}' for part in parts)})"


def _whole_blocks(ranges: tuple[KeyRange, ...]) -> Sequence[KeyRange]:
    """Widens ranges of numbers to whole blocks and joins those that touch. Other ranges stay as they are."""
    spans = [
        (low & -BLOCK, (high | BLOCK - 1) + 1) for low, high in ranges if isinstance(low, int) and isinstance(high, int)
    ]
    return [KeyRange(low, end - 1) for low, end in joined(spans)] if len(spans) == len(ranges) else ranges


def value_version(column: str) -> str:
    """Returns SQL for the version of the newest event with a value for the column; '' if no value is known."""
    return f"IF(startswith({column}, '{LACKED}'), '', trim(LEADING '{LAPSED}' FROM {column}))"


def lacked_version(column: str) -> str:
    return f"IF(startswith({column}, '{LACKED}'), substr({column}, 2), '')"
