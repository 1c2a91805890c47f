"""Finds an id that several staged rows have: the lake's table would keep each of these rows."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.connect.functions import count, lit

from cdc_pipeline.lake.columns import definition
from cdc_pipeline.lake.few_rows import staged_rows
from cdc_pipeline.lake.quoting import identifier
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableSchema
from cdc_pipeline.types import arrow_schema

_TIMES = "_cdc_times"


def repeated_of_few(
    store: ObjectStore, ids: TableSchema, staged_keys: Sequence[str]
) -> list[tuple[object, ...]] | None:
    """Returns an id that is there more than once, if there is one. `ids`: the columns of the id.

    Returns None if Spark has to look: if the rows are too many, or if Arrow does not compare the ids as the lake does,
    such as 0.0 and -0.0.
    """
    if any(pa.types.is_nested(column.type) or pa.types.is_floating(column.type) for column in arrow_schema(ids)):
        return None
    rows = staged_rows(store, ids, staged_keys)
    if rows is None:
        return None
    numbers = [str(number) for number in range(rows.num_columns)]
    found = rows.rename_columns(numbers).group_by(numbers).aggregate([([], "count_all")])
    repeated = found.filter(pc.greater(found["count_all"], 1)).slice(0, 1).select(numbers)
    return [tuple(row.values()) for row in repeated.to_pylist()]


def repeated_of_many(
    session: SparkSession, store: ObjectStore, ids: TableSchema, staged_keys: Sequence[str]
) -> list[tuple[object, ...]]:
    """Returns the same by Spark, which spills to disk."""
    staged = session.read.schema(", ".join(map(definition, ids.columns))).parquet(*map(store.spark_url, staged_keys))
    times = staged.groupBy(*map(identifier, ids.names)).agg(count(lit(1)).alias(_TIMES))
    found = times.where(f"{_TIMES} > 1").drop(_TIMES).limit(1).toArrow().to_pylist()
    return [tuple(row.values()) for row in found]
