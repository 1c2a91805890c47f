"""`cdc snapshot --from`: options that do not fit are refused, and rows that do not fit are an exit code."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.command_line import CommandLine
from tests.support.command_server import CommandServer

TABLE = "shop.public.orders"
COLUMNS = {"id": "bigint", "name": "text", "amount": "numeric(12,2)"}
USAGE, WITHHELD = 2, 3


def test_options_that_do_not_fit_are_refused(cdc: CommandLine) -> None:
    for words, message in (
        (["--as-of", "0/1"], "--as-of and --no-header are for exported files; give --from, or leave them out"),
        (["--from", "a"], "--from a with 0 tables and no --as-of; expected one table, and the position"),
        (["t", "--from", "a"], "--from a with 1 tables and no --as-of"),
        (["t", "u", "--from", "a", "--as-of", "0/1"], "--from a with 2 tables and --as-of"),
        (["t", "--from", "gs://a", "--as-of", "0/1"], "--from 'gs://a' is of an unknown kind"),
    ):
        ended = cdc.run("snapshot", *words)
        assert (ended.exit_code, message in ended.error) == (USAGE, True), ended.errors


@pytest.mark.nightly
def test_exported_files_are_a_lake_on_spark(
    tmp_path: Path, database: str, spark_url: str, spark: SparkSession, command_server: CommandServer
) -> None:
    """The full load and the changes of AWS DMS, with a row that does not fit."""
    cdc = CommandLine(folder=tmp_path, source_url="nowhere/shop", store_url=database, server=command_server)
    cdc.write_settings(
        source={"kind": "change_files", "path": "files", "format": "dms"},
        tables=[{"name": TABLE, "id": ["id"], "columns": COLUMNS}],
        spark=spark_url,
    )
    folder = tmp_path / "files" / "public" / "orders"
    folder.mkdir(parents=True)
    (folder / "LOAD00000001.csv").write_text("id,name,amount\n1,Ada,1.50\n2,Bob,2.50\n3,Eve,much\n")
    (folder / "20260101-100000000.csv").write_text("Op,id,name,amount\nU,1,Ada,9.50\nI,4,Zoe,4.50\n")
    assert cdc.run("setup-source").exit_code == 0
    taken = cdc.run("snapshot", TABLE, "--from", f"{folder}/LOAD*", "--as-of", "start", "--json")
    assert taken.exit_code == WITHHELD, taken.errors
    assert [(row["state"], row["rows"], row["rows_withheld"]) for row in taken.rows] == [("published", 2, 1)]
    assert cdc.run("consume", "--until-idle").exit_code == 0
    assert cdc.run("apply", "--until-idle").exit_code == 0
    frame = spark.read.format("delta").load(str(tmp_path / "lake" / "datalake" / "shop" / "public" / "orders"))
    rows = {(row["id"], row["name"], str(row["amount"])) for row in frame.collect()}
    assert rows == {(1, "Ada", "9.50"), (2, "Bob", "2.50"), (4, "Zoe", "4.50")}
