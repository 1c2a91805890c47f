"""What tables hold at each boundary: the rows of all slices up to it, by their versions."""

import io
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from cdc_pipeline.record import OPERATION, VERSION, Operation, TableName
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import Row, slices_of


def tables_at_boundaries(
    pipeline: Pipeline, tables: Mapping[TableName, str | None]
) -> Iterator[dict[TableName, dict[Any, Row]]]:
    """Yields the rows of each table, boundary by boundary. `tables`: the id of each, None for one without an id.

    Rows are whole, and none changes its id. Rows without an id are only inserted, and numbered.
    """
    held: dict[TableName, dict[Any, Row]] = {table: {} for table in tables}
    slices = [(each.boundary_id, table, each) for table in tables for each in slices_of(pipeline, table)]
    for boundary in sorted({boundary for boundary, _, _ in slices}):
        for _, table, found in [each for each in slices if each[0] == boundary]:
            rows = [] if found.path is None else pq.read_table(io.BytesIO(pipeline.objects.get(found.path))).to_pylist()
            for row in rows:
                key = tables[table]
                id_ = len(held[table]) if key is None else row[key]
                before = held[table].get(id_)
                if before is None or before[VERSION] <= row[VERSION]:
                    held[table][id_] = row
        yield {
            table: {id_: row for id_, row in rows.items() if row[OPERATION] != Operation.DELETE}
            for table, rows in held.items()
        }
