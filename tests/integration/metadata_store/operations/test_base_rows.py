"""The rows of the base of a chain of cut files: read as of one moment, for as long as it takes, and restored."""

from collections.abc import Iterator

import psycopg2.extensions
import pytest
from sqlalchemy import event

from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.operations.rebuild import Rebuild
from cdc_pipeline.record import encode_position
from tests.support.metadata_store import SCHEMA, STREAM, Shop, new_table, opened_shop


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    with opened_shop(store_url) as shop:
        yield shop


def test_the_session_may_pause_while_the_rows_are_read(shop: Shop) -> None:
    """The driver decodes what the server has sent; of millions of rows, for longer than a session may be idle."""
    keep, longest = shop.store.retention.keep(shop.register_orders(1), {}), list[object]()

    @event.listens_for(shop.engine, "after_cursor_execute")
    def note(_c: object, cursor: psycopg2.extensions.cursor, _s: object, _p: object, _o: object, _many: object) -> None:
        with cursor.connection.cursor() as other:
            other.execute("SHOW idle_in_transaction_session_timeout")
            longest.extend(other.fetchall())

    shop.store.base_rows.read(keep)
    event.remove(shop.engine, "after_cursor_execute", note)
    assert set(longest) == {("0",)}


def test_a_table_that_is_registered_while_the_rows_are_read_is_not_among_them(shop: Shop) -> None:
    keep, left = shop.store.retention.keep(shop.register_orders(1), {}), [new_table("registered meanwhile")]

    @event.listens_for(shop.engine, "after_cursor_execute")
    def register(_c: object, _u: object, statement: str, _p: object, _o: object, _many: object) -> None:
        if left and "source.followed_at" in statement:
            row = shop.store.tables.register_table(left.pop())
            shop.store.tables.record_schema(row.table_id, SCHEMA, first_offset=encode_position(1))

    rows = shop.store.base_rows.read(keep)
    assert left == []
    known = {shop.orders.table_id, shop.customers.table_id}
    assert {name: {row["table_id"] for row in rows[name]} for name in ("source_table", "table_schema")} == {
        "source_table": known,
        "table_schema": known,
    }


def test_rows_of_a_table_of_which_the_base_has_nothing_else_are_left_out(shop: Shop) -> None:
    """A base of an older version has them if the table was registered while the rows were read."""
    rows = shop.store.base_rows.read(shop.store.retention.keep(shop.register_orders(2), {}))
    orders = [row for row in rows["source_table"] if row["table_id"] == shop.orders.table_id]
    with Rebuild(database=Database(engine=shop.engine)).emptied(STREAM.name) as empty:
        empty.begin_behind((), rows | {"source_table": orders}, {shop.orders.table_uuid: shop.orders.table_id})
    assert shop.store.tables.table(shop.orders.name).next_slice_number == 5
