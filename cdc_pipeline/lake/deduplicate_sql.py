"""Deduplicates a claim's events to one row per id, with the id's registers after them, as Spark SQL.

The input is the view EVENT: `_cdc_op`, `_cdc_version`, `_cdc_absent` and `_cdc_lacking` (names, never NULL), id
columns, `_cdc_old_<id column>`, other columns. It has no truncates and no events that the lake already contains. Each
register keeps its greatest version, so events may come in any order, in any grouping, and more than once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.lake.registers import Register
from cdc_pipeline.record import ABSENT, DELETED, OLD_ID_PREFIX, OPERATION, STATE, STATE_TYPE, VERSION

EVENT = "cdc_event"
KNOWN = "_cdc_known"
"""Column: whether the claim has an event of the id that is not a delete."""
LACKING = "_cdc_lacking"
"""Column: names of columns that the event's schema lacks. They have no value and do not make a row incomplete."""
DELETIONS = "_cdc_deletions"
VERSIONS = "_cdc_versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimShape:
    """The source's columns in the lake (id included) with their Spark types.

    `lacking`: columns that some file of the claim lacks. `dropped`: columns that the source dropped, and those that all
    files lack; only keyless tables ask. `missing`: SQL of the value that rows written before the column was added have,
    if it is not NULL. `joint`: the columns of each register; empty if each column but the id is one.
    """

    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    lacking: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    joint: tuple[tuple[str, ...], ...] = ()

    def missing_value(self, name: str, type_: str) -> str:
        """Returns SQL for the value of a column that no event has set, in a row whose schema lacks it."""
        return self.missing.get(name, f"CAST(NULL AS {type_})")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def others(self) -> tuple[str, ...]:
        """The columns other than the id."""
        return tuple(name for name in self.names if name not in self.key)

    @property
    def registers(self) -> tuple[Register, ...]:
        joint = self.joint or tuple((name,) for name in self.others)
        return tuple(Register(number, names) for number, names in enumerate(joint))

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
    others = list(enumerate(shape.others))
    fields = "".join(f", {identifier(name)} AS value_{number}" for number, name in others)
    values = "".join(f", _cdc_newest_row.value_{number} AS {identifier(name)}" for number, name in others)
    return f"""
        SELECT {shape.keys()}{values}, _cdc_newest_event.{VERSION}, _cdc_newest_event.{OPERATION} = 'd' AS {DELETED},
               CAST(NULL AS {STATE_TYPE}) AS {STATE}
        FROM (SELECT {shape.keys()}, max({order}) AS _cdc_newest_event,
                     max_by(struct({VERSION}{fields}), {order}) FILTER (WHERE {OPERATION} <> 'd') AS _cdc_newest_row
              FROM {EVENT} GROUP BY {shape.keys()})"""


def deduplicate_registers(shape: ClaimShape, *, ties: bool) -> str:
    """Returns SQL with the registers and all deletions of each id.

    Per register, `_cdc_claim_<n>` is (version, value), and `_cdc_lacked_<n>` is the newest version whose schema lacks
    the column.
    """
    versions = f", collect_set({VERSION}) AS {VERSIONS}" if ties else ""
    values = newest_values(shape, shape.registers)
    return f"""
        SELECT {shape.keys()}, max({VERSION}) AS {VERSION}, bool_or({OPERATION} <> 'd') AS {KNOWN},
               collect_set({VERSION}) FILTER (WHERE {OPERATION} = 'd') AS {DELETIONS}{versions}{values}
        FROM {EVENT} GROUP BY {shape.keys()}"""


def newest_values(shape: ClaimShape, registers: Sequence[Register], event: str = "") -> str:
    """Returns aggregates over events, each with a comma before it. Each event has all columns of a joint register."""
    version, operation = f"{event}{VERSION}", f"{event}{OPERATION}"
    parts = []
    for register in registers:
        literal = text_literal(register.first)
        has_no_value = " OR ".join(f"array_contains({event}{names}, {literal})" for names in (ABSENT, LACKING))
        has_value = f" AND NOT ({has_no_value})" if register.is_alone else ""
        parts.append(
            f"max_by(struct({version} AS version, {register.value(event)} AS value), {version})"
            f" FILTER (WHERE {operation} <> 'd'{has_value}) AS _cdc_claim_{register.number}"
        )
        if register.first in shape.lacking:
            lacks = f"array_contains({event}{LACKING}, {literal})"
            parts.append(f"max({version}) FILTER (WHERE {lacks}) AS _cdc_lacked_{register.number}")
    return "".join(f", {part}" for part in parts)


def newest_lacking(shape: ClaimShape, register: Register) -> str:
    """Returns SQL for the newest version whose schema lacks the register's column; never NULL."""
    return f"coalesce(_cdc_lacked_{register.number}, '')" if register.first in shape.lacking else "''"
