"""Slice files of a claim -> the views that its MERGE is made of: the events that count, and maybe all rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from cdc_pipeline.lake.columns import definition
from cdc_pipeline.lake.fold_sql import EVENT, LACKING, FoldShape
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.lake.session import checkpointed
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import ABSENT, OLD_ID_PREFIX, OPERATION, VERSION, Column, TableSchema

EVERY = "cdc_slice_row"
_NO_NAMES = "CAST(array() AS ARRAY<STRING>)"


class Views:
    """Temporary views by name, so that plans can be put together as SQL."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._names: set[str] = set()
        self._kept: list[DataFrame] = []

    def name(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._names.add(name)

    def name_sql(self, name: str, sql: str) -> None:
        self.name(name, self.session.sql(sql))

    def keep_sql(self, name: str, sql: str) -> DataFrame:
        """Computed now and once."""
        frame = checkpointed(self.session, self.session.sql(sql))
        self._kept.append(frame)
        self.name(name, frame)
        return frame

    def drop_all(self) -> None:
        for name in self._names:
            self.session.catalog.dropTempView(name)


@contextmanager
def opened_views(session: SparkSession) -> Iterator[Views]:
    views = Views(session)
    try:
        yield views
    finally:
        views.drop_all()


def claim_columns(work: ClaimWork) -> tuple[Column, ...]:
    """The columns that any slice of the claim has, in the order of their first slice; a name once."""
    return tuple({column.name: column for content in work.slices for column in content.schema.columns}.values())


def fold_shape(table: LakeTable, work: ClaimWork, lake_columns: Sequence[tuple[str, str]]) -> FoldShape:
    """`lake_columns`: name and Spark type of all source columns that the lake has; never fewer than the claim's."""
    anywhere = {column.name for column in claim_columns(work)}
    everywhere = set.intersection(*(set(content.schema.names) for content in work.slices))
    return FoldShape(
        columns=tuple(lake_columns),
        key=table.schema.key,
        lacking=frozenset(name for name, _ in lake_columns if name not in everywhere),
        dropped=frozenset(name for name, _ in lake_columns if name not in anywhere),
    )


def name_events(views: Views, store: ObjectStore, table: LakeTable, work: ClaimWork, shape: FoldShape) -> None:
    """EVENT without truncates, without what the snapshot holds already and without what a truncate took for good.

    A claim that truncates and moves has EVERY, too: all rows, in which `truncates_in` looks.
    """
    rows = _slice_rows(views.session, store, work, shape)
    if work.truncates and work.key_changes:
        views.name(EVERY, rows)
    kept = [f"{OPERATION} <> 't'", f"{VERSION} >= {text_literal(work.cutoff_version)}"]
    if table.deletes == "hard" or table.schema.is_bag:
        kept.append(f"{VERSION} > {text_literal(work.truncated_at)}")
    views.name(EVENT, rows.where(" AND ".join(kept)))


def truncates_in(session: SparkSession, work: ClaimWork) -> tuple[str, ...]:
    """Versions of the claim's own truncates."""
    if not work.truncates:
        return ()
    rows = session.sql(
        f"SELECT DISTINCT {VERSION} AS version FROM {EVERY}"
        f" WHERE {OPERATION} = 't' AND {VERSION} >= {text_literal(work.cutoff_version)}"
    ).collect()
    return tuple(sorted(str(row["version"]) for row in rows))


def _slice_rows(session: SparkSession, store: ObjectStore, work: ClaimWork, shape: FoldShape) -> DataFrame:
    """All rows of all slices. A column that a slice's schema lacks is NULL; an insert tells it so."""
    keys: dict[TableSchema, list[str]] = {}
    for content in work.slices:
        keys.setdefault(content.schema, []).append(store.spark_url(content.key))
    frames = []
    for schema, urls in keys.items():
        lacking = [name for name in shape.names if name not in schema.names]
        names = f"IF({OPERATION} IN ('u', 'm'), array({', '.join(map(text_literal, lacking))}), {_NO_NAMES})"
        present = [
            f"CAST(NULL AS {type_}) AS {identifier(name)}" if name in lacking else identifier(name)
            for name, type_ in shape.columns
        ]
        frame = session.read.schema(_file_schema(schema)).parquet(*urls)
        frames.append(
            frame.selectExpr(
                OPERATION,
                VERSION,
                f"coalesce({ABSENT}, {_NO_NAMES}) AS {ABSENT}",
                f"{names if lacking else _NO_NAMES} AS {LACKING}",
                *(identifier(OLD_ID_PREFIX + name) for name in schema.key),
                *present,
            )
        )
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionAll(frame)
    return rows


def _file_schema(schema: TableSchema) -> str:
    old = [Column(name=OLD_ID_PREFIX + column.name, type=column.type) for column in schema.key_columns]
    own = [f"{OPERATION} STRING", f"{VERSION} STRING", f"{ABSENT} ARRAY<STRING>"]
    return ", ".join([*own, *map(definition, [*old, *schema.columns])])
