"""Names that need quotes somewhere on their way: tables and columns, through snapshot and stream, to other readers."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from psycopg2 import sql

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.postgres.session import connect
from cdc_pipeline.wiring import Pipeline
from tests.support.delta_rows import seen
from tests.support.pipelines import (
    consume,
    lake_rows,
    opened_pipeline,
    pipeline_settings,
    set_up_and_consume,
    take_snapshot,
)
from tests.support.postgres import fresh_store
from tests.support.streams import database_of

TABLES = ('with space "hi"', "Capitals", "a.b", "it's 100%", "naïve_日本", "back`tick\\")
PLAIN_COLUMNS = (
    ".id",
    "Capital",
    "a.b",
    'q"q',
    "it's",
    "back\\slash",
    "a/b",
    "été",
    "日本",
    "select",
    "1",
    "%20",
    "back`tick",
)
MAPPED_COLUMNS = (*PLAIN_COLUMNS, "a b", "a,b", "a;b", "a=b", "{x}", "(p)", "new\nline", "tab\t", " ends ")

COLUMNS = {
    "plain": PLAIN_COLUMNS,
    "mapped": MAPPED_COLUMNS,
    "quote as id": ('q"q', "note"),
    "backslash as id": ("back\\slash", "note"),
    "line end as id": ("new\nline", "note"),
}


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, spark_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    with closing(connect(database)) as connection:
        for table in TABLES:
            create_table(connection, table, ("id", "note"))
        for table, columns in COLUMNS.items():
            create_table(connection, table, columns)
    name = database_of(database)
    tables = [
        {"name": str(TableName(database=name, schema="My schema", table=table)).removeprefix(f"{name}.")}
        for table in (*TABLES, *COLUMNS)
    ]
    settings = pipeline_settings(tmp_path, database, tables)
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline,
    ):
        yield pipeline


def create_table(connection: Any, table: str, columns: tuple[str, ...]) -> None:
    """The first column is the id."""
    name = sql.Identifier("My schema", table)
    first, *others = map(sql.Identifier, columns)
    definitions = sql.SQL(", ").join(
        [sql.SQL("{} text PRIMARY KEY").format(first)] + [sql.SQL("{} text").format(other) for other in others]
    )
    with connection, connection.cursor() as cursor:
        cursor.execute('CREATE SCHEMA IF NOT EXISTS "My schema"')
        cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(name, definitions))
        for number in range(3):
            cursor.execute(
                sql.SQL("INSERT INTO {} VALUES ({})").format(
                    name, sql.SQL(", ").join(sql.Literal(f"{number} of {column}") for column in columns)
                )
            )


def change(connection: Any, table: TableName, columns: tuple[str, ...]) -> None:
    name, (first, *_, last) = sql.Identifier(table.schema, table.table), map(sql.Identifier, columns)
    with connection, connection.cursor() as cursor:
        update = sql.SQL("UPDATE {} SET {} = 'changed' WHERE {} LIKE '1 of %%'").format(name, last, first)
        cursor.execute(update)
        cursor.execute(sql.SQL("DELETE FROM {} WHERE {} LIKE '2 of %%'").format(name, first))


def in_source(connection: Any, table: TableName) -> list[dict[str, Any]]:
    with connection, connection.cursor() as cursor:
        cursor.execute(sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(table.schema, table.table)))
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_any_name_of_a_table_or_column_comes_through_snapshot_and_stream(pipeline: Pipeline, database: str) -> None:
    tables = pipeline.table_names()
    set_up_and_consume(pipeline)
    snapshots = take_snapshot(pipeline, *tables)
    assert [(snapshot.state, snapshot.rows, snapshot.error) for snapshot in snapshots] == [
        ("published", 3, None)
    ] * len(tables)
    columns = {table: COLUMNS.get(table.table, ("id", "note")) for table in tables}
    with closing(connect(database)) as connection:
        for table in tables:
            change(connection, table, columns[table])
        consume(pipeline)
        for table in tables:
            (outcome,) = pipeline.slice_worker().slice_to_lake(table).outcomes
            assert (outcome.counts.updated, outcome.counts.deleted) == (1, 1), table
            found = sorted(seen(lake_rows(pipeline, table)), key=lambda row: str(next(iter(row.values()))))
            assert found == in_source(connection, table), table
