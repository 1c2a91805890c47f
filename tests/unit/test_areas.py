"""Names that come from data become folders: injectively, or refused by name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline import areas
from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import TableName

SAFE = re.compile(r"(?:[A-Za-z0-9_.-]|![0-9A-F]{2})+")
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16).filter(lambda name: name not in (".", ".."))
TABLES = st.builds(TableName, database=NAMES, schema=NAMES, table=NAMES)
ORDERS = TableName(database="shop", schema="public", table="orders")


@given(NAMES)
def test_an_encoded_name_is_safe_everywhere_and_decodes_to_itself(name: str) -> None:
    encoded = areas.encode_component(name)
    assert SAFE.fullmatch(encoded)
    assert areas.decode_component(encoded) == name


@given(NAMES, NAMES)
def test_two_names_never_share_a_folder(one: str, other: str) -> None:
    assert (areas.encode_component(one) == areas.encode_component(other)) == (one == other)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 201, "é" * 34])
def test_a_name_that_no_store_can_hold_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a folder") as caught:
        areas.encode_component(name)
    assert caught.value.expected
    assert caught.value.remedy


def test_the_longest_name_is_accepted() -> None:
    assert areas.encode_component("x" * 200) == "x" * 200


@given(TABLES, st.sampled_from([areas.CDC_EVENT, areas.DB_SNAPSHOT, areas.STAGING_AREA, areas.DATALAKE]))
def test_every_table_has_a_folder_of_its_own_three_levels_below_its_area(table: TableName, area: str) -> None:
    found_area, *parts = areas.table_prefix(area, table).split("/")
    assert found_area == area
    assert tuple(map(areas.decode_component, parts)) == (table.database, table.schema, table.table)


def test_the_four_areas_have_their_templates() -> None:
    assert areas.slice_key(ORDERS, 3, "f.parquet") == "cdc-event/shop/public/orders/3/f.parquet"
    assert areas.snapshot_prefix(ORDERS, "a:b") == "db-snapshot/shop/public/orders/a!3Ab"
    assert areas.staging_prefix(ORDERS, "s1") == "staging-area/shop/public/orders/s1"
    assert areas.lake_key(ORDERS) == "datalake/shop/public/orders"
    assert areas.owner_key(ORDERS) == "cdc-event/shop/public/orders/pipeline.json"
