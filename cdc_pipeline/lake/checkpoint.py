"""Writes a checkpoint of a Delta log without Spark: the rows of the checkpoint before it, and the commits since.

The format is the classic one of Delta's PROTOCOL.md, one Parquet file. Older rows are copied in batches, so memory
does not grow with the table. Only the time does, which is why large tables get checkpoints more rarely.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from cdc_pipeline.errors import ObjectExists
from cdc_pipeline.lake.checkpoint_rows import BETWEEN, ROWS, NewerActions, UnknownContent, conformed
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import OnStep, step

Mask = npt.NDArray[np.bool_]
_REPLACED = ("metaData", "protocol")
"""Kinds of actions of which only the last one counts."""


def write_checkpoint(store: ObjectStore, log: DeltaLog, version: int, kept_since: int, on_step: OnStep) -> None:
    """Writes the checkpoint of `version` and makes it the log's last one. Both are durable on return.

    Files that were removed at or before `kept_since` (milliseconds since 1970) are left out: no reader needs them any
    more. If the process dies before the log names the checkpoint as its last one, readers use the one before it.
    Raises UnknownContent for a log that this writer does not know completely.
    """
    before, keys = log.checkpoint_before(version)
    newer = NewerActions()
    for number in range(before + 1, version + 1):
        commit = log.read(number)
        if commit is None:
            raise UnknownContent(f"version {number}, which is not there")
        newer.follow(commit)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.parquet"
        written = _write(file, log, keys, newer, kept_since)
        with step(on_step, "lake_log.checkpoint"):
            try:
                store.put_file_if_absent(log.checkpoint_key(version), file)
            except ObjectExists:  # another writer's checkpoint of this version has the same content
                return
    with step(on_step, "lake_log.name_checkpoint"):
        store.overwrite(log.last_checkpoint_key, json.dumps({"version": version, **written}).encode())


def _write(file: Path, log: DeltaLog, keys: list[str], newer: NewerActions, kept_since: int) -> dict[str, int]:
    """Returns what the log says about its last checkpoint."""
    rows, files, described = 0, 0, 0
    with closing(pyarrow.parquet.ParquetWriter(file, ROWS, store_schema=False, write_page_checksum=True)) as writer:
        for batch in _batches(log, keys, newer, kept_since):
            writer.write_batch(batch)
            rows += batch.num_rows
            files += batch.num_rows - batch.column("add").null_count
            described += sum(batch.num_rows - batch.column(kind).null_count for kind in _REPLACED)
    if described != len(_REPLACED):
        raise UnknownContent(f"{described} actions of metaData and protocol")
    return {"size": rows, "sizeInBytes": file.stat().st_size, "numOfAddFiles": files}


def _batches(log: DeltaLog, keys: list[str], newer: NewerActions, kept_since: int) -> Iterator[pa.RecordBatch]:
    yield newer.rows(("protocol", "metaData", "txn"), kept_since)
    for batch in _of_checkpoint(log, keys):
        kept = batch.filter(_kept(batch, newer, kept_since))
        if kept.num_rows:
            yield kept
    yield newer.rows(("add", "remove"), kept_since)


def _of_checkpoint(log: DeltaLog, keys: list[str]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a checkpoint with the columns of ROWS."""
    for batch in log.checkpoint_batches(keys):
        names = batch.schema.names
        for name in names:
            if name not in ROWS.names and batch.column(name).null_count < batch.num_rows:
                raise UnknownContent(f"actions of the kind {name}")
        columns = [
            conformed(batch.column(field.name), field.type, is_strict=True)
            if field.name in names
            else pa.nulls(batch.num_rows, field.type)
            for field in ROWS
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=ROWS)


def _kept(batch: pa.RecordBatch, newer: NewerActions, kept_since: int) -> pa.Array:
    """Returns which rows of the older checkpoint no newer action replaces."""
    kept = np.zeros(batch.num_rows, dtype=bool)
    for kind in _REPLACED:
        if kind not in newer.latest:
            kept |= _is_valid(batch.column(kind))
    transactions = batch.column("txn")
    replaced = pc.is_in(transactions.field("appId"), value_set=pa.array([*newer.transactions], pa.string()))
    kept |= _is_valid(transactions) & ~replaced.to_numpy(zero_copy_only=False)
    removed = batch.column("remove")
    removed_at = removed.field("deletionTimestamp").fill_null(0).to_numpy(zero_copy_only=False)
    kept |= _is_valid(removed) & (removed_at > kept_since) & ~_is_named(removed, newer)
    files = batch.column("add")
    kept |= _is_valid(files) & ~_is_named(files, newer)
    return pa.array(kept)


def _is_valid(column: pa.Array) -> Mask:
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _is_named(files: pa.Array, newer: NewerActions) -> Mask:
    """Returns which of these files a newer action adds or removes."""
    named: Mask = pc.is_in(_identities(files), value_set=newer.identities).to_numpy(zero_copy_only=False)
    return named


def _identities(files: pa.Array) -> pa.Array:
    """Returns what `file_identity` returns for each file, as NewerActions joins it.

    By Arrow: if the ids of each claim are anywhere in the table, every claim names the same paths, and a checkpoint has
    a tombstone for each of these paths and each claim of the last days.
    """
    # A file without a vector has NULL in each of these. `StructArray.field` would give what some writers store there.
    kind, place, offset = (
        pc.struct_field(files, ["deletionVector", name]).cast(pa.string()).fill_null("None")
        for name in ("storageType", "pathOrInlineDv", "offset")
    )
    vector = pc.binary_join_element_wise(pc.binary_join_element_wise(kind, place, ""), offset, "@")
    return pc.binary_join_element_wise(files.field("path"), vector, BETWEEN)
