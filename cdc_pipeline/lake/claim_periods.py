"""Finds the periods of a history table that a claim changes, and which rows of its files they replace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq
from pyroaring import BitMap64

from cdc_pipeline.lake.claim_changes import has_few_rows, safe_ranges
from cdc_pipeline.lake.claim_view import Views, claim_shape, slice_rows
from cdc_pipeline.lake.columns import HISTORY_IN_FILES
from cdc_pipeline.lake.deduplicate_sql import EVENT, ClaimShape
from cdc_pipeline.lake.few_events import FewEvents
from cdc_pipeline.lake.lake_files import AFTER_ALL, FILE, ROW, LakeFiles
from cdc_pipeline.lake.lake_rows_sql import within_ranges
from cdc_pipeline.lake.moves_sql import resolve_moves
from cdc_pipeline.lake.periods_sql import PERIOD, new_events, periods, rows_now
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange
from cdc_pipeline.lake.quoting import text_literal, value_literal
from cdc_pipeline.lake.schema_change import Fitted
from cdc_pipeline.lake.searched_file import place_of
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import ABSENT, COMMIT_TIME, END_VERSION, OPERATION, PARTIAL, VERSION

Places = Mapping[str, BitMap64]
"""Path in the log -> indexes of rows in the file."""
_FILE_ROW, _MOVED = "cdc_file_row", "cdc_moved_row"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPeriods:
    """Finds the periods that a claim changes. `files` and `fitted` are those of the history table.

    `is_new`: the claim's events are all newer than what the history has. For claims of at most `rows_without_spark`
    rows Arrow finds the periods then. `is_adoption`: the events are rows that the history takes over. A period that
    ends at the version of such a row may have had another id, and stays.
    """

    views: Views
    files: LakeFiles
    fitted: Fitted
    work: ClaimWork
    is_new: bool
    is_adoption: bool = False
    rows_without_spark: int = 0

    @property
    def _shape(self) -> ClaimShape:
        return claim_shape(self.fitted.table, self.work, self.fitted.shape)

    @property
    def _few_events(self) -> FewEvents:
        most_rows = self.rows_without_spark
        return FewEvents(files=self.files, fitted=self.fitted, work=self.work, key=self._shape.key, most_rows=most_rows)

    def name_events(self) -> Mapping[str, str]:
        """Makes the view EVENT. Returns version -> SQL of the commit time, of the claim's truncates."""
        views, work = self.views, self.work
        rows = slice_rows(views.session, self.files.store, work, self.fitted.shape, self._shape)
        counts = f"{VERSION} >= {text_literal(work.cutoff_version)}"
        truncates = {}
        if work.truncates:
            found = rows.where(f"{OPERATION} = 't' AND {counts}").selectExpr(VERSION, COMMIT_TIME).distinct()
            truncates = {
                row[VERSION]: value_literal(row[COMMIT_TIME], "TIMESTAMP") for row in found.toArrow().to_pylist()
            }
        views.name(EVENT, rows.where(f"{OPERATION} <> 't' AND {counts}"))
        if work.key_changes:
            self._resolve_moves(tuple(sorted(truncates)))
        return truncates

    def changed(self, truncates: Mapping[str, str]) -> tuple[str, Places] | None:
        """Returns SQL of the periods to write, and the places of the rows that they replace.

        Returns None if no event of EVENT changes a period. `truncates`: as `name_events` returned them.

        They end the periods of all ids. A truncate of an earlier claim ends those of this claim's ids alone that have
        an event which is not newer; when it was committed is not known any more.
        """
        found = self._name_periods(truncates)
        if found is None:
            return None
        replaced, partial = found
        ends: dict[str, str | None] = dict(truncates)
        if not self.is_new and (emptied_before := self._emptied_before()):
            ends.setdefault(emptied_before, None)
        is_ordered = self.fitted.table.ordered
        sql = periods(
            self._shape,
            fills=partial,
            truncates=ends,
            keeps_old_events=self.work.tombstones or not is_ordered,
            has_one_period=self.is_new,
            horizon=self.work.horizon,
        )
        return sql, replaced

    def _resolve_moves(self, truncates: tuple[str, ...]) -> None:
        """Gives the new ids of key changes the values that they take from the periods of their old ids."""
        shape, work = self._shape, self.work
        if not self._few_events.absent() | shape.lacking:
            return
        ids, ranges = self._few_events.moved()
        self._name_live(self.files, _MOVED, f"LEFT SEMI JOIN ({ids}) AS wanted", ranges, "true")
        self.views.name_sql(_MOVED, rows_now(shape, _MOVED))
        emptied_before = "" if work.truncated_at in truncates else self._emptied_before()
        resolve_moves(self.views, shape, _MOVED, emptied_before, truncates, few=has_few_rows(work))

    def _emptied_before(self) -> str:
        """Returns the version of the last truncate, "" if no event that counts is older: it ends no event then.

        A period may be older than the truncate and go on: a snapshot, or the table after a time without a history, had
        the same values again.
        """
        work = self.work
        if not work.truncated_at or work.cutoff_version > work.truncated_at:
            return ""
        return work.truncated_at if oldest_version(self.files.store, work) <= work.truncated_at else ""

    def _name_periods(self, truncates: Mapping[str, str]) -> tuple[Places, set[str]] | None:
        """Makes the view PERIOD of the periods that may change.

        Returns their places, and the columns for which an event has no value. None if no event is new.
        """
        shape, few_events = self._shape, self._few_events
        partial = few_events.absent() | shape.lacking
        ranges = () if truncates else safe_ranges(self.fitted.table, self.work)
        live = few_events.live(ranges) if self.is_new and not truncates else None
        if live is not None:
            rows = self.files.name_located(self.views, f"{PERIOD}_file", live.places, self._columns)
            within = f" WHERE {within_ranges(shape.key[0], ranges)}" if ranges else ""
            self.views.name_sql(PERIOD, f"SELECT * FROM ({rows}) AS lake{within}")
            return live.places, partial
        firsts = f"SELECT {shape.keys()}, min({VERSION}) AS _cdc_first FROM {EVENT} GROUP BY {shape.keys()}"
        after = ">" if self.is_adoption else ">="
        condition = f"coalesce(lake.{END_VERSION}, {text_literal(AFTER_ALL)}) {after} _cdc_first"
        join = f"JOIN ({firsts}) AS wanted"
        if truncates:
            join = f"LEFT JOIN ({firsts}) AS wanted"
            first = f"least(coalesce(_cdc_first, {text_literal(AFTER_ALL)}), {text_literal(min(truncates))})"
            condition = f"coalesce(lake.{END_VERSION}, {text_literal(AFTER_ALL)}) >= {first}"
        if ranges:
            condition += f" AND {within_ranges(shape.key[0], ranges)}"
        self._name_live(self.files, PERIOD, join, ranges, condition)
        if not self.is_new:
            events = self.views.keep_sql(EVENT, new_events(shape))
            if not truncates and not events.limit(1).count():
                return None
            ids = f"SELECT DISTINCT {shape.keys()} FROM {EVENT}"
            if not truncates:
                same = shape.same("period", "wanted")
                sql = f"SELECT period.* FROM {PERIOD} AS period LEFT SEMI JOIN ({ids}) AS wanted ON {same}"
                self.views.keep_sql(PERIOD, sql)
            names = f"SELECT DISTINCT explode(flatten(map_values({PARTIAL}))) AS name FROM {PERIOD}"
            of_rows = f" UNION SELECT explode({ABSENT}) FROM {EVENT}" if self.is_adoption else ""
            partial |= set(self.views.session.sql(names + of_rows).toArrow()["name"].to_pylist())
        places = self.views.session.sql(f"SELECT {FILE}, collect_list({ROW}) AS rows FROM {PERIOD} GROUP BY 1")
        return {path: rows for _, path, rows in self.files.located(places.toArrow())}, partial

    def _name_live(self, files: LakeFiles, name: str, join: str, ranges: tuple[KeyRange, ...], condition: str) -> None:
        """Makes the view `name` of the periods that the join with the relation `wanted` and the condition choose."""
        shape = self._shape
        files.name_rows(self.views, _FILE_ROW, files.candidates(ranges), self._columns)
        hint = "/*+ BROADCAST(wanted) */ " if has_few_rows(self.work) else ""
        same = shape.same("lake", "wanted")
        files.keep_live(
            self.views, name, f"SELECT {hint}lake.* FROM {_FILE_ROW} AS lake {join} ON {same} WHERE {condition}"
        )

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*self._shape.names, *HISTORY_IN_FILES)


def oldest_version(store: ObjectStore, work: ClaimWork) -> str:
    """Returns a version that no event of the claim is older than."""
    return min(("" if least is None else least for least in _minima(store, work, VERSION)), default=AFTER_ALL)


def oldest_commit_time(store: ObjectStore, work: ClaimWork) -> datetime | None:
    """Returns the commit time of the claim's oldest event; None if it is not known."""
    minima = list(_minima(store, work, COMMIT_TIME))
    return None if None in minima else min(minima, default=None)


def _minima(store: ObjectStore, work: ClaimWork, name: str) -> Iterator[Any]:
    """Yields the least value of a column in each row group of the claim's files; None where it is not known."""
    filesystem, root = store.filesystem()
    for content in work.slices:
        with filesystem.open_input_file(f"{root}/{content.key}") as file:
            metadata = pq.read_metadata(file)
        place = place_of(metadata, name)
        for group in range(metadata.num_row_groups):
            known = metadata.row_group(group).column(place).statistics
            yield known.min if known is not None and known.has_min_max else None
