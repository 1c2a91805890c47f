"""How many staging files a part of a table becomes: each run of its rows has one in every data partition."""

from pathlib import Path

import pytest

from snapshot.wiring import export_at
from tests.crash.world import take_snapshot
from tests.support.change_files import csv_text
from tests.support.exports import ExportedTables, named

COLUMNS = {"id": "bigint", "place": "text", "notes": "text"}
ROWS = [{"id": id_, "place": "ab"[id_ % 2], "notes": "x" * 100_000} for id_ in range(560)]
"""56 MB in memory, in blocks of 16 MB."""


@pytest.mark.parametrize(
    ("partition_by", "snapshot_file_bytes", "files"),
    [([{"column": "place"}], 1 << 13, 4), ([{"column": "place"}], 32 << 20, 2), ([], 32 << 20, 2)],
    ids=["a run of 32 MB", "a run of twice a snapshot data file", "no data partitions that multiply files"],
)
def test_a_run_has_at_least_32_mb_and_with_data_partitions_twice_a_snapshot_data_file(
    tmp_path: Path, store_url: str, partition_by: list[dict[str, str]], snapshot_file_bytes: int, files: int
) -> None:
    tables = ExportedTables(
        folder=tmp_path,
        store_url=store_url,
        source={"format": "upserts", "order_by": ["n"]},
        columns=COLUMNS,
        table={"partition_by": partition_by},
        snapshot={"snapshot_file_bytes": snapshot_file_bytes},
    )
    tables.write("export/rows.csv", csv_text(ROWS))
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        (taken,) = take_snapshot(pipeline, [named("orders")], export=export_at(str(tmp_path / "export"), "start"))
        assert (taken.state, taken.rows) == ("published", len(ROWS))
        assert len(list(pipeline.objects.list_prefix("staging-area"))) == files
