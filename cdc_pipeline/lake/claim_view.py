"""Slice files of a claim -> the view of its outcomes: read with explicit schemas, cut at the cutoff, folded."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from cdc_pipeline.lake.columns import definition
from cdc_pipeline.lake.fold_sql import (
    EVENT,
    LINEAGE,
    OUTCOME,
    SEGMENT,
    FoldShape,
    first_lineage,
    fold_complete_rows,
    fold_partial_rows,
    next_lineage,
    segments,
)
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import ABSENT, OLD_ID_PREFIX, OPERATION, VERSION, Column, TableSchema
from cdc_pipeline.types import resolve

_EVERY = "cdc_slice_row"


def claim_columns(work: ClaimWork) -> tuple[Column, ...]:
    """The columns that any slice of the claim has, in the order of their first slice; a name once."""
    return tuple({column.name: column for content in work.slices for column in content.schema.columns}.values())


@contextmanager
def outcome_view(
    session: SparkSession, store: ObjectStore, table: LakeTable, work: ClaimWork, url: str
) -> Iterator[str | None]:
    """The view OUTCOME exists inside. Yields the version of the claim's last truncate, or None.

    Without truncates, partial rows and key changes in one, nothing runs here: it is all plan.
    """
    views: list[str] = []

    def name_view(frame: DataFrame, name: str) -> None:
        frame.createOrReplaceTempView(name)
        views.append(name)

    shape = FoldShape(
        columns=tuple(column.name for column in claim_columns(work)),
        key=table.schema.key,
        soft=table.deletes == "soft",
    )
    partial = work.partial_rows > 0 or len({content.schema for content in work.slices}) > 1
    try:
        name_view(_slice_rows(session, store, work), _EVERY)
        truncated_at = _last_truncate(session, work)
        cutoff = max(work.cutoff_version, truncated_at or "")
        kept = f"{OPERATION} <> 't' AND {VERSION} >= {text_literal(cutoff)}"
        name_view(session.sql(f"SELECT * FROM {_EVERY} WHERE {kept}"), EVENT)
        if not partial:
            name_view(session.sql(fold_complete_rows(shape)), OUTCOME)
        else:
            name_view(session.sql(segments(shape)), SEGMENT)
            lake_rows = None
            if work.key_changes:
                name_view(_lineage(session), LINEAGE)
                lake_rows = f"(SELECT * FROM {table_at(url)} WHERE {VERSION} >= {text_literal(truncated_at or '')})"
            name_view(session.sql(fold_partial_rows(shape, lake_rows=lake_rows)), OUTCOME)
        yield truncated_at
    finally:
        for name in views:
            session.catalog.dropTempView(name)


def _slice_rows(session: SparkSession, store: ObjectStore, work: ClaimWork) -> DataFrame:
    """All rows of all slices; columns that a slice's schema lacks are NULL and listed as absent."""
    union = claim_columns(work)
    keys: dict[TableSchema, list[str]] = {}
    for content in work.slices:
        keys.setdefault(content.schema, []).append(store.spark_url(content.key))
    frames = []
    for schema, urls in keys.items():
        lacking = [column for column in union if column.name not in schema.names]
        absent = f"coalesce({ABSENT}, CAST(array() AS ARRAY<STRING>))"
        if lacking:
            names = ", ".join(text_literal(column.name) for column in lacking)
            absent = f"concat({absent}, array({names}))"
        frame = session.read.schema(_file_schema(schema)).parquet(*urls)
        old = [identifier(OLD_ID_PREFIX + name) for name in schema.key]
        present = [
            f"CAST(NULL AS {resolve(column.type).spark}) AS {identifier(column.name)}"
            if column in lacking
            else identifier(column.name)
            for column in union
        ]
        frames.append(frame.selectExpr(OPERATION, VERSION, f"{absent} AS {ABSENT}", *old, *present))
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionAll(frame)
    return rows


def _file_schema(schema: TableSchema) -> str:
    old = [Column(name=OLD_ID_PREFIX + column.name, type=column.type) for column in schema.key_columns]
    own = [f"{OPERATION} STRING", f"{VERSION} STRING", f"{ABSENT} ARRAY<STRING>"]
    return ", ".join([*own, *map(definition, [*old, *schema.columns])])


def _last_truncate(session: SparkSession, work: ClaimWork) -> str | None:
    if not work.truncates:
        return None
    found = session.sql(
        f"SELECT max({VERSION}) AS version FROM {_EVERY}"
        f" WHERE {OPERATION} = 't' AND {VERSION} >= {text_literal(work.cutoff_version)}"
    ).collect()
    version = found[0]["version"]
    return None if version is None else str(version)


def _lineage(session: SparkSession) -> DataFrame:
    """Jump until every moved life knows its root: rounds grow with the logarithm of the longest chain."""
    lineage = session.sql(first_lineage()).localCheckpoint()
    while True:
        lineage.createOrReplaceTempView(LINEAGE)
        following = session.sql(next_lineage()).localCheckpoint()
        lineage = following.drop("jumped")
        if following.where("jumped").isEmpty():
            return lineage
