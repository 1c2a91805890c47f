"""What killed writes left in a table's folder is deleted once it is old, and nothing else."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cdc_pipeline.areas import STAGING_AREA, table_prefix
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.maintenance import delete_leftovers
from cdc_pipeline.lake.new_shape import shape_key
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import table_of

TABLE = "datalake/shop/public/people"
NOW = datetime(2026, 5, 1, tzinfo=UTC)
UNFINISHED = {
    ".pending-1",
    "_delta_log/.pending-2",
    "claim-9-x/_temporary/0/_temporary/attempt_1/part-0.parquet",
    "claim-9-x/_temporary/0/p=%20/part-1.parquet",
    "optimized-x/0/.pending-3",
}
OTHERS = {
    "claim-9-x/part-0.parquet",
    "claim-9-x/p=_temporary/part-0.parquet",
    "deletion_vector_1.bin",
    "_delta_log/00000000000000000000.json",
    "_delta_log/_last_checkpoint",
}


def put(root: Path, names: set[str], at: datetime) -> None:
    for name in names:
        path = root / TABLE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (at.timestamp(), at.timestamp()))


def left(root: Path) -> set[str]:
    return {path.relative_to(root / TABLE).as_posix() for path in (root / TABLE).rglob("*") if path.is_file()}


def test_only_old_unfinished_files_are_deleted(tmp_path: Path) -> None:
    week = timedelta(days=7)
    young = {f"young/{name}" for name in UNFINISHED}
    put(tmp_path, UNFINISHED | OTHERS, NOW - 2 * week)
    put(tmp_path, young, NOW - timedelta(days=6))
    store = LocalObjectStore(tmp_path)
    assert delete_leftovers(store, TABLE, NOW - week) == len(UNFINISHED)
    assert left(tmp_path) == OTHERS | young
    assert delete_leftovers(store, TABLE, NOW - week) == 0


def test_a_table_without_a_folder_has_none(tmp_path: Path) -> None:
    assert delete_leftovers(LocalObjectStore(tmp_path), TABLE, NOW) == 0


def test_what_a_change_of_a_history_s_columns_stages_lies_where_the_table_s_own_is_cleaned_up() -> None:
    table = table_of(keeps_history=True)
    area = table_prefix(STAGING_AREA, table.name)
    assert shape_key(history_of(table), "next").startswith(f"{area}/")
    assert shape_key(table, "next") == shape_key(history_of(table), "next")
