"""Tables of a database that begin with rows which COPY or another program exported at a known position."""

import os
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from cdc_pipeline.errors import UsageError
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import TableName, parse_lsn
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.session import session
from snapshot.exports import Export
from snapshot.wiring import export_at
from tests.crash.invariants import check, lake_rows
from tests.crash.world import World, apply_all, new_world, take_snapshot
from tests.support.doc_pages import blocks
from tests.support.eventually import eventually
from tests.support.mariadb import connected, run_mysql
from tests.support.pipelines import consume, mysql_settings, opened_pipeline, set_up_and_consume
from tests.support.streams import run_sql

PAGE = "docs/how-to/exports.md"
NOBODY_LISTENS = "sc://127.0.0.1:1"


def copied(world: World, folder: Path) -> str:
    """Every table as CSV in a folder of its own; returns the position that they were copied at, as the page says."""
    begin, create_slot, *_ = blocks(PAGE, "sql", "## PostgreSQL")[0].splitlines()
    replication = psycopg2.connect(world.source_url, connection_factory=LogicalReplicationConnection)
    with closing(replication) as connection, connection.cursor() as cursor:
        cursor.execute(begin)
        cursor.execute(create_slot)
        ((_, position, *_),) = cursor.fetchall()
        for name in world.tables:
            path = folder / name.table / "rows.csv"
            path.parent.mkdir(parents=True)
            with path.open("wb") as file:
                cursor.copy_expert(f"COPY {name.sql} TO STDOUT (FORMAT csv, HEADER)", file)
    return str(position)


def test_copied_tables_and_their_later_changes_are_the_source(postgres: PostgresServer, tmp_path: Path) -> None:
    """With data partitions, without an id, and with changes before and after the position."""
    with new_world(postgres, tmp_path) as world:
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
        world.change(marks=1)
        as_of = copied(world, tmp_path / "copied")
        world.change(marks=1)
        with world.process() as pipeline:
            consume(pipeline)
            for name in world.tables:
                export = export_at(str(tmp_path / "copied" / name.table), as_of)
                (taken,) = take_snapshot(pipeline, [name], export=export)
                assert (taken.state, taken.error) == ("published", None)
        world.change()
        with world.process() as pipeline:
            consume(pipeline)
            apply_all(pipeline)
        check(world)


def test_an_export_of_a_table_that_was_read_and_had_no_change_yet_is_taken(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """The last cut read the table, and all of its later changes follow."""
    with new_world(postgres, tmp_path) as world:
        things = world.tables[0]
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
        run_sql(world.source_url, "INSERT INTO parts VALUES (99, 'east', 1)")
        with world.process() as pipeline:
            consume(pipeline)
            assert pipeline.store.tables.table(things).next_slice_number == 1
            export = export_at(str(tmp_path / "copied" / things.table), copied(world, tmp_path / "copied"))
            (taken,) = take_snapshot(pipeline, [things], export=export)
            assert (taken.state, taken.error) == ("published", None)


def test_an_export_at_an_earlier_position_waits_for_transactions_that_are_not_seen_yet(database: str) -> None:
    """One may be in the log already."""
    position, own_transaction, oldest = blocks(PAGE, "sql", "## PostgreSQL")[1].splitlines()

    def shown(statement: str) -> str:
        with session(database) as connection:
            return str(rows(connection, statement)[0][0])

    with session(database) as unseen:
        rows(unseen, "SELECT pg_current_xact_id()")
        assert parse_lsn(shown(position))
        awaited = int(shown(own_transaction))
        assert int(shown(oldest)) < awaited
        unseen.commit()
    assert eventually(lambda: int(shown(oldest)) > awaited)


def test_an_export_that_changes_may_be_missing_after_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    with new_world(postgres, tmp_path) as world:
        things = world.tables[0]
        (tmp_path / "a.csv").write_text("id,name,body,price,changed\n1,a,b,1.50,\n")
        os.utime(tmp_path / "a.csv", (0, 0))
        with world.process() as pipeline:
            pipeline.source_setup().set_up()
            now = world.query("SELECT pg_current_wal_lsn()::text")[0][0]
            for as_of, message in (
                ("12", "'12' is no position of the source"),
                ("FFFFFFFF/0", "is no position of the source; expected an LSN up to"),
                (now, "the oldest file is from 1970-01-01 00:00:00Z, and the table was set up after that"),
            ):
                with pytest.raises(UsageError, match=message):
                    take_snapshot(pipeline, [things], export=export_at(str(tmp_path / "a.csv"), as_of))
            os.utime(tmp_path / "a.csv")
            with pytest.raises(UsageError, match="it is older than the first change that the stream has"):
                take_snapshot(pipeline, [things], export=export_at(str(tmp_path / "a.csv"), "0/1"))
            (taken,) = take_snapshot(pipeline, [things], export=export_at(str(tmp_path / "a.csv"), now))
            assert (taken.state, taken.rows) == ("published", 1)


def test_an_export_from_before_slices_whose_files_are_deleted_is_refused(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """A table that is behind holds the chain's base, so that the store still has their rows."""
    with new_world(postgres, tmp_path) as world:
        things = world.tables[0]
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
            take_snapshot(pipeline, [things])
        world.change()
        with world.process() as pipeline:
            consume(pipeline)
        export = export_at(str(tmp_path / "copied" / things.table), copied(world, tmp_path / "copied"))
        world.change()
        with world.process() as pipeline:
            consume(pipeline)
            pipeline.slice_worker().slice_to_lake(things)
            pipeline.cleanup().clean(now=pipeline.store.snapshot_history.now() + timedelta(days=365))
        check_refused(world, things, export, why="old slices of the table are deleted")


def test_an_export_from_before_the_last_snapshot_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    """What that snapshot mended would be lost again: rows of a gap in the stream, and rows that were quarantined."""
    with new_world(postgres, tmp_path) as world:
        things = world.tables[0]
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
        world.change()
        with world.process() as pipeline:
            consume(pipeline)
        export = export_at(str(tmp_path / "copied" / things.table), copied(world, tmp_path / "copied"))
        world.change()
        with world.process() as pipeline:
            consume(pipeline)
            take_snapshot(pipeline, [things])
        check_refused(world, things, export, why="last snapshot is of a later position")


def test_an_export_from_before_its_columns_changed_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    """Files have columns by name, and two names that were exchanged would exchange the values of all rows."""
    with new_world(postgres, tmp_path) as world:
        things = world.tables[0]
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
        world.change()
        with world.process() as pipeline:
            consume(pipeline)
            take_snapshot(pipeline, [things])
        before = export_at(str(tmp_path / "before" / things.table), copied(world, tmp_path / "before"))
        renames = (("name", "x"), ("body", "name"), ("x", "body"))
        run_sql(world.source_url, "; ".join(f"ALTER TABLE things RENAME {old} TO {new}" for old, new in renames))
        world.change()
        with world.process() as pipeline:
            pipeline.source_setup().set_up()
        after = export_at(str(tmp_path / "after" / things.table), copied(world, tmp_path / "after"))
        check_refused(world, things, before, why="has other columns since --as-of")
        check_refused(world, things, after, why="no slice has the new ones yet; run cdc consume")
        with world.process() as pipeline:
            consume(pipeline)
        check_refused(world, things, before, why="has other columns since --as-of")
        with world.process() as pipeline:
            (taken,) = take_snapshot(pipeline, [things], export=after)
            assert (taken.state, taken.error) == ("published", None)
            for name in world.tables[1:]:
                take_snapshot(pipeline, [name])
            apply_all(pipeline)
        check(world)


def check_refused(world: World, table: TableName, export: Export, *, why: str) -> None:
    """The lake's table stays as it is."""
    with world.process() as pipeline:
        lake_table = pipeline.lake_table(table)
        before = lake_rows(pipeline, lake_table)
        with pytest.raises(UsageError, match=why):
            take_snapshot(pipeline, [table], export=export)
        assert lake_rows(pipeline, lake_table) == before


def test_positions_of_mariadb_are_gtids_or_places_of_its_log(
    tmp_path: Path, mariadb: str, mysql_database: str, store_url: str
) -> None:
    run_mysql(mariadb, "CREATE TABLE orders (id int PRIMARY KEY, note text)", database=mysql_database)
    settings = mysql_settings(tmp_path, mariadb, mysql_database, [{"name": "orders"}])
    with opened_pipeline(settings, store_url=store_url, spark_url=NOBODY_LISTENS) as pipeline:
        with closing(connected(mariadb)) as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")  # other tests write to the same server
            ((file, place, *_),) = run_mysql(mariadb, "SHOW MASTER STATUS")
            ((gtid,),) = run_mysql(mariadb, "SELECT @@gtid_binlog_pos")
            *begin, noted = blocks(PAGE, "sql", "## MariaDB and MySQL")[0].splitlines()
            for statement in begin:
                cursor.execute(statement)
            cursor.execute(noted)
            assert [shown for _, shown in cursor.fetchall()][:2] == [file, str(place)]
        position = pipeline.source.position_of(str(gtid)).position
        assert position == int(str(gtid).rpartition("-")[2]) + 1
        assert pipeline.source.position_of(f"{file}:{place}").position == position
        for text in ("0-1-99999999", "0/1", f"nowhere.000001:{place}"):
            with pytest.raises(UsageError, match="is no position of the source"):
                pipeline.source.position_of(text)
