"""Deduplicates a claim's events to one row per id, with the id's registers after them, as Spark SQL.

The input is the view EVENT: `_cdc_op`, `_cdc_version`, `_cdc_absent` and `_cdc_lacking` (names, never NULL), id
columns, `_cdc_old_<id column>`, other columns. It has no truncates and no events that the lake already contains. Each
register keeps its greatest version, so events may come in any order, in any grouping, and more than once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import ABSENT, DELETED, OLD_ID_PREFIX, OPERATION, STATE, STATE_TYPE, VERSION

EVENT = "cdc_event"
KNOWN = "_cdc_known"
"""Column: whether the claim has an event of the id that is not a delete."""
FRESH = "_cdc_fresh"
"""Column: whether the claim inserts the row. Then the row keeps no value that the id had before."""
LACKING = "_cdc_lacking"
"""Column: names of columns that the event's schema lacks. They have no value and do not make a row incomplete."""
DELETIONS = "_cdc_deletions"
VERSIONS = "_cdc_versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimShape:
    """The source's columns in the lake (id included) with their Spark types.

    `lacking`: columns that some file of the claim lacks. `dropped`: columns that all its files lack. `missing`: SQL of
    the value that rows written before the column was added have, if it is not NULL.
    """

    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    lacking: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)

    def missing_value(self, name: str, type_: str) -> str:
        """Returns SQL for the value of a column that no event has set, in a row whose schema lacks it."""
        return self.missing.get(name, f"CAST(NULL AS {type_})")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def others(self) -> tuple[tuple[int, str], ...]:
        """The columns other than the id, numbered. The SQL refers to them by number, so that no name can clash."""
        return tuple(enumerate(name for name in self.names if name not in self.key))

    def keys(self, alias: str = "") -> str:
        return ", ".join(alias + identifier(name) for name in self.key)

    def same(self, left: str, right: str) -> str:
        return " AND ".join(f"{left}.{identifier(name)} = {right}.{identifier(name)}" for name in self.key)

    def moved_from(self, move: str, right: str) -> str:
        """Returns SQL for: the old id of the move is the id of the row at `right`."""
        return " AND ".join(
            f"{move}.{identifier(OLD_ID_PREFIX + name)} = {right}.{identifier(name)}" for name in self.key
        )


def deduplicate_whole_rows(shape: ClaimShape) -> str:
    """Returns SQL that deduplicates whole rows in order: one aggregation, one version per row."""
    order = f"struct({VERSION}, {OPERATION})"
    with_values = [(number, name) for number, name in shape.others if name not in shape.lacking]
    fields = "".join(f", {identifier(name)} AS value_{number}" for number, name in with_values)
    values = "".join(f", _cdc_newest_row.value_{number} AS {identifier(name)}" for number, name in with_values)
    return f"""
        SELECT {shape.keys()}{values}, _cdc_newest_event.{VERSION}, _cdc_newest_event.{OPERATION} = 'd' AS {DELETED},
               CAST(NULL AS {STATE_TYPE}) AS {STATE}, _cdc_newest_row IS NOT NULL AS {KNOWN}, {FRESH}
        FROM (SELECT {shape.keys()}, max({order}) AS _cdc_newest_event, bool_or({OPERATION} = 'i') AS {FRESH},
                     max_by(struct({VERSION}{fields}), {order}) FILTER (WHERE {OPERATION} <> 'd') AS _cdc_newest_row
              FROM {EVENT} GROUP BY {shape.keys()})"""


def deduplicate_registers(shape: ClaimShape, *, ties: bool) -> str:
    """Returns SQL with the registers and all deletions of each id.

    Per column, `_cdc_claim_<n>` is (version, value), and `_cdc_lacked_<n>` is the newest version whose schema lacks the
    column.
    """
    versions = f", collect_set({VERSION}) AS {VERSIONS}" if ties else ""
    return f"""
        SELECT {shape.keys()}, max({VERSION}) AS {VERSION}, bool_or({OPERATION} <> 'd') AS {KNOWN},
               collect_set({VERSION}) FILTER (WHERE {OPERATION} = 'd') AS {DELETIONS}{versions}{registers(shape)}
        FROM {EVENT} GROUP BY {shape.keys()}"""


def registers(shape: ClaimShape, event: str = "") -> str:
    """Returns aggregates over events, each with a comma before it."""
    version, operation = f"{event}{VERSION}", f"{event}{OPERATION}"
    parts = []
    for number, name in shape.others:
        literal = text_literal(name)
        has_no_value = " OR ".join(f"array_contains({event}{names}, {literal})" for names in (ABSENT, LACKING))
        parts.append(
            f"max_by(struct({version} AS version, {event}{identifier(name)} AS value), {version})"
            f" FILTER (WHERE {operation} <> 'd' AND NOT ({has_no_value})) AS _cdc_claim_{number}"
        )
        if name in shape.lacking:
            lacks = f"array_contains({event}{LACKING}, {literal})"
            parts.append(f"max({version}) FILTER (WHERE {lacks}) AS _cdc_lacked_{number}")
    return "".join(f", {part}" for part in parts)


def lacks(shape: ClaimShape, number: int, name: str) -> str:
    """Returns SQL for the newest version whose schema lacks the column; never NULL."""
    return f"coalesce(_cdc_lacked_{number}, '')" if name in shape.lacking else "''"
