"""The ledger of a lake table as the metadata store registers it: its publications and its claims, in their order."""

from collections.abc import Iterator, Sequence

from cdc_pipeline.lake.ledger_values import AppliedClaim, LakeLedger, PublishedCommit, PublishedTable
from cdc_pipeline.metadata_store.ledger.cut import schema_identity
from cdc_pipeline.metadata_store.operations.rebuild_from_lake import KnownSnapshot
from cdc_pipeline.record import KnownClaim


def publications(ledger: LakeLedger | None) -> list[tuple[PublishedTable, PublishedCommit | None]]:
    """Returns the publications of the lake, oldest first; with None if the log no longer has the commit."""
    if ledger is None:
        return []
    commits = [commit for commit in ledger.steps if isinstance(commit, PublishedCommit)]
    found: list[tuple[PublishedTable, PublishedCommit | None]] = [
        (commit.table, commit) for commit in commits if commit.table is not None
    ]
    newest = ledger.published
    if newest is not None and newest.snapshot_id not in [commit.snapshot_id for commit in commits]:
        return [(newest, None), *found]
    return found


def known_steps(ledger: LakeLedger) -> Iterator[KnownClaim | KnownSnapshot]:
    """Yields claims and snapshots in the order of the log."""
    published = publications(ledger)
    yield from (known_snapshot(table, None) for table, commit in published if commit is None)
    for each in ledger.steps:
        if isinstance(each, AppliedClaim):
            yield each
        elif each.table is not None:
            yield known_snapshot(each.table, each)


def known_snapshot(table: PublishedTable, step: PublishedCommit | None) -> KnownSnapshot:
    return KnownSnapshot(
        snapshot_id=table.snapshot_id,
        cutoff_offset=table.cutoff_offset,
        cutoff_version=table.cutoff_version,
        cutoff_time=table.cutoff_time,
        schema_id=schema_identity(table.schema),
        fence_number=table.fence_number,
        lake_version=None if step is None else step.lake_version,
        rows=table.rows,
        files=table.files,
        bytes=table.bytes,
        finished_at=table.cutoff_time if step is None else step.committed_at,
    )


def in_order(
    only_in_store: Sequence[KnownClaim], steps: Sequence[KnownClaim | KnownSnapshot]
) -> Iterator[KnownClaim | KnownSnapshot]:
    """Yields `steps`, with claims that only the store has before or after the first publication, by their numbers."""
    first = steps[0] if steps else None
    fence = first.fence_number if isinstance(first, KnownSnapshot) else 0
    yield from (claim for claim in only_in_store if claim.last_number <= fence)
    if isinstance(first, KnownSnapshot):
        yield first
        steps = steps[1:]
    yield from (claim for claim in only_in_store if claim.last_number > fence)
    yield from steps


def first_in_log(ledger: LakeLedger | None) -> int:
    """Returns the number of the first slice that a claim of the lake's log names."""
    if ledger is None or ledger.is_whole:
        return 1
    return min((claim.first_number for claim in ledger.claims), default=ledger.fence_number + 1)
