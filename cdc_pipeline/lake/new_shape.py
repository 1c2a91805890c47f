"""The columns of a snapshot that is to replace a lake table of other columns: an empty table beside it, until then."""

import json

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.columns import OWN_TYPES
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.types import resolve

_VERSIONS = ("minReaderVersion", "minWriterVersion")
_FEATURES = ("readerFeatures", "writerFeatures")


def shape_key(table: LakeTable, snapshot_id: str) -> str:
    """Where the empty table lies."""
    return f"{staging_prefix(table.name, snapshot_id)}/shape"


def shape_log(store: ObjectStore, table: LakeTable, snapshot_id: str) -> DeltaLog | None:
    """None where the snapshot fits the lake's table as it is."""
    log = DeltaLog(store, shape_key(table, snapshot_id))
    return None if log.latest_version() is None else log


def has_another_shape(session: SparkSession, log: DeltaLog, table: LakeTable, url: str) -> bool:
    """Whether the table at `url` has other columns, types or data partitions than `table`; not if there is none."""
    latest = log.latest_version()
    if latest is None:
        return False
    fields = session.read.format("delta").load(url).schema.fields
    found = {field.name: field.dataType.simpleString().upper() for field in fields}
    partitions = [partition.lake_column for partition in table.partition_by]
    wanted = {column.name: resolve(column.type).spark for column in table.schema.columns}
    wanted |= dict.fromkeys(partitions, "STRING")
    own = {name for name, _ in OWN_TYPES}
    theirs = {name: type_ for name, type_ in found.items() if name not in own}
    return theirs != wanted or partitions != log.metadata(latest)["partitionColumns"] or not own <= found.keys()


def shape_actions(log: DeltaLog, table: LakeTable, latest: int, snapshot_id: str) -> list[Action]:
    """What gives the table the snapshot's columns, in the commit that shows its files; nothing where they fit."""
    shape = log.beside(shape_key(table, snapshot_id))
    version = shape.latest_version()
    if version is None:
        return []
    before, after = log.metadata(latest), shape.metadata(version)
    kept = {name: before[name] for name in ("id", "name", "createdTime") if name in before}
    return [
        {"protocol": _both(log.newest("protocol", latest), shape.newest("protocol", version))},
        {"metaData": after | kept},
    ]


def physical_names(store: ObjectStore, table: LakeTable, snapshot_id: str) -> dict[str, tuple[str, int | None]]:
    """Lake column -> (its name inside Parquet files, its field id); both plain unless the table maps its names."""
    log = shape_log(store, table, snapshot_id) or DeltaLog(store, lake_key(table.name))
    latest = log.latest_version()
    if latest is None:
        raise LakeError(f"there is no lake table {table.name}", remedy="create it before its snapshot is compacted")
    fields = json.loads(log.metadata(latest)["schemaString"])["fields"]
    return {
        field["name"]: (
            field["metadata"].get("delta.columnMapping.physicalName", field["name"]),
            field["metadata"].get("delta.columnMapping.id"),
        )
        for field in fields
    }


def _both(first: Action, second: Action) -> Action:
    """What readers and writers of either need."""
    versions = {name: max(first.get(name, 0), second.get(name, 0)) for name in _VERSIONS}
    features = {name: sorted({*first.get(name, ()), *second.get(name, ())}) for name in _FEATURES}
    return versions | {name: found for name, found in features.items() if found}
