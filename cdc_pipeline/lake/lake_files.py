"""A lake table's data files as views for Spark: plain Parquet, each row with its file and its index in the file.

Delta's own reader would first compute the table's state with Spark jobs, and again for each new version. Here the state
is already known, including the deletion vectors.
"""

import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql.connect.functions import expr

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.claim_view import Views
from cdc_pipeline.lake.columns import HISTORY_TYPES, OWN_TYPES
from cdc_pipeline.lake.deletion_vectors import VectorObjects, read_vectors
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.new_shape import physical_fields, physical_parts
from cdc_pipeline.lake.protocol import KeyRange, LakeTable
from cdc_pipeline.lake.quoting import identifier
from cdc_pipeline.lake.table_state import LakeTableState
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import END_VERSION, STATE, STATE_TYPE

FILE, ROW = "_cdc_file", "_cdc_row"
"""The columns that locate a lake row: its file's URL as Spark writes it, and its index in the file."""
IS_NEWER, IS_DELETE = "_cdc_is_newer", "_cdc_is_delete"
"""Whether the claim's event is newer than the lake's row, and whether the claim deletes the row."""
AFTER_ALL = "\U0010ffff"
"""Greater than every version."""
_DEAD = "cdc_dead_row"
_STATES = 10_000
"""How many rows' states are Python objects at once."""
_WHOLE_NUMBERS = re.compile(r"SMALLINT|INT|BIGINT|DECIMAL\(\d+,0\)")
_FILE_SCHEME = re.compile("file:/+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFiles:
    """The data files of one version of a table.

    `columns`: the source's columns with their Spark types. `named`: URL as Spark writes it -> path in the log, of the
    files that a view was made of. `ending_from`: of a history table, only files with periods that go on, or that ended
    at this version or later; "" for all files. `vector_objects`: see `VectorObjects`.
    """

    store: ObjectStore
    table: LakeTable
    state: LakeTableState
    columns: tuple[tuple[str, str], ...]
    named: dict[str, str] = field(default_factory=dict)
    ending_from: str = ""
    vector_objects: OrderedDict[str, bytes] = field(default_factory=OrderedDict)

    @property
    def folder(self) -> str:
        return lake_key(self.table.name)

    def candidates(self, ranges: Sequence[KeyRange]) -> list[str]:
        """Returns the paths of the files that may hold ids within `ranges`.

        Returns all files if there are no ranges, or if statistics are not used for the key's type.
        """
        key = self.table.schema.key
        type_ = _pruned_by(dict(self.columns)[key[0]]) if key else None
        if type_ is None or not ranges or any(not isinstance(part.low, type_) for part in ranges):
            return self.state.files.paths() if not self.ending_from else self._ending()
        physical = physical_fields(self.state.metadata)
        reaching = (physical[END_VERSION][0], self.ending_from) if self.ending_from else None
        return self.state.files.within(physical[key[0]][0], ranges, reaching)

    def _ending(self) -> list[str]:
        """Returns the files of periods that go on, which have no bounds of END_VERSION, and those that end late enough.

        The order of versions is that of their texts.
        """
        column = physical_fields(self.state.metadata)[END_VERSION][0]
        return self.state.files.within(column, [KeyRange(self.ending_from, AFTER_ALL)])

    def name_rows(self, views: Views, name: str, paths: Iterable[str], columns: Collection[str]) -> None:
        """Makes a view of all rows of these files: `columns`, FILE and ROW.

        It includes rows that a deletion vector deletes.
        """
        types = {**dict(HISTORY_TYPES), **dict(OWN_TYPES), **dict(self.columns)}
        if STATE in columns:
            types[STATE] = self._state_type
        physical = {column: physical_fields(self.state.metadata)[column][0] for column in columns}
        urls = self.name_urls(paths)
        if not urls:
            nothing = ", ".join(
                f"CAST(NULL AS {self._type(column, types)}) AS {identifier(column)}" for column in physical
            )
            views.name_sql(name, f"SELECT {nothing}, '' AS {FILE}, CAST(0 AS BIGINT) AS {ROW} WHERE false")
            return
        schema = ", ".join(f"{identifier(inside)} {types[column]}" for column, inside in physical.items())
        # Without this option Spark adds a column for each folder like `x=1`.
        files = views.session.read.schema(schema).option("recursiveFileLookup", "true").parquet(*urls)
        values = (expr(self._value(column, inside)).alias(column) for column, inside in physical.items())
        place = files.metadataColumn("_metadata")  # SQL would find a column of the source that has this name
        views.name(name, files.select(*values, place["file_path"].alias(FILE), place["row_index"].alias(ROW)))

    def name_urls(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns file URL -> path in the log. `located` knows these URLs from now on."""
        urls = {self._url(path): path for path in paths}
        self.named.update((_plain(url), path) for url, path in urls.items())
        return urls

    def name_located(self, views: Views, name: str, rows: Mapping[str, BitMap64], columns: Collection[str]) -> str:
        """Makes the view `name` of these files, which are given as path -> row indexes. Returns SQL of these rows."""
        self.name_rows(views, name, rows, columns)
        if not rows:
            return f"SELECT * FROM {name}"
        texts = map(_plain, views.session.table(name).inputFiles())
        text_of = {self.named[unquote(text)]: text for text in texts}
        files = pa.array([text_of[path] for path in rows])
        places = pa.array([each.to_array() for each in rows.values()], pa.list_(pa.int64()))
        located = f"{name}_located"
        views.name(located, views.session.createDataFrame(pa.table({FILE: files, "rows": places})))
        pairs = f"SELECT {FILE}, explode(rows) AS {ROW} FROM {located}"
        return f"SELECT lake.* FROM {name} AS lake LEFT SEMI JOIN ({pairs}) AS located USING ({FILE}, {ROW})"

    def keep_live(self, views: Views, name: str, sql: str, *, states: bool = False) -> Iterator[dict[str, str]]:
        """Computes `sql`, rows of these files, and makes the view `name` of those that no deletion vector deletes.

        With `states` it returns column -> version of each row with a STATE, deleted ones included: an iterator, since
        a claim of a million rows would need gigabytes for them at once.
        """
        views.keep_sql(name, sql)
        versions = f", collect_list({STATE}.columns) AS states" if states else ""
        found = views.session.sql(
            f"SELECT {FILE}, collect_list({ROW}) AS rows{versions} FROM {name} GROUP BY 1"
        ).toArrow()
        located = {path: (url, rows) for url, path, rows in self.located(found)}
        dead = {located[path][0]: located[path][1] & vector for path, vector in self.vectors(located)}
        dead = {url: rows for url, rows in dead.items() if rows}
        if dead:
            content = pa.table({FILE: list(dead), "rows": pa.array(map(list, dead.values()), pa.list_(pa.int64()))})
            views.name(_DEAD, views.session.createDataFrame(content))
            pairs = f"SELECT {FILE}, explode(rows) AS {ROW} FROM {_DEAD}"
            views.name_sql(name, f"SELECT * FROM {name} LEFT ANTI JOIN ({pairs}) USING ({FILE}, {ROW})")
        return _dicts(found.column("states")) if states else iter(())

    def vectors(self, paths: Iterable[str]) -> Iterator[tuple[str, BitMap64]]:
        """Yields path and indexes of the deleted rows of each of these files. Reads each vector file once."""
        objects = VectorObjects(store=self.store, held=self.vector_objects)
        return read_vectors(objects, self.folder, {path: self.file(path) for path in paths})

    def file(self, path: str) -> Action:
        """Returns the `add` action of a file of this version."""
        found = self.state.files.get(path)
        if found is None:
            raise LakeError(
                f"version {self.state.version} of {self.table.name} has no file {path}",
                expected="a file that a claim has just read",
                remedy="retry: the state of the table is read again",
            )
        return found

    def located(self, found: pa.Table) -> Iterator[tuple[str, str, BitMap64]]:
        """Yields file URL, path in the log, and row indexes for each row of `found`.

        `found` has the columns FILE and `rows`.
        """
        for url, rows in zip(found.column(FILE).to_pylist(), found.column("rows"), strict=True):
            yield url, self.named[_plain(unquote(url))], BitMap64(rows.values.to_pylist())

    def key_of(self, path: str) -> str:
        """Returns the object's key. Paths in the log are encoded as in URLs."""
        return f"{self.folder}/{unquote(path)}"

    def _url(self, path: str) -> str:
        """Returns the file's URL for Spark."""
        return self.store.spark_url(self.key_of(path))

    @property
    def _state_type(self) -> str:
        deletion, columns = map(identifier, physical_parts(self.state.metadata, STATE))
        return f"STRUCT<{deletion}: STRING, {columns}: MAP<STRING, STRING>>"

    @staticmethod
    def _type(column: str, types: Mapping[str, str]) -> str:
        return STATE_TYPE if column == STATE else types[column]

    @staticmethod
    def _value(column: str, inside: str) -> str:
        """Returns SQL for a column's value.

        A struct is cast by the order of its parts, because their names inside files differ.
        """
        return f"CAST({identifier(inside)} AS {STATE_TYPE})" if column == STATE else identifier(inside)


def _pruned_by(type_: str) -> type | None:
    """Returns the Python type of the bounds by which files are found; None for a column without such bounds."""
    return str if type_ == "STRING" else int if _WHOLE_NUMBERS.fullmatch(type_) else None


def _plain(url: str) -> str:
    """Normalises a file URL: Spark writes one slash after `file:` where the store writes three."""
    return _FILE_SCHEME.sub("file:/", url)


def _dicts(states: pa.ChunkedArray) -> Iterator[dict[str, str]]:
    """Yields each map of the lists."""
    for of_file in states:
        maps = of_file.values
        for first in range(0, len(maps), _STATES):
            yield from map(dict, maps.slice(first, _STATES).to_pylist())
