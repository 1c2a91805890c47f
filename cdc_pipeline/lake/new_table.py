"""Creates an empty lake table by one commit of our own, equal to the one of Spark's CREATE TABLE.

Refuses a log that has commits but no first version, and another table in the place of a history.
"""

from contextlib import suppress
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.columns import needs_mapping, stats_columns
from cdc_pipeline.lake.delta_log import Action, DeltaLog, VersionTaken, damaged_log
from cdc_pipeline.lake.fence import commit_info
from cdc_pipeline.lake.new_shape import physical_fields
from cdc_pipeline.lake.protocol import Clock, LakeTable
from cdc_pipeline.lake.shape import shape_of_source
from cdc_pipeline.lake.table_ddl import properties_of_shape
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, END_VERSION, STATE, VERSION, TableName
from cdc_pipeline.types import arrow_schema

_OWN_FIELDS = (
    pa.field(VERSION, pa.string()),
    pa.field(DELETED, pa.bool_()),
    pa.field(STATE, pa.struct([("deletion", pa.string()), ("columns", pa.map_(pa.string(), pa.string()))])),
)
_LEGACY = {"minReaderVersion": 1, "minWriterVersion": 2}
_WITH_FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7}
_OF_LEGACY_WRITERS = ("invariants", "appendOnly")
"""The features that writer version 2 implies. A protocol that lists features has to name them."""


def refuse_without_beginning(log: DeltaLog, store: ObjectStore) -> None:
    """Raises LakeError if the log has commits, but no version that can be read.

    A zombie leaves such commits when its table was removed meanwhile. They would count as versions of a new table.
    """
    if log.latest_version() is not None:
        return
    left = next((each.key for each in store.list_prefix(log.folder) if each.key.endswith(".json")), None)
    if left is not None and log.latest_version() is None:  # otherwise another process has created it meanwhile
        raise damaged_log(
            f"{left} is a commit of a log without beginning",
            expected="no commit where a table is created: the writer may have come back after cdc remove --lake",
        )


def create_plain_table(log: DeltaLog, table: LakeTable, clock: Clock) -> bool:
    """Creates the table unless it exists; durable on return. Returns False if Spark has to create it.

    That is a table with column mapping: Spark chooses the names that its columns have inside files.
    """
    names = [*table.schema.names, *(partition.lake_column for partition in table.partition_by)]
    if needs_mapping(names):
        return False
    if log.latest_version() is None:
        with suppress(VersionTaken):  # another process has created it meanwhile
            log.append(0, _actions(table, clock))
    return True


def _actions(table: LakeTable, clock: Clock) -> list[Action]:
    now = clock()
    partitions = [partition.lake_column for partition in table.partition_by]
    fields = [*arrow_schema(table.schema), *_OWN_FIELDS, *(pa.field(name, pa.string()) for name in partitions)]
    schema = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True).json()
    info = commit_info(operation="CREATE TABLE", user_metadata="", read_version=-1, now=now)
    metadata = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partitions,
        "configuration": properties_of_shape(
            shape_of_source(table.schema), stats_columns(table), vectors=table.deletion_vectors
        ),
        "createdTime": int(now.timestamp() * 1000),
    }
    return [info, {"metaData": metadata}, {"protocol": _protocol(schema, vectors=table.deletion_vectors)}]


def _protocol(schema: str, *, vectors: bool) -> Action:
    features = [*(["deletionVectors"] if vectors else []), *(["timestampNtz"] if '"timestamp_ntz"' in schema else [])]
    if not features:
        return dict(_LEGACY)
    return {**_WITH_FEATURES, "readerFeatures": features, "writerFeatures": [*features, *_OF_LEGACY_WRITERS]}


def refuse_other_table(metadata: Action, history: TableName, table: TableName) -> None:
    """Raises LakeError unless the lake's table `history` has the columns of a history table."""
    if END_VERSION not in physical_fields(metadata):
        raise LakeError(
            f"the lake has a table {history}, which is no history table of {table}",
            expected="no other table of this name",
            remedy="leave history out of pipeline.yml for the one table, or remove the other",
        )
