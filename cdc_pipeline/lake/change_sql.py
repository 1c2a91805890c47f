"""Joins the claim's row per id with the lake's row of that id and decides what happens to it, as Spark SQL.

Each register keeps its greater version. `_cdc_act` is what the MERGE does: write, drop or none. `_cdc_effect` is how
the claim counts the id: inserted, updated, deleted, parked (hidden until later events have the missing columns) or
ignored.
"""

from dataclasses import dataclass

from cdc_pipeline.lake.fold_sql import DELETIONS, EVENT, KNOWN, VERSIONS, FoldShape, fold_registers, lacks
from cdc_pipeline.lake.lake_rows_sql import LACKED, LAPSED, lacked_version, lake_rows, told_version
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import DELETED, STATE, STATE_TYPE, VERSION

CHANGE = "cdc_change"
ACT, EFFECT, TIES = "_cdc_act", "_cdc_effect", "_cdc_ties"


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


def changes(shape: FoldShape, policy: Policy, relation: str, ranges: tuple[KeyRange, ...], *, few: bool) -> str:
    """Returns SQL with id, other columns, VERSION, DELETED, STATE, ACT, EFFECT and TIES for each id of the claim."""
    values = "".join(f", _cdc_v{place} AS {identifier(name)}" for place, name in shape.others)
    names = ", ".join(text_literal(name) for _, name in shape.others)
    final = ", ".join(f"_cdc_f{place}" for place, _ in shape.others)
    told = " AND ".join(
        f"(_cdc_f{place} > _cdc_deletion OR startswith(_cdc_f{place}, '{LACKED}'))" for place, _ in shape.others
    )
    state = f"""named_struct('deletion', IF(_cdc_shown, '', _cdc_deletion), 'columns', map_filter(
                map_from_arrays(CAST(array({names}) AS ARRAY<STRING>), CAST(array({final}) AS ARRAY<STRING>)),
                (name, version) -> version <> {VERSION}))"""
    plain = " AND ".join(["_cdc_shown", *(f"_cdc_f{place} = {VERSION}" for place, _ in shape.others)])
    return f"""
        SELECT {shape.keys()}{values}, {VERSION}, NOT _cdc_shown AS {DELETED},
               IF({plain}, CAST(NULL AS {STATE_TYPE}), {state}) AS {STATE},
               {_act(shape, policy)} AS {ACT}, {TIES}, {_effect(policy)} AS {EFFECT}
        FROM (SELECT *, NOT _cdc_dead AND {told or "true"} AS _cdc_shown
              FROM ({_settled(shape, policy, relation, ranges, few=few)}))"""


def _act(shape: FoldShape, policy: Policy) -> str:
    """Returns SQL for ACT: 'write' inserts or replaces the row, 'drop' removes it, 'none' leaves it as it is."""
    same = [
        f"{VERSION} = _cdc_lake_version",
        "_cdc_shown <> _cdc_lake_hidden",
        "IF(_cdc_shown, '', _cdc_deletion) = _cdc_lake_deletion",
        *(f"_cdc_f{place} = _cdc_r{place}" for place, _ in shape.others),
    ]
    keeps = policy.tombstones or policy.soft
    born_dead = f"IF({policy.tombstones} OR ({policy.soft} AND {KNOWN}), 'write', 'none')"
    return f"""CASE WHEN _cdc_lake_version IS NULL THEN IF(_cdc_dead, {born_dead}, 'write')
                    WHEN _cdc_dead AND NOT {keeps} THEN 'drop'
                    WHEN {" AND ".join(same)} THEN 'none' ELSE 'write' END"""


def _effect(policy: Policy) -> str:
    gone = "'updated'" if policy.soft else "'deleted'"
    return f"""CASE WHEN {ACT} = 'none' THEN 'ignored'
                    WHEN _cdc_shown THEN IF(_cdc_lake_hidden = false, 'updated', 'inserted')
                    WHEN NOT _cdc_dead THEN 'parked'
                    WHEN _cdc_lake_hidden = false THEN {gone} ELSE 'ignored' END"""


def _settled(shape: FoldShape, policy: Policy, relation: str, ranges: tuple[KeyRange, ...], *, few: bool) -> str:
    """Adds for each column `_cdc_f<n>`, the version that the row will have, and `_cdc_v<n>`, the value."""
    finals = []
    for place, name in shape.others:
        told, lacked = f"_cdc_n{place}", f"_cdc_m{place}"
        # A deleted row records which columns were known just before its delete: a later key change may ask for them.
        lapsed = f"IF({told} > _cdc_deletion_before AND NOT _cdc_p{place}, {told}, '{LAPSED}' || {told})"
        dying = (
            f"IF({told} <= _cdc_deletion_before AND {lacked} > _cdc_deletion_before, '{LACKED}' || {lacked}, {lapsed})"
        )
        living = f"IF({told} <= _cdc_deletion AND {lacked} > _cdc_deletion, '{LACKED}' || {lacked}, {told})"
        finals.append(f"IF(_cdc_dead, {dying}, {living}) AS _cdc_f{place}")
        unknown = shape.missing.get(name, "NULL")
        finals.append(f"IF(startswith(_cdc_f{place}, '{LACKED}'), {unknown}, _cdc_w{place}) AS _cdc_v{place}")
    return f"""
        SELECT *{"".join(f", {part}" for part in finals)}
        FROM (SELECT *, _cdc_deletion >= {VERSION} AS _cdc_dead
              FROM ({_joined(shape, policy, relation, ranges, few=few)}))"""


def _joined(shape: FoldShape, policy: Policy, relation: str, ranges: tuple[KeyRange, ...], *, few: bool) -> str:
    """Joins the registers of claim and lake.

    Per column, `_cdc_n<n>` is the newest version with a value and `_cdc_w<n>` that value; `_cdc_m<n>` is the newest
    version whose schema lacks the column; `_cdc_p<n>` is whether the lake has the column as LAPSED.
    """
    ids = f"SELECT DISTINCT {shape.keys()} FROM {EVENT}"
    deletions = (
        f"sort_array(array_distinct(concat({DELETIONS}, array(coalesce(_cdc_lake_deletion, ''),"
        f" {text_literal(policy.truncated_at)}, ''))), false)"
    )
    hint = "/*+ BROADCAST(t) */ " if few else ""
    newest = []
    for place, name in shape.others:
        lake, claim = f"coalesce(_cdc_r{place}, '')", f"coalesce(_cdc_s{place}.version, '')"
        newer = f"{claim} > {told_version(lake)}"
        newest.append(f"greatest({claim}, {told_version(lake)}) AS _cdc_n{place}")
        newest.append(f"greatest({lacks(shape, place, name)}, {lacked_version(lake)}) AS _cdc_m{place}")
        newest.append(f"NOT {newer} AND startswith({lake}, '{LAPSED}') AS _cdc_p{place}")
        newest.append(f"IF({newer}, _cdc_s{place}.value, _cdc_t{place}) AS _cdc_w{place}")
        newest.append(f"_cdc_r{place}")
    return f"""
        SELECT {hint}{shape.keys("s.")}, greatest(s.{VERSION}, _cdc_lake_version) AS {VERSION}, {KNOWN},
               _cdc_lake_version, _cdc_lake_hidden, _cdc_lake_deletion, {_ties(policy)} AS {TIES},
               {deletions}[0] AS _cdc_deletion, coalesce(get({deletions}, 1), '') AS _cdc_deletion_before
               {"".join(f", {part}" for part in newest)}
        FROM ({fold_registers(shape, ties=policy.ties)}) AS s
        LEFT JOIN ({lake_rows(shape, relation, ids, ranges=ranges, few=few)}) AS t ON {shape.same("s", "t")}"""


def _ties(policy: Policy) -> str:
    """Returns SQL for the number of sequences with more than one event of the id, the lake's newest event included."""
    if not policy.ties:
        return "0"
    versions = f"filter(array_union({VERSIONS}, array(coalesce(_cdc_lake_version, ''))), v -> instr(v, '~') > 0)"
    sequences = f"transform({versions}, v -> substring_index(v, '~', 1))"
    return f"size(filter(array_distinct({sequences}), one -> size(filter({sequences}, each -> each = one)) > 1))"
