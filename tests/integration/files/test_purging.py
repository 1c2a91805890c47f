"""Tombstones leave the lake once nothing can come that would lose against them; what comes later still is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.areas import cut_key
from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import RegistryError, SettingsError
from cdc_pipeline.metadata_store.ledger.cut import Cut
from cdc_pipeline.metadata_store.ledger.quarantine import QuarantineEntry
from cdc_pipeline.metadata_store.states import QuarantineState, TableState
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.world import make_lake, memory_lake
from tests.support.event_files import NOBODY_LISTENS, EventFolder, slices_of
from tests.support.ledgers import forget_store
from tests.support.pipelines import consume, opened_pipeline, set_up_and_consume

TABLE = {"name": "public.t", "columns": {"id": "int", "n": "int"}, "id": ["id"]}
NAME = TableName.parse("shop.public.t")
UNORDERED = {"ordered": False, "sequence_by": ["source.lsn"], "late_by": "7d"}
MILLISECONDS_A_DAY = 86_400_000
Row = dict[str, Any]


def event(op: str, id_: int, lsn: int, *, day: int = 0, n: int = 0) -> Row:
    place = {"db": "shop", "schema": "public", "table": "t", "connector": "postgresql", "lsn": lsn, "txId": lsn}
    time = 1_700_000_000_000 + day * MILLISECONDS_A_DAY
    row = {"id": id_, "n": n}
    images = {"before": {"id": id_}, "after": None} if op == "d" else {"before": None, "after": row}
    return {"op": op, **images, "source": {**place, "ts_ms": time}}


def folder(path: Path, store_url: str, **source: Any) -> EventFolder:
    return EventFolder(folder=path, store_url=store_url, tables=(TABLE,), source=source)


@contextmanager
def opened(events: EventFolder) -> Iterator[Pipeline]:
    with opened_pipeline(
        events.settings, store_url=events.store_url, spark_url=NOBODY_LISTENS, make_lake=make_lake
    ) as pipeline:
        yield pipeline


def go_on(events: EventFolder) -> None:
    with opened(events) as pipeline:
        set_up_and_consume(pipeline)
        assert [result.error for result in pipeline.slice_runs().apply([NAME])] == [None]


def keep_up(events: EventFolder) -> None:
    with opened(events) as pipeline:
        assert pipeline.maintenance().maintain(NAME)["ended"] == "done"


def in_lake(events: EventFolder) -> tuple[dict[int, int], set[int]]:
    """What a reader sees, and the ids that are hidden."""
    with opened(events) as pipeline:
        rows = memory_lake(pipeline).rows(pipeline.lake_table(NAME))
    seen = {row["id"]: row["n"] for row in rows if not row["_cdc_deleted"]}
    return seen, {row["id"] for row in rows if row["_cdc_deleted"]}


def kept(events: EventFolder) -> tuple[QuarantineEntry, ...]:
    with opened(events) as pipeline:
        return pipeline.store.quarantine.entries()


def weeks_later(events: EventFolder) -> None:
    """The horizon rises twice: to nothing, and to what was the newest sequence a week before that."""
    events.write("0/a.jsonl", event("c", 8, 80, day=8, n=8), event("c", 9, 90, day=16, n=9))
    go_on(events)


@pytest.fixture
def late(tmp_path: Path, database: str) -> EventFolder:
    """Row 1 is deleted at 20; that is more than a week ago."""
    events = folder(tmp_path, database, **UNORDERED)
    events.write("0/a.jsonl", event("c", 1, 10), event("d", 1, 20), event("c", 2, 30, n=2))
    go_on(events)
    weeks_later(events)
    return events


def test_an_event_below_the_horizon_is_quarantined_and_never_revives_a_purged_row(late: EventFolder) -> None:
    seen = {2: 2, 8: 8, 9: 9}
    assert in_lake(late) == (seen, {1})
    keep_up(late)
    assert in_lake(late) == (seen, set())
    late.write("0/a.jsonl", event("u", 1, 15, day=17, n=15), event("c", 3, 85, day=17, n=3))
    go_on(late)
    assert in_lake(late) == (seen | {3: 3}, set())
    (entry,) = kept(late)
    assert "is too late" in entry.reason
    with opened(late) as pipeline:
        (outcome,) = pipeline.replay().run([entry])
    assert outcome.state is QuarantineState.WAITING
    assert "is too late" in outcome.why


def test_what_is_too_late_stays_so_when_the_metadata_store_is_lost(late: EventFolder) -> None:
    """The cut files have the horizon."""
    keep_up(late)
    late.write("0/a.jsonl", event("u", 1, 15, day=17, n=15), event("c", 3, 85, day=17, n=3))
    go_on(late)
    with opened(late) as pipeline:
        before = pipeline.store.tables.table(NAME).horizon
    forget_store(late.store_url)
    with opened(late) as pipeline:
        pipeline.rebuild().run()
        assert pipeline.store.tables.table(NAME).horizon == before != ""
    go_on(late)
    with opened(late) as pipeline:
        (outcome,) = pipeline.replay().run(kept(late))
    assert "too late" in str(outcome.why)
    assert in_lake(late) == ({2: 2, 3: 3, 8: 8, 9: 9}, set())


def test_what_is_too_late_may_be_replayed_for_as_long_as_its_tombstone_waits_for_it(late: EventFolder) -> None:
    late.write("0/a.jsonl", event("u", 1, 15, day=17, n=15), event("u", 2, 25, day=17, n=25))
    go_on(late)
    keep_up(late)
    assert in_lake(late) == ({2: 2, 8: 8, 9: 9}, {1})
    with opened(late) as pipeline:
        assert {outcome.state for outcome in pipeline.replay().run(kept(late))} == {QuarantineState.REPLAYED}
        keep_up(late)
        pipeline.slice_runs().apply([NAME])
    assert in_lake(late) == ({2: 2, 8: 8, 9: 9}, {1})
    keep_up(late)
    assert in_lake(late) == ({2: 2, 8: 8, 9: 9}, set())


def test_a_consumer_that_starts_again_refuses_what_the_one_before_would_have(late: EventFolder) -> None:
    for lsn in (15, 16):
        late.write("0/a.jsonl", event("u", 1, lsn, n=lsn))
        go_on(late)
    assert ["is too late" in entry.reason for entry in kept(late)] == [True, True]


def test_without_a_limit_every_late_event_is_applied_and_no_tombstone_goes(tmp_path: Path, database: str) -> None:
    events = folder(tmp_path, database, **{**UNORDERED, "late_by": None})
    events.write("0/a.jsonl", event("c", 1, 10), event("d", 1, 20), event("c", 2, 30, n=2))
    go_on(events)
    weeks_later(events)
    keep_up(events)
    assert in_lake(events) == ({2: 2, 8: 8, 9: 9}, {1})
    events.write("0/a.jsonl", event("u", 1, 15, day=17, n=15))
    go_on(events)
    assert (in_lake(events), kept(events)) == (({2: 2, 8: 8, 9: 9}, {1}), ())


def test_a_stream_partition_that_lags_holds_the_tombstones_of_ordered_files_back(tmp_path: Path, database: str) -> None:
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", event("c", 1, 10), event("d", 1, 50))
    events.write("1/a.jsonl", event("c", 2, 40, n=2))
    go_on(events)
    keep_up(events)
    assert in_lake(events) == ({2: 2}, {1})
    events.write("0/a.jsonl", event("c", 3, 70, n=3))
    events.write("1/a.jsonl", event("c", 1, 60, n=60))
    go_on(events)
    keep_up(events)
    assert in_lake(events) == ({1: 60, 2: 2, 3: 3}, set())


def test_registered_slices_are_applied_before_a_tombstone_goes_that_they_may_meet(
    tmp_path: Path, database: str
) -> None:
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", event("d", 1, 50))
    events.write("1/a.jsonl", event("c", 2, 30))
    go_on(events)
    events.write("1/a.jsonl", event("c", 1, 40), event("c", 2, 70))
    events.write("0/a.jsonl", event("c", 3, 60))
    with opened(events) as pipeline:
        consume(pipeline)
    keep_up(events)
    assert in_lake(events)[1] == {1}
    go_on(events)
    assert in_lake(events)[1] == {1}
    keep_up(events)
    assert in_lake(events) == ({2: 0, 3: 0}, set())


def test_a_new_stream_partition_cannot_go_below_what_was_promised(tmp_path: Path, database: str) -> None:
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", event("c", 1, 10), event("d", 1, 50), event("c", 3, 60))
    events.write("1/a.jsonl", event("c", 2, 70))
    go_on(events)
    keep_up(events)
    assert in_lake(events) == ({2: 0, 3: 0}, set())
    events.write("2/a.jsonl", event("c", 1, 20), event("c", 4, 80))
    go_on(events)
    assert in_lake(events) == ({2: 0, 3: 0, 4: 0}, set())
    assert ["is too late" in entry.reason for entry in kept(events)] == [True]


def test_a_horizon_that_rises_while_a_consumer_reads_stops_it_before_it_registers_less(
    tmp_path: Path, database: str
) -> None:
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", event("c", 1, 10))
    with events.set_up() as pipeline, pipeline.consumer_runs().open() as consumer:
        pipeline.store.tombstone_horizons.promise(pipeline.store.tables.table(NAME).table_id, "1")
        with pytest.raises(RegistryError, match="goes back to the version"):
            stream_to_slices_until_idle(consumer)


def consume_while_it_rises(events: EventFolder, at: str) -> None:
    """Consumes. The table's horizon rises above all that is there at the first step of this name."""
    with events.set_up() as pipeline:

        def rise(name: str, moment: Moment) -> None:
            if (name, moment) == (at, Moment.BEFORE):
                pipeline.store.tombstone_horizons.promise(pipeline.store.tables.table(NAME).table_id, "1")

        consume(replace(pipeline, on_step=rise))


def test_what_a_horizon_passes_while_a_consumer_reads_is_quarantined(tmp_path: Path, database: str) -> None:
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", event("c", 1, 10))
    consume_while_it_rises(events, "slice_file.put")
    for _ in range(2):
        assert ["is too late" in entry.reason for entry in kept(events)] == [True]
        with opened(events) as pipeline:
            assert slices_of(pipeline, NAME) == ()
            pipeline.rebuild().run()
        events.consume()


def test_what_a_horizon_passes_while_a_cut_is_decided_stops_its_table_alone(tmp_path: Path, database: str) -> None:
    """Not its stream, and nothing of it is applied; also after a rebuild, and after a loss of the metadata store."""
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", event("c", 1, 10))
    go_on(events)
    events.write("0/a.jsonl", event("c", 2, 20))
    consume_while_it_rises(events, "cut_file.put")
    events.consume()
    for lose in (lambda _: None, lambda _: None, forget_store):
        with opened(events) as pipeline:
            row = pipeline.store.tables.table(NAME)
            assert (row.state, "below its horizon" in str(row.state_reason)) == (TableState.STALE, True)
            (result,) = pipeline.slice_runs().apply([NAME])
            assert "below its horizon" in str(result.error)
        assert in_lake(events) == ({1: 0}, set())
        lose(database)
        with opened(events) as pipeline:
            pipeline.rebuild().run()
        events.consume()


def test_a_cut_that_was_decided_below_a_horizon_stops_its_table_in_a_rebuild_too(tmp_path: Path, database: str) -> None:
    """Earlier versions decided such cuts, and could not register them. The file already has the horizon."""
    events = folder(tmp_path, database)
    events.write("0/a.jsonl", event("c", 1, 10))
    go_on(events)
    events.write("0/a.jsonl", event("c", 2, 20))
    consume_while_it_rises(events, "cut_file.put")
    with opened(events) as pipeline:
        *_, (chain_position, last) = pipeline.consumer_runs().opening.chain.files()
        assert isinstance(last.content, Cut)
        assert last.content.slices
        passed = replace(last, tables=tuple(replace(table, horizon="1") for table in last.tables))
        (tmp_path / "lake" / cut_key("shop", chain_position)).write_bytes(passed.to_bytes())
    for lose in (lambda _: None, forget_store):
        lose(database)
        with opened(events) as pipeline:
            pipeline.rebuild().run()
            row = pipeline.store.tables.table(NAME)
            assert (row.state, "below its horizon" in str(row.state_reason)) == (TableState.STALE, True)


def test_maintenance_leaves_a_table_that_is_not_registered_yet_to_the_next_run(tmp_path: Path, database: str) -> None:
    with opened(EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))) as pipeline:
        assert pipeline.maintenance().maintain(NAME)["ended"].startswith("the table is not registered yet")


def test_maintenance_leaves_a_table_whose_columns_no_event_has_shown_to_the_next_run(
    tmp_path: Path, database: str
) -> None:
    unknown = {name: value for name, value in TABLE.items() if name != "columns"}
    events = EventFolder(folder=tmp_path, store_url=database, tables=(unknown,))
    events.write("0/a.jsonl")
    with events.set_up() as pipeline:
        assert pipeline.store.tables.table(NAME).schema_id is None
        assert pipeline.maintenance().maintain(NAME)["ended"] == "the table has no lake yet"
        with pytest.raises(SettingsError, match=r"columns of shop\.public\.t are not known yet"):
            pipeline.lake_table(NAME)
