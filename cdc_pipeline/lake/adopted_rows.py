"""What a history table takes over from its table: all rows to begin with, later what differs from its periods."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.claim_view import NO_NAMES, Views, missing_values
from cdc_pipeline.lake.columns import HISTORY_TYPES, history_of
from cdc_pipeline.lake.deduplicate_sql import EVENT, LACKING, ClaimShape
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.lake_rows_sql import DELETION, HIDDEN
from cdc_pipeline.lake.periods_sql import RIGHT_AFTER, as_written
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal, value_literal
from cdc_pipeline.lake.registers import LACKED, LAPSED
from cdc_pipeline.lake.schema_change import Fitted, shape_at
from cdc_pipeline.object_store import ObjectStore
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
    VALID_FROM,
    VERSION,
)

_NOW, _HIDDEN_NOW, _PARTED = "cdc_row_now", "cdc_hidden_row_now", "cdc_parted_row"
_IS_PARTED, _DELETED_AT, _VERSIONS, _AT = "_cdc_is_parted", "_cdc_deleted_at", "_cdc_versions", "_cdc_at"

_KNEW = (
    f"exists(map_keys(map_filter(hidden.{_VERSIONS}, (name, at) -> at = '')),"
    f" name -> NOT array_contains(coalesce(try_element_at(was.{PARTIAL}, ''), {NO_NAMES}), name))"
)
"""SQL of whether the period `was` had a value that the row `hidden` lacks: a delete without a trace is between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedRows:
    """The rows of `table`, as changes at the moment `at`. `fitted`: the columns of its history table.

    A parted row is taken over as the events that it shows: its delete, and one for each version that its columns have.
    An incomplete row is parted. If events may come `late`, older than what the table has, deleted rows are, too, and
    those whose columns have different versions.
    """

    views: Views
    store: ObjectStore
    table: LakeTable
    fitted: Fitted
    at: datetime
    late: bool

    def name_rows(self, lake_version: int) -> list[str]:
        """Makes views of the table's visible and hidden rows, with the history's columns.

        Returns the columns that the table does not have; they have the value that the table gets once it has them.
        """
        shape = self.fitted.shape
        names = shape.lake_names(self.table.schema)
        table_log = DeltaLog(self.store, lake_key(self.table.name))
        theirs = shape_at(table_log, lake_version).lake_names(self.table.schema)
        sources = {names[name]: theirs[name] for name in names if name in theirs}
        found = missing_values(shape) | {name: identifier(source) for name, source in sources.items()}
        values = [
            f"CAST({found.get(column.name, 'NULL')} AS {column.type}) AS {identifier(column.name)}"
            for column in shape.columns
        ]
        url = self.store.spark_url(lake_key(self.table.name))
        rows = self.views.session.read.format("delta").option("versionAsOf", lake_version).load(url)
        is_parted = f"{HIDDEN} OR {STATE} IS NOT NULL" if self.late else f"{HIDDEN} AND {DELETION} < {VERSION}"
        self.views.name(_NOW, rows.where(f"NOT {HIDDEN}").selectExpr(*values, VERSION, f"{is_parted} AS {_IS_PARTED}"))
        own = [VERSION, f"{DELETION} AS {_DELETED_AT}", f"{self._versions(sources)} AS {_VERSIONS}"]
        self.views.name(_HIDDEN_NOW, rows.where(HIDDEN).selectExpr(*values, *own))
        self.views.name(_PARTED, rows.where(is_parted).selectExpr(*values, *own))
        return [name for name in shape.names if name not in sources]

    def first_periods(self) -> str:
        """Returns SQL of the periods of a history that has none, without those of parted rows."""
        given = {DELETED: "false", VALID_FROM: value_literal(self.at, "TIMESTAMP"), CURRENT: "true", VERSION: VERSION}
        own = (f"{given.get(name, f'CAST(NULL AS {type_})')} AS {name}" for name, type_ in HISTORY_TYPES)
        return (
            f"SELECT {', '.join([*map(identifier, self.fitted.shape.names), *own])} FROM {_NOW} WHERE NOT {_IS_PARTED}"
        )

    def name_events(self, missing: list[str], at_version: str, *, has_all: bool, begins: bool) -> int:
        """Makes the view EVENT of events by which the history has the rows, beside `first_periods` if it `begins`.

        Returns its length. `at_version`, `has_all`: see `_differences`. Without `has_all` the rows are those of a
        snapshot: none is parted.
        """
        if begins and not has_all:
            return 0
        sql = self._parted(missing) if begins else self._differences(missing, at_version, has_all=has_all)
        return self.views.keep_sql(EVENT, sql).count()

    def _differences(self, missing: list[str], at_version: str, *, has_all: bool) -> str:
        """Returns SQL of events that turn the current periods into the table's rows.

        A period newer than its row is kept. With `has_all` a deleted row says when its id was, at the earliest right
        after the last event of the period; one that is incomplete since its delete says it, too, also within the
        period. An id without any row was deleted at `at_version`. If its period is newer than that, it was deleted
        right after the last event of the period if the table `has_all` that the history has, otherwise at the table's
        newest version. Without `has_all`, a period is newer only if it began later, because the events that confirm its
        values come again. What changes at a version of which the period has an event, as by another export of the same
        position, comes right after it.
        An incomplete period ends too, unless its row is still there, incomplete, not deleted before, lacking no more.
        """
        shape = self._shape
        nothing = ", ".join(
            f"was.{identifier(name)}" if name in shape.key else f"CAST(NULL AS {type_}) AS {identifier(name)}"
            for name, type_ in shape.columns
        )
        newest = f"(SELECT max({VERSION}) AS {VERSION} FROM {_NOW})"
        last = f"coalesce(array_max(map_keys(was.{CONFIRMED})), was.{VERSION})" if has_all else f"was.{VERSION}"
        ended = _ended(last, text_literal(at_version), has_all=has_all)
        is_ended = f"{last} < {ended}"
        if has_all:
            is_ended += f" OR (hidden.{_DELETED_AT} <> '' AND hidden.{_DELETED_AT} < hidden.{VERSION})"
        differences = f"""
            {self._changed(missing)}
            UNION ALL
            SELECT 'd', {ended}, {self._own}, {NO_NAMES}, {nothing}
            FROM {self._now(f"NOT {HIDDEN} OR {PARTIAL} IS NOT NULL")} AS was
            LEFT ANTI JOIN {_NOW} AS row ON {shape.same("row", "was")}
            LEFT JOIN {_HIDDEN_NOW} AS hidden ON {shape.same("hidden", "was")} CROSS JOIN {newest} AS newest
            WHERE ({is_ended}) AND (NOT {HIDDEN} OR hidden.{_DELETED_AT} IS DISTINCT FROM '' OR {_KNEW})"""
        if not has_all:
            return differences
        return f"""
            {differences}
            UNION ALL
            SELECT event.* FROM ({self._parted(missing)}) AS event
            LEFT JOIN {self._now(f"NOT {HIDDEN}")} AS was ON {shape.same("event", "was")}
            LEFT ANTI JOIN {_NOW} AS row ON was.{VERSION} IS NOT NULL AND {shape.same("event", "row")}
            WHERE was.{VERSION} IS NULL OR (event.{OPERATION} <> 'd' AND event.{VERSION} > {last})"""

    def _changed(self, missing: list[str]) -> str:
        """Returns SQL of events of the rows that differ from the period of their id that goes on, or that have none.

        `gone`: when the last period of an id ended that another export of one position ended.
        """
        shape = self._shape
        compared = [name for name in shape.others if name not in missing]
        same = " AND ".join(["true", *(f"row.{identifier(name)} <=> was.{identifier(name)}" for name in compared)])
        gone = f"""(SELECT {shape.keys()}, max({END_VERSION}) AS {VERSION} FROM {self._history}
                    WHERE endswith({END_VERSION}, '{RIGHT_AFTER}') GROUP BY {shape.keys()})"""
        return f"""
            SELECT 'u' AS {OPERATION},
                   {_free(f"row.{VERSION}", f"was.{VERSION}", f"gone.{VERSION}")} AS {VERSION},
                   {self._own}, {_lacking(missing)},
                   {", ".join(f"row.{identifier(name)}" for name in shape.names)}
            FROM {_NOW} AS row
            LEFT JOIN {self._now("true")} AS was ON {shape.same("row", "was")}
            LEFT JOIN {gone} AS gone ON {shape.same("row", "gone")}
            WHERE IF(was.{VERSION} IS NULL OR {HIDDEN}, NOT {_IS_PARTED},
                     {as_written(f"was.{VERSION}")} <= row.{VERSION} AND NOT ({same}))"""

    def _parted(self, missing: list[str]) -> str:
        """Returns SQL of the events of parted rows: of their columns, each event has those that have its version."""
        shape = self._shape
        values = ", ".join(
            identifier(name)
            if name in (*shape.key, *missing)
            else f"IF({_VERSIONS}[{text_literal(name)}] = {_AT}, {identifier(name)}, NULL) AS {identifier(name)}"
            for name in shape.names
        )
        deleted = f"IF({_DELETED_AT} = '', array(), array({_DELETED_AT}))"
        later = f"filter(concat(map_values({_VERSIONS}), array({VERSION})), at -> at > {_DELETED_AT})"
        others = f"map_keys(map_filter({_VERSIONS}, (name, at) -> at <> {_AT}))"
        return f"""
            SELECT IF({_AT} = {_DELETED_AT}, 'd', 'u') AS {OPERATION}, {_AT} AS {VERSION}, {self._time},
                   IF({_AT} = {_DELETED_AT}, {NO_NAMES}, {others}) AS {ABSENT}, {_lacking(missing)}, {values}
            FROM (SELECT *, explode(array_distinct(concat({deleted}, {later}))) AS {_AT} FROM {_PARTED})"""

    def _versions(self, sources: Mapping[str, str]) -> str:
        """Returns SQL of column -> version, "" for one that is not known. `sources`: the columns in the table."""
        others = [name for name in sources if name not in self._shape.key]
        marks = f"trim(LEADING '{LAPSED}{LACKED}' FROM"
        found = ", ".join(
            f"{marks} coalesce(try_element_at({STATE}.columns, {text_literal(sources[name])}), {VERSION}))"
            for name in others
        )
        names = ", ".join(map(text_literal, others))
        return f"map_from_arrays(CAST(array({names}) AS ARRAY<STRING>), CAST(array({found}) AS ARRAY<STRING>))"

    @property
    def _shape(self) -> ClaimShape:
        return ClaimShape(columns=self.fitted.shape.types, key=self.fitted.table.schema.key)

    @property
    def _own(self) -> str:
        return f"{self._time}, {NO_NAMES} AS {ABSENT}"

    @property
    def _time(self) -> str:
        return f"{value_literal(self.at, 'TIMESTAMP')} AS {COMMIT_TIME}"

    @property
    def _history(self) -> str:
        return table_at(self.store.spark_url(lake_key(history_of(self.table).name)))

    def _now(self, condition: str) -> str:
        """Returns a relation of the current periods that satisfy the condition."""
        return f"(SELECT * FROM {self._history} WHERE {CURRENT} AND ({condition}))"


def _lacking(missing: list[str]) -> str:
    return f"CAST(array({', '.join(map(text_literal, missing))}) AS ARRAY<STRING>) AS {LACKING}"


def _ended(last: str, at: str, *, has_all: bool) -> str:
    """Returns SQL of the version at which the period `was` ended; see `AdoptedRows`. `last`: that of its last event.

    The table may keep a row that it deleted at an older version: that of another export of the last event's position.
    """
    next_ = f"concat({last}, '{RIGHT_AFTER}')"
    after = next_ if has_all else f"newest.{VERSION}"
    kept = f"IF(hidden.{_DELETED_AT} = hidden.{VERSION} AND hidden.{_DELETED_AT} <= {last}, {next_}, NULL)"
    incomplete = f"IF({last} < hidden.{VERSION}, {next_}, hidden.{VERSION})"
    deleted = f"coalesce({kept}, nullif(hidden.{_DELETED_AT}, ''), {incomplete})" if has_all else "NULL"
    return f"coalesce({deleted}, IF({as_written(last)} <= {at}, {_free(at, f'was.{VERSION}')}, {after}))"


def _free(version: str, *known: str) -> str:
    """Returns SQL of the version, or of one right after it if it is one of `known`, or confirmed the period `was`.

    An event at such a version would count as known.
    """
    has = f"concat(array({', '.join(known)}), coalesce(map_keys(was.{CONFIRMED}), {NO_NAMES}))"
    newest = f"array_max(filter({has}, at -> {as_written('at')} = {version}))"
    return f"coalesce(concat({newest}, '{RIGHT_AFTER}'), {version})"
