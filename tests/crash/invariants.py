"""What must hold whenever everything that the source holds was registered and applied, whatever died on the way."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.delta_log import Commit, DeltaLog
from cdc_pipeline.lake.fence import REWOUND_FROM, recorded_slices
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.metadata_store.states import SliceState
from cdc_pipeline.record import DELETED
from cdc_pipeline.wiring import Pipeline
from tests.crash.world import World, lake_tables
from tests.support import pipelines
from tests.support.memory_lake import MemoryLake
from tests.support.streams import postgres_of

EVERYTHING = 1_000_000


def check(world: World) -> None:
    with world.process() as pipeline:
        for table in lake_tables(pipeline):
            assert lake_rows(pipeline, table) == source_rows(world, table)
            forgotten = pipeline.store.tables.table(table.name).forgotten_through
            slices = registered_slices(pipeline, table)
            check_store([row for row in slices if row.number > forgotten], after=forgotten)
            check_ledger(world, pipeline, table, slices, after=forgotten)
    check_nothing_is_left(world)


def source_rows(world: World, table: LakeTable) -> Counter[tuple[Any, ...]]:
    names = ", ".join(f'"{name}"' for name in table.schema.names)
    return Counter(world.query(f'SELECT {names} FROM "{table.name.schema}"."{table.name.table}"'))


def lake_rows(pipeline: Pipeline, table: LakeTable) -> Counter[tuple[Any, ...]]:
    """What a reader sees, each row as often as it is there."""
    rows = [row for row in stored_rows(pipeline, table) if not row.get(DELETED)]
    return Counter(tuple(row[name] for name in table.schema.names) for row in rows)


def stored_rows(pipeline: Pipeline, table: LakeTable) -> list[dict[str, Any]]:
    """Of a lake on Spark, read without it."""
    if isinstance(pipeline.lake, MemoryLake):
        return pipeline.lake.rows(table)
    return pipelines.stored_rows(pipeline, table.name)


def commits(world: World, pipeline: Pipeline, table: LakeTable) -> list[Commit]:
    """The whole log, oldest first. Commits that an earlier call has read are not read again, unless the log is new."""
    log = DeltaLog(pipeline.objects, lake_key(table.name))
    known = world.commits.setdefault(log.folder, [])
    if known and log.read(known[-1].version) != known[-1]:
        known.clear()
    since = known[-1].version if known else None
    newest_first = log.backwards(log.latest_version(since) or 0)
    known += list(takewhile(lambda commit: since is None or commit.version > since, newest_first))[::-1]
    return known


def registered_slices(pipeline: Pipeline, table: LakeTable) -> tuple[RegisteredSlice, ...]:
    return pipeline.store.slices.slices(pipeline.store.tables.table(table.name).table_id, 1, EVERYTHING)


def check_store(slices: Sequence[RegisteredSlice], *, after: int = 0) -> None:
    """Numbers have no gap, ranges do not overlap, and everything with rows is in the lake."""
    assert [row.number for row in slices] == list(range(after + 1, after + len(slices) + 1))
    for number in {row.stream_partition for row in slices}:
        ranges = [(row.start_offset, row.end_offset) for row in slices if row.stream_partition == number]
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(ranges))
    assert not [row.number for row in slices if row.rows and row.state is SliceState.REGISTERED]


def check_ledger(
    world: World, pipeline: Pipeline, table: LakeTable, slices: tuple[RegisteredSlice, ...], *, after: int = 0
) -> None:
    """Since the last publication the log names each slice once, in order, as registered; claims say the same.

    Of slices that are forgotten, up to `after`, those of the newest claim are left.
    """
    claims = [commit for commit in in_force(world, pipeline, table) if commit.user_metadata.get("claim_id")]
    claims = [commit for commit in claims if commit.user_metadata["first"] > after or commit is claims[-1]]
    named = [identity for commit in claims for identity in recorded_slices(commit)]
    assert [identity.number for identity in named] == sorted({identity.number for identity in named})
    by_number = {row.number: row for row in slices}
    for identity in named:
        row = by_number[identity.number]
        assert (identity.slice_id, identity.sha256, row.state) == (row.slice_id, row.sha256, SliceState.APPLIED)
    bounds = [(commit.user_metadata["first"], commit.user_metadata["last"]) for commit in claims]
    assert all(earlier[1] + 1 == later[0] for earlier, later in pairwise(bounds))
    behind = {row.number for row in slices if row.rows and row.number >= (bounds[0][0] if bounds else EVERYTHING)}
    assert behind <= {identity.number for identity in named}
    ids = [commit.user_metadata["claim_id"] for commit in claims]
    recorded = world.store_query(
        "SELECT claim_id::text, state, first_number, last_number, lake_version FROM cdc.claim"
        f" WHERE claim_id::text IN ({', '.join(map(repr, ['', *ids]))}) ORDER BY lake_version"
    )
    versions = [commit.version for commit in claims]
    assert recorded == [
        (claim_id, "applied", *both, version) for claim_id, both, version in zip(ids, bounds, versions, strict=True)
    ]


def in_force(world: World, pipeline: Pipeline, table: LakeTable) -> list[Commit]:
    """The commits since the last publication, without those that were set back."""
    kept: list[Commit] = []
    for commit in commits(world, pipeline, table):
        number = commit.transaction_version(table.app_id) or 0
        if REWOUND_FROM in commit.user_metadata:
            kept = [earlier for earlier in kept if (earlier.transaction_version(table.app_id) or 0) <= number]
        elif "snapshot_id" in commit.user_metadata:
            kept = [commit]
        else:
            kept.append(commit)
    return kept


def check_nothing_is_left(world: World) -> None:
    assert world.store_query("SELECT * FROM cdc.claim WHERE state = 'claimed'") == []
    assert world.store_query("SELECT * FROM cdc.quarantine") == []
    assert world.store_query("SELECT * FROM cdc.lease WHERE expires_at > clock_timestamp()") == []
    active = "SELECT * FROM cdc.snapshot WHERE state NOT IN ('published', 'failed', 'abandoned')"
    assert world.store_query(active) == []
    slots = world.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(postgres_of(world.settings).slot,)]
