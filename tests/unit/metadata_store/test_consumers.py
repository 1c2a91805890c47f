"""Consumers that are alive share the stream partitions evenly, and keep what they have where they can."""

import pytest

from cdc_pipeline.metadata_store.ledger.consumers import fair_share


@pytest.mark.parametrize("consumers", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("partitions", [0, 1, 4, 6])
def test_after_each_took_its_share_every_partition_has_one_owner(partitions: int, consumers: int) -> None:
    alive = [f"c{number}" for number in range(consumers)]
    owners: dict[int, str | None] = dict.fromkeys(range(partitions), "dead")
    for _ in range(2):
        for owner in alive:
            share = fair_share(owners, owner, alive)
            kept = {number: None if has == owner and number not in share else has for number, has in owners.items()}
            owners = kept | dict.fromkeys(share, owner)
    counts = [list(owners.values()).count(owner) for owner in alive]
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
@pytest.mark.parametrize("newcomer", ["a", "z"])
def test_a_consumer_that_reads_goes_on_whoever_joins(partitions: int, newcomer: str) -> None:
    """One that has nothing left waits without letting go, so its partition would stand still."""
    readers = [f"m{number}" for number in range(partitions)]
    owners: dict[int, str | None] = dict(enumerate(readers))
    alive = sorted([*readers, newcomer])
    assert [fair_share(owners, owner, alive) for owner in readers] == [{number} for number in range(partitions)]
    assert fair_share(owners, newcomer, alive) == set()


def test_a_consumer_keeps_what_it_has_when_another_dies() -> None:
    owners: dict[int, str | None] = {0: "dead", 1: "a", 2: "dead", 3: "a"}
    assert fair_share(owners, "a", ["a"]) == {0, 1, 2, 3}
    assert fair_share(owners, "a", ["a", "b"]) == {1, 3}
    assert fair_share(owners, "b", ["a", "b"]) == {0, 2}


def test_a_consumer_takes_nothing_from_another_that_is_alive() -> None:
    owners: dict[int, str | None] = dict.fromkeys(range(4), "a")
    assert fair_share(owners, "b", ["a", "b"]) == set()
