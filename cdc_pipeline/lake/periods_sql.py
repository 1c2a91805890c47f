"""Computes the periods of a history table from events in any order, as Spark SQL.

A period is a span of versions in which the row of an id had the same values: a row of SCD type 2. The periods of some
ids are made anew from two views: PERIOD has those periods of theirs that the events may change, EVENT has the events.
Each period is taken apart into the events that it came from, so that the result does not depend on the order in which
events arrive. Source: Databricks' AUTO CDC with SCD type 2, and the cases of apache/spark's AutoCDC tests.
"""

from collections.abc import Iterable, Mapping

from cdc_pipeline.lake.claim_view import NO_NAMES
from cdc_pipeline.lake.deduplicate_sql import EVENT, LACKING, ClaimShape
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    CONFIRMED,
    CURRENT,
    DELETED,
    END_VERSION,
    OPERATION,
    PARTIAL,
    VALID_FROM,
    VALID_TO,
    VERSION,
)

PERIOD = "cdc_period"
_UPSERT, _DELETE, _END = 2, 1, 0
"""What an event does, in the order of precedence at one version. An end leaves no tombstone."""


def periods(
    shape: ClaimShape,
    *,
    fills: Iterable[str],
    truncates: Mapping[str, str],
    keeps_tombstones: bool,
    keeps_confirmed: bool,
) -> str:
    """Returns SQL of all periods of the ids of PERIOD and EVENT.

    `fills`: the columns for which an event may have no value; it keeps the value before it. `truncates`: version -> SQL
    of the commit time. `keeps_tombstones`: a delete leaves a hidden row against older events that arrive later.
    `keeps_confirmed`: the period remembers each event that confirmed it; otherwise only the last one.
    """
    others = "".join(f", {identifier(name)}" for name in shape.others)
    first = "".join(f", first.{identifier(name)}" for name in shape.others)
    later = "later" if keeps_confirmed else "slice(later, -1, 1)"
    kept = "act <> 0" if keeps_tombstones else f"act = {_UPSERT}"
    return f"""
        SELECT {shape.keys()}{first}, {VERSION}, act <> {_UPSERT} OR first.is_incomplete AS {DELETED},
               {END_VERSION}, first.time AS {VALID_FROM}, {VALID_TO}, {CONFIRMED},
               IF(size({PARTIAL}) = 0, NULL, {PARTIAL}) AS {PARTIAL}, {END_VERSION} IS NULL AS {CURRENT}
        FROM (SELECT *, lead({VERSION}) OVER by_version AS {END_VERSION},
                     lead(first.time) OVER by_version AS {VALID_TO},
                     map_filter(map_from_entries(partial),
                                (at, names) -> at = {VERSION} OR coalesce(map_contains_key({CONFIRMED}, at), false))
                         AS {PARTIAL}
              FROM (SELECT *, IF(size(later) = 0, NULL, map_from_entries({later})) AS {CONFIRMED}
                    FROM (SELECT {shape.keys()}, min(at) AS {VERSION}, min(act) AS act,
                                 min_by(struct(time, is_incomplete{others}), at) AS first,
                                 array_sort(collect_list(struct(at, time)) FILTER (WHERE NOT is_first)) AS later,
                                 collect_list(struct(at, absent)) FILTER (WHERE size(absent) > 0) AS partial
                          FROM ({_numbered(shape, fills, truncates)}) GROUP BY {shape.keys()}, period))
              WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY {VERSION}))
        WHERE {kept}"""


def new_events(shape: ClaimShape) -> str:
    """Returns SQL of the events of EVENT that PERIOD does not know yet, so that applying a claim again does nothing."""
    starts = f"concat(array({VERSION}), coalesce(map_keys({CONFIRMED}), {NO_NAMES}))"
    known = f"transform({starts}, at -> struct(at, false AS is_end))"
    ends = f"filter(array(struct({END_VERSION} AS at, true AS is_end)), each -> each.at IS NOT NULL)"
    return f"""
        SELECT event.* FROM {EVENT} AS event
        LEFT ANTI JOIN (SELECT {shape.keys()}, known.at, known.is_end
                        FROM (SELECT {shape.keys()}, explode(concat({known}, {ends})) AS known FROM {PERIOD})) AS known
            ON {shape.same("event", "known")} AND known.at = event.{VERSION}
               AND (NOT known.is_end OR event.{OPERATION} = 'd')"""


def _numbered(shape: ClaimShape, fills: Iterable[str], truncates: Mapping[str, str]) -> str:
    """Adds to the events the number of their period, and whether they are the first of it."""
    content = ", ".join(["is_incomplete", *(f"{identifier(name)}" for name in shape.others)])
    return f"""
        SELECT *, count_if(is_first) OVER by_version AS period
        FROM (SELECT *, CASE WHEN act <> coalesce(act_before, -1) THEN true
                             WHEN act = {_UPSERT} THEN NOT (content <=> content_before) ELSE false END AS is_first
              FROM (SELECT *, lag(act) OVER by_version AS act_before, lag(content) OVER by_version AS content_before
                    FROM (SELECT *, struct({content}) AS content FROM ({_filled(shape, fills, truncates)}))
                    WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY at)))
        WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY at)"""


def _filled(shape: ClaimShape, fills: Iterable[str], truncates: Mapping[str, str]) -> str:
    """Gives each event the values that it lacks, from the event before it, unless a delete is between them.

    The first period of an id keeps its values: those of the period before it were taken when it was written.
    """
    wanted = set(fills)
    chosen = {name: number for number, name in enumerate(shape.others) if name in wanted}
    values, incomplete = [], ["false"]
    for name in shape.others:
        column, number = identifier(name), chosen.get(name)
        values.append(
            column if number is None else f"IF(fill_{number} IS NULL, {column}, fill_{number}.value) AS {column}"
        )
    for name, number in chosen.items():
        asked = f"array_contains(blank, {text_literal(name)}) AND NOT array_contains(lacking, {text_literal(name)})"
        incomplete.append(f"(act = {_UPSERT} AND fill_{number} IS NULL AND {asked})")
    found = "".join(
        f""", last_value(IF(act <> {_UPSERT} OR array_contains(blank, {text_literal(name)}), NULL,
                            struct({identifier(name)} AS value)), true) OVER until_here AS fill_{number}"""
        for name, number in chosen.items()
    )
    return f"""
        SELECT {", ".join([shape.keys(), *values])}, at, time, act, absent, {" OR ".join(incomplete)} AS is_incomplete
        FROM (SELECT *{found}
              FROM (SELECT *, IF(is_known AND NOT is_hidden AND row_number() OVER by_version = 1, {NO_NAMES},
                                 array_union(absent, lacking)) AS blank,
                           count_if(act <> {_UPSERT}) OVER by_version AS life
                    FROM ({_distinct(shape, truncates)})
                    WINDOW by_version AS (PARTITION BY {shape.keys()} ORDER BY at))
              WINDOW until_here AS (PARTITION BY {shape.keys()}, life ORDER BY at
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))"""


def _distinct(shape: ClaimShape, truncates: Mapping[str, str]) -> str:
    """Returns one event per id and version. At one version an upsert wins over a delete, as in the table itself."""
    return f"""
        SELECT * FROM (
            SELECT *, row_number() OVER (PARTITION BY {shape.keys()}, at
                                         ORDER BY act DESC, is_known DESC, operation DESC) AS place
            FROM ({" UNION ALL ".join(_events(shape, truncates))}))
        WHERE place = 1"""


def _events(shape: ClaimShape, truncates: Mapping[str, str]) -> list[str]:
    """Returns relations of events: those that PERIOD came from, the ends of its periods, those of EVENT, truncates."""
    columns = ", ".join(identifier(name) for name in shape.names)
    types = dict(shape.columns)
    no_values = ", ".join(
        identifier(name) if name in shape.key else f"CAST(NULL AS {types[name]}) AS {identifier(name)}"
        for name in shape.names
    )
    act = f"IF({DELETED} AND {PARTIAL} IS NULL, {_DELETE}, {_UPSERT}) AS act"
    known = f"{NO_NAMES} AS lacking, true AS is_known, {DELETED} AS is_hidden, '' AS operation"
    nothing = f"{NO_NAMES} AS absent, {NO_NAMES} AS lacking, true AS is_known, false AS is_hidden, '' AS operation"
    of_period = f"SELECT {columns}, {VERSION} AS at, {VALID_FROM} AS time, {act}, {_absent_at(VERSION)}, {known}"
    confirmed = f"(SELECT *, explode(map_entries({CONFIRMED})) AS later FROM {PERIOD})"
    of_later = f"SELECT {columns}, later.key AS at, later.value AS time, {act}, {_absent_at('later.key')}, {known}"
    of_end = f"SELECT {no_values}, {END_VERSION} AS at, {VALID_TO} AS time, {_END} AS act, {nothing}"
    of_claim = f"""
        SELECT {columns}, {VERSION} AS at, {COMMIT_TIME} AS time, IF({OPERATION} = 'd', {_DELETE}, {_UPSERT}) AS act,
               IF({OPERATION} = 'd', {NO_NAMES}, {ABSENT}) AS absent, {LACKING} AS lacking,
               false AS is_known, false AS is_hidden, {OPERATION} AS operation
        FROM {EVENT}"""
    found = [
        f"{of_period} FROM {PERIOD}",
        f"{of_later} FROM {confirmed}",
        f"{of_end} FROM {PERIOD} WHERE {END_VERSION} IS NOT NULL",
        of_claim,
    ]
    if truncates:
        moments = ", ".join(f"({text_literal(at)}, {time})" for at, time in truncates.items())
        found.append(
            f"SELECT {no_values}, at, time, {_END} AS act, {nothing}"
            f" FROM (SELECT {shape.keys()} FROM {PERIOD} UNION SELECT {shape.keys()} FROM {EVENT})"
            f" CROSS JOIN (VALUES {moments} AS truncates(at, time))"
        )
    return found


def _absent_at(version: str) -> str:
    return f"coalesce(try_element_at({PARTIAL}, {version}), {NO_NAMES}) AS absent"
