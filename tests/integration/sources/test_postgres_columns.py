"""The columns of a table as of a held position: all that the source has, or a refusal where they cannot be told."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2.errors
import psycopg2.extensions
import pytest

from cdc_pipeline.errors import SnapshotError, SourceError
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.known import FoundTable
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.position import hold_position, snapshot_connection
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.table_copy import PostgresCopy, read_columns, refuse_rewritten
from cdc_pipeline.sources.postgres.tables import read_shapes
from cdc_pipeline.steps import no_step
from tests.support.streams import database_of, run_sql

CREATE = (
    "CREATE TABLE plain (id int PRIMARY KEY, gone text, a int, twice int GENERATED ALWAYS AS (a * 2) STORED)",
    "ALTER TABLE plain DROP COLUMN gone",
    "CREATE TABLE parted (id int, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
    "INSERT INTO plain VALUES (1, 2)",
    "INSERT INTO parted VALUES (1, 'one')",
)
CHANGES = {
    "rewritten": ("plain", "ALTER TABLE plain ALTER a TYPE text USING a::text, DROP COLUMN twice"),
    "truncated": ("plain", "TRUNCATE plain"),
    "a partition truncated": ("parted", "TRUNCATE part_1"),
    "a partition detached": ("parted", "ALTER TABLE parted DETACH PARTITION part_1"),
    "a partition attached": ("parted", "CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (10) TO (20)"),
    "a partition dropped": ("parted", "DROP TABLE part_1"),
    "replaced": ("plain", "ALTER TABLE plain RENAME TO other; CREATE TABLE plain (LIKE other)"),
    "partitioned and replaced": ("parted", "ALTER TABLE parted RENAME TO other; CREATE TABLE parted (LIKE other)"),
}


@contextmanager
def held(database: str, *meanwhile: str) -> Iterator[psycopg2.extensions.connection]:
    """A connection at a position behind which `meanwhile` happens."""
    with hold_position(database, f"cdc_test_{database_of(database)}", no_step) as position:
        run_sql(database, *meanwhile)
        with snapshot_connection(database, position.exported) as connection:
            yield connection


def named(database: str, table: str) -> TableName:
    return TableName(database=database_of(database), schema="public", table=table)


def test_generated_columns_count_and_dropped_ones_do_not(database: str) -> None:
    run_sql(database, *CREATE)
    with held(database, "ALTER TABLE plain ADD COLUMN later int") as connection:
        columns = read_columns(connection, named(database, "plain"))
    assert [(column.name, column.type, column.number) for column in columns] == [
        ("id", "int4", 1),
        ("a", "int4", 3),
        ("twice", "int4", 4),
    ]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_table_whose_rows_are_not_what_they_were_is_not_read(database: str, kind: str) -> None:
    run_sql(database, *CREATE)
    table, change = CHANGES[kind]
    with held(database, change) as connection, pytest.raises(SourceError, match="while it was to be read"):
        read_columns(connection, named(database, table))


def test_rows_of_another_table_that_got_the_name_after_the_check_are_not_copied(database: str) -> None:
    """The partitions are locked from the check on, and their root is not."""
    run_sql(database, *CREATE)
    name = named(database, "parted")
    with held(database) as connection:
        schema = TableSchema(columns=read_columns(connection, name), key=("id",))
        run_sql(database, CHANGES["partitioned and replaced"][1])
        copy = PostgresCopy(connection=connection, on_step=no_step)
        with pytest.raises(SourceError, match="while it was to be read"):
            list(copy.rows(name, schema))


def test_a_partition_that_numbers_its_columns_otherwise_is_copied_beside_a_new_column(database: str) -> None:
    attach = "ALTER TABLE parted ATTACH PARTITION turned FOR VALUES FROM (10) TO (20)"
    run_sql(
        database, *CREATE, "CREATE TABLE turned (note text, id int)", attach, "INSERT INTO parted VALUES (11, 'two')"
    )
    name = named(database, "parted")
    with held(database, "ALTER TABLE parted ADD COLUMN later int") as connection:
        schema = TableSchema(columns=read_columns(connection, name), key=("id",))
        copied = list(PostgresCopy(connection=connection, on_step=no_step).rows(name, schema))
    assert [row for block in copied for row in block.rows["note"].to_pylist()] == ["one", "two"]


def test_columns_of_a_partition_that_got_the_names_of_others_are_not_copied(database: str) -> None:
    run_sql(database, *CREATE)
    name = named(database, "parted")
    again = "ALTER TABLE parted DROP COLUMN note, ADD COLUMN note text DEFAULT 'new'"
    with held(database, again) as connection:
        schema = TableSchema(columns=read_columns(connection, name), key=("id",))
        with pytest.raises(SourceError, match=r"part_1 changed its columns .* \"note\" does not exist, or another"):
            list(PostgresCopy(connection=connection, on_step=no_step).rows(name, schema))


@pytest.mark.parametrize("table", ["plain", "parted"])
def test_a_snapshot_fails_if_another_table_got_the_name_before_its_end(database: str, table: str) -> None:
    run_sql(database, *CREATE)
    name = named(database, table)
    with session(database) as connection:
        ((oid,),) = rows(connection, "SELECT %s::regclass::oid", (table,))
        document = read_shapes(connection, [oid])[oid].to_json()
        schema = TableSchema(columns=(), key=("id",))
        found = FoundTable(name=name, source_id=oid, key=("id",), schema=schema, description=(document,))
        refuse_rewritten(connection, found, needs_file=False)
        connection.rollback()
        run_sql(database, f"ALTER TABLE {table} RENAME TO other", f"CREATE TABLE {table} (LIKE other)")
        with pytest.raises(SnapshotError, match="changed while it was exported: it has another name now"):
            refuse_rewritten(connection, found, needs_file=False)


def test_a_partitioned_table_that_stays_as_it_is_can_be_read(database: str) -> None:
    run_sql(database, *CREATE)
    with held(database, "INSERT INTO parted VALUES (2, 'two')", "ANALYZE parted") as connection:
        assert [column.name for column in read_columns(connection, named(database, "parted"))] == ["id", "note"]


def test_a_partition_whose_detachment_was_broken_off_does_not_count(database: str) -> None:
    run_sql(database, *CREATE, "CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (10) TO (20)")
    detach = "ALTER TABLE parted DETACH PARTITION part_1 CONCURRENTLY"
    with closing(psycopg2.connect(database)) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT FROM parted")
        with pytest.raises(psycopg2.errors.QueryCanceled):
            run_sql(f"{database}?options=-cstatement_timeout%3D500", detach)
    with held(database) as connection:
        assert [column.name for column in read_columns(connection, named(database, "parted"))] == ["id", "note"]


def test_a_table_that_may_not_be_read_is_refused_in_the_servers_words(database: str) -> None:
    role = f"{database_of(database)}_reader"
    run_sql(database, *CREATE, f"CREATE ROLE {role}")
    try:
        with held(database) as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL ROLE {role}")
            with pytest.raises(
                SourceError, match=r"show \w+\.public\.plain: permission denied for table plain; .*--print-sql"
            ):
                read_columns(connection, named(database, "plain"))
    finally:
        run_sql(database, f"DROP ROLE {role}")


def test_a_table_that_is_not_there_has_no_columns(database: str) -> None:
    with held(database) as connection:
        assert read_columns(connection, named(database, "nothing")) == ()
