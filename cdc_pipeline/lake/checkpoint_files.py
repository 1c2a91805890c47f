"""Reads what a Delta log has beside its commits: checkpoints, the name of the last one, and checksum files."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from cdc_pipeline.errors import LakeError, ObjectMissing
from cdc_pipeline.lake.arrow_actions import needed_columns
from cdc_pipeline.object_store import ObjectStore

_BATCH_ROWS = 65_536


def read_object(store: ObjectStore, key: str) -> dict[str, Any]:
    """Returns the JSON object of a file that only saves time; empty if it is missing or cannot be read."""
    try:
        document = json.loads(store.get(key))
    except (ObjectMissing, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def named_checkpoint(store: ObjectStore, key: str) -> dict[str, Any] | None:
    """Returns what the object `_last_checkpoint` names; None if it names no checkpoint.

    A name that cannot be read is none: it only saves time.
    """
    found = read_object(store, key)
    return found if type(found.get("version")) is int and type(found.get("parts", 1)) is int else None


def checkpoint_keys(folder: str, checkpoint: dict[str, Any]) -> list[str]:
    """Returns the files of a checkpoint that the log in `folder` names. Raises LakeError for one of another format."""
    if checkpoint.get("v2Checkpoint"):
        raise LakeError(
            f"version {checkpoint['version']} of {folder} has a checkpoint of Delta's format V2",
            expected="the classic format",
            remedy="ALTER TABLE ... SET TBLPROPERTIES ('delta.checkpointPolicy' = 'classic'), and commit to the"
            " table with Spark until it has a classic checkpoint",
        )
    stem, parts = f"{folder}/{checkpoint['version']:020d}.checkpoint", checkpoint.get("parts")
    if parts is None:
        return [f"{stem}.parquet"]
    return [f"{stem}.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]


def checkpoint_batches(store: ObjectStore, key: str, kinds: frozenset[str] | None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one checkpoint file. Raises LakeError if it is missing or damaged."""
    filesystem, root = store.filesystem()
    try:
        path = f"{root}/{key}"
        with pyarrow.parquet.ParquetFile(path, filesystem=filesystem, page_checksum_verification=True) as file:
            columns = needed_columns(file.schema_arrow, kinds)
            if columns:
                yield from file.iter_batches(_BATCH_ROWS, columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            store.get(key)  # raises the error of a store that is away; a damaged file can be fetched
        raise LakeError(
            f"the checkpoint {key} cannot be read: {error}",
            expected="the file as it was written",
            remedy="bring the file back from a copy of the lake; or, if the log still has all commits from version 0"
            " on, delete the file and _last_checkpoint beside it; or move the table's folder away and run cdc snapshot"
            " on the table",
        ) from error
