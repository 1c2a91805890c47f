"""What Spark says of a lake whose files are missing or damaged comes with what brings them back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.history_tables import publish
from tests.support.lake import Feed, event, lake_table_rows, table_of

TABLE = table_of()


def damage(files: list[Path], content: bytes | None) -> None:
    for file in files:
        file.unlink() if content is None else file.write_bytes(content)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(LakeError, match="Spark failed while") as raised:
        call()
    return raised.value.remedy


def test_a_damaged_file_is_no_fault_of_the_spark_server(searching_lake: SparkLake, store: LocalObjectStore) -> None:
    publish(searching_lake, store, TABLE, [(1, "s", 1), (2, "s", 2)], at=1, fence=0)
    feed = Feed(store=store, table=TABLE)
    searching_lake.upsert(TABLE, feed.claim([event("u", 2, 1, name="a", age=1)]))
    folder = Path(store.filesystem()[1]) / lake_key(TABLE.name)
    later = feed.claim([event("u", 3, 1, name="b", age=1), event("u", 3, 2, name="b", age=1)])
    file_back = "bring the file back from a copy of the lake, or run cdc snapshot on the table"

    damage(list(folder.rglob("deletion_vector_*.bin")), b"\1")
    assert refusal(lambda: searching_lake.purge(TABLE, "~")).endswith(file_back)
    damage([file for file in folder.rglob("*.parquet") if file.parent.name != "_delta_log"], None)
    assert refusal(lambda: searching_lake.purge(TABLE, "~")) == file_back
    assert refusal(lambda: searching_lake.upsert(TABLE, later)) == file_back
    publish(searching_lake, store, TABLE, [(1, "S", 1)], at=5, fence=1)
    searching_lake.purge(TABLE, "~")
    assert [row["name"] for row in lake_table_rows(store, TABLE)] == ["S"]

    damage([folder / "_delta_log" / f"{2:020}.json"], None)
    assert "bring the log's files back" in refusal(lambda: searching_lake.purge(TABLE, "~"))
