"""What a history table takes over from its table: all rows to begin with, later what differs from its periods."""

from dataclasses import dataclass
from datetime import datetime

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.claim_view import NO_NAMES, Views, missing_values
from cdc_pipeline.lake.columns import HISTORY_TYPES, history_of
from cdc_pipeline.lake.deduplicate_sql import EVENT, LACKING, ClaimShape
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.lake_rows_sql import HIDDEN
from cdc_pipeline.lake.periods_sql import RIGHT_AFTER, as_written
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal, value_literal
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
    VALID_FROM,
    VERSION,
)

_NOW, _HIDDEN_NOW = "cdc_row_now", "cdc_hidden_row_now"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedRows:
    """The rows of `table`, as changes at the moment `at`. `fitted`: the columns of its history table."""

    views: Views
    store: ObjectStore
    table: LakeTable
    fitted: Fitted
    at: datetime

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
        self.views.name(_NOW, rows.where(f"NOT {HIDDEN}").selectExpr(*values, VERSION))
        self.views.name(_HIDDEN_NOW, rows.where(HIDDEN).selectExpr(*values, VERSION))
        return [name for name in shape.names if name not in sources]

    def first_periods(self) -> str:
        """Returns SQL of the periods of a history that has none."""
        given = {DELETED: "false", VALID_FROM: value_literal(self.at, "TIMESTAMP"), CURRENT: "true", VERSION: VERSION}
        own = (f"{given.get(name, f'CAST(NULL AS {type_})')} AS {name}" for name, type_ in HISTORY_TYPES)
        return f"SELECT {', '.join([*map(identifier, self.fitted.shape.names), *own])} FROM {_NOW}"

    def name_differences(self, missing: list[str], at_version: str, *, has_all: bool) -> int:
        """Makes the view EVENT of events that turn the current periods into the table's rows; returns its length.

        A period that is newer than its row is kept. A hidden row says when its id was deleted. An id without any row
        was deleted at `at_version`. If its period is newer than that, it was deleted right after the last event of the
        period if the table `has_all` that the history has, otherwise at the table's newest version. Without `has_all`,
        a period is newer only if it began later, because the events that confirm its values come again. What another
        export of the same position changes comes right after the period that began there.
        """
        shape = self._shape
        nothing = ", ".join(
            f"was.{identifier(name)}" if name in shape.key else f"CAST(NULL AS {type_}) AS {identifier(name)}"
            for name, type_ in shape.columns
        )
        newest, at = f"(SELECT max({VERSION}) AS {VERSION} FROM {_NOW})", text_literal(at_version)
        last = f"coalesce(array_max(map_keys(was.{CONFIRMED})), was.{VERSION})" if has_all else f"was.{VERSION}"
        next_ = f"concat({last}, '{RIGHT_AFTER}')"
        after = next_ if has_all else f"IF({as_written(last)} = {at}, {next_}, newest.{VERSION})"
        ended = f"coalesce(hidden.{VERSION}, IF({last} < {at}, {at}, {after}))"
        events = self.views.keep_sql(
            EVENT,
            f"""
            {self._changed(missing)}
            UNION ALL
            SELECT 'd', {ended}, {self._own}, {NO_NAMES}, {nothing}
            FROM {self._periods_now} AS was LEFT ANTI JOIN {_NOW} AS row ON {shape.same("row", "was")}
            LEFT JOIN {_HIDDEN_NOW} AS hidden ON {shape.same("hidden", "was")}
            CROSS JOIN {newest} AS newest WHERE {last} < {ended}""",
        )
        return events.count()

    def _changed(self, missing: list[str]) -> str:
        """Returns SQL of events of the rows that differ from the period of their id that goes on, or that have none.

        `gone`: when the last period of an id ended, if its deleted row is still there or another export of one position
        ended it.
        """
        shape = self._shape
        compared = [name for name in shape.others if name not in missing]
        same = " AND ".join(["true", *(f"row.{identifier(name)} <=> was.{identifier(name)}" for name in compared)])
        began, before = as_written(f"was.{VERSION}"), f"coalesce(was.{VERSION}, gone.{VERSION})"
        ended = f"IF(endswith({END_VERSION}, '{RIGHT_AFTER}'), {END_VERSION}, NULL)"
        gone = f"""(SELECT {shape.keys()}, max(IF({CURRENT} AND {HIDDEN}, {VERSION}, {ended})) AS {VERSION}
                    FROM {self._history} GROUP BY {shape.keys()})"""
        return f"""
            SELECT 'u' AS {OPERATION},
                   IF({as_written(before)} = row.{VERSION}, concat({before}, '{RIGHT_AFTER}'), row.{VERSION})
                       AS {VERSION},
                   {self._own}, CAST(array({", ".join(map(text_literal, missing))}) AS ARRAY<STRING>) AS {LACKING},
                   {", ".join(f"row.{identifier(name)}" for name in shape.names)}
            FROM {_NOW} AS row LEFT JOIN {self._periods_now} AS was ON {shape.same("row", "was")}
            LEFT JOIN {gone} AS gone ON {shape.same("row", "gone")}
            WHERE was.{VERSION} IS NULL OR ({began} <= row.{VERSION} AND NOT ({same}))"""

    @property
    def _shape(self) -> ClaimShape:
        return ClaimShape(columns=self.fitted.shape.types, key=self.fitted.table.schema.key)

    @property
    def _own(self) -> str:
        return f"{value_literal(self.at, 'TIMESTAMP')} AS {COMMIT_TIME}, {NO_NAMES} AS {ABSENT}"

    @property
    def _history(self) -> str:
        return table_at(self.store.spark_url(lake_key(history_of(self.table).name)))

    @property
    def _periods_now(self) -> str:
        return f"(SELECT * FROM {self._history} WHERE {CURRENT} AND NOT {HIDDEN})"
