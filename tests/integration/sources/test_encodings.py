"""A database whose encoding is not UTF-8: what UTF-8 cannot show stops as little as possible, and is named."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceError
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.world import World
from tests.support.guarded import begin_again, go_on, guarded_world, in_lake, in_source
from tests.support.pipelines import consume
from tests.support.postgres import encoded_database
from tests.support.streams import run_sql

WAITING = "SELECT snapshot_id IS NOT NULL FROM cdc.quarantine WHERE state = 'waiting'"


@pytest.fixture
def world(request: pytest.FixtureRequest, postgres: PostgresServer, store_url: str, tmp_path: Path) -> Iterator[World]:
    with encoded_database(postgres, request.param) as url, guarded_world(tmp_path, url, store_url) as world:
        yield world


def run_bytes(world: World, *statements: bytes) -> None:
    with closing(psycopg2.connect(world.source_url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize("world", ["SQL_ASCII"], indirect=True)
def test_a_value_that_is_not_utf_8_is_quarantined_by_the_stream_and_by_the_copy(world: World) -> None:
    run_bytes(
        world,
        b"INSERT INTO orders VALUES (4, E'caf\\351'), (5, 'caf\xc3\xa9')",
        b"INSERT INTO customers VALUES (5, 'five')",
    )
    assert go_on(world) == {}
    begun = [{"id": 1, "note": "one"}, {"id": 2, "note": "two"}, {"id": 3, "note": "three"}]
    assert in_lake(world, "orders") == [*begun, {"id": 5, "note": "caf\u00e9"}]
    assert in_lake(world, "customers") == in_source(world, "customers")
    assert world.store_query(WAITING) == [(False,)]
    begin_again(world)
    assert in_lake(world, "orders") == [*begun, {"id": 5, "note": "caf\u00e9"}]
    assert world.store_query(WAITING) == [(True,)]


@pytest.mark.parametrize("world", ["SQL_ASCII"], indirect=True)
def test_a_column_that_is_computed_from_a_value_that_is_not_utf_8_stops_nothing(world: World) -> None:
    run_sql(world.source_url, "ALTER TABLE orders ADD low text GENERATED ALWAYS AS (lower(note)) VIRTUAL")
    assert "orders" in go_on(world)
    begin_again(world)
    run_bytes(world, b"INSERT INTO orders VALUES (4, E'caf\\351'), (5, 'FIVE')")
    assert go_on(world) == {}
    assert in_lake(world, "orders")[3:] == [{"id": 5, "note": "FIVE", "low": "five"}]


@pytest.mark.parametrize("world", ["SQL_ASCII"], indirect=True)
def test_names_that_are_not_utf_8_stop_no_other_table(world: World) -> None:
    run_bytes(world, b"CREATE TABLE caf\xe9 (id int)", b"INSERT INTO orders VALUES (4, 'four')")
    assert go_on(world) == {}
    with world.process() as pipeline:
        assert [name.rpartition(".")[2] for name in pipeline.source.list_tables()] == ["orders", "customers", "caf%E9"]
        pipeline.source_setup().set_up()
    run_bytes(world, b"ALTER TABLE customers ADD caf\xe9 int", b"INSERT INTO customers VALUES (7, 'x', 1)")
    assert go_on(world) == {}
    assert in_lake(world, "customers")[-1] == {"id": 7, "note": "x", "caf%E9": 1}
    assert in_lake(world, "orders") == in_source(world, "orders")


@pytest.mark.parametrize("world", ["WIN1252"], indirect=True)
def test_a_character_that_utf_8_lacks_is_named_with_the_way_out(world: World) -> None:
    run_sql(world.source_url, "INSERT INTO orders VALUES (4, chr(129))", "INSERT INTO customers VALUES (4, chr(233))")
    way = (
        r'0x81 in encoding "WIN1252".*LSN [0-9A-F]+/[0-9A-F]+; correct the value in its table, run cdc setup-source --b'
    )
    with world.process() as pipeline, pytest.raises(SourceError, match=way):
        consume(pipeline)
    run_sql(world.source_url, "UPDATE orders SET note = 'four' WHERE id = 4")
    with world.process() as pipeline:
        pipeline.source_setup().begin_stream_again()
    begin_again(world)
    assert go_on(world) == {}
    for table in ("orders", "customers"):
        assert in_lake(world, table) == in_source(world, table)


@pytest.mark.parametrize(
    ("encoding", "warned"), [("UTF8", []), ("LATIN1", []), ("SQL_ASCII", ["quarantined"]), ("WIN1252", ["stop"])]
)
def test_set_up_warns_of_an_encoding_with_texts_that_utf_8_lacks(
    encoding: str, warned: list[str], postgres: PostgresServer, store_url: str, tmp_path: Path
) -> None:
    with encoded_database(postgres, encoding) as url, capture_logs() as logs, guarded_world(tmp_path, url, store_url):
        found = [said["event"] for said in logs if said.get("server_encoding") == encoding]
    assert [word for word in ("quarantined", "stop") if any(word in event for event in found)] == warned
