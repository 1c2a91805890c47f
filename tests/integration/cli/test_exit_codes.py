"""Results on stdout, everything else on stderr, and an exit code that scripts can rely on."""

import fcntl
import signal
from datetime import timedelta
from pathlib import Path

from cdc_pipeline.metadata_store.store import open_metadata_store
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import no_step
from tests.support.command_line import CommandLine, end_of, query
from tests.support.eventually import eventually
from tests.support.ledgers import forget_store, ledger_of
from tests.support.streams import run_sql

OK, ERROR, USAGE, BUSY, INTERRUPTED = 0, 1, 2, 4, 130


def test_a_source_that_is_set_up_twice_is_set_up_once(cdc: CommandLine) -> None:
    first = cdc.run("setup-source")
    assert (first.exit_code, first.output) == (OK, "")
    assert f"ready: {cdc.name}.public.orders" in first.errors.replace("\n", "")
    state = cdc.state()
    assert [row[2] for row in state["published"]] == ["orders"]
    assert [row[0] for row in state["slots"]] == [cdc.name]
    assert cdc.run("setup-source").exit_code == OK
    assert cdc.state() == state


def test_what_setup_would_do_is_shown_as_sql_and_not_done(cdc: CommandLine) -> None:
    before = cdc.state()
    shown = cdc.run("setup-source", "--print-sql")
    assert shown.exit_code == OK
    assert 'CREATE PUBLICATION "' in shown.output
    assert "pg_create_logical_replication_slot" in shown.output
    assert cdc.state() == before
    run_sql(cdc.source_url, *shown.output.strip().splitlines())
    assert cdc.run("setup-source", "--print-sql").output == ""


def test_the_statements_of_a_stream_that_begins_again_are_refused_and_not_those_of_another_setup(
    cdc: CommandLine,
) -> None:
    both = cdc.run("setup-source", "--print-sql", "--begin-again")
    assert (both.exit_code, both.output, "both --print-sql and --begin-again" in both.error) == (USAGE, "", True)


def test_results_are_json_on_stdout_and_logs_are_on_stderr(cdc: CommandLine) -> None:
    run_sql(cdc.source_url, "SELECT 1")
    assert cdc.run("setup-source").exit_code == OK
    consumed = cdc.run("consume", "--until-idle")
    assert (consumed.exit_code, consumed.output) == (OK, "")
    assert "cut registered" in consumed.errors
    status = cdc.run("status", "--json")
    assert status.exit_code == OK
    assert [row["source_table"] for row in status.rows] == [f"{cdc.name}.public.orders"]
    queries = cdc.run("sql", "--json")
    assert {"query": "lag"} in queries.rows
    assert cdc.run("sql", "lag", "--json").rows[0]["source_table"] == f"{cdc.name}.public.orders"


def test_everything_that_the_source_holds_is_registered_before_consume_ends(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == OK
    run_sql(cdc.source_url, "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 7) n")
    assert cdc.run("consume", "--until-idle").exit_code == OK
    assert query(cdc.store_url, "SELECT sum(rows) FROM cdc.slice") == [(7,)]


def test_a_consumer_that_is_asked_to_stop_ends_well_and_leaves_the_slot(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == OK
    consumer = cdc.start("consume")
    active = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND active"
    assert eventually(lambda: query(cdc.source_url, active) == [(1,)])
    consumer.send_signal(signal.SIGTERM)
    assert end_of(consumer).exit_code == OK
    assert query(cdc.source_url, active) == [(0,)]


def test_a_table_without_a_snapshot_is_applied_as_far_as_there_is_nothing_to_do(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == OK
    assert cdc.run("consume", "--until-idle").exit_code == OK
    applied = cdc.run("apply", "--until-idle", "--json")
    assert applied.exit_code == OK
    assert applied.rows[0]["ended"] == "the table has no published snapshot yet"


def test_a_table_that_somebody_else_works_on_is_left_to_them(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == OK
    with open_metadata_store(cdc.store_url, stream="shop", on_step=no_step) as store:
        table_id = store.tables.table(TableName.parse(f"{cdc.name}.public.orders")).table_id
        store.leases.acquire(table_id, owner="somebody", duration=timedelta(hours=1))
        before = cdc.state()
        applied = cdc.run("apply", "--until-idle", "--json")
    assert applied.exit_code == BUSY
    assert "is held by somebody" in applied.rows[0]["ended"]
    assert cdc.state() == before


def test_a_stale_table_that_a_snapshot_does_not_name_is_no_error_of_it(cdc: CommandLine, spark_url: str) -> None:
    run_sql(cdc.source_url, "CREATE TABLE others (id int PRIMARY KEY)")
    tables = [f"{cdc.name}.public.{table}" for table in ("orders", "others")]
    cdc.write_settings(spark=spark_url, tables=[{"name": table} for table in tables])
    assert cdc.run("setup-source").exit_code == OK
    run_sql(cdc.source_url, f'ALTER PUBLICATION "{cdc.name}" DROP TABLE others')
    ended = cdc.run("snapshot", tables[0], "--json")
    assert [(row["table"], row["state"]) for row in ended.rows] == [(tables[0], "published")]
    assert ended.exit_code == OK, ended.errors
    assert [row["state"] for row in cdc.run("status", "--json").rows] == ["live", "stale"]


def test_wrong_words_are_usage_errors_and_start_nothing(cdc: CommandLine) -> None:
    before = cdc.state()
    for words in (("no-such-verb",), ("status", "--no-such-option"), ("verify", "--timeout", "0")):
        ended = cdc.run(*words)
        assert (ended.exit_code, ended.output) == (USAGE, "")
        assert "Traceback" not in ended.errors
    assert cdc.state() == before


def test_help_names_the_exit_codes(cdc: CommandLine) -> None:
    shown = cdc.run("--help")
    assert shown.exit_code == OK
    assert "3 a check failed, 4 another process is at work" in " ".join(shown.output.split())


def test_an_interrupted_command_ends_with_130_and_without_a_traceback(cdc: CommandLine) -> None:
    home = cdc.folder / "home"
    home.mkdir()
    with (home / "installation.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = cdc.start("status")
        assert eventually(lambda: f" {waiting.pid} " in Path("/proc/locks").read_text(encoding="ascii"))
        waiting.send_signal(signal.SIGINT)
        ended = end_of(waiting)
    assert ended.exit_code == INTERRUPTED
    assert "Traceback" not in ended.errors


def test_a_lost_store_is_rebuilt_and_says_so_for_each_table(cdc: CommandLine) -> None:
    assert cdc.run("rebuild").error.startswith("nothing describes the stream shop")
    run_sql(cdc.source_url, "INSERT INTO orders (id) VALUES (1)")
    assert cdc.run("setup-source").exit_code == OK
    run_sql(cdc.source_url, "UPDATE orders SET id = 2")
    assert cdc.run("consume", "--until-idle").exit_code == OK
    before = ledger_of(cdc.store_url)
    forget_store(cdc.store_url)
    refused = cdc.run("consume", "--until-idle")
    assert (refused.exit_code, "run cdc rebuild" in refused.error) == (ERROR, True)
    ended = cdc.run("rebuild", "--json")
    (table,) = ended.rows
    assert ended.exit_code == OK
    assert (table["table"], table["next_number"], table["fence"]) == (f"{cdc.name}.public.orders", 2, None)
    assert table["notes"] == "1 slices were not registered"
    assert cdc.run("consume", "--until-idle").exit_code == OK
    assert ledger_of(cdc.store_url)["slice"][0] == before["slice"][0]
