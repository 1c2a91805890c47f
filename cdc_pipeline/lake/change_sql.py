"""Joins the claim's row per id with the lake's row of that id and decides what happens to it, as Spark SQL.

Each register keeps its greater version. `_cdc_act` is what the MERGE does: write, drop or none. `_cdc_effect` is how
the claim counts the id: inserted, updated, deleted, incomplete (hidden until later events have the missing columns) or
ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_pipeline.lake.deduplicate_sql import (
    DELETIONS,
    EVENT,
    KNOWN,
    VERSIONS,
    ClaimShape,
    deduplicate_registers,
    newest_lacking,
)
from cdc_pipeline.lake.lake_rows_sql import lacked_version, lake_rows, value_version
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.lake.quoting import text_literal
from cdc_pipeline.lake.registers import LACKED, LAPSED
from cdc_pipeline.record import DELETED, STATE, STATE_TYPE, VERSION

CHANGE = "cdc_change"
ACT, EFFECT, TIES = "_cdc_act", "_cdc_effect", "_cdc_ties"
COPY = "_cdc_copy"
"""Column: numbers the rows that the lake has of an id, the newest first. There is one, unless somebody doubled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a table treats deletes, truncates and ties.

    `soft`: deleted rows stay as flagged rows with their values. `tombstones`: every delete leaves a hidden row.
    `truncated_at`: the version of the last truncate. `ties`: whether events of one id may share a sequence; then they
    are counted.
    """

    soft: bool
    tombstones: bool
    truncated_at: str
    ties: bool


def changes(
    shape: ClaimShape,
    policy: Policy,
    relation: str,
    ranges: tuple[KeyRange, ...],
    *,
    few: bool,
    carried: Sequence[str] = (),
) -> str:
    """Returns SQL with id, other columns, VERSION, DELETED, STATE, COPY, ACT, EFFECT and TIES for each id of the claim.

    If the lake has more than one row of an id, each further one has a row here too, which drops it.
    `carried`: further columns of the lake's rows that the result has. If there are any, `relation` has the rows of the
    claim's ids alone.
    """
    numbers = [register.number for register in shape.registers]
    values = "".join(
        f", {column}" for each in shape.registers for column in each.columns(f"_cdc_final_value_{each.number}")
    )
    names = ", ".join(text_literal(name) for each in shape.registers for name in each.names)
    final = ", ".join(f"_cdc_final_version_{each.number}" for each in shape.registers for _ in each.names)
    all_known = " AND ".join(
        f"(_cdc_final_version_{number} > _cdc_deletion OR startswith(_cdc_final_version_{number}, '{LACKED}'))"
        for number in numbers
    )
    state = f"""named_struct('deletion', IF(_cdc_is_visible, '', _cdc_deletion), 'columns', map_filter(
                map_from_arrays(CAST(array({names}) AS ARRAY<STRING>), CAST(array({final}) AS ARRAY<STRING>)),
                (name, version) -> version <> {VERSION}))"""
    plain = " AND ".join(["_cdc_is_visible", *(f"_cdc_final_version_{number} = {VERSION}" for number in numbers)])
    return f"""
        SELECT {shape.keys()}{values}, {VERSION}, NOT _cdc_is_visible AS {DELETED},
               IF({plain}, CAST(NULL AS {STATE_TYPE}), {state}) AS {STATE},
               {COPY}, {_act(shape, policy)} AS {ACT}, {TIES}, {_effect(policy)} AS {EFFECT}
               {"".join(f", {name}" for name in carried)}
        FROM (SELECT *, NOT _cdc_is_deleted AND {all_known or "true"} AS _cdc_is_visible
              FROM ({_settled(shape, _joined(shape, policy, relation, ranges, few=few, carried=carried))}))"""


def _act(shape: ClaimShape, policy: Policy) -> str:
    """Returns SQL for ACT: 'write' inserts or replaces the row, 'drop' removes it, 'none' leaves it as it is."""
    same = [
        f"{VERSION} = _cdc_lake_version",
        "_cdc_is_visible <> _cdc_lake_hidden",
        "IF(_cdc_is_visible, '', _cdc_deletion) = _cdc_lake_deletion",
        *(f"_cdc_final_version_{number} = _cdc_lake_version_{number}" for number in range(len(shape.registers))),
    ]
    keeps = policy.tombstones or policy.soft
    if_unknown_id = f"IF({policy.tombstones} OR ({policy.soft} AND {KNOWN}), 'write', 'none')"
    return f"""CASE WHEN {COPY} > 1 THEN 'drop'
                    WHEN _cdc_lake_version IS NULL THEN IF(_cdc_is_deleted, {if_unknown_id}, 'write')
                    WHEN _cdc_is_deleted AND NOT {keeps} THEN 'drop'
                    WHEN {" AND ".join(same)} THEN 'none' ELSE 'write' END"""


def _effect(policy: Policy) -> str:
    gone = "'updated'" if policy.soft else "'deleted'"
    return f"""CASE WHEN {COPY} > 1 THEN IF(_cdc_lake_hidden, 'ignored', 'deleted')
                    WHEN {ACT} = 'none' THEN 'ignored'
                    WHEN _cdc_is_visible THEN IF(_cdc_lake_hidden = false, 'updated', 'inserted')
                    WHEN NOT _cdc_is_deleted THEN 'incomplete'
                    WHEN _cdc_lake_hidden = false THEN {gone} ELSE 'ignored' END"""


def _settled(shape: ClaimShape, joined: str) -> str:
    """Adds for each register the version and the value that the row will have.

    They are `_cdc_final_version_<n>` and `_cdc_final_value_<n>`.
    """
    finals = []
    for register in shape.registers:
        number = register.number
        value, final = f"_cdc_value_version_{number}", f"_cdc_final_version_{number}"
        lacked = f"_cdc_lacked_version_{number}"
        # A deleted row records which columns were known just before its delete: a later key change may ask for them.
        lapsed = f"IF({value} > _cdc_deletion_before AND NOT _cdc_lapsed_{number}, {value}, '{LAPSED}' || {value})"
        if_deleted = (
            f"IF({value} <= _cdc_deletion_before AND {lacked} > _cdc_deletion_before, '{LACKED}' || {lacked}, {lapsed})"
        )
        if_live = f"IF({value} <= _cdc_deletion AND {lacked} > _cdc_deletion, '{LACKED}' || {lacked}, {value})"
        finals.append(f"IF(_cdc_is_deleted, {if_deleted}, {if_live}) AS {final}")
        unknown = shape.missing.get(register.first, "NULL") if register.is_alone else "NULL"
        finals.append(
            f"IF(startswith({final}, '{LACKED}'), {unknown}, _cdc_newest_value_{number}) AS _cdc_final_value_{number}"
        )
    return f"""
        SELECT *{"".join(f", {part}" for part in finals)}
        FROM (SELECT *, _cdc_deletion >= {VERSION} AS _cdc_is_deleted
              FROM ({joined}))"""


def _joined(
    shape: ClaimShape,
    policy: Policy,
    relation: str,
    ranges: tuple[KeyRange, ...],
    *,
    few: bool,
    carried: Sequence[str],
) -> str:
    """Joins the registers of claim and lake.

    Per register, `_cdc_value_version_<n>` is the newest version with a value and `_cdc_newest_value_<n>` that value.
    `_cdc_lacked_version_<n>` is the newest version whose schema lacks the column. `_cdc_lapsed_<n>`: the lake has the
    column as LAPSED.
    """
    ids = None if carried else f"SELECT DISTINCT {shape.keys()} FROM {EVENT}"
    deletions = (
        f"sort_array(array_distinct(concat({DELETIONS}, array(coalesce(_cdc_lake_deletion, ''),"
        f" {text_literal(policy.truncated_at)}, ''))), false)"
    )
    hint = "/*+ BROADCAST(lake) */ " if few else ""
    return f"""
        SELECT {hint}{shape.keys("claim.")}, greatest(claim.{VERSION}, _cdc_lake_version) AS {VERSION}, {KNOWN},
               _cdc_lake_version, _cdc_lake_hidden, _cdc_lake_deletion, {_ties(policy)} AS {TIES},
               row_number() OVER (PARTITION BY {shape.keys("claim.")} ORDER BY _cdc_lake_version DESC) AS {COPY},
               {deletions}[0] AS _cdc_deletion, coalesce(get({deletions}, 1), '') AS _cdc_deletion_before
               {"".join(f", {part}" for part in [*_newest(shape), *carried])}
        FROM ({deduplicate_registers(shape, ties=policy.ties)}) AS claim
        LEFT JOIN ({lake_rows(shape, relation, ids, ranges=ranges, few=few, carried=carried)}) AS lake
            ON {shape.same("claim", "lake")}"""


def _newest(shape: ClaimShape) -> list[str]:
    newest = []
    for register in shape.registers:
        number = register.number
        lake, claim = f"coalesce(_cdc_lake_version_{number}, '')", f"coalesce(_cdc_claim_{number}.version, '')"
        newer = f"{claim} > {value_version(lake)}"
        newest.append(f"greatest({claim}, {value_version(lake)}) AS _cdc_value_version_{number}")
        newest.append(
            f"greatest({newest_lacking(shape, register)}, {lacked_version(lake)}) AS _cdc_lacked_version_{number}"
        )
        newest.append(f"NOT {newer} AND startswith({lake}, '{LAPSED}') AS _cdc_lapsed_{number}")
        newest.append(f"IF({newer}, _cdc_claim_{number}.value, _cdc_lake_value_{number}) AS _cdc_newest_value_{number}")
        newest.append(f"_cdc_lake_version_{number}")
    return newest


def _ties(policy: Policy) -> str:
    """Returns SQL for the number of sequences with more than one event of the id, the lake's newest event included."""
    if not policy.ties:
        return "0"
    versions = (
        f"filter(array_union({VERSIONS}, array(coalesce(_cdc_lake_version, ''))), version -> instr(version, '~') > 0)"
    )
    sequences = f"transform({versions}, version -> substring_index(version, '~', 1))"
    return f"size(filter(array_distinct({sequences}), one -> size(filter({sequences}, each -> each = one)) > 1))"
