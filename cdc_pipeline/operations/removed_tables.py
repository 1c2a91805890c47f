"""Tables of the lake that were removed from the stream without their lake."""

from cdc_pipeline.consume.chain_base import DecidedChain
from cdc_pipeline.lake.ledger_values import LakeLedger, PublishedTable
from cdc_pipeline.metadata_store.ledger.records import Stream


def was_removed(published: PublishedTable, chain: DecidedChain) -> bool:
    """Whether cut files name this table of the lake, or may have named it before the base: the stream published it."""
    if any(published.table_uuid == each.table_uuid for each in chain.tables):
        return True
    then, base = Stream(**published.stream), chain.base
    if base is None or published.cutoff_offset > base.position:
        return False
    return (then.name, then.source_system_identifier) == (base.stream.name, base.stream.source_system_identifier)


def was_forgotten(ledger: LakeLedger, chain: DecidedChain) -> bool:
    """Whether this table of the lake, which no cut file names any more, was removed before the base was made.

    It was read up to a position before the base, and the base names every table that the store had then.
    """
    if ledger.published is None or chain.base is None or not was_removed(ledger.published, chain):
        return False
    end = chain.base.position
    return any(claim.position is not None and claim.position <= end for claim in ledger.claims)
