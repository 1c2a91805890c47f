"""Data partition columns are the pipeline's own, however they are named."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.reshaping import reshaping_of
from cdc_pipeline.lake.schema_change import planned, shape_at
from cdc_pipeline.lake.shape import shape_of_source
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings import PartitionBy
from tests.support.lake import NOW, Feed, event, table_of
from tests.support.shapes import columns


@pytest.mark.parametrize("keeps_dropped", [True, False])
def test_a_partition_by_a_column_called_dropped_is_no_dropped_column(tmp_path: Path, *, keeps_dropped: bool) -> None:
    schema = columns("id int8 1", "dropped_at timestamp 2")
    partitions = (PartitionBy(column="dropped_at", unit="day"),)
    table = replace(table_of(schema, partition_by=partitions), keeps_dropped=keeps_dropped)
    store = LocalObjectStore(tmp_path)
    log = DeltaLog(store, lake_key(table.name))
    assert create_plain_table(log, table, lambda: NOW)
    assert shape_at(log, 0) == shape_of_source(schema)
    work = Feed(store=store, table=table).claim([event("i", 1, 1)])
    assert reshaping_of(log.metadata(0), 0, partial(planned, table, work), vectors=True).change.is_none
