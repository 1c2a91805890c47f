"""The place of a cut in the chain of cut files."""

from dataclasses import replace

from cdc_pipeline.metadata_store.ledger.cut import Cut, LateSlice, chain_position_behind
from cdc_pipeline.record import decode_position, encode_position


def position_of(chain_position: str) -> str:
    """Returns the position of the cut before this chain position; "" at the beginning of a stream."""
    return chain_position.rpartition("-")[0]


def share_no_partition(one: Cut, other: Cut) -> bool:
    """Returns whether two cuts name no common stream partition, so that they can follow each other in any order."""
    named = {part.stream_partition for part in one.partitions}
    return named.isdisjoint(part.stream_partition for part in other.partitions)


def moved_to_chain_end(cut: Cut, chain_position: str) -> Cut:
    """Returns the cut with the position that it has at the end of the chain.

    Consumers that share a stream count positions on their own, and order their cuts by the chain. The cut of a consumer
    that has the stream alone starts at or after the end of the chain, so it is returned unchanged.
    """
    end = position_of(chain_position)
    if not end or cut.start >= end:
        return cut
    length = decode_position(cut.position) - decode_position(cut.start)
    return replace(cut, start=end, position=encode_position(decode_position(end) + length))


def chain_position_after(chain_position: str, content: Cut | LateSlice) -> str:
    """Returns the chain position after `content`, whose file is at `chain_position`."""
    if isinstance(content, Cut):
        return chain_position_behind(content.position, 0)
    position, _, late = chain_position.rpartition("-")
    return chain_position_behind(position, int(late) + 1)
