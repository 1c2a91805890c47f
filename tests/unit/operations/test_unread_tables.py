"""Which tables had cuts that did not read them, as the decided chain shows it."""

from dataclasses import replace

import pytest

from cdc_pipeline.consume.chain_base import DecidedChain
from cdc_pipeline.operations.unread_tables import unread_through
from tests.unit.consume.test_chain_base import BASE

(TABLE,) = BASE.tables


@pytest.mark.parametrize("published_as", [None, "mark"], ids=["not read", "read again"])
def test_a_base_may_have_replaced_cuts_that_did_not_read_a_stale_table(published_as: str | None) -> None:
    stale = replace(TABLE, stale="its changes were not read", published_as=published_as)
    chain = DecidedChain(base=replace(BASE, tables=(stale,)), files=())
    assert unread_through(chain) == {stale.table_uuid: BASE.position}


def test_a_base_replaced_no_cut_that_did_not_read_a_table_that_is_not_stale() -> None:
    chain = DecidedChain(base=replace(BASE, tables=(replace(TABLE, stale=None),)), files=())
    assert unread_through(chain) == {}
