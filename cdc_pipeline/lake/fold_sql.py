"""The fold as Spark SQL: events of a claim -> one outcome row per id.

Input, the view of events: `_cdc_op`, `_cdc_version`, `_cdc_absent` (never NULL), id columns, `_cdc_old_<id column>`,
other columns; no truncates, nothing below the cutoff. Output, one row per id: the source columns, `_cdc_version`,
`_cdc_deleted`, `_cdc_known` (whether any event but a delete told values) and `_cdc_absent`: the columns whose value
the lake's row keeps. A life of an id begins with an insert or a move and ends with a delete; where deletes are soft
it goes on, flagged. Ties of id and version go to the greater operation letter: a delete loses.
"""

from dataclasses import dataclass

from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import ABSENT, DELETED, OLD_ID_PREFIX, OPERATION, VERSION

KNOWN = "_cdc_known"
OUTCOME = "cdc_outcome"
EVENT = "cdc_event"
SEGMENT = "cdc_segment"
LINEAGE = "cdc_lineage"
LAKE_ROW = "_cdc_lake"
_FROM_LAKE = "''"
"""The start of the life that a lake row lives: it is older than every event."""
_ORDER = f"struct({VERSION}, {OPERATION})"
_SO_FAR = f"ORDER BY {VERSION}, {OPERATION} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldShape:
    """The columns that the claim's files hold (id included), and how its table treats deletes."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    soft: bool

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.key)

    @property
    def key_list(self) -> str:
        return ", ".join(map(identifier, self.key))

    @property
    def old_key_list(self) -> str:
        return ", ".join(f"{identifier(OLD_ID_PREFIX + name)} AS {identifier(name)}" for name in self.key)


def fold_complete_rows(shape: FoldShape) -> str:
    """Every event carries its whole row: one aggregation, no window."""
    fields = "".join(f", {identifier(name)} AS v{place}" for place, name in enumerate(shape.others))
    values = "".join(f", _cdc_told.v{place} AS {identifier(name)}" for place, name in enumerate(shape.others))
    return f"""
        SELECT {shape.key_list}{values}, _cdc_last.{VERSION}, _cdc_last.{OPERATION} = 'd' AS {DELETED},
               _cdc_told IS NOT NULL AS {KNOWN}, CAST(NULL AS ARRAY<STRING>) AS {ABSENT}
        FROM (SELECT {shape.key_list}, max({_ORDER}) AS _cdc_last,
                     max_by(struct({VERSION}{fields}), {_ORDER}) FILTER (WHERE {OPERATION} <> 'd') AS _cdc_told
              FROM {EVENT} GROUP BY {shape.key_list})"""


def segments(shape: FoldShape) -> str:
    """The events with `_cdc_id`, `_cdc_origin` (the old id) and `_cdc_start`: the version at which their life began."""
    begins = "('i', 'm')" if shape.soft else "('i', 'm', 'd')"
    return f"""
        SELECT *, struct({shape.key_list}) AS _cdc_id, struct({shape.old_key_list}) AS _cdc_origin,
               coalesce(max(CASE WHEN {OPERATION} IN {begins} THEN {VERSION} END)
                        OVER (PARTITION BY {shape.key_list} {_SO_FAR}), {_FROM_LAKE}) AS _cdc_start
        FROM {EVENT}"""


def first_lineage() -> str:
    """(id, start) of a life that began with a move -> the life of its old id just before the move."""
    return f"""
        SELECT move._cdc_id, move._cdc_start, move._cdc_origin AS root_id,
               coalesce(max(life._cdc_start), {_FROM_LAKE}) AS root_start
        FROM (SELECT DISTINCT _cdc_id, _cdc_start, _cdc_origin FROM {SEGMENT} WHERE {OPERATION} = 'm') AS move
        LEFT JOIN (SELECT DISTINCT _cdc_id, _cdc_start FROM {SEGMENT}) AS life
            ON life._cdc_id = move._cdc_origin AND life._cdc_start < move._cdc_start
        GROUP BY move._cdc_id, move._cdc_start, move._cdc_origin"""


def next_lineage() -> str:
    """Each life jumps to its root's root; `jumped` says whether there was one."""
    return f"""
        SELECT near._cdc_id, near._cdc_start, coalesce(far.root_id, near.root_id) AS root_id,
               coalesce(far.root_start, near.root_start) AS root_start, far.root_id IS NOT NULL AS jumped
        FROM {LINEAGE} AS near
        LEFT JOIN {LINEAGE} AS far ON far._cdc_id = near.root_id AND far._cdc_start = near.root_start"""


def fold_partial_rows(shape: FoldShape, *, lake_rows: str | None = None) -> str:
    """Absent columns take the latest earlier value of the same life.

    `lake_rows`, needed when ids change, is SQL for the lake table as it was before the claim: a life that moved
    takes from there, under its first id, what no event told.
    """
    moving = lake_rows is not None
    told = "".join(
        f""", last_value(IF({OPERATION} <> 'd' AND NOT array_contains({ABSENT}, {text_literal(name)}),
                 struct({identifier(name)} AS v), NULL), true) OVER life AS _cdc_f{place}"""
        for place, name in enumerate(shape.others)
    )
    latest = "".join(f", _cdc_f{place}" for place in range(len(shape.others)))
    keys = ", ".join(f"_cdc_last.{identifier(name)}" for name in shape.key)
    values = "".join(f", {_value(place, name, moving=moving)}" for place, name in enumerate(shape.others))
    return f"""
        SELECT {keys}{values}, _cdc_last.{VERSION}, _cdc_last.{OPERATION} = 'd' AS {DELETED},
               coalesce(_cdc_last.{KNOWN}, false) AS {KNOWN}, {_absent(shape, moving=moving)} AS {ABSENT}
        FROM (SELECT _cdc_id, max_by(struct({shape.key_list}, {VERSION}, {OPERATION}, {KNOWN}, _cdc_root_id,
                                            _cdc_root_start{latest}), {_ORDER}) AS _cdc_last
              FROM (SELECT *, last_value(IF({OPERATION} <> 'd', true, NULL), true) OVER life AS {KNOWN}{told}
                    FROM ({_rooted(moving=moving)})
                    WINDOW life AS (PARTITION BY _cdc_root_id, _cdc_root_start {_SO_FAR}))
              GROUP BY _cdc_id) AS folded {_lake_join(shape, lake_rows)}"""


def _rooted(*, moving: bool) -> str:
    if not moving:
        return f"SELECT *, _cdc_id AS _cdc_root_id, _cdc_start AS _cdc_root_start FROM {SEGMENT}"
    return f"""
        SELECT event.*, coalesce(line.root_id, event._cdc_id) AS _cdc_root_id,
               coalesce(line.root_start, event._cdc_start) AS _cdc_root_start
        FROM {SEGMENT} AS event
        LEFT JOIN {LINEAGE} AS line ON line._cdc_id = event._cdc_id AND line._cdc_start = event._cdc_start"""


def _value(place: int, name: str, *, moving: bool) -> str:
    told = f"_cdc_last._cdc_f{place}"
    column = identifier(name)
    if not moving:
        return f"{told}.v AS {column}"
    return f"IF({told} IS NULL, {LAKE_ROW}.{column}, {told}.v) AS {column}"


def _absent(shape: FoldShape, *, moving: bool) -> str:
    """Names that no event told, in a life that the lake's own row of this id lives."""
    if not shape.others:
        return "CAST(NULL AS ARRAY<STRING>)"
    names = ", ".join(
        f"IF(_cdc_last._cdc_f{place} IS NULL, {text_literal(name)}, NULL)" for place, name in enumerate(shape.others)
    )
    own = f"_cdc_last._cdc_root_start = {_FROM_LAKE}" + (" AND _cdc_last._cdc_root_id = _cdc_id" if moving else "")
    return f"IF({own}, array_compact(array({names})), NULL)"


def _lake_join(shape: FoldShape, lake_rows: str | None) -> str:
    if lake_rows is None:
        return ""
    same = " AND ".join(
        f"{LAKE_ROW}.{identifier(name)} = _cdc_last._cdc_root_id.{identifier(name)}" for name in shape.key
    )
    return (
        f"LEFT JOIN {lake_rows} AS {LAKE_ROW} ON {same}"
        f" AND _cdc_last._cdc_root_start = {_FROM_LAKE} AND _cdc_last._cdc_root_id <> _cdc_id"
    )
