"""Tables of which cuts were made without their changes: they are stale until a snapshot has all of these."""

from uuid import UUID

from cdc_pipeline.consume.chain_base import DecidedChain
from cdc_pipeline.metadata_store.ledger.cut import Cut


def unread_through(chain: DecidedChain) -> dict[UUID, str]:
    """Returns the position of the newest cut at which a stale table was not read; by table.

    A stale table is read again, for its coming snapshot, as soon as it has `published_as` again. A base does not show
    which of the cuts before it read the table: it counts as one that did not, for each table that is stale.
    """
    found: dict[UUID, str] = {}
    if chain.base is not None:
        found.update((each.table_uuid, chain.base.position) for each in chain.base.tables if each.stale is not None)
    for _, file in chain.files:
        if isinstance(file.content, Cut):
            found.update((each.table_uuid, file.content.position) for each in file.tables if each.is_unread)
    return found
