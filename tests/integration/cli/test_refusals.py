"""What cannot work is refused by name in one line, with its exit code, and nothing is changed."""

import os
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.support.command_line import CommandLine
from tests.support.postgres import fresh_database, started_server
from tests.support.streams import database_of, run_sql

ERROR, USAGE = 1, 2


class WithoutLogicalLog(PostgresServer):
    def command(self) -> list[str]:
        return [*super().command(), "-c", "wal_level=replica"]


@pytest.fixture
def source_without_logical_log() -> Iterator[str]:
    with started_server(dict(os.environ), WithoutLogicalLog) as server, fresh_database(server) as url:
        run_sql(url, "CREATE TABLE orders (id int PRIMARY KEY)")
        yield url


def refusal(cdc: CommandLine, *words: str, exit_code: int = ERROR) -> str:
    """The error of a command that must leave everything as it was."""
    before = cdc.state()
    ended = cdc.run(*words)
    assert (ended.exit_code, ended.output) == (exit_code, ""), ended.errors
    assert cdc.state() == before
    return ended.error


def test_a_missing_pipeline_file_is_named(cdc: CommandLine) -> None:
    error = refusal(cdc, "status", "--config", "elsewhere.yml", exit_code=USAGE)
    assert "cannot read" in error
    assert "elsewhere.yml: No such file or directory" in error
    assert "--config or CDC_CONFIG" in error


def test_a_bad_pipeline_file_is_named_with_line_and_hint(cdc: CommandLine) -> None:
    cdc.write_settings(slice_lenght="60s")
    error = refusal(cdc, "setup-source", exit_code=USAGE)
    assert "pipeline.yml line " in error
    assert "the key 'slice_lenght' is unknown; did you mean 'slice_length'?" in error


@pytest.mark.parametrize("verb", ["apply", "verify"])
def test_an_unknown_table_is_named_with_the_known_ones(cdc: CommandLine, verb: str) -> None:
    error = refusal(cdc, verb, "shop.public.nothing", exit_code=USAGE)
    assert "pipeline.yml lists no table 'shop.public.nothing'" in error
    assert f"expected one of {cdc.name}.public.orders" in error


def test_an_unknown_query_and_an_unknown_parameter_are_named(cdc: CommandLine) -> None:
    assert "there is no query nothing; expected one of " in refusal(cdc, "sql", "nothing", exit_code=USAGE)
    assert "has no parameter colour" in refusal(cdc, "sql", "lag", "--set", "colour=red", exit_code=USAGE)
    assert "--set 'colour' has no equals sign" in refusal(cdc, "sql", "lag", "--set", "colour", exit_code=USAGE)


def test_a_parameter_that_is_no_text_of_the_metadata_store_is_named(cdc: CommandLine) -> None:
    word = os.fsdecode(b"table=caf\xe9")
    error = refusal(replace(cdc, server=None), "sql", "lag", "--set", word)
    assert "a text that the metadata store cannot hold: 'utf-8' codec" in error
    assert "expected UTF-8 without NUL" in error


def test_a_limit_that_is_no_number_of_rows_is_named(cdc: CommandLine) -> None:
    for limit in ("99999999999999999999", "9" * 5_000, "-1", "many"):
        error = refusal(cdc, "sql", "lag", "--set", f"limit={limit}", exit_code=USAGE)
        assert f"the limit '{limit}' is no number of rows; expected a whole number of at most 18 digits" in error


def test_a_table_that_the_source_does_not_have_is_named(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, "DROP TABLE orders")
    assert f"the source has no table {cdc.name}.public.orders" in refusal(cdc, "setup-source")


def test_a_table_without_an_id_is_named_with_the_statement_that_makes_it_keyless(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, "ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    error = refusal(cdc, "setup-source")
    assert f"the table {cdc.name}.public.orders has no id" in error
    mending = error.rpartition("run ")[2]
    assert mending == "ALTER TABLE public.orders REPLICA IDENTITY FULL"
    run_sql(cdc.source_url, mending)
    tables = [{"name": f"{cdc.name}.public.orders"}]
    cdc.write_settings(tables=[tables[0] | {"deletes": "soft"}])
    assert "has no id, and its deletes are to be soft" in refusal(cdc, "setup-source")
    cdc.write_settings(tables=[tables[0] | {"history": True}])
    assert "has no id, and its history is to be kept" in refusal(cdc, "setup-source")
    cdc.write_settings(tables=tables)
    assert cdc.run("setup-source").exit_code == 0


def test_a_table_whose_deletes_would_not_carry_the_id_is_named(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, "ALTER TABLE orders REPLICA IDENTITY NOTHING")
    error = refusal(cdc, "setup-source")
    assert f"the server refuses updates and deletes of {cdc.name}.public.orders once it is published" in error
    assert "REPLICA IDENTITY FULL" in error


def test_a_column_that_is_not_there_is_named(cdc: CommandLine) -> None:
    cdc.write_settings(tables=[{"name": f"{cdc.name}.public.orders", "update_time": "changed_at"}])
    assert "has no column 'changed_at'; expected one of id, note" in refusal(cdc, "setup-source")


def test_a_column_with_one_of_our_own_names_is_refused(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, "ALTER TABLE orders ADD _cdc_version text")
    assert "has a column '_cdc_version'" in refusal(cdc, "setup-source")


def test_a_view_is_refused(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, "ALTER TABLE orders RENAME TO sold", "CREATE VIEW orders AS SELECT * FROM sold")
    assert f"{cdc.name}.public.orders is not a table" in refusal(cdc, "setup-source")
    assert "orders" not in cdc.run("setup-source", "--print-sql").output


def test_a_server_without_a_logical_log_is_refused(cdc: CommandLine, source_without_logical_log: str) -> None:
    elsewhere = cdc.with_source(source_without_logical_log)
    elsewhere.write_settings()
    error = refusal(elsewhere, "setup-source")
    assert "the source has wal_level = replica; expected wal_level = logical" in error
    assert "ALTER SYSTEM SET wal_level = 'logical' and restart" in error


def test_a_role_that_may_not_replicate_is_refused(cdc: CommandLine) -> None:
    role, parts = f"reader_of_{cdc.name}", urlsplit(cdc.source_url)
    run_sql(cdc.source_url, f"CREATE ROLE {role} LOGIN PASSWORD 'secret'", f"GRANT SELECT ON orders TO {role}")
    try:
        reader = cdc.with_source(f"postgresql://{role}:secret@{parts.hostname}:{parts.port}{parts.path}")
        reader.write_settings()
        error = refusal(reader, "setup-source")
    finally:
        run_sql(cdc.source_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert f"the user {role} may not replicate; expected a role with REPLICATION" in error
    assert f'ALTER ROLE "{role}" REPLICATION' in error


def test_a_slot_of_another_database_is_refused(cdc: CommandLine) -> None:
    run_sql(cdc.store_url, f"SELECT pg_create_logical_replication_slot('{cdc.name}', 'pgoutput')")
    error = refusal(cdc, "setup-source")
    assert f"the slot {cdc.name} decodes {database_of(cdc.store_url)} by pgoutput" in error
    assert "choose another source.slot" in error


def test_a_slot_that_is_gone_is_refused_with_the_way_back(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    assert cdc.run("consume", "--until-idle").exit_code == 0
    run_sql(cdc.source_url, f"SELECT pg_drop_replication_slot('{cdc.name}')")
    for words in (("setup-source",), ("consume", "--until-idle")):
        error = refusal(cdc, *words)
        assert f"the slot {cdc.name} is gone, and the source's log ends at " in error
        assert "expected a slot that serves position " in error
        assert "run cdc setup-source --begin-again, then cdc snapshot" in error
    assert "SourceGap: the slot" in cdc.run("status", "--json").rows[0]["stream_alarm"]


def test_a_slot_that_is_ahead_of_what_is_registered_is_refused_with_both_positions(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    assert cdc.run("consume", "--until-idle").exit_code == 0
    run_sql(
        cdc.source_url,
        f"SELECT pg_drop_replication_slot('{cdc.name}')",
        "INSERT INTO orders VALUES (1)",
        f"SELECT pg_create_logical_replication_slot('{cdc.name}', 'pgoutput')",
    )
    error = refusal(cdc, "consume", "--until-idle")
    assert f"the slot {cdc.name} stands at " in error
    assert "expected a slot that still serves the next offset " in error
    assert "run cdc setup-source --begin-again, then cdc snapshot" in error


def test_another_server_under_the_same_name_is_refused(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    assert cdc.run("consume", "--until-idle").exit_code == 0
    run_sql(cdc.store_url, "UPDATE cdc.stream SET source_system_identifier = '7'")
    error = refusal(cdc, "setup-source")
    assert "the stream shop comes from system " in error
    assert "expected system 7, timeline 1, which is registered up to " in error
    assert "cdc setup-source --begin-again" in error


def test_another_number_of_stream_partitions_is_refused(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    source = {"kind": "postgres", "url": cdc.source_url, "publication": cdc.name, "slot": cdc.name}
    cdc.write_settings(source={**source, "stream_partitions": 5})
    assert "5 stream partitions are asked for the stream shop; expected 1" in refusal(cdc, "setup-source")


def test_servers_that_do_not_answer_are_named(cdc: CommandLine) -> None:
    nowhere = "postgresql://cdc@127.0.0.1:1/shop"
    source = {"kind": "postgres", "url": nowhere, "publication": cdc.name, "slot": cdc.name}
    cdc.write_settings(source=source)
    assert "the source does not answer" in refusal(cdc, "setup-source")
    cdc.write_settings(metadata_store=nowhere)
    assert "the metadata store did not answer" in refusal(cdc, "status")


def test_a_set_up_that_failed_leaves_no_alarm_behind_since_no_consumer_stopped(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    elsewhere = cdc.with_source(urlsplit(cdc.source_url)._replace(netloc="nobody@nobody.invalid").geturl())
    elsewhere.write_settings()
    assert elsewhere.run("setup-source").exit_code == 1
    assert cdc.run("status", "--json").rows[0]["stream_alarm"] is None
