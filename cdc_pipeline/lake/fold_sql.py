"""The fold as Spark SQL: the events of a claim -> one row per id, with what each register of the id holds after them.

Input, the view EVENT: `_cdc_op`, `_cdc_version`, `_cdc_absent` and `_cdc_lacking` (names, never NULL), id columns,
`_cdc_old_<id column>`, other columns; neither truncates nor events that the lake is past. Every register keeps its
greatest version, so events may come in any order, in any parts, and more than once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import ABSENT, DELETED, OLD_ID_PREFIX, OPERATION, STATE, STATE_TYPE, VERSION

EVENT = "cdc_event"
KNOWN = "_cdc_known"
"""Whether any event but a delete was there."""
FRESH = "_cdc_fresh"
"""Whether the row was inserted in the claim: then nothing of an earlier life of its id may live on."""
LACKING = "_cdc_lacking"
"""Columns that the event's schema does not have: they neither tell a value nor make a row incomplete."""
DELETIONS = "_cdc_deletions"
VERSIONS = "_cdc_versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldShape:
    """The lake's source columns (id included) with their Spark types.

    `lacking`: those that some file of the claim does not have; `dropped`: those that none has. `missing`: SQL of what
    rows show that were written before the column was there, where that is not NULL.
    """

    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    lacking: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)

    def missing_value(self, name: str, type_: str) -> str:
        """Of a column that nothing ever told, in a row whose schema lacks it."""
        return self.missing.get(name, f"CAST(NULL AS {type_})")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def others(self) -> tuple[tuple[int, str], ...]:
        """The columns beside the id, numbered: inside our SQL they go by number, so no name can clash."""
        return tuple(enumerate(name for name in self.names if name not in self.key))

    def keys(self, alias: str = "") -> str:
        return ", ".join(alias + identifier(name) for name in self.key)

    def same(self, left: str, right: str) -> str:
        return " AND ".join(f"{left}.{identifier(name)} = {right}.{identifier(name)}" for name in self.key)

    def moved_from(self, move: str, right: str) -> str:
        """The old id of a move is the id of a row at `right`."""
        return " AND ".join(
            f"{move}.{identifier(OLD_ID_PREFIX + name)} = {right}.{identifier(name)}" for name in self.key
        )


def fold_complete_rows(shape: FoldShape) -> str:
    """Every event tells its whole row and none comes late: one aggregation, one version per row."""
    order = f"struct({VERSION}, {OPERATION})"
    told = [(place, name) for place, name in shape.others if name not in shape.lacking]
    fields = "".join(f", {identifier(name)} AS v{place}" for place, name in told)
    values = "".join(f", _cdc_told.v{place} AS {identifier(name)}" for place, name in told)
    return f"""
        SELECT {shape.keys()}{values}, _cdc_last.{VERSION}, _cdc_last.{OPERATION} = 'd' AS {DELETED},
               CAST(NULL AS {STATE_TYPE}) AS {STATE}, _cdc_told IS NOT NULL AS {KNOWN}, {FRESH}
        FROM (SELECT {shape.keys()}, max({order}) AS _cdc_last, bool_or({OPERATION} = 'i') AS {FRESH},
                     max_by(struct({VERSION}{fields}), {order}) FILTER (WHERE {OPERATION} <> 'd') AS _cdc_told
              FROM {EVENT} GROUP BY {shape.keys()})"""


def fold_registers(shape: FoldShape, *, ties: bool) -> str:
    """`_cdc_s<n>` is (version, value) of a column, `_cdc_l<n>` the newest event that lacks it; with all deletions."""
    versions = f", collect_set({VERSION}) AS {VERSIONS}" if ties else ""
    return f"""
        SELECT {shape.keys()}, max({VERSION}) AS {VERSION}, bool_or({OPERATION} <> 'd') AS {KNOWN},
               collect_set({VERSION}) FILTER (WHERE {OPERATION} = 'd') AS {DELETIONS}{versions}{registers(shape)}
        FROM {EVENT} GROUP BY {shape.keys()}"""


def registers(shape: FoldShape, event: str = "") -> str:
    """Aggregates over events, each with a comma before it."""
    version, operation = f"{event}{VERSION}", f"{event}{OPERATION}"
    parts = []
    for place, name in shape.others:
        literal = text_literal(name)
        untold = " OR ".join(f"array_contains({event}{names}, {literal})" for names in (ABSENT, LACKING))
        parts.append(
            f"max_by(struct({version} AS version, {event}{identifier(name)} AS value), {version})"
            f" FILTER (WHERE {operation} <> 'd' AND NOT ({untold})) AS _cdc_s{place}"
        )
        if name in shape.lacking:
            lacks = f"array_contains({event}{LACKING}, {literal})"
            parts.append(f"max({version}) FILTER (WHERE {lacks}) AS _cdc_l{place}")
    return "".join(f", {part}" for part in parts)


def lacks(shape: FoldShape, place: int, name: str) -> str:
    """SQL for the newest version that lacks the column, never NULL."""
    return f"coalesce(_cdc_l{place}, '')" if name in shape.lacking else "''"
