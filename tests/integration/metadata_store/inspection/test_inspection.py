"""Every query that ships or is written down runs, as a role that may do nothing else."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from cdc_pipeline.errors import RegistryError, StoreAway, UsageError
from cdc_pipeline.metadata_store.inspection.queries import query_names
from cdc_pipeline.metadata_store.inspection.sql_files import READER_ROLE, sql, view_names
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.record import Column, TableSchema, encode_position
from tests.support.doc_pages import blocks, text_of
from tests.support.metadata_store import Shop, count_waiting, new_table, opened_shop
from tests.support.reference_pages import view_columns

PAGE = "docs/reference/inspection.md"
BLOCKS = (*blocks(PAGE, "sql"), *blocks("docs/reference/metrics.md", "sql"))
BECOME_READER = f"SET LOCAL ROLE {READER_ROLE}"


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    """Orders are live with slices that are applied and slices that wait; customers have none."""
    with opened_shop(database) as shop:
        lease = shop.acquire()
        shop.register_orders(2)
        shop.publish(lease, 1)
        shop.apply(lease, after=2, lake_version=2)
        shop.register_orders(1, start=2)
        shop.register(shop.cut(3, 4, {(shop.orders.table_id, 0): 0}))
        yield shop


def ask_as_reader(shop: Shop, statement: str) -> list[object]:
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(BECOME_READER)
        return list(connection.execute(text(statement)).all())


def test_every_query_of_the_pages_runs_as_the_read_only_role(shop: Shop) -> None:
    assert len(BLOCKS) >= len(view_names())
    for block in BLOCKS:
        ask_as_reader(shop, block)


def test_the_alert_on_failed_snapshots_ends_when_the_table_gets_another_one(shop: Shop) -> None:
    (alert,) = (block for block in blocks("docs/reference/metrics.md", "sql") if "v_snapshot_progress" in block)
    found = [ask_as_reader(shop, alert)]
    for snapshot_id in ("second", "third"):
        shop.store.snapshots.create_snapshot(shop.new_snapshot(3, snapshot_id=snapshot_id))
        found.append(ask_as_reader(shop, alert))
        shop.store.snapshots.set_snapshot_state(snapshot_id, SnapshotState.FAILED, error=f"the {snapshot_id} failed")
        found.append(ask_as_reader(shop, alert))
    second, third = ([("shop", "shop.public.orders", f"the {name} failed")] for name in ("second", "third"))
    assert found == [[], [], second, [], third]


def test_the_page_describes_every_view_and_every_named_query() -> None:
    assert [name for name in view_names() if f"## {name}\n" not in text_of(PAGE)] == []
    assert [name for name in query_names() if f"| `{name}` |" not in text_of(PAGE)] == []


@pytest.mark.parametrize("name", view_names())
def test_the_reference_lists_the_columns_that_a_view_has(shop: Shop, name: str) -> None:
    with shop.engine.begin() as connection:
        columns = list(connection.execute(text(f"SELECT * FROM cdc.{name} LIMIT 0")).keys())
    assert view_columns(sql(name)) == columns


@pytest.mark.parametrize("name", query_names())
def test_a_named_query_runs_with_and_without_its_parameters(shop: Shop, name: str) -> None:
    everything = shop.store.inspection.run(name)
    one = shop.store.inspection.run(name, {"limit": 1})
    assert len(one) == min(1, len(everything))


def test_a_named_query_can_be_narrowed_to_one_table(shop: Shop) -> None:
    rows = shop.store.inspection.run("lag", {"table": "shop.public.orders"})
    assert [row["source_table"] for row in rows] == ["shop.public.orders"]


def test_a_column_shows_its_former_names_and_types(shop: Shop) -> None:
    """The key stays, the note is renamed and then wider."""
    id_ = Column(name="order_id", type="int8", number=1)
    for at, (name, type_) in enumerate((("note", "int4"), ("remark", "int4"), ("remark", "int8")), 1):
        schema = TableSchema(columns=(id_, Column(name=name, type=type_, number=2)), key=("order_id",), generation=at)
        shop.store.tables.record_schema(shop.customers.table_id, schema, first_offset=encode_position(at))
    rows = shop.store.inspection.run("columns", {"table": "shop.public.customers"})
    found = [(row["column"], row["type"], row["number"], row["since_offset"], row["is_current"]) for row in rows]
    assert found[:1] == [("order_id", "int8", 1, encode_position(1), True)]
    assert [(name, type_, is_current) for name, type_, number, _, is_current in found if number == 2] == [
        ("note", "int4", False),
        ("remark", "int4", False),
        ("remark", "int8", True),
    ]
    assert {row["column"] for row in rows if row["is_id"]} == {"order_id"}


@pytest.mark.parametrize("table", ["order.items", 'say "hi".', '"quoted"', "plain"])
def test_a_table_has_one_name_in_every_query_and_on_the_command_line(shop: Shop, table: str) -> None:
    name = str(replace(shop.orders.name, schema="a.b", table=table))
    with shop.engine.begin() as connection:
        rename = "UPDATE cdc.source_table SET schema_name = 'a.b', table_name = :table WHERE table_id = :id"
        connection.execute(text(rename), {"table": table, "id": shop.orders.table_id})
    for query in query_names():
        rows = shop.store.inspection.run(query)
        if any("source_table" in row for row in rows):
            assert name in {row["source_table"] for row in rows}, query
            assert shop.store.inspection.run(query, {"table": name}) != [], query
    assert [row["source_table"] for row in shop.store.inspection.run("lag", {"table": name})] == [name]


def test_all_tables_are_shown_however_many_and_a_limit_that_cuts_says_so(shop: Shop) -> None:
    for number in range(150):
        shop.store.tables.register_table(new_table(f"table_{number}"))
    assert len(shop.store.inspection.run("lag")) == 152
    answers = [shop.store.inspection.ask("lag", {"limit": limit}) for limit in (152, 151, "10")]
    assert [(len(answer.rows), answer.is_cut) for answer in answers] == [(152, False), (151, True), (10, True)]
    with pytest.raises(UsageError, match="limit 'ten' is no number"):
        shop.store.inspection.run("lag", {"limit": "ten"})


def test_what_grows_for_ever_shows_its_newest_rows_of_all_tables_and_says_so(shop: Shop) -> None:
    for end in range(5, 65):
        shop.register(shop.cut(end - 1, end, {(shop.orders.table_id, 0): 1, (shop.customers.table_id, 0): 1}))
    answer = shop.store.inspection.ask("slices")
    assert (len(answer.rows), answer.is_cut) == (100, True)
    assert [row["source_table"].rpartition(".")[2] for row in answer.rows[:4]] == ["customers", "orders"] * 2


def test_unknown_names_and_parameters_are_refused_with_what_there_is(shop: Shop) -> None:
    with pytest.raises(UsageError, match=r"no query lags; expected one of boundaries, claims, columns, damaged, lag"):
        shop.store.inspection.run("lags")
    with pytest.raises(UsageError, match=r"no parameter stream; expected some of .*table"):
        shop.store.inspection.run("lag", {"stream": "x"})


def test_a_hostile_parameter_is_only_a_value(shop: Shop) -> None:
    assert shop.store.inspection.run("lag", {"table": "x'; DROP TABLE cdc.slice CASCADE; --"}) == []
    assert count_waiting(shop.store, shop.orders.table_id) == 2


@pytest.mark.parametrize("table", ["slice", "quarantine", "source_table", "lease"])
def test_the_read_only_role_reads_no_table_behind_the_views(shop: Shop, table: str) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"):
        ask_as_reader(shop, f"SELECT * FROM cdc.{table}")


def test_the_read_only_role_cannot_log_in_and_has_its_limits(shop: Shop) -> None:
    role = "SELECT rolcanlogin, rolconfig FROM pg_roles WHERE rolname = 'cdc_reader'"
    with shop.engine.begin() as connection:
        can_log_in, settings = connection.execute(text(role)).one()
    assert not can_log_in
    assert set(settings) == {"default_transaction_read_only=on", "statement_timeout=15s"}


def test_asking_leaves_no_setting_behind_on_the_connection(shop: Shop) -> None:
    shop.store.inspection.run("lag")
    with shop.store.inspection.database.transaction("test.after") as connection:
        assert connection.scalar(text("SHOW transaction_read_only")) == "off"
        assert connection.scalar(text("SHOW statement_timeout")) == "0"


def test_a_refused_row_is_reported_without_its_values(shop: Shop) -> None:
    insert = "INSERT INTO cdc.stream VALUES ('secret name', NULL, 1, 'x')"
    with pytest.raises((RegistryError, StoreAway)) as caught:
        write(shop, insert)
    assert "source_system_identifier" in str(caught.value)
    assert "secret name" not in str(caught.value)


def write(shop: Shop, statement: str) -> None:
    with shop.store.inspection.database.transaction("test.write") as connection:
        connection.execute(text(statement))
