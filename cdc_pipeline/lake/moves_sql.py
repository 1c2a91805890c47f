"""Resolves key changes, as Spark SQL.

A move takes the values that it lacks from the row of its old id, as that row was just before the move. These values
come from events of the claim, from earlier moves to the old id, and from the lake. Moves are resolved in rounds. Each
round takes the moves whose old id waits for no other move, so a chain needs one round per link.
"""

from cdc_pipeline.lake.claim_view import Views
from cdc_pipeline.lake.deduplicate_sql import EVENT, LACKING, ClaimShape, newest_lacking, newest_values
from cdc_pipeline.lake.lake_rows_sql import lacked_version, lake_rows, value_version
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.lake.registers import LAPSED, Register
from cdc_pipeline.record import ABSENT, COMMIT_TIME, OLD_ID_PREFIX, OPERATION, VERSION

_MOVE, _READY, _DONE = "cdc_move", "cdc_ready_move", "cdc_resolved_move"
_ASKING = f"{OPERATION} = 'm' AND size({ABSENT}) + size({LACKING}) > 0"


def resolve_moves(
    views: Views, shape: ClaimShape, lake: str, emptied_before: str, truncates: tuple[str, ...], *, few: bool
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
            same = f"{shape.same('move', 'resolved')} AND move.{VERSION} = resolved.{VERSION}"
            views.keep_sql(_MOVE, f"SELECT move.* FROM {_MOVE} AS move LEFT ANTI JOIN {_DONE} AS resolved ON {same}")


def _asking_moves(shape: ClaimShape, lake: str, emptied_before: str, *, few: bool) -> str:
    """Returns each move that lacks values once, with the lake's row of its old id.

    The row's registers are `_cdc_old_row_<n>` and `_cdc_old_lacked_<n>`, its deletion is `_cdc_old_deletion`. The row
    counts if it is older than the move; a tombstone that this key change made counts as the row before it. If the row,
    or a truncate, is newer, the move was repeated and takes nothing (`_cdc_repeated`).
    """
    old_ids = ", ".join(f"{identifier(OLD_ID_PREFIX + name)} AS {identifier(name)}" for name in shape.key)
    older, moved = f"old._cdc_lake_version < move.{VERSION}", f"old._cdc_lake_deletion = move.{VERSION}"
    repeated = f"coalesce(greatest(old._cdc_lake_version, {text_literal(emptied_before)}) > move.{VERSION}, false)"
    registers_of_old = []
    for number in _asked(shape):
        version, value = f"old._cdc_lake_version_{number}", f"old._cdc_lake_value_{number}"
        registers_of_old.append(
            f"""IF({older} OR ({moved} AND NOT startswith({version}, '{LAPSED}')),
                   struct({value_version(version)} AS version, {value} AS value), NULL) AS _cdc_old_row_{number},
                IF({older} OR {moved}, {lacked_version(version)}, '') AS _cdc_old_lacked_{number}"""
        )
    ids = f"SELECT DISTINCT {old_ids} FROM {EVENT} WHERE {_ASKING}"
    return f"""
        SELECT move.*, {repeated} AS _cdc_repeated,
               IF({older} AND old._cdc_lake_deletion < move.{VERSION}, old._cdc_lake_deletion, '') AS _cdc_old_deletion
               {"".join(f", {part}" for part in registers_of_old)}
        FROM (SELECT *, row_number() OVER (PARTITION BY {shape.keys()}, {VERSION} ORDER BY {VERSION})
                        AS _cdc_copy_number
              FROM {EVENT} WHERE {_ASKING}) AS move
        LEFT JOIN ({lake_rows(shape, lake, ids, few=few)}) AS old ON {shape.moved_from("move", "old")}
        WHERE move._cdc_copy_number = 1"""


def _ready_moves(shape: ClaimShape) -> str:
    """Returns the moves whose old id is the new id of no earlier unresolved move."""
    return f"""
        SELECT move.* FROM {_MOVE} AS move
        LEFT JOIN (SELECT {shape.keys()}, min({VERSION}) AS _cdc_first FROM {_MOVE} GROUP BY {shape.keys()}) AS earlier
            ON {shape.moved_from("move", "earlier")}
        WHERE coalesce(earlier._cdc_first >= move.{VERSION}, true)"""


def _resolved_moves(shape: ClaimShape, truncates: tuple[str, ...]) -> str:
    """Returns rows of EVENT. A column whose value was found has it, and is no longer in ABSENT or LACKING."""
    known = f"""
        SELECT {shape.keys("move.")}, move.{VERSION},
               max(event.{VERSION}) FILTER (WHERE event.{OPERATION} = 'd') AS _cdc_deleted_at
               {newest_values(shape, list(_asked(shape).values()), "event.")}
        FROM {_READY} AS move
        JOIN {EVENT} AS event ON {shape.moved_from("move", "event")} AND event.{VERSION} < move.{VERSION}
        GROUP BY {shape.keys("move.")}, move.{VERSION}"""
    emptied = f"array_max(filter(array({', '.join(map(text_literal, truncates))}), at -> at < move.{VERSION}))"
    before = f"greatest(known._cdc_deleted_at, move._cdc_old_deletion, {emptied})"
    values = [identifier(name) for register in shape.registers if not register.is_alone for name in register.names]
    found = []
    for number, register in _asked(shape).items():
        name = register.first
        literal, column = text_literal(name), identifier(name)
        asked = f"(array_contains({ABSENT}, {literal}) OR array_contains({LACKING}, {literal}))"
        lake, claim = f"_cdc_old_row_{number}", f"_cdc_claim_{number}"
        newest = f"IF(coalesce({lake}.version, '') > coalesce({claim}.version, ''), {lake}, {claim})"
        is_known = f"NOT _cdc_repeated AND coalesce({newest}.version, '') > _cdc_before"
        values.append(f"IF({asked}, IF({is_known}, {newest}.value, NULL), {column}) AS {column}")
        lacked = (
            f"NOT _cdc_repeated AND greatest({newest_lacking(shape, register)}, _cdc_old_lacked_{number}) > _cdc_before"
        )
        found.append(f"IF({is_known} OR {lacked}, {literal}, NULL)")
    gathered = "".join(f", known._cdc_claim_{number}" for number in _asked(shape))
    gathered += "".join(
        f", known._cdc_lacked_{number}" for number, each in _asked(shape).items() if each.first in shape.lacking
    )
    olds = ", ".join(identifier(OLD_ID_PREFIX + name) for name in shape.key)
    return f"""
        SELECT {OPERATION}, {VERSION}, {COMMIT_TIME}, array_except({ABSENT}, _cdc_found) AS {ABSENT},
               array_except({LACKING}, _cdc_found) AS {LACKING}, {olds}, {", ".join([shape.keys(), *values])}
        FROM (SELECT *, array_compact(array({", ".join(found)})) AS _cdc_found
              FROM (SELECT move.*{gathered}, {before} AS _cdc_before
                    FROM {_READY} AS move
                    LEFT JOIN ({known}) AS known
                        ON {shape.same("move", "known")} AND known.{VERSION} = move.{VERSION}))"""


def _asked(shape: ClaimShape) -> dict[int, Register]:
    """Returns number -> register, of the columns that an event of the claim may lack."""
    return {register.number: register for register in shape.registers if register.is_alone}
