"""A slice file that changes between our check and the moment in which Spark reads it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.session import TUNING, set_confs
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import Feed, event, table_of

VERIFICATION = "parquet.page.verify-checksum.enabled"
OF_ANOTHER_SERVER = {
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.databricks.delta.stalenessLimit": "1h",
}
"""Confs that a Spark server of one's own may have, and that would change what a claim reads or writes."""


def names_in(content: bytes) -> list[str] | None:
    """As a reader finds them that trusts the file; None when it cannot even be unpacked."""
    try:
        return [str(name) for name in pq.read_table(pa.BufferReader(content))["name"].to_pylist()]
    except (OSError, ValueError):
        return None


def quietly_changed(content: bytes) -> bytes:
    """One bit of the pages of names, and a reader without checksums gives other names without a word."""
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    (names,) = (column for column in columns if column.path_in_schema == "name")
    first = names.dictionary_page_offset or names.data_page_offset
    for place in range(first + names.total_compressed_size - 1, first, -1):
        changed = bytearray(content)
        changed[place] ^= 1
        if names_in(bytes(changed)) not in (None, names_in(content)):
            return bytes(changed)
    message = "no such bit"
    raise AssertionError(message)


def test_a_page_that_changes_behind_our_check_is_refused_by_spark(
    searching_lake: SparkLake, session: SparkSession, store: LocalObjectStore, tmp_path: Path
) -> None:
    feed = Feed(store=store, table=table_of())
    searching_lake.create_table(feed.table)
    work = feed.claim([event("i", number, number, name=f"name {number}", age=number) for number in range(1, 200)])
    key = work.slices[0].key
    file = tmp_path / "bucket" / key
    content = file.read_bytes()
    changed = quietly_changed(content)
    file.write_bytes(changed)
    with pytest.raises(LakeError, match="FAILED_READ_FILE"):
        searching_lake.upsert(feed.table, work)
    assert searching_lake.read_version(feed.table) == 0
    session.conf.set(VERIFICATION, "false")
    misread = session.read.parquet(store.spark_url(key)).select("name").collect()
    assert [row["name"] for row in misread] == names_in(changed) != names_in(content)
    session.conf.set(VERIFICATION, "true")
    file.write_bytes(content)
    assert searching_lake.upsert(feed.table, work).counts.inserted == 199


def test_a_server_that_skips_damaged_files_cannot_make_a_claim_shorter(session: SparkSession, tmp_path: Path) -> None:
    set_confs(session, OF_ANOTHER_SERVER)
    file = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"name": [f"name {number}" for number in range(200)]}), file, write_page_checksum=True)
    file.write_bytes(quietly_changed(file.read_bytes()))
    assert session.read.parquet(str(file)).collect() == []
    set_confs(session, TUNING)
    assert {name: session.conf.get(name) for name in OF_ANOTHER_SERVER} == {
        name: TUNING[name] for name in OF_ANOTHER_SERVER
    }
    with pytest.raises(PySparkException, match="FAILED_READ_FILE"):
        session.read.parquet(str(file)).collect()
