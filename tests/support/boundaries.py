"""What tables hold at each boundary: the rows of all slices up to it, by their versions."""

import io
from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from cdc_pipeline.record import OPERATION, VERSION, Operation, TableName
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import Row, slices_of


def tables_at_boundaries(pipeline: Pipeline, tables: Sequence[TableName]) -> Iterator[dict[TableName, dict[int, Row]]]:
    """Yields the rows of each table by `id`, boundary by boundary. Rows are whole, and none changes its id."""
    slices = [(each.boundary_id, table, each) for table in tables for each in slices_of(pipeline, table)]
    held: dict[TableName, dict[int, Row]] = {table: {} for table in tables}
    boundaries = sorted({boundary for boundary, _, _ in slices})
    for boundary in boundaries:
        for at, table, found in slices:
            if at == boundary and found.path is not None:
                for row in pq.read_table(io.BytesIO(pipeline.objects.get(found.path))).to_pylist():
                    before = held[table].get(row["id"])
                    if before is None or before[VERSION] <= row[VERSION]:
                        held[table][row["id"]] = row
        yield {
            table: {id_: row for id_, row in rows.items() if row[OPERATION] != Operation.DELETE}
            for table, rows in held.items()
        }
