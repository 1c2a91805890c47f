"""Exports that would leave a table with other rows than its source: one error, and the table stays as it was."""

import gzip
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.areas import STAGING_AREA
from cdc_pipeline.errors import SettingsError, SnapshotError
from snapshot.wiring import export_at
from tests.crash.world import take_snapshot
from tests.integration.snapshot.test_exports import ORDERED, ORDERS, PUBLISHED, die_after, shown, take
from tests.support.exports import ExportedTables
from tests.support.s3 import BUCKET, s3_objects


def failure_of(tables: ExportedTables) -> str:
    """Why the snapshot of the folder `export` fails."""
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(tables.folder / "export"), "start"))
    assert taken.state == "failed"
    return taken.error or ""


@pytest.mark.parametrize("table", [{}, {"partition_by": [{"column": "name"}]}], ids=["plain", "data partitions"])
def test_an_id_that_is_exported_twice_fails_the_snapshot_and_the_table_stays(
    tmp_path: Path, store_url: str, table: Mapping[str, Any]
) -> None:
    """The lake would show both rows for good. Nobody can say which of them is the newer one.

    The error has no value of a row, since views show it to people who may see none.
    """
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED, table=table)
    tables.write("export/a.csv", "id,name,amount\n1,Ada,1.50\n2,Bob,2.50\n")
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        assert take(pipeline, tmp_path / "export", "start") == PUBLISHED
        before = shown(pipeline)
        tables.write("export/b.csv", "id,name,amount\n3,Eve,3.50\n2,Bea,2.75\n")
        with capture_logs() as said:
            (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(tmp_path / "export"), "start"))
        assert [entry["id"] for entry in said if entry["event"] == "several exported rows have one id"] == ["id = 2"]
        assert (taken.state, (taken.error or "").split(";")[0]) == (
            "failed",
            "a value of the id (id) is in several rows of the exported files",
        )
        assert shown(pipeline) == before


@pytest.mark.parametrize("last", ["3,Eve,3.50\n", "3,Eve,3.50", "3,Eve,3.50\r\n\r\n", '"id","name"'])
def test_a_row_where_the_names_of_the_columns_belong_is_no_header(tmp_path: Path, store_url: str, last: str) -> None:
    """`split -l` writes the names into the first part alone, and the last part may be one row."""
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    tables.write("export/xaa.csv", "id,name,amount\n1,Ada,1.50\n2,Bob,2.50\n")
    tables.write("export/xab.csv", last)
    assert "the file xab.csv has no column " in failure_of(tables)
    with tables.opened() as pipeline:
        (tmp_path / "export/xaa.csv").unlink()
        (taken,) = take_snapshot(pipeline, [ORDERS], export=export_at(str(tmp_path / "export"), "start", header=False))
        assert (taken.state, taken.rows) == ("published", 0 if "id" in last else 1)


def test_an_export_in_a_bucket_is_a_folder_a_file_or_a_pattern_of_names_in_one_folder(
    tmp_path: Path, store_url: str, s3_endpoint: str, s3_prefix: str
) -> None:
    """As in a local folder: what lies in folders below is not of the pattern."""
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED, s3=s3_endpoint)
    objects = s3_objects(s3_endpoint, s3_prefix)
    for name, id_ in (("orders/a.csv", 1), ("orders/old/a.csv", 2)):
        content = f"id,name,amount\n{id_},Ada,1.50\n"
        objects.put_if_absent(name, content.encode())
        tables.write(f"export/{name}", content)
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        for root in (f"s3://{BUCKET}/{s3_prefix}", f"{tmp_path}/export"):
            for place, ids in (
                ("orders", [1, 2]),
                ("orders/a.csv", [1]),
                ("orders/old/a.csv", [2]),
                ("orders/*.csv", [1]),
            ):
                assert take(pipeline, f"{root}/{place}", "start") == PUBLISHED
                assert [row[0] for row in shown(pipeline)] == ids, place
        with pytest.raises(SnapshotError, match="holds no file ord; expected the files of the export"):
            take(pipeline, f"s3://{BUCKET}/{s3_prefix}/ord", "start")
        with pytest.raises(SnapshotError, match=r"holds no file ord\*; .* or a pattern of file names in one folder"):
            take(pipeline, f"{tmp_path}/export/ord*", "start")
        with pytest.raises(SettingsError, match=r"create it, or correct its name: .* or in --from"):
            take(pipeline, "s3://cdc-no-such-bucket/orders", "start")


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ({"format": "upserts"}, "1,Ada,1.50\n"),
        ({"format": "dms", "folder": "{schema}/{table}"}, "2026-01-01 10:00:00,1,Ada,1.50\n"),
    ],
    ids=["upserts", "dms"],
)
def test_without_a_header_only_dms_has_the_time_of_a_change_before_the_columns_of_the_table(
    tmp_path: Path, store_url: str, source: Mapping[str, Any], content: str
) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source={**source, "time_column": "ts"})
    tables.write("files/public/orders/0.csv", "")
    tables.write("export/a.csv", content)
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        export = export_at(str(tmp_path / "export"), "start", header=False)
        (taken,) = take_snapshot(pipeline, [ORDERS], export=export)
        assert (taken.state, shown(pipeline)) == ("published", [(1, "Ada", "1.50")])


def test_without_a_header_columns_are_in_the_order_of_pipeline_yml_before_a_slice_has_it(
    tmp_path: Path, store_url: str
) -> None:
    """The registered order is that of the first set-up: values would be in each other's columns."""
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source={**ORDERED, "csv": {"header": False}})
    for names, content, expected in (
        ("id amount name", "1,Ada,1.50\n", ("1.50", "Ada")),
        ("id name amount", "1,Ada,1.50\n", ("Ada", "1.50")),
        ("id day name amount", "1,2026-01-01,Ada,1.50\n", ("Ada", "1.50")),
        ("id name", "1,Ada\n", ("Ada", "None")),
    ):
        tables.write("export/a.csv", content)
        columns = {name: "bigint" if name == "id" else "text" for name in names.split()}
        with replace(tables, columns=columns).opened() as pipeline:
            pipeline.source_setup().set_up()
            assert take(pipeline, tmp_path / "export", "start") == PUBLISHED
            assert shown(pipeline) == [(1, *expected)], names


@pytest.mark.parametrize("content", [gzip.compress(b"id,name,amount\n1,Ada,1.50\n")[:-9], b""], ids=["cut", "0 bytes"])
def test_a_damaged_export_fails_the_snapshot_and_says_to_run_it_again(
    tmp_path: Path, store_url: str, content: bytes
) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    tables.write("export/a.csv.gz", content)
    assert "bring the whole file under the same name; then run cdc snapshot again" in failure_of(tables)


def test_digits_alone_in_a_full_load_of_dms_are_withheld_as_in_its_changes(tmp_path: Path, store_url: str) -> None:
    columns = {"id": "bigint", "name": "text", "amount": "bytea"}
    source = {"format": "dms", "folder": "{schema}/{table}"}
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=source, columns=columns)
    tables.write("files/public/orders/LOAD1.csv", "id,name,amount\n1,Ada,0x010203AB\n2,Bob,AABBCCDD\n")
    tables.write("files/public/orders/1.csv", "Op,id,name,amount\n")
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
        assert take(pipeline, tmp_path / "files/public/orders/LOAD1.csv", "start") == ("published", 1)
        assert shown(pipeline) == [(1, "Ada", str(b"\1\2\3\xab"))]


def test_a_snapshot_that_the_lake_has_already_is_published_without_a_look_at_its_ids(
    tmp_path: Path, store_url: str
) -> None:
    """It can be neither withdrawn nor marked as failed, so whatever the look would find could only hold it up."""
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source=ORDERED)
    tables.write("export/a.csv", "id,name,amount\n1,Ada,1.50\n")
    die_after(tables, "snapshot.publish")
    with tables.opened() as pipeline:
        pipeline.objects.delete_all([file.key for file in pipeline.objects.list_prefix(STAGING_AREA)])
        assert take(pipeline, tmp_path / "export", "start") == PUBLISHED
        assert shown(pipeline) == [(1, "Ada", "1.50")]
