"""The rows of a checkpoint as Arrow: the actions of a Delta log in the columns of PROTOCOL.md, "Checkpoint Schema"."""

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from cdc_pipeline.lake.arrow_actions import REPEATED
from cdc_pipeline.lake.delta_log import Action, Commit, FileIdentity, file_identity

_TEXT, _MAP, _TEXTS = pa.string(), pa.map_(pa.string(), pa.string()), pa.list_(pa.string())
_VECTOR = pa.struct(
    {
        "storageType": _TEXT,
        "pathOrInlineDv": _TEXT,
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
        "maxRowIndex": pa.int64(),
    }
)
ROWS = pa.schema(
    {
        "txn": pa.struct({"appId": _TEXT, "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": _TEXT,
                "partitionValues": _MAP,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": _TEXT,
                "tags": _MAP,
                "deletionVector": _VECTOR,
            }
        ),
        "remove": pa.struct(
            {
                "path": _TEXT,
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _MAP,
                "size": pa.int64(),
                "deletionVector": _VECTOR,
            }
        ),
        "metaData": pa.struct(
            {
                "id": _TEXT,
                "name": _TEXT,
                "description": _TEXT,
                "format": pa.struct({"provider": _TEXT, "options": _MAP}),
                "schemaString": _TEXT,
                "partitionColumns": _TEXTS,
                "configuration": _MAP,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _TEXTS,
                "writerFeatures": _TEXTS,
            }
        ),
    }
)
"""Each row has one of these columns; the others are NULL."""
_NOT_IN_CHECKPOINTS = frozenset({"commitInfo", "cdc"})


BETWEEN = "\n"
"""Between the path of a file and its deletion vector, in the text of a file's identity."""


class UnknownContent(Exception):
    """The log has actions or fields that this writer does not know. Only Delta can write a checkpoint of it."""


class NewerActions:
    """The actions of the commits after a checkpoint, as far as later ones of them do not replace earlier ones."""

    def __init__(self) -> None:
        self.transactions: dict[str, Action] = {}
        self.latest: dict[str, Action] = {}
        """The last `metaData` and the last `protocol`, if there are any."""
        self.added: dict[FileIdentity, Action] = {}
        self.removed: dict[FileIdentity, Action] = {}

    def follow(self, commit: Commit) -> None:
        for action in commit.actions:
            for kind, content in action.items():
                self._follow(kind, content)

    @property
    def identities(self) -> pa.Array:
        """The identity of each file that one of the actions adds or removes, as one text."""
        return pa.array([BETWEEN.join(file) for file in (*self.added, *self.removed)], pa.string())

    def rows(self, kinds: Collection[str], kept_since: int) -> pa.RecordBatch:
        """Returns the rows of these kinds, without removed files whose retention ended before `kept_since` (ms)."""
        of_kind: Mapping[str, Iterable[Action]] = {
            "txn": self.transactions.values(),
            "add": self.added.values(),
            "remove": [file for file in self.removed.values() if file.get("deletionTimestamp", 0) > kept_since],
            **{kind: [content] for kind, content in self.latest.items()},
        }
        rows = [{kind: encoded(ROWS.field(kind).type, content)} for kind in kinds for content in of_kind.get(kind, ())]
        return pa.RecordBatch.from_pylist(rows, schema=ROWS)

    def _follow(self, kind: str, content: Action) -> None:
        if kind in _NOT_IN_CHECKPOINTS:
            return
        if kind not in ROWS.names:
            raise UnknownContent(f"an action of the kind {kind}")
        if kind == "txn":
            self.transactions[content["appId"]] = content
        elif kind == "add":
            _check_fields(kind, content, REPEATED[kind])
            self.removed.pop(file_identity(content), None)
            self.added[file_identity(content)] = {**content, "dataChange": False}
        elif kind == "remove":
            _check_fields(kind, content, REPEATED[kind])
            self.added.pop(file_identity(content), None)
            self.removed[file_identity(content)] = {**content, "dataChange": False}
        else:
            _check_fields(kind, content)
            self.latest[kind] = content


def conformed(found: pa.Array, wanted: pa.DataType, *, is_strict: bool) -> pa.Array:
    """Returns a column of a checkpoint with the type that ROWS has for it. Fields that the checkpoint lacks are NULL.

    `is_strict`: raises UnknownContent for a field with values that ROWS does not have. Otherwise such fields are left
    out.
    """
    if not pa.types.is_struct(wanted):
        return found if found.type == wanted else found.cast(wanted)
    names, known = {field.name for field in found.type}, {field.name for field in wanted}
    for name in names - known if is_strict else ():
        if found.field(name).null_count < len(found):
            raise UnknownContent(f"the field {name}")
    parts = [
        conformed(found.field(field.name), field.type, is_strict=is_strict)
        if field.name in names
        else pa.nulls(len(found), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=found.is_null())


def _check_fields(kind: str, content: Action, omitted: Collection[str] = ()) -> None:
    known = {field.name for field in ROWS.field(kind).type}
    for name, value in content.items():
        if value is not None and name not in known and name not in omitted:
            raise UnknownContent(f"the field {name} of {kind}")


def encoded(type_: pa.DataType, content: object) -> object:
    """Returns JSON of an action as Arrow takes it: a map as a list of pairs."""
    if not isinstance(content, Mapping):
        return content
    if pa.types.is_map(type_):
        return list(content.items())
    if pa.types.is_struct(type_):
        return {field.name: encoded(field.type, content.get(field.name)) for field in type_}
    return content
