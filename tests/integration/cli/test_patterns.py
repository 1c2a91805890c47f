"""`include` and `exclude`: setup-source finds the tables, and everything else takes them from the file it keeps."""

import json

from tests.support.command_line import CommandLine
from tests.support.streams import run_sql

TABLES = (
    "CREATE TABLE customers (id int PRIMARY KEY)",
    "CREATE TABLE tmp_1 (id int)",
    "CREATE VIEW seen AS SELECT 1 AS id",
    "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE part PARTITION OF parted DEFAULT",
    'CREATE TABLE "with.dot" (id int PRIMARY KEY)',
)


def test_tables_are_found_by_pattern_and_come_when_setup_source_runs_again(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, *TABLES)
    patterns = {"include": [f"{cdc.name}.public.*"], "exclude": [f"{cdc.name}.public.tmp_*"]}
    path = cdc.write_settings(**patterns, tables=[])
    kept = path.with_suffix(".tables.json")
    assert "run cdc setup-source" in cdc.run("status").error
    assert '"public"."customers"' in cdc.run("setup-source", "--print-sql").output
    assert not kept.exists()
    ended = cdc.run("setup-source")
    assert (ended.exit_code, "a table with a dot in its name" in ended.errors) == (0, True), ended.errors
    names = [f"{cdc.name}.public.{table}" for table in ("customers", "orders", "parted")]
    assert json.loads(kept.read_text(encoding="utf-8")) == names
    assert [row["source_table"] for row in cdc.run("status", "--json").rows] == names
    run_sql(cdc.source_url, "CREATE TABLE later (id int PRIMARY KEY)")
    assert cdc.run("consume", "--until-idle").exit_code == 0
    assert json.loads(kept.read_text(encoding="utf-8")) == names
    assert cdc.run("setup-source").exit_code == 0
    assert f"{cdc.name}.public.later" in [row["source_table"] for row in cdc.run("status", "--json").rows]


def test_patterns_that_match_nothing_are_refused_by_name(cdc: CommandLine) -> None:
    cdc.write_settings(include=[f"{cdc.name}.nowhere.*"], tables=[])
    refused = cdc.run("setup-source")
    assert refused.exit_code == 2
    assert f"no table of the source matches {cdc.name}.nowhere.*" in refused.error
    cdc.write_settings(include=["public.*"], tables=[])
    assert "is not of the form db.schema.table" in cdc.run("setup-source").error
