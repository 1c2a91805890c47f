"""Exports that would leave a table with other rows than its source: one error, and the table stays as it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from snapshot.wiring import export_at
from tests.crash.world import take_snapshot
from tests.integration.snapshot.test_exports import ORDERED, ORDERS, PUBLISHED, shown, take
from tests.support.exports import ExportedTables


@pytest.mark.parametrize("table", [{}, {"partition_by": [{"column": "name"}]}], ids=["plain", "data partitions"])
def test_an_id_that_is_exported_twice_fails_the_snapshot_and_the_table_stays(
    tmp_path: Path, store_url: str, table: Mapping[str, Any]
) -> None:
    """The lake would show both rows for good. Nobody can say which of them is the newer one."""
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED, table=table)
    tables.write("export/a.csv", "id,name,amount\n1,Ada,1.50\n2,Bob,2.50\n")
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        assert take(pipeline, tmp_path / "export", "start") == PUBLISHED
        before = shown(pipeline)
        tables.write("export/b.csv", "id,name,amount\n3,Eve,3.50\n2,Bea,2.75\n")
        (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(tmp_path / "export"), "start"))
        assert (taken.state, (taken.error or "").split(";")[0]) == (
            "failed",
            "the id id = 2 is in several rows of the exported files",
        )
        assert shown(pipeline) == before


@pytest.mark.parametrize("last", ["3,Eve,3.50\n", "3,Eve,3.50", "3,Eve,3.50\r\n\r\n", '"id","name"'])
def test_a_row_where_the_names_of_the_columns_belong_is_no_header(tmp_path: Path, store_url: str, last: str) -> None:
    """`split -l` writes the names into the first part alone, and the last part may be one row."""
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    tables.write("export/xaa.csv", "id,name,amount\n1,Ada,1.50\n2,Bob,2.50\n")
    tables.write("export/xab.csv", last)
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(tmp_path / "export"), "start"))
        assert taken.state == "failed"
        assert "the file xab.csv has no column " in (taken.error or "")
        (tmp_path / "export/xaa.csv").unlink()
        (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(tmp_path / "export"), "start", header=False))
        assert (taken.state, taken.rows) == ("published", 0 if "id" in last else 1)
