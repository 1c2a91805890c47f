"""The columns of a snapshot that replaces a lake table with other columns.

Until the snapshot is published, an empty table beside the lake's table has these columns.
"""

import json
from collections.abc import Collection, Iterator

from pyspark.sql.types import StructType

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.columns import OWN_TYPES
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.table_ddl import STATS, VECTORS
from cdc_pipeline.lake.table_features import unknown_features
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import table_of_history
from cdc_pipeline.types import resolve

_VERSIONS = ("minReaderVersion", "minWriterVersion")
_FEATURES = ("readerFeatures", "writerFeatures")
_PHYSICAL, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
_LISTS_READER, _LISTS_WRITER = 3, 7
"""From these protocol versions on, a protocol lists its features, even if there are none."""
_IMPLIED = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""Features that a protocol has from these writer versions on and does not list (PROTOCOL.md, "Table Features")."""
_OF_THE_PIPELINE = ("delta.", "cdc.")
_RETENTION = ("delta.checkpointInterval", "delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
_KEPT = ("delta.enableChangeDataFeed", "delta.enableExpiredLogCleanup", *_RETENTION)
_GIVEN = ("cdc.", "delta.columnMapping.", STATS, VECTORS, *_RETENTION)
"""Properties of Delta that users may have set, and that depend on no column."""
MOST_MAPPED = "delta.columnMapping.maxColumnId"


def shape_key(table: LakeTable, snapshot_id: str) -> str:
    """Returns the object-store key of the empty table. `cdc clean` looks for that of a history at its table, too."""
    name = table_of_history(table.name) if table.is_history else table.name
    return f"{staging_prefix(name, snapshot_id)}/shape"


def shape_log(store: ObjectStore, table: LakeTable, snapshot_id: str) -> DeltaLog | None:
    """Returns the log of the empty table. None if the snapshot fits the lake's table as it is."""
    log = DeltaLog(store, shape_key(table, snapshot_id))
    return None if log.latest_version() is None else log


def has_another_shape(log: DeltaLog, table: LakeTable) -> bool:
    """Whether the lake's table exists and has other columns, types or data partitions than `table`."""
    latest = log.latest_version()
    if latest is None:
        return False
    metadata = log.metadata(latest)
    found = dict(delta_fields(metadata))
    partitions = [partition.lake_column for partition in table.partition_by]
    wanted = {column.name: resolve(column.type).spark for column in table.schema.columns}
    wanted |= dict.fromkeys(partitions, "STRING")
    own = {name for name, _ in OWN_TYPES}
    theirs = {name: type_ for name, type_ in found.items() if name not in own}
    return theirs != wanted or partitions != metadata["partitionColumns"] or not own <= found.keys()


def shape_actions(log: DeltaLog, table: LakeTable, latest: int, snapshot_id: str) -> list[Action]:
    """Returns the actions that give the table the snapshot's columns, for the commit that publishes the snapshot.

    The table keeps its description, and what users set among its properties. Returns none if the lake's table already
    fits.
    """
    shape = log.beside(shape_key(table, snapshot_id))
    version = shape.latest_version()
    if version is None:
        return []
    before, after = log.metadata(latest), shape.metadata(version)
    kept = {name: before[name] for name in before.keys() & {"id", "name", "description", "createdTime"}}
    kept["configuration"] = {**properties_of_pipeline(after), **properties_of_users(before)}
    made = shape.newest("protocol", version)
    return [
        {"protocol": both_protocols(log.newest("protocol", latest), made, without=unknown_features(made))},
        {"metaData": after | kept},
    ]


def properties_of_users(metadata: Action) -> dict[str, str]:
    """Returns the table's properties that users may have set."""
    properties = (metadata.get("configuration") or {}).items()
    return {name: value for name, value in properties if name in _KEPT or not name.startswith(_OF_THE_PIPELINE)}


def properties_of_pipeline(metadata: Action) -> dict[str, str]:
    """Returns the properties that the pipeline gives to a table that Spark creates.

    Spark adds those that its server has as defaults for all tables. By a commit of the pipeline's own, some would break
    the lake's table.
    """
    properties = (metadata.get("configuration") or {}).items()
    return {name: value for name, value in properties if name.startswith(_GIVEN)}


def physical_names(store: ObjectStore, table: LakeTable, snapshot_id: str) -> dict[str, tuple[str, int | None]]:
    """Returns lake column -> (name inside files, field id).

    Without column mapping the names are equal and the id is None.
    """
    log = shape_log(store, table, snapshot_id) or DeltaLog(store, lake_key(table.name))
    latest = log.latest_version()
    if latest is None:
        raise LakeError(f"there is no lake table {table.name}", remedy="create it before its snapshot is compacted")
    return physical_fields(log.metadata(latest))


def physical_fields(metadata: Action) -> dict[str, tuple[str, int | None]]:
    """Returns the same as `physical_names`, for the table that `metadata` describes."""
    return {
        field["name"]: (field["metadata"].get(_PHYSICAL, field["name"]), field["metadata"].get(_ID))
        for field in _fields(metadata)
    }


def physical_parts(metadata: Action, name: str) -> list[str]:
    """Returns the names that the parts of a struct column have inside files."""
    (field,) = (field for field in _fields(metadata) if field["name"] == name)
    return [part["metadata"].get(_PHYSICAL, part["name"]) for part in field["type"]["fields"]]


def delta_fields(metadata: Action) -> list[tuple[str, str]]:
    """Returns name and type, as Spark's DDL writes it, of all columns."""
    found = StructType.fromJson(json.loads(metadata["schemaString"])).fields
    return [(field.name, field.dataType.simpleString().upper()) for field in found]


def with_fields_of(before: Action, after: Action) -> Action:
    """Returns `after`, changed so that it also describes the files that `before` describes.

    Columns of both keep their names inside files. New columns get new field ids.
    """
    known = {field["name"]: field for field in _fields(before)}
    most = int(before["configuration"][MOST_MAPPED])
    fields = []
    for field in _fields(after):
        if field["name"] not in known:
            most += 1
            field["metadata"][_ID] = most
        fields.append(known.get(field["name"], field))
    schema = json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False)
    return {**after, "schemaString": schema, "configuration": {**after["configuration"], MOST_MAPPED: str(most)}}


def both_protocols(first: Action, second: Action, without: Collection[str] = ()) -> Action:
    """Returns a protocol with what readers and writers of either need, except the features `without`."""
    versions = {name: max(first.get(name, 0), second.get(name, 0)) for name in _VERSIONS}
    features = {name: sorted({*_features(first, name), *_features(second, name)} - {*without}) for name in _FEATURES}
    listed = {
        _FEATURES[0]: versions[_VERSIONS[0]] >= _LISTS_READER,
        _FEATURES[1]: versions[_VERSIONS[1]] >= _LISTS_WRITER,
    }
    return versions | {name: found for name, found in features.items() if listed[name]}


def _features(protocol: Action, name: str) -> Iterator[str]:
    """Yields the features that a protocol lists under `name`, or has by its writer version."""
    yield from protocol.get(name, ())
    if protocol.get(_VERSIONS[1], 0) < _LISTS_WRITER:
        implied = [feature for version, has in _IMPLIED.items() if version <= protocol[_VERSIONS[1]] for feature in has]
        yield from (feature for feature in implied if name == _FEATURES[1] or feature == "columnMapping")


def _fields(metadata: Action) -> list[Action]:
    found: list[Action] = json.loads(metadata["schemaString"])["fields"]
    return found
