"""Finds the lake's rows for a claim of few rows without Spark.

A Spark job costs about a second of processor time, however few rows it reads.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from pyroaring import BitMap64

from cdc_pipeline.lake.claim_changes import safe_ranges
from cdc_pipeline.lake.deduplicate_sql import EVENT
from cdc_pipeline.lake.key_ranges import ranges_of
from cdc_pipeline.lake.lake_files import FILE, IS_DELETE, IS_NEWER, ROW, LakeFiles
from cdc_pipeline.lake.new_shape import physical_fields, physical_parts
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, SliceInput
from cdc_pipeline.lake.quoting import identifier
from cdc_pipeline.lake.schema_change import Fitted
from cdc_pipeline.lake.searched_file import groups_with, place_of, places_of, repeats
from cdc_pipeline.record import ABSENT, OLD_ID_PREFIX, OPERATION, STATE, VERSION, Operation, TableSchema
from cdc_pipeline.types import resolve
from cdc_pipeline.types.row_order import ascending

log = structlog.get_logger()
_Result = TypeVar("_Result")

_MOST_FILES, _MOST_FILE_ROWS = 256, 50_000_000
"""Of the files that are searched. Their ids are read in about a second, by two cores."""
_FILES_AT_ONCE, _BATCH_ROWS = 4, 1 << 20
_TIME = resolve("timestamp").spark
_CLAIM_VERSION = "_cdc_claim_version"
_COMPARED = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
)
"""Types of ids that are equal in Arrow exactly if they are equal in Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """Rows of the lake that no deletion vector deletes.

    `places`: path -> row indexes. `states`: column -> version, of each of these and of some other rows with a STATE.
    """

    places: Mapping[str, BitMap64]
    states: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FewEvents:
    """Finds the lake's rows for a claim of at most `most_rows` rows.

    Each search returns None if Spark has to find the rows: the claim or the files to search are larger, Arrow cannot
    compare the ids, or it cannot read a file. Spark then names that file.
    """

    files: LakeFiles
    fitted: Fitted
    work: ClaimWork
    key: tuple[str, ...]
    most_rows: int

    def found(self) -> pa.Table | None:
        """Returns what `ClaimRows.found` selects for whole rows in order."""
        return self._searched(safe_ranges(self.fitted.table, self.work), self._found)

    def live(self, ranges: tuple[KeyRange, ...], *, moved: bool = False) -> LiveRows | None:
        """Returns the rows that have an id of the claim, or that a key change of the claim moves away."""
        return self._searched(ranges, partial(self._live, moved=moved))

    def moved(self) -> tuple[str, tuple[KeyRange, ...]]:
        """Returns SQL for the old ids of the claim's key changes, and the ranges that these are in."""
        old = ", ".join(f"{identifier(OLD_ID_PREFIX + name)} AS {identifier(name)}" for name in self.key)
        ranges = ranges_of(self.events(self.key[:1], OLD_ID_PREFIX)[self.key[0]])
        return f"SELECT DISTINCT {old} FROM {EVENT} WHERE {OPERATION} = 'm'", ranges

    def absent(self) -> set[str]:
        """Returns the columns that an event of the claim has no value for, by their names in the lake."""
        found = set[str]()
        if self.work.partial_rows:
            for content in self.work.slices:
                lake_names = self.fitted.shape.lake_names(content.schema)
                names = pc.unique(pc.list_flatten(self._read(content, [ABSENT])[ABSENT])).to_pylist()
                found |= {lake_names[name] for name in names if name in lake_names}
        return found

    def _searched(self, ranges: tuple[KeyRange, ...], search: Callable[[Sequence[str]], _Result]) -> _Result | None:
        if sum(content.rows for content in self.work.slices) > self.most_rows:
            return None
        paths, schema = self.files.candidates(ranges), self.work.slices[-1].schema
        names = self._names_in(schema)
        types = [resolve(schema.column(names[name]).type).arrow for name in self.key]
        if (
            not all(any(is_such(type_) for is_such in _COMPARED) for type_ in types)
            or len(paths) > _MOST_FILES
            or sum(_rows_in(self.files, path) for path in paths) > _MOST_FILE_ROWS
        ):
            return None
        try:
            return search(paths)
        except (OSError, pa.ArrowException) as error:
            log.warning("left to Spark", table=str(self.files.table.name), found=str(error))
            return None

    def _names_in(self, schema: TableSchema) -> dict[str, str]:
        """Returns column of the lake -> its name in slice files of this schema."""
        return {lake_name: name for name, lake_name in self.fitted.shape.lake_names(schema).items()}

    def _found(self, paths: Sequence[str]) -> pa.Table:
        newest = self._newest(self._counting(self.events((*self.key, VERSION, OPERATION))))
        claim = newest.rename_columns([*self.key, _CLAIM_VERSION, OPERATION])
        urls, parts = self._rows(claim, (VERSION,), paths)
        deletes = pc.sum(pc.equal(newest[OPERATION], Operation.DELETE.value)).as_py() or 0
        counted = pa.table({FILE: [""], "rows": [[deletes]], IS_DELETE: [True], IS_NEWER: [True]})
        if not parts:
            return counted
        rows = pa.concat_tables(parts)
        flagged = pa.table(
            {
                FILE: rows[FILE],
                ROW: rows[ROW],
                IS_DELETE: pc.equal(rows[OPERATION], Operation.DELETE.value),
                IS_NEWER: pc.fill_null(pc.greater(rows[_CLAIM_VERSION], rows[VERSION]), fill_value=False),
            }
        )
        grouped = flagged.group_by([FILE, IS_DELETE, IS_NEWER], use_threads=False).aggregate([(ROW, "list")])
        as_spark_writes_them = pa.array([quote(url, safe=":/") for url in urls])
        found = {FILE: as_spark_writes_them.take(grouped[FILE]), "rows": grouped[f"{ROW}_list"]}
        flags = {name: grouped[name] for name in (IS_DELETE, IS_NEWER)}
        return pa.concat_tables([pa.table(found | flags), counted])

    def _live(self, paths: Sequence[str], *, moved: bool) -> LiveRows:
        ids = self.events(self.key, OLD_ID_PREFIX if moved else "")
        ids = ids.group_by([*range(len(self.key))]).aggregate([])  # by their numbers, for the reason in `ascending`
        ids = ids.filter(pc.is_valid(ids[self.key[0]])).sort_by(ascending(ids, self.key))
        _, parts = self._rows(ids.combine_chunks(), (), paths)
        found = dict[str, BitMap64]()
        for part in parts:
            for place in pc.unique(part[FILE]).to_pylist():
                found[paths[place]] = found.get(paths[place], BitMap64()) | BitMap64(part[ROW].to_pylist())
        live = {path: found[path] - dead for path, dead in self.files.vectors(found)}
        places = {path: rows for path, rows in live.items() if rows}
        return LiveRows(
            places=places, states=[each for path, rows in places.items() for each in self._states(path, rows)]
        )

    def _states(self, path: str, rows: BitMap64) -> Iterator[dict[str, str]]:
        """Yields column -> version of each of these rows of a file that has a STATE."""
        metadata = self.files.state.metadata
        if STATE not in physical_fields(metadata):
            return
        column, (deletion, columns) = physical_fields(metadata)[STATE][0], physical_parts(metadata, STATE)
        filesystem, root = self.files.store.filesystem()
        with filesystem.open_input_file(f"{root}/{self.files.key_of(path)}") as content:
            opened = pq.ParquetFile(content, page_checksum_verification=True)
            if column not in opened.schema_arrow.names:
                return
            place, first = place_of(opened.metadata, f"{column}.{deletion}"), 0
            for number in range(opened.metadata.num_row_groups):
                group = opened.metadata.row_group(number)
                known, end = group.column(place).statistics, first + group.num_rows
                if known is None or not known.has_null_count or known.null_count < group.num_rows:
                    inside = np.asarray((rows & BitMap64(range(first, end))).to_array()) - first
                    read = opened.read_row_group(number, columns=[column])[column]
                    states = pc.drop_null(read.take(pa.array(inside, pa.int64())))
                    yield from (dict(state[columns]) for state in states.to_pylist())
                first = end

    def events(self, columns: Sequence[str], prefix: str = "") -> pa.Table:
        """Returns columns of the claim's events, with the lake's names. In slice files their names have the prefix."""
        parts = []
        for content in self.work.slices:
            names = self._names_in(content.schema)
            inside = [prefix + names.get(name, name) for name in columns]
            parts.append(self._as_in_lake(self._read(content, inside).rename_columns(list(columns))))
        return pa.concat_tables(parts, promote_options="permissive")

    def _as_in_lake(self, events: pa.Table) -> pa.Table:
        """Returns dates as times where the lake has times: to compare both, Arrow would cut the lake's to dates."""
        for place, (name, type_) in enumerate(zip(events.column_names, events.schema.types, strict=True)):
            if pa.types.is_date(type_) and (name, _TIME) in self.fitted.shape.types:
                events = events.set_column(place, name, events[name].cast(pa.timestamp("us")))
        return events

    def _read(self, content: SliceInput, columns: list[str]) -> pa.Table:
        filesystem, root = self.files.store.filesystem()
        with filesystem.open_input_file(f"{root}/{content.key}") as file:
            return pq.ParquetFile(file, page_checksum_verification=True).read(columns=columns).select(columns)

    def _counting(self, events: pa.Table) -> pa.Table:
        """Returns the events that count; see `name_events`."""
        counts = pc.greater_equal(events[VERSION], self.work.cutoff_version)
        return events.filter(pc.and_(counts, pc.greater(events[VERSION], self.work.truncated_at)))

    def _newest(self, events: pa.Table) -> pa.Table:
        """Returns the newest event of each id, sorted by id."""
        names = (*self.key, VERSION, OPERATION)
        ordered = events.sort_by(ascending(events, names)).combine_chunks()
        if not ordered.num_rows:
            return ordered
        ends, starts = ordered.slice(0, ordered.num_rows - 1), ordered.slice(1)
        is_last = reduce(pc.or_, (pc.not_equal(ends[name], starts[name]) for name in self.key))
        return ordered.filter(pa.chunked_array([*is_last.chunks, pa.array([True])]))

    def _rows(
        self, claim: pa.Table, columns: Sequence[str], paths: Sequence[str]
    ) -> tuple[Sequence[str], list[pa.Table]]:
        """Returns the files' URLs, and their rows with an id of `claim`; see `_rows_of`."""
        urls = list(self.files.name_urls(paths))
        with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
            of_files = threads.map(partial(self._rows_of, claim, columns), range(len(paths)), paths)
            return urls, [part for of_file in of_files for part in of_file]

    def _rows_of(self, claim: pa.Table, columns: Sequence[str], place: int, path: str) -> list[pa.Table]:
        """Returns the file's rows of the claim's ids: what `claim` has, these columns, ROW, and `place` as FILE.

        `claim` has the id first. The first id column decides first: it costs less than a join of all rows.
        """
        physical = physical_fields(self.files.state.metadata)
        inside = [physical[name][0] for name in (*self.key, *columns)]
        ids = [f"_cdc_id_{number}" for number in range(len(self.key))]  # a join takes names only, and `.id` is a path
        claim = claim.rename_columns([*ids, *claim.column_names[len(ids) :]])
        wanted = pc.unique(claim[ids[0]].combine_chunks())
        types = pa.schema([*claim.select(ids).schema, *(pa.field(name, pa.string()) for name in columns)])
        filesystem, root = self.files.store.filesystem()
        parts = []
        with filesystem.open_input_file(f"{root}/{self.files.key_of(path)}") as content:
            metadata = pq.read_metadata(content)
            repeated = [name for name in inside[len(self.key) :] if repeats(metadata, name)]
            opened = pq.ParquetFile(
                content,
                metadata=metadata,
                page_checksum_verification=True,
                read_dictionary=repeated,
                coerce_int96_timestamp_unit="us",
            )
            for group, first in groups_with(metadata, inside[0], wanted):
                start = first
                for batch in opened.iter_batches(_BATCH_ROWS, row_groups=[group], columns=inside):
                    numbers = places_of(wanted, batch.column(inside[0]).cast(wanted.type))
                    chosen = pa.Table.from_batches([batch]).select(inside).take(pa.array(numbers))
                    found = chosen.rename_columns(types.names).cast(types)
                    files = pa.repeat(pa.scalar(place, pa.int64()), len(numbers))
                    located = found.append_column(FILE, files).append_column(ROW, pa.array(numbers + start))
                    parts.append(located.join(claim, ids, join_type="inner", use_threads=False))
                    start += batch.num_rows
        return parts


def _rows_in(files: LakeFiles, path: str) -> int:
    """Returns the number of rows in a file. A file without statistics counts as too many."""
    rows = json.loads(files.file(path).get("stats") or "{}").get("numRecords")
    return _MOST_FILE_ROWS + 1 if rows is None else int(rows)
