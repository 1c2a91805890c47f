"""A lake table at one version against the rows of its source at one position, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.connect import functions as spark_functions

from cdc_pipeline.lake.columns import definition
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier
from cdc_pipeline.lake.session import spark_calls
from cdc_pipeline.record import DELETED, OPERATION, Operation

MOST_SHOWN = 100
_IN_SOURCE, _IN_LAKE = "_cdc_in_source", "_cdc_in_lake"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`kind`: missing (in the source only), extra (in the lake only) or different; `columns` only for the last."""

    id: dict[str, Any]
    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`differing_rows` counts all of them, `differences` shows the first MOST_SHOWN by id.

    Rows of a table without a key are counted per content, which then is their id: they are missing or extra.
    """

    source_rows: int
    lake_rows: int
    differing_rows: int
    differences: tuple[Difference, ...]


def compare(
    session: SparkSession, table: LakeTable, source_urls: Sequence[str], lake_url: str, lake_version: int
) -> Comparison:
    """`source_urls`: Parquet files with the columns of the table's schema, which the lake has too.

    NULL equals NULL and NaN equals NaN.
    """
    with spark_calls(f"comparing {table.name} with its source"):
        names = table.schema.names
        source, lake = _both(session, table, source_urls, lake_url, lake_version)
        if table.schema.is_bag:
            return _compare_copies(source, lake)
        joined = _joined(source, lake, table)
        counts = joined.select(
            spark_functions.count(f"{_IN_SOURCE}"),
            spark_functions.count(f"{_IN_LAKE}"),
            spark_functions.count_if(_differs(names)),
        ).collect()[0]
        shown = _shown(joined, table) if counts[2] else ()
    return Comparison(source_rows=counts[0], lake_rows=counts[1], differing_rows=counts[2], differences=shown)


def differing_rows(
    session: SparkSession, table: LakeTable, source_url: str, lake_url: str, lake_version: int, *, most: int
) -> pa.Table:
    """At most `most` rows of a table with a key that differ, with the source's values, and OPERATION: 'i' for a row
    that the lake lacks or has otherwise; 'd', with nothing but its id, for one that it should not have.
    """
    source, lake = _both(session, table, [source_url], lake_url, lake_version)
    extra = _quoted(_IN_SOURCE).isNull()
    columns = [
        spark_functions.when(extra, _side(_IN_LAKE, name)).otherwise(_side(_IN_SOURCE, name))
        if name in table.schema.key
        else _side(_IN_SOURCE, name)
        for name in table.schema.names
    ]
    found = _joined(source, lake, table).where(_differs(table.schema.names))
    operation = spark_functions.when(extra, Operation.DELETE.value).otherwise(Operation.INSERT.value)
    named = [column.alias(name) for column, name in zip(columns, table.schema.names, strict=True)]
    return found.select(*named, operation.alias(OPERATION)).limit(most).toArrow()


def _both(
    session: SparkSession, table: LakeTable, source_urls: Sequence[str], lake_url: str, lake_version: int
) -> tuple[DataFrame, DataFrame]:
    """The schema's columns on both sides; of the lake, what readers see."""
    lake = session.read.format("delta").option("versionAsOf", lake_version).load(lake_url)
    if DELETED in lake.columns:
        lake = lake.where(f"NOT coalesce({identifier(DELETED)}, false)")
    lake = lake.select(*(_quoted(name) for name in table.schema.names))
    definitions = ", ".join(map(definition, table.schema.columns))
    source = session.read.schema(definitions).parquet(*source_urls) if source_urls else lake.limit(0)
    return source, lake


def _joined(source: DataFrame, lake: DataFrame, table: LakeTable) -> DataFrame:
    return _marked(source, _IN_SOURCE).join(
        _marked(lake, _IN_LAKE),
        on=reduce(lambda left, right: left & right, [_same(name) for name in table.schema.key]),
        how="full_outer",
    )


def _compare_copies(source: DataFrame, lake: DataFrame) -> Comparison:
    names = lake.columns
    both = source.select(*map(_quoted, names), spark_functions.lit(1).alias(_IN_SOURCE)).unionByName(
        lake.select(*map(_quoted, names), spark_functions.lit(0).alias(_IN_SOURCE))
    )
    copies = both.groupBy(*map(_quoted, names)).agg(
        spark_functions.count_if(_quoted(_IN_SOURCE) == 1).alias(_IN_SOURCE),
        spark_functions.count_if(_quoted(_IN_SOURCE) == 0).alias(_IN_LAKE),
    )
    surplus = _quoted(_IN_SOURCE) - _quoted(_IN_LAKE)
    counts = copies.select(
        spark_functions.coalesce(spark_functions.sum(_IN_SOURCE), spark_functions.lit(0)),
        spark_functions.coalesce(spark_functions.sum(_IN_LAKE), spark_functions.lit(0)),
        spark_functions.coalesce(spark_functions.sum(spark_functions.abs(surplus)), spark_functions.lit(0)),
    ).collect()[0]
    shown = copies.where(surplus != 0).limit(MOST_SHOWN).collect() if counts[2] else []
    return Comparison(
        source_rows=counts[0],
        lake_rows=counts[1],
        differing_rows=counts[2],
        differences=tuple(
            Difference(
                id={name: row[name] for name in names},
                kind="missing" if row[_IN_SOURCE] > row[_IN_LAKE] else "extra",
                columns=(),
            )
            for row in shown
        ),
    )


def _marked(rows: DataFrame, mark: str) -> DataFrame:
    """Columns named apart by their side, with a column that is never NULL."""
    renamed = [_quoted(name).alias(f"{mark}.{name}") for name in rows.columns]
    return rows.select(*renamed, spark_functions.lit(1).alias(mark))


def _quoted(name: str) -> Column:
    return spark_functions.col(identifier(name))


def _side(mark: str, name: str) -> Column:
    return _quoted(f"{mark}.{name}")


def _same(name: str) -> Column:
    return _side(_IN_SOURCE, name).eqNullSafe(_side(_IN_LAKE, name))


def _differs(names: Sequence[str]) -> Column:
    """One side is missing, or a value is another."""
    sides = _quoted(_IN_SOURCE).isNull() | _quoted(_IN_LAKE).isNull()
    return reduce(lambda left, right: left | right, [~_same(name) for name in names], sides)


def _shown(joined: DataFrame, table: LakeTable) -> tuple[Difference, ...]:
    ids = [spark_functions.coalesce(_side(_IN_SOURCE, name), _side(_IN_LAKE, name)) for name in table.schema.key]
    kind = (
        spark_functions.when(_quoted(_IN_LAKE).isNull(), "missing")
        .when(_quoted(_IN_SOURCE).isNull(), "extra")
        .otherwise("different")
    )
    columns = spark_functions.array_compact(
        spark_functions.array(*(spark_functions.when(~_same(name), name) for name in table.schema.names))
    )
    rows = (
        joined.where(_differs(table.schema.names))
        .select(
            *(column.alias(f"id_{place}") for place, column in enumerate(ids)),
            kind.alias("kind"),
            columns.alias("columns"),
        )
        .orderBy(*(f"id_{place}" for place in range(len(ids))))
        .limit(MOST_SHOWN)
        .collect()
    )
    return tuple(
        Difference(
            id={name: row[f"id_{place}"] for place, name in enumerate(table.schema.key)},
            kind=row["kind"],
            columns=tuple(row["columns"]) if row["kind"] == "different" else (),
        )
        for row in rows
    )
