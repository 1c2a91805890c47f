"""A table of the lake that no cut file names: was it removed, or are the cut files lost that name it?"""

from dataclasses import asdict, replace
from uuid import UUID

import pytest

from cdc_pipeline.consume.chain_base import DecidedChain
from cdc_pipeline.lake.ledger_values import AppliedClaim, LakeLedger
from cdc_pipeline.operations.removed_tables import was_forgotten
from cdc_pipeline.record import encode_position
from tests.unit.consume.test_chain_base import BASE, MOMENT
from tests.unit.lake.test_published_table import PUBLISHED

FROM_FILES = encode_position(0)
"""The cutoff of a table without a snapshot, whenever it was added."""
BEFORE, BEHIND = "00000000016b3747", "00000000016b3749"
CHAIN = DecidedChain(base=BASE, files=())
CLAIM = AppliedClaim(
    claim_id=UUID(int=3),
    first_number=1,
    last_number=1,
    lake_version=1,
    committed_at=MOMENT,
    slices=(),
    position=BEFORE,
)
LEDGER = LakeLedger(
    fence_number=1,
    lake_version=1,
    steps=(CLAIM,),
    published=replace(PUBLISHED, stream=asdict(BASE.stream), cutoff_offset=FROM_FILES),
    is_whole=True,
)


def test_a_table_that_was_read_before_the_base_and_is_not_in_it_was_removed() -> None:
    assert was_forgotten(LEDGER, CHAIN)


@pytest.mark.parametrize("steps", [(replace(CLAIM, position=BEHIND),), ()], ids=["read behind it", "log was cleaned"])
def test_a_table_that_may_have_been_added_behind_the_base_counts_as_one_whose_cut_files_are_lost(
    steps: tuple[AppliedClaim, ...],
) -> None:
    assert not was_forgotten(replace(LEDGER, steps=steps), CHAIN)


def test_nothing_shows_that_a_table_was_removed_without_a_base_or_if_another_stream_published_it() -> None:
    assert not was_forgotten(LEDGER, replace(CHAIN, base=None))
    others = replace(BASE.stream, source_system_identifier="8")
    assert not was_forgotten(LEDGER, replace(CHAIN, base=replace(BASE, stream=others)))
