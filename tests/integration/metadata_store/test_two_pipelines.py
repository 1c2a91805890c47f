"""Several pipelines keep their ledgers in one store, with tables of the same names, and none sees another's."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import uuid5

import pytest

from cdc_pipeline.errors import UsageError
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.inspection.queries import query_names
from cdc_pipeline.metadata_store.ledger.cut import QuarantinedEvent
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import encode_position
from tests.support.doc_pages import blocks
from tests.support.metadata_store import (
    MINUTE,
    NAMESPACE,
    OWNER,
    PARTITIONS,
    SCHEMA,
    STREAM,
    Shop,
    new_table,
    opened_shop,
)

OTHER = "other"
ONLY_ORDERS = "DELETE FROM cdc.table_schema WHERE table_id = 2; DELETE FROM cdc.source_table WHERE table_id = 2"
MANY_BOUNDARIES = """
    INSERT INTO cdc.boundary (stream, position, commit_time, label_start, label_end, requested)
    SELECT 'other', lpad(to_hex(n), 16, '0'), now(), now(), now(), false FROM generate_series(1, 2000) AS n
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Both have a table `shop.public.orders`; only the shop's has slices and a snapshot."""

    shop: Shop
    store: MetadataStore
    orders: SourceTable


@pytest.fixture
def both(database: str) -> Iterator[Neighbours]:
    with opened_shop(database) as shop:
        store = MetadataStore(Database(engine=shop.engine), OTHER)
        store.streams.register_stream(replace(STREAM, name=OTHER, slot="other"), stream_partitions=len(PARTITIONS))
        store.streams.take_stream(OTHER, owner=OWNER, first_offset=encode_position(0))
        orders = store.tables.register_table(
            replace(new_table("orders"), stream=OTHER, table_uuid=uuid5(NAMESPACE, OTHER))
        )
        store.tables.record_schema(orders.table_id, SCHEMA, first_offset=encode_position(0))
        shop.register_orders(2)
        lease = shop.acquire()
        shop.publish(lease, 1)
        shop.apply(lease, after=2, lake_version=2)
        event = QuarantinedEvent(
            table_id=shop.orders.table_id, stream_partition=0, version="v", reason="r", column="note", payload={}
        )
        cut = shop.cut(2, 3, {(shop.orders.table_id, 0): 0})
        shop.register(replace(cut, quarantined=(event,)))
        yield Neighbours(shop=shop, store=store, orders=orders)


def test_a_table_of_the_same_name_is_another_table(both: Neighbours) -> None:
    mine, theirs = both.store.tables.table(both.orders.name), both.shop.store.tables.table(both.orders.name)
    assert mine.name == theirs.name
    assert (mine.table_id, theirs.table_id) == (both.orders.table_id, both.shop.orders.table_id)
    assert mine.table_uuid != theirs.table_uuid
    assert both.store.tables.tables() == (mine,)
    assert [row.stream for row in both.shop.store.tables.tables()] == ["shop", "shop"]


def test_registering_it_again_finds_it_and_leaves_the_other_alone(both: Neighbours) -> None:
    again = replace(new_table("orders"), stream=OTHER, settings={"id": ["order_id"], "update_time": "at"})
    assert both.store.tables.register_table(again).table_id == both.orders.table_id
    assert "update_time" not in both.shop.store.tables.table(both.orders.name).settings


def test_a_table_that_only_the_other_pipeline_has_is_unknown(both: Neighbours) -> None:
    with pytest.raises(UsageError, match=r"no table shop\.public\.customers"):
        both.store.tables.table(both.shop.customers.name)


@pytest.mark.parametrize("name", query_names())
def test_a_query_shows_nothing_of_another_pipeline(both: Neighbours, name: str) -> None:
    assert {row["stream"] for row in both.store.inspection.run(name)} <= {OTHER}
    assert {row["stream"] for row in both.shop.store.inspection.run(name)} <= {"shop"}


def test_boundaries_of_another_pipeline_hide_no_consistent_versions(both: Neighbours) -> None:
    (query,) = blocks("docs/reference/inspection.md", "sql", "## v_boundary_vector\n")[:1]
    with both.shop.engine.begin() as connection:
        connection.exec_driver_sql(ONLY_ORDERS)
        before = connection.exec_driver_sql(query).all()
        connection.exec_driver_sql(MANY_BOUNDARIES)
        assert connection.exec_driver_sql(query).all() == before
    assert [row.versions for row in before] == [{"shop.public.orders": 2}]


def test_events_in_quarantine_are_listed_and_decided_by_their_own_pipeline(both: Neighbours) -> None:
    (entry,) = both.shop.store.quarantine.entries()
    assert both.store.quarantine.entries() == ()
    lease = both.store.leases.acquire(both.orders.table_id, owner="worker", duration=MINUTE)
    for decide in (both.store.quarantine.entry, lambda number: both.store.quarantine.drop(lease, [number], "no")):
        with pytest.raises(UsageError, match="no event"):
            decide(entry.quarantine_id)
    assert both.shop.store.quarantine.entry(entry.quarantine_id).state == "waiting"
