"""Computes the periods of a history table from events in any order, as Spark SQL.

A period is a span of versions in which the row of an id had the same values: a row of SCD type 2. The periods of some
ids are made anew from two views: PERIOD has those periods of theirs that the events may change, EVENT has the events.
Each period is taken apart into the events that it came from, so that the result does not depend on the order in which
events arrive. Source: Databricks' AUTO CDC with SCD type 2, and the cases of apache/spark's AutoCDC tests.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cdc_pipeline.lake.claim_view import NO_NAMES
from cdc_pipeline.lake.deduplicate_sql import EVENT, LACKING, ClaimShape
from cdc_pipeline.lake.lake_rows_sql import HIDDEN
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.lake.registers import LAPSED, Register
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    CONFIRMED,
    CURRENT,
    DELETED,
    END_VERSION,
    OPERATION,
    PARTIAL,
    STATE,
    STATE_TYPE,
    VALID_FROM,
    VALID_TO,
    VERSION,
)

PERIOD = "cdc_period"
RIGHT_AFTER = "+"
"""Makes of a version one that is greater, and less than that of every later event."""
_UNKNOWN = ""
"""In PARTIAL, instead of a version: the columns that make the period incomplete. No event had a value for them."""
_UPSERT, _DELETE, _END = 2, 1, 0
"""What an event does, in the order of precedence at one version. An end leaves no tombstone."""


def periods(
    shape: ClaimShape,
    *,
    fills: Iterable[str],
    truncates: Mapping[str, str | None],
    keeps_old_events: bool,
    has_one_period: bool,
    horizon: str,
) -> str:
    """Returns SQL of all periods of the ids of PERIOD and EVENT.

    `fills`: the columns for which an event may have no value; it keeps the value before it. `truncates`: version -> SQL
    of the commit time; None for one of an earlier claim, which ends no ids but those of EVENT with an event that is not
    newer. `keeps_old_events`: older events may arrive later, so a delete leaves a hidden row, and a period
    remembers each event that confirmed it; otherwise only the last one. `has_one_period`: PERIOD has at most one period
    of each id, and EVENT only newer events. `horizon`: events that arrive later are not older than this version, so of
    the events before it that confirmed a period, the last one is remembered.
    """
    shape = _in_registers(shape, set(fills))
    is_same = f"_cdc_act = {_UPSERT}" if has_one_period else "row_number() OVER by_version = 1"
    values = "".join(f", {part}" for each in shape.registers for part in each.columns(f"_cdc_first.{_value(each)}"))
    confirmed = _remembered(horizon) if keeps_old_events else "slice(_cdc_later, -1, 1)"
    kept = f"_cdc_act <> {_END}" if keeps_old_events else f"_cdc_act = {_UPSERT}"
    is_of_period = f"at IN ({VERSION}, '{_UNKNOWN}') OR coalesce(map_contains_key({CONFIRMED}, at), false)"
    unknown = "_cdc_first._cdc_unknown"
    whole = f"filter(array(struct('{_UNKNOWN}' AS _cdc_at, {unknown} AS _cdc_absent)), it -> size(it._cdc_absent) > 0)"
    blanks = f"concat(_cdc_blanks, {whole})"
    return f"""
        SELECT {shape.keys()}{values}, {VERSION}, {END_VERSION}, _cdc_first._cdc_time AS {VALID_FROM}, {VALID_TO},
               _cdc_act <> {_UPSERT} OR size({unknown}) > 0 AS {DELETED}, {CONFIRMED},
               IF(size({PARTIAL}) = 0, NULL, {PARTIAL}) AS {PARTIAL}, {END_VERSION} IS NULL AS {CURRENT}
        FROM (SELECT *, lead({VERSION}) OVER by_version AS {END_VERSION},
                     lead(_cdc_first._cdc_time) OVER by_version AS {VALID_TO},
                     map_filter(map_from_entries({blanks}), (at, names) -> {is_of_period}) AS {PARTIAL}
              FROM (SELECT *, IF(size(_cdc_later) = 0, NULL, map_from_entries({confirmed})) AS {CONFIRMED}
                    FROM ({_gathered(shape, set(fills), truncates, is_same)}))
              WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY {VERSION}))
        WHERE {kept}"""


def _remembered(horizon: str) -> str:
    """Returns SQL of the later events of a period that an event may still come between."""
    before, rest = (f"filter(_cdc_later, it -> it._cdc_at {than} {text_literal(horizon)})" for than in ("<", ">="))
    return f"concat(slice({before}, -1, 1), {rest})" if horizon else "_cdc_later"


def as_written(version: str) -> str:
    """Returns SQL of the version of the source behind which RIGHT_AFTER was put, maybe several times."""
    return f"trim(TRAILING '{RIGHT_AFTER}' FROM {version})"


def new_events(shape: ClaimShape) -> str:
    """Returns SQL of the events of EVENT that PERIOD does not know yet, so that applying a claim again does nothing.

    An upsert is new where only a delete is known: a snapshot ends periods of rows that are replayed later, at its
    version. If another export of that position ended the newest period right after it, the upsert comes right after
    that end.
    """
    deleted = f"({HIDDEN} AND {PARTIAL} IS NULL)"
    starts = f"concat(array({VERSION}), coalesce(map_keys({CONFIRMED}), {NO_NAMES}))"
    known = f"transform({starts}, at -> struct(at AS _cdc_at, {deleted} AS _cdc_ends))"
    ends = f"IF({END_VERSION} IS NULL, array(), array(struct({END_VERSION} AS _cdc_at, true AS _cdc_ends)))"
    gone = f"max_by(coalesce({END_VERSION}, IF({deleted}, {VERSION}, NULL)), {VERSION})"
    is_right_before = f"_cdc_gone <> event.{VERSION} AND {as_written('_cdc_gone')} = event.{VERSION}"
    version = f"IF(event.{OPERATION} <> 'd' AND {is_right_before}, concat(_cdc_gone, '{RIGHT_AFTER}'), event.{VERSION})"
    return f"""
        SELECT event.* FROM (
            SELECT event.* EXCEPT ({VERSION}), {version} AS {VERSION} FROM {EVENT} AS event
            LEFT JOIN (SELECT {shape.keys()}, {gone} AS _cdc_gone FROM {PERIOD} GROUP BY {shape.keys()}) AS newest
                ON {shape.same("event", "newest")}) AS event
        LEFT ANTI JOIN (SELECT {shape.keys()}, inline(concat({known}, {ends})) FROM {PERIOD}) AS known
            ON {shape.same("event", "known")} AND known._cdc_at = event.{VERSION}
               AND (NOT known._cdc_ends OR event.{OPERATION} = 'd')"""


def rows_now(shape: ClaimShape, relation: str) -> str:
    """Returns SQL of the row of each id as the table has it. `relation`: with each current period, the one before it.

    A deleted row has the values of the period that its delete ended.
    """
    before, deleted = "_cdc_before", f"({HIDDEN} AND {PARTIAL} IS NULL)"
    inside = f"struct({', '.join([VERSION, END_VERSION, PARTIAL, *map(identifier, shape.names)])})"
    values = ", ".join(f"IF({deleted}, {before}.{name}, {name}) AS {name}" for name in map(identifier, shape.others))
    partial = f"IF({deleted}, {before}.{PARTIAL}, {PARTIAL})"
    unknown = f"coalesce(try_element_at({partial}, '{_UNKNOWN}'), {NO_NAMES})"
    known_at = f"IF({before}.{END_VERSION} = {VERSION}, {before}.{VERSION}, NULL)"
    names = ", ".join(map(text_literal, shape.others))
    lapsed = f"IF(array_contains({unknown}, name), '{LAPSED}', coalesce({known_at}, '{LAPSED}'))"
    of_deleted = f"map_from_entries(transform(array({names}), name -> struct(name, {lapsed})))"
    of_incomplete = f"map_from_entries(transform({unknown}, name -> struct(name, '{_UNKNOWN}')))"
    return f"""
        SELECT {shape.keys()}, {values}, {VERSION}, {DELETED},
               CAST(CASE WHEN {deleted} THEN struct({VERSION} AS deletion, {of_deleted} AS columns)
                         WHEN {HIDDEN} THEN struct('' AS deletion, {of_incomplete} AS columns)
                    END AS {STATE_TYPE}) AS {STATE}
        FROM (SELECT *, lag({inside}) OVER (PARTITION BY {shape.keys()} ORDER BY {VERSION}) AS {before}
              FROM {relation})
        WHERE {END_VERSION} IS NULL"""


def _in_registers(shape: ClaimShape, fills: AbstractSet[str]) -> ClaimShape:
    """Puts the columns of which each event has a value into one register: Spark plans them as one column."""
    together = tuple(name for name in shape.others if name not in fills)
    alone = [(name,) for name in shape.others if name in fills]
    return replace(shape, joint=(*alone, together) if together else tuple(alone))


def _value(register: Register) -> str:
    return f"_cdc_value_{register.number}"


def _values(shape: ClaimShape) -> str:
    return "".join(f", {_value(each)}" for each in shape.registers)


def _gathered(shape: ClaimShape, fills: AbstractSet[str], truncates: Mapping[str, str | None], is_same: str) -> str:
    """Gathers the events of each period: the first one with its values, the later ones, and those that lack values."""
    return f"""
        SELECT {shape.keys()}, min(_cdc_at) AS {VERSION}, min(_cdc_act) AS _cdc_act,
               min_by(struct(_cdc_time, _cdc_unknown{_values(shape)}), _cdc_at) AS _cdc_first,
               array_sort(collect_list(struct(_cdc_at, _cdc_time)) FILTER (WHERE NOT _cdc_is_first)) AS _cdc_later,
               collect_list(struct(_cdc_at, _cdc_absent)) FILTER (WHERE size(_cdc_absent) > 0) AS _cdc_blanks
        FROM ({_numbered(shape, fills, truncates, is_same)}) GROUP BY {shape.keys()}, _cdc_period"""


def _numbered(shape: ClaimShape, fills: AbstractSet[str], truncates: Mapping[str, str | None], is_same: str) -> str:
    """Adds to the events the number of their period, and whether they are the first of it."""
    return f"""
        SELECT *, count_if(_cdc_is_first) OVER by_version AS _cdc_period
        FROM (SELECT *, coalesce(_cdc_act <> _cdc_act_before, true)
                        OR (_cdc_act = {_UPSERT} AND NOT (_cdc_content <=> _cdc_content_before)) AS _cdc_is_first
              FROM (SELECT *, lag(_cdc_act) OVER by_version AS _cdc_act_before,
                           lag(_cdc_content) OVER by_version AS _cdc_content_before
                    FROM (SELECT *, struct(_cdc_unknown{_values(shape)}) AS _cdc_content
                          FROM ({_filled(shape, fills, truncates, is_same)}))
                    WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY _cdc_at)))
        WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY _cdc_at)"""


def _filled(shape: ClaimShape, fills: AbstractSet[str], truncates: Mapping[str, str | None], is_same: str) -> str:
    """Gives each event the values that it lacks, from the event before it, unless a delete is between them.

    The first period of an id keeps its values: those of the period before it were taken when it was written. `is_same`:
    SQL of whether a known event has its period's values without being computed again.
    """
    values, found, unknown = "", "", list[str]()
    for register in shape.registers:
        value, fill, name = _value(register), f"_cdc_fill_{register.number}", text_literal(register.first)
        if register.first not in fills:
            values += f", {value}"
            continue
        lacks = f"array_contains(_cdc_blank, {name})"
        values += f", IF({fill} IS NULL, {value}, {fill}.value) AS {value}"
        is_unknown = f"_cdc_act = {_UPSERT} AND {fill} IS NULL AND {lacks} AND NOT array_contains(_cdc_lacking, {name})"
        unknown.append(f"IF({is_unknown}, {name}, NULL)")
        found += f""", last_value(IF(_cdc_act <> {_UPSERT} OR {lacks}, NULL, struct({value} AS value)), true)
                         OVER until_here AS {fill}"""
    lacked = f"array_compact(array({', '.join(unknown)}))" if unknown else NO_NAMES
    return f"""
        SELECT {shape.keys()}{values}, _cdc_at, _cdc_time, _cdc_act, _cdc_absent,
               IF(_cdc_keeps, _cdc_unknown_before, {lacked}) AS _cdc_unknown
        FROM (SELECT *{found}
              FROM (SELECT *, IF(_cdc_keeps, _cdc_unknown_before, array_union(_cdc_absent, _cdc_lacking)) AS _cdc_blank
                    FROM (SELECT *, _cdc_is_known AND {is_same} AS _cdc_keeps,
                                 count_if(_cdc_act <> {_UPSERT}) OVER by_version AS _cdc_life
                          FROM ({_distinct(shape, truncates)})
                          WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY _cdc_at)))
              WINDOW until_here AS (PARTITION BY {shape.keys()}, _cdc_life ORDER BY _cdc_at
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))"""


def _distinct(shape: ClaimShape, truncates: Mapping[str, str | None]) -> str:
    """Returns one event per id and version. At one version an upsert wins over a delete, as in the table itself."""
    order = "_cdc_at, _cdc_act DESC, _cdc_is_known DESC, _cdc_operation DESC"
    return f"""
        SELECT * FROM (
            SELECT *, lag(_cdc_at) OVER (PARTITION BY {shape.keys()} ORDER BY {order}) AS _cdc_at_before
            FROM ({" UNION ALL ".join(_events(shape, truncates))}))
        WHERE coalesce(_cdc_at <> _cdc_at_before, true)"""


def _events(shape: ClaimShape, truncates: Mapping[str, str | None]) -> list[str]:
    """Returns relations of events: those that PERIOD came from with the ends of its periods, those of EVENT, truncates.

    An end has the values of its period, which do not matter.
    """
    values = shape.keys() + "".join(f", {each.value()} AS {_value(each)}" for each in shape.registers)
    no_values = shape.keys() + "".join(f", NULL AS {_value(each)}" for each in shape.registers)
    act = f"IF({DELETED} AND {PARTIAL} IS NULL, {_DELETE}, {_UPSERT})"
    first = f"array(struct({VERSION} AS key, {VALID_FROM} AS value))"
    moments = f"concat({first}, coalesce(map_entries({CONFIRMED}), array()))"
    known = f"transform({moments}, each -> struct(each.key AS _cdc_at, each.value AS _cdc_time, {act} AS _cdc_act))"
    end = f"struct({END_VERSION} AS _cdc_at, {VALID_TO} AS _cdc_time, {_END} AS _cdc_act)"
    of_period = f"inline(concat({known}, IF({END_VERSION} IS NULL, array(), array({end}))))"
    absent = f"IF(_cdc_act = {_END}, {NO_NAMES}, coalesce(try_element_at({PARTIAL}, _cdc_at), {NO_NAMES}))"
    nothing = f"{NO_NAMES} AS _cdc_lacking, true AS _cdc_is_known"
    found = [
        f"""
        SELECT {values}, _cdc_at, _cdc_time, _cdc_act, {absent} AS _cdc_absent, {nothing},
               coalesce(try_element_at({PARTIAL}, '{_UNKNOWN}'), {NO_NAMES}) AS _cdc_unknown_before,
               '' AS _cdc_operation
        FROM (SELECT *, {of_period} FROM {PERIOD})""",
        f"""
        SELECT {values}, {VERSION}, {COMMIT_TIME}, IF({OPERATION} = 'd', {_DELETE}, {_UPSERT}),
               IF({OPERATION} = 'd', {NO_NAMES}, {ABSENT}), {LACKING}, false, {NO_NAMES}, {OPERATION}
        FROM {EVENT}""",
    ]
    everywhere = f"SELECT {shape.keys()} FROM {PERIOD} UNION SELECT {shape.keys()} FROM {EVENT}"
    for version, moment in truncates.items():
        at = text_literal(version)
        older = f"SELECT DISTINCT {shape.keys()} FROM {EVENT} WHERE {VERSION} <= {at}"
        found.append(f"""
        SELECT {no_values}, {at}, {moment or "CAST(NULL AS TIMESTAMP)"}, {_END}, {NO_NAMES}, {NO_NAMES}, false,
               {NO_NAMES}, ''
        FROM ({everywhere if moment else older})""")
    return found


def same_ids(history: str, names: Iterable[str]) -> str:
    """Returns SQL that yields a row if two current periods have equal values in these columns, or one has NULL.

    Then the columns are no id: before the table got another id, different rows may have had equal values in them.
    """
    columns = [identifier(name) for name in names]
    nothing = " OR ".join(f"{column} IS NULL" for column in columns)
    return (
        f"SELECT 1 FROM {history} WHERE {CURRENT} AND NOT {HIDDEN}"
        f" GROUP BY {', '.join(columns)} HAVING count(*) > 1 OR {nothing} LIMIT 1"
    )
