"""Compares the rows of a lake table with rows of its source, row by row, on Spark."""

from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.connect import functions as spark_functions

from cdc_pipeline.lake.columns import definition
from cdc_pipeline.lake.differences import MOST_SHOWN, Comparison, Difference
from cdc_pipeline.lake.periods_sql import as_written
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import CURRENT, DELETED, END_VERSION, OPERATION, VERSION, Operation

_IN_SOURCE, _IN_LAKE, _COPIES = "_cdc_in_source", "_cdc_in_lake", "_cdc_copies"


def visible_rows(
    session: SparkSession, table: LakeTable, url: str, lake_version: int, names: Mapping[str, str], as_of: str | None
) -> DataFrame:
    """Returns what readers see of a version of a lake table: the schema's columns, without hidden rows.

    Of a history, that is the rows that it has for `as_of`, a version of the source; None: those of the periods that go
    on. `names`: column of the schema -> column of the lake table. A column that the table lacks is NULL.
    """
    rows = session.read.format("delta").option("versionAsOf", lake_version).load(url)
    if DELETED in rows.columns:
        rows = rows.where(f"NOT coalesce({identifier(DELETED)}, false)")
    if table.is_history:
        moment = text_literal(as_of or "")
        went_on = (
            f"{as_written(VERSION)} <= {moment} AND ({END_VERSION} IS NULL OR {as_written(END_VERSION)} > {moment})"
        )
        rows = rows.where(CURRENT if as_of is None else went_on)
    values = [_quoted(names[name]) if name in names else spark_functions.lit(None) for name in table.schema.names]
    return rows.select(*(value.alias(name) for value, name in zip(values, table.schema.names, strict=True)))


def compare(session: SparkSession, table: LakeTable, source_url: str, lake: DataFrame) -> Comparison:
    """Counts and shows the rows that differ between a source file and the rows of a lake table.

    `source_url` names a Parquet file with the columns of the table's schema; `lake` has them too. NULL equals NULL and
    NaN equals NaN.
    """
    source = _source_rows(session, table, source_url)
    if table.schema.is_keyless:
        return _compare_copies(source, lake)
    counts = (
        _joined(source, lake, table)
        .select(
            spark_functions.count(f"{_IN_SOURCE}"),
            spark_functions.count(f"{_IN_LAKE}"),
            spark_functions.count_if(_differs(table.schema.names)),
        )
        .collect()[0]
    )
    source_rows, differing, shown = source.count(), 0, tuple[Difference, ...]()
    if counts[2] or counts[0] > source_rows:  # the join repeats a source row for each further row of its id
        found = _differing(source, lake, table)
        differing, shown = found.count(), _shown(found, table)
    return Comparison(source_rows=source_rows, lake_rows=counts[1], differing_rows=differing, differences=shown)


def differing_rows(session: SparkSession, table: LakeTable, source_url: str, lake: DataFrame, *, most: int) -> pa.Table:
    """Returns at most `most` rows of a keyed table that differ, as events without a version, one per id.

    OPERATION is 'u', with the source's values, for a row that the lake lacks, has with other values or has more than
    once: columns that the source dropped keep theirs. It is 'd', with nothing but the id, for a row that only the lake
    has.
    """
    source = _source_rows(session, table, source_url)
    extra = _quoted(_IN_SOURCE).isNull()
    columns = [
        spark_functions.when(extra, _side(_IN_LAKE, name)).otherwise(_side(_IN_SOURCE, name))
        if name in table.schema.key
        else _side(_IN_SOURCE, name)
        for name in table.schema.names
    ]
    found = _differing(source, lake, table)
    operation = spark_functions.when(extra, Operation.DELETE.value).otherwise(Operation.UPDATE.value)
    named = [column.alias(name) for column, name in zip(columns, table.schema.names, strict=True)]
    return found.select(*named, operation.alias(OPERATION)).limit(most).toArrow()


def _source_rows(session: SparkSession, table: LakeTable, url: str) -> DataFrame:
    return session.read.schema(", ".join(map(definition, table.schema.columns))).parquet(url)


def _joined(source: DataFrame, lake: DataFrame, table: LakeTable) -> DataFrame:
    return _with_side(source, _IN_SOURCE).join(
        _with_side(lake, _IN_LAKE),
        on=reduce(lambda left, right: left & right, [_same(name) for name in table.schema.key]),
        how="full_outer",
    )


def _differing(source: DataFrame, lake: DataFrame, table: LakeTable) -> DataFrame:
    """Joins one row per id that differs. Of the lake's rows of an id it has any one, and their number as _COPIES."""
    others = [spark_functions.first(_quoted(name)).alias(name) for name in lake.columns if name not in table.schema.key]
    copies = spark_functions.count(spark_functions.lit(1)).alias(_COPIES)
    once = lake.groupBy(*map(_quoted, table.schema.key)).agg(copies, *others)
    return _joined(source, once, table).where(_is_doubled() | _differs(table.schema.names))


def _compare_copies(source: DataFrame, lake: DataFrame) -> Comparison:
    """Compares a keyless table: counts the copies of each content on both sides."""
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
    shown = copies.where(surplus != 0).limit(MOST_SHOWN).toArrow().to_pylist() if counts[2] else []
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


def _with_side(rows: DataFrame, side: str) -> DataFrame:
    """Prefixes each column with its side, and adds the column `side`, which is never NULL.

    After the outer join, that column is NULL exactly where this side has no row.
    """
    renamed = [_quoted(name).alias(f"{side}.{name}") for name in rows.columns]
    return rows.select(*renamed, spark_functions.lit(1).alias(side))


def _quoted(name: str) -> Column:
    return spark_functions.col(identifier(name))


def _side(side: str, name: str) -> Column:
    return _quoted(f"{side}.{name}")


def _same(name: str) -> Column:
    return _side(_IN_SOURCE, name).eqNullSafe(_side(_IN_LAKE, name))


def _is_doubled() -> Column:
    return _side(_IN_LAKE, _COPIES) > 1


def _differs(names: Sequence[str]) -> Column:
    """True where one side has no row, or a value differs."""
    sides = _quoted(_IN_SOURCE).isNull() | _quoted(_IN_LAKE).isNull()
    return reduce(lambda left, right: left | right, [~_same(name) for name in names], sides)


def _shown(found: DataFrame, table: LakeTable) -> tuple[Difference, ...]:
    ids = [spark_functions.coalesce(_side(_IN_SOURCE, name), _side(_IN_LAKE, name)) for name in table.schema.key]
    kind = (
        spark_functions.when(_quoted(_IN_LAKE).isNull(), "missing")
        .when(_quoted(_IN_SOURCE).isNull(), "extra")
        .when(_is_doubled(), "doubled")
        .otherwise("different")
    )
    columns = spark_functions.array_compact(
        spark_functions.array(*(spark_functions.when(~_same(name), name) for name in table.schema.names))
    )
    rows = (
        found.select(
            *(column.alias(f"id_{index}") for index, column in enumerate(ids)),
            kind.alias("kind"),
            columns.alias("columns"),
        )
        .orderBy(*(f"id_{index}" for index in range(len(ids))))
        .limit(MOST_SHOWN)
        .toArrow()  # collect() would give times of the host's zone, and fails at the ends of their range
        .to_pylist()
    )
    return tuple(
        Difference(
            id={name: row[f"id_{index}"] for index, name in enumerate(table.schema.key)},
            kind=row["kind"],
            columns=tuple(row["columns"]) if row["kind"] == "different" else (),
        )
        for row in rows
    )
