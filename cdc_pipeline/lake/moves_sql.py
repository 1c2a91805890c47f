"""Resolves key changes, as Spark SQL.

A move takes the values that it lacks from the row of its old id, as that row was just before the move. These values
come from events of the claim, from earlier moves to the old id, and from the lake. Moves are resolved in rounds. Each
round takes the moves whose old id waits for no other move, so a chain needs one round per link.
"""

from cdc_pipeline.lake.claim_view import Views
from cdc_pipeline.lake.fold_sql import EVENT, LACKING, FoldShape, lacks, registers
from cdc_pipeline.lake.lake_rows_sql import LAPSED, lacked_version, lake_rows, told_version
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import ABSENT, OLD_ID_PREFIX, OPERATION, VERSION

_MOVE, _READY, _DONE = "cdc_move", "cdc_ready_move", "cdc_resolved_move"
_ASKING = f"{OPERATION} = 'm' AND size({ABSENT}) + size({LACKING}) > 0"


def resolve_moves(
    views: Views, shape: FoldShape, lake: str, emptied_before: str, truncates: tuple[str, ...], *, few: bool
) -> None:
    """Replaces EVENT by one whose moves have all values that can be known.

    `emptied_before`: version of the last truncate before the claim. `truncates`: versions of the truncates in the
    claim.
    """
    waiting = views.keep_sql(_MOVE, _asking_moves(shape, lake, emptied_before, few=few)).count()
    if waiting:
        views.name_sql(EVENT, f"SELECT * FROM {EVENT} WHERE NOT ({_ASKING})")
    while waiting:
        views.name_sql(_READY, _ready_moves(shape))
        done = views.keep_sql(_DONE, _resolved_moves(shape, (emptied_before, *truncates)))
        views.name(EVENT, views.session.table(EVENT).unionByName(done))
        waiting -= done.count()
        if waiting:
            same = f"{shape.same('m', 'r')} AND m.{VERSION} = r.{VERSION}"
            views.keep_sql(_MOVE, f"SELECT m.* FROM {_MOVE} AS m LEFT ANTI JOIN {_DONE} AS r ON {same}")


def _asking_moves(shape: FoldShape, lake: str, emptied_before: str, *, few: bool) -> str:
    """Returns each move that lacks values once, with the lake's row of its old id.

    The row's registers are `_cdc_b<n>` and `_cdc_k<n>`, its deletion is `_cdc_base`. The row counts if it is older than
    the move; a tombstone that this key change made counts as the row before it. If the row, or a truncate, is newer,
    the move was repeated and takes nothing (`_cdc_gone`).
    """
    old_ids = ", ".join(f"{identifier(OLD_ID_PREFIX + name)} AS {identifier(name)}" for name in shape.key)
    older, moved = f"old._cdc_lake_version < m.{VERSION}", f"old._cdc_lake_deletion = m.{VERSION}"
    gone = f"coalesce(greatest(old._cdc_lake_version, {text_literal(emptied_before)}) > m.{VERSION}, false)"
    bases = "".join(
        f""", IF({older} OR ({moved} AND NOT startswith(old._cdc_r{place}, '{LAPSED}')),
                 struct({told_version(f"old._cdc_r{place}")} AS version, old._cdc_t{place} AS value),
                 NULL) AS _cdc_b{place},
              IF({older} OR {moved}, {lacked_version(f"old._cdc_r{place}")}, '') AS _cdc_k{place}"""
        for place, _ in shape.others
    )
    ids = f"SELECT DISTINCT {old_ids} FROM {EVENT} WHERE {_ASKING}"
    return f"""
        SELECT m.*, {gone} AS _cdc_gone,
               IF({older} AND old._cdc_lake_deletion < m.{VERSION}, old._cdc_lake_deletion, '') AS _cdc_base{bases}
        FROM (SELECT *, row_number() OVER (PARTITION BY {shape.keys()}, {VERSION} ORDER BY {VERSION}) AS _cdc_time
              FROM {EVENT} WHERE {_ASKING}) AS m
        LEFT JOIN ({lake_rows(shape, lake, ids, few=few)}) AS old ON {shape.moved_from("m", "old")}
        WHERE m._cdc_time = 1"""


def _ready_moves(shape: FoldShape) -> str:
    """Returns the moves whose old id is the new id of no earlier unresolved move."""
    return f"""
        SELECT m.* FROM {_MOVE} AS m
        LEFT JOIN (SELECT {shape.keys()}, min({VERSION}) AS _cdc_first FROM {_MOVE} GROUP BY {shape.keys()}) AS earlier
            ON {shape.moved_from("m", "earlier")}
        WHERE coalesce(earlier._cdc_first >= m.{VERSION}, true)"""


def _resolved_moves(shape: FoldShape, truncates: tuple[str, ...]) -> str:
    """Returns rows of EVENT. A column whose value was found has it, and is no longer in ABSENT or LACKING."""
    known = f"""
        SELECT {shape.keys("m.")}, m.{VERSION},
               max(e.{VERSION}) FILTER (WHERE e.{OPERATION} = 'd') AS _cdc_deleted_at{registers(shape, "e.")}
        FROM {_READY} AS m JOIN {EVENT} AS e ON {shape.moved_from("m", "e")} AND e.{VERSION} < m.{VERSION}
        GROUP BY {shape.keys("m.")}, m.{VERSION}"""
    emptied = f"array_max(filter(array({', '.join(map(text_literal, truncates))}), at -> at < m.{VERSION}))"
    before = f"greatest(known._cdc_deleted_at, m._cdc_base, {emptied})"
    values, found = [], []
    for place, name in shape.others:
        literal, column = text_literal(name), identifier(name)
        asked = f"(array_contains({ABSENT}, {literal}) OR array_contains({LACKING}, {literal}))"
        lake, claim = f"_cdc_b{place}", f"_cdc_s{place}"
        newest = f"IF(coalesce({lake}.version, '') > coalesce({claim}.version, ''), {lake}, {claim})"
        told = f"NOT _cdc_gone AND coalesce({newest}.version, '') > _cdc_before"
        values.append(f"IF({asked}, IF({told}, {newest}.value, NULL), {column}) AS {column}")
        lacked = f"NOT _cdc_gone AND greatest({lacks(shape, place, name)}, _cdc_k{place}) > _cdc_before"
        found.append(f"IF({told} OR {lacked}, {literal}, NULL)")
    gathered = "".join(f", known._cdc_s{place}" for place, _ in shape.others)
    gathered += "".join(f", known._cdc_l{place}" for place, name in shape.others if name in shape.lacking)
    olds = ", ".join(identifier(OLD_ID_PREFIX + name) for name in shape.key)
    return f"""
        SELECT {OPERATION}, {VERSION}, array_except({ABSENT}, _cdc_found) AS {ABSENT},
               array_except({LACKING}, _cdc_found) AS {LACKING}, {olds}, {", ".join([shape.keys(), *values])}
        FROM (SELECT *, array_compact(array({", ".join(found)})) AS _cdc_found
              FROM (SELECT m.*{gathered}, {before} AS _cdc_before
                    FROM {_READY} AS m
                    LEFT JOIN ({known}) AS known ON {shape.same("m", "known")} AND known.{VERSION} = m.{VERSION}))"""
