"""How a folder of events is read: resumed, appended to, cut between transactions, owned by one consumer."""

import json
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices, stream_to_slices_until_idle
from cdc_pipeline.errors import SourceChanged, SourceError, SourceGap, StaleEpoch, UsageError
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline, utc_now
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.support.event_files import NOBODY_LISTENS, EventFolder, events_of, slices_of
from tests.support.eventually import eventually
from tests.support.pipelines import opened_pipeline

TABLE = {"name": "public.t", "columns": {"id": "int", "n": "int"}, "id": ["id"]}
NAME = TableName.parse("shop.public.t")
SECOND = timedelta(seconds=1)
Row = dict[str, Any]


@pytest.fixture
def events(tmp_path: Path, database: str) -> EventFolder:
    return EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))


def create(id_: int, transaction: int | None = None, *, minute: int = 0) -> Row:
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "t", "txId": transaction or id_}
    time = 1_700_000_000_000 + minute * 60_000
    return {"op": "c", "before": None, "after": {"id": id_, "n": id_}, "source": source | {"ts_ms": time}}


def ids(events: EventFolder) -> list[int]:
    return sorted(row["id"] for row in events.rows("public.t"))


def test_every_run_reads_on_where_the_last_one_ended(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(1), create(2))
    events.consume()
    events.write("0/a.jsonl", create(3))
    events.write("0/b.jsonl", create(4))
    events.consume()
    events.consume()
    assert ids(events) == [1, 2, 3, 4]
    with events.opened() as pipeline:
        assert [row.rows for row in slices_of(pipeline, NAME)] == [2, 2]
        (partition,) = pipeline.store.inspection.run("partitions")
    assert partition["next_offset"] == f"{2:08x}{1:08x}"


def test_a_half_written_line_is_read_once_it_is_whole(events: EventFolder) -> None:
    text = json.dumps(create(2))
    events.write("0/a.jsonl", create(1))
    events.write("0/a.jsonl", text[:20], end="")
    events.consume()
    assert (ids(events), events.quarantined()) == ([1], [])
    events.write("0/a.jsonl", text[20:])
    events.consume()
    assert (ids(events), events.quarantined()) == ([1, 2], [])


def test_stream_partitions_have_offsets_of_their_own_and_new_ones_are_taken_in(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(1))
    events.consume()
    events.write("3/a.jsonl", create(2), create(3))
    events.consume()
    assert ids(events) == [1, 2, 3]
    with events.opened() as pipeline:
        found = pipeline.store.inspection.run("partitions")
        assert [(row.stream_partition, row.rows) for row in slices_of(pipeline, NAME)] == [(0, 1), (3, 2)]
        assert not pipeline.lake_table(NAME).ordered
    assert {row["stream_partition"]: row["next_offset"] for row in found} == {
        0: f"{1:08x}{1:08x}",
        3: f"{1:08x}{2:08x}",
    }


def test_a_stream_partition_that_is_gone_is_named(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(1))
    events.write("1/a.jsonl", create(2))
    events.consume()
    (events.folder / "events" / "1" / "a.jsonl").unlink()
    (events.folder / "events" / "1").rmdir()
    with pytest.raises(SourceChanged, match="no stream partition 1 any more"):
        events.consume()


def test_a_transaction_is_never_cut(events: EventFolder, tmp_path: Path) -> None:
    small = EventFolder(folder=tmp_path, store_url=events.store_url, tables=(TABLE,), source={"slice_rows": 2})
    small.write("0/a.jsonl", *(create(number, 1 + number // 5) for number in range(20)))
    small.consume()
    with small.opened() as pipeline:
        assert [row.rows for row in slices_of(pipeline, NAME)] == [5, 5, 5, 5]


def test_slices_are_labelled_by_the_time_of_the_source(events: EventFolder) -> None:
    hourly = [create(number, minute=30 * number) for number in range(4)]
    events.write("0/a.jsonl", *hourly)
    events.consume()
    with events.opened() as pipeline:
        assert [row.rows for row in slices_of(pipeline, NAME)] == [2, 2]


def test_more_than_is_read_at_once_is_read_whole(events: EventFolder) -> None:
    """One transaction larger than what is read at once, and many behind it."""
    padding = "x" * 2_000
    lines = [create(number, 1 if number < 2_500 else number) | {"padding": padding} for number in range(5_000)]
    events.write("0/a.jsonl", *lines)
    events.write("1/a.jsonl", create(9_000))
    events.consume()
    assert len(ids(events)) == 5_001
    with events.opened() as pipeline:
        assert sum(row.rows for row in slices_of(pipeline, NAME)) == 5_001


def test_nothing_new_registers_nothing_but_the_time_of_the_look(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(1))
    events.consume()
    events.consume()
    with events.opened() as pipeline:
        second, first = pipeline.store.inspection.run("boundaries")
        assert len(slices_of(pipeline, NAME)) == 1
    assert second["commit_time"] > first["commit_time"]


def registers(pipeline: Pipeline, rows: int) -> bool:
    return eventually(lambda: sum(row.rows for row in slices_of(pipeline, NAME)) == rows)


def is_read_after(pipeline: Pipeline, time: datetime) -> bool:
    (partition,) = pipeline.store.inspection.run("partitions")
    return bool(partition["watermark"] > time)


def test_a_consumer_that_runs_registers_also_the_last_transaction(tmp_path: Path, database: str) -> None:
    """It waits for no other one behind it for longer than a slice."""
    more = {"slice_length": "1s"}
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,), more=more)
    events.write("0/a.jsonl", create(1))
    stop = Event()
    with events.set_up() as pipeline, pipeline.consumer_runs().open() as consumer:
        thread = Thread(target=stream_to_slices, args=(consumer, stop.is_set))
        thread.start()
        try:
            assert registers(pipeline, 1)
            events.write("0/a.jsonl", create(2))
            assert registers(pipeline, 2)
            for _ in range(2):  # the events are years old
                idle_since = utc_now()
                assert eventually(partial(is_read_after, pipeline, idle_since))
        finally:
            stop.set()
            thread.join()
    assert ids(events) == [1, 2]


def test_an_idle_folder_is_looked_at_twice_at_its_opening_and_then_once_for_each_slice_length(
    events: EventFolder,
) -> None:
    """Its only event is years old, so its slice was due long ago."""
    events.write("0/a.jsonl", create(1))
    events.consume()
    with events.set_up() as pipeline, pipeline.consumer_runs().open() as consumer:
        stop, started = Event(), utc_now()
        stream_to_slices(consumer, stop.is_set, lambda: stop.set() if utc_now() - started > 4 * SECOND else None)
        assert len(pipeline.store.inspection.run("boundaries")) == 2


def test_a_second_consumer_takes_the_folder_from_the_first(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(1))
    with events.set_up() as pipeline, pipeline.consumer_runs().open() as first:
        events.consume()
        events.write("0/a.jsonl", create(2))
        with pytest.raises(StaleEpoch):
            stream_to_slices_until_idle(first)
    events.consume()
    assert ids(events) == [1, 2]


def test_another_order_of_the_same_files_is_another_stream(events: EventFolder, tmp_path: Path) -> None:
    events.write("0/a.jsonl", create(1))
    events.consume()
    source = {"ordered": False, "sequence_by": ["ts_ms"]}
    other = EventFolder(folder=tmp_path, store_url=events.store_url, tables=(TABLE,), source=source)
    with pytest.raises(SourceChanged, match=r"slot sequence_by ts_ms; expected .* slot ordered"):
        other.consume()


def test_a_folder_that_is_missing_is_refused_before_anything_is_registered(events: EventFolder) -> None:
    with pytest.raises(SourceError, match="cannot read the folder"):
        events.consume()
    with events.opened() as pipeline:
        assert pipeline.store.tables.tables() == ()


def test_setting_up_needs_no_statements_and_registers_the_tables(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(1))
    with events.opened() as pipeline:
        assert pipeline.source_setup().missing_sql() == ()
        assert pipeline.source_setup().set_up() == pipeline.source_setup().set_up()
        assert [row.name for row in pipeline.store.tables.tables()] == [NAME]
        assert pipeline.lake_table(NAME).ordered


def refuse(pipeline: Pipeline) -> None:
    with pytest.raises(UsageError, match="the source of shop is of the kind debezium_files"):
        pipeline.verification().verify([NAME])
    with pytest.raises(UsageError, match="its tables begin empty, or with exported files"):
        pipeline.source.copy_at("")


def test_a_snapshot_and_a_comparison_with_the_source_are_refused_by_name(events: EventFolder) -> None:
    events.write("0/a.jsonl", create(1))
    with events.opened() as pipeline:
        refuse(pipeline)


def test_nothing_that_comes_is_older_than_what_every_stream_partition_has_shown(events: EventFolder) -> None:
    first, second = create(1), create(2)
    first["source"]["lsn"], second["source"]["lsn"] = 50, 70
    events.write("0/a.jsonl", first)
    events.write("1/a.jsonl", second)
    events.consume()
    with events.opened() as pipeline:
        oldest = pipeline.source_setup().oldest_version_to_come(NAME)
    later = create(3)
    later["source"]["lsn"] = 50
    events.write("0/a.jsonl", later)
    events.consume()
    with events.opened() as pipeline:
        versions = [row["_cdc_version"] for row in events_of(pipeline, NAME)]
    assert versions[0] < oldest <= versions[-1] < versions[1]


def test_a_consumer_that_dies_anywhere_registers_every_line_once(events: EventFolder) -> None:
    steps = ("stream.begin_file", "source_file.read", "slice_file.put", "registry.register", "slot.confirm")
    sites = [Site(name, moment, 1) for name in steps for moment in (Moment.BEFORE, Moment.AFTER)]
    events.write("0/00.jsonl")
    with events.set_up():
        pass
    for number, site in enumerate(sites):
        events.write(f"0/{number:02}.jsonl", create(2 * number), create(2 * number + 1))
        dying = opened_pipeline(
            events.settings, store_url=events.store_url, spark_url=NOBODY_LISTENS, on_step=Failpoint(site)
        )
        with pytest.raises(Crash), dying as pipeline, pipeline.consumer_runs().open() as consumer:
            stream_to_slices_until_idle(consumer)
    events.consume()
    assert ids(events) == list(range(2 * len(sites)))
    with events.opened() as pipeline:
        assert len(events_of(pipeline, NAME)) == 2 * len(sites)


def test_a_process_that_registers_a_cut_of_another_one_keeps_the_files_that_were_begun_behind_it(
    events: EventFolder,
) -> None:
    def catch_up(name: str, moment: Moment) -> None:
        if not rivals and (name, moment) == ("registry.register", Moment.BEFORE):
            with events.opened() as rival:
                rivals.append(rival.cut_chain().catch_up())

    for number, minute in enumerate((0, 120), 1):
        events.write(f"0/{number}.jsonl", create(number, minute=minute))
    rivals = list[int]()
    with events.set_up():
        pass
    consuming = opened_pipeline(events.settings, store_url=events.store_url, spark_url=NOBODY_LISTENS, on_step=catch_up)
    with consuming as pipeline:
        pipeline.consumer_runs().consume_until_idle()
    assert rivals == [1]
    events.write("0/3.jsonl", create(3, minute=240))
    events.consume()
    assert ids(events) == [1, 2, 3]
    with events.opened() as pipeline:
        assert pipeline.store.source_files.begun_files("shop") == {0: {n: f"{n}.jsonl" for n in (1, 2, 3)}}


def test_a_file_that_was_replaced_by_a_longer_one_stops_the_next_consumer_and_skips_nothing(
    events: EventFolder,
) -> None:
    events.write("0/a.jsonl", create(1), create(2))
    events.consume()
    path = events.folder / "events" / "0" / "a.jsonl"
    kept = path.read_text(encoding="utf-8")
    path.unlink()
    events.write("0/a.jsonl", *map(create, range(11, 16)))
    with pytest.raises(SourceGap, match=r"a\.jsonl has other first 2 lines than were read of it"):
        events.consume()
    assert ids(events) == [1, 2]
    path.write_text(kept, encoding="utf-8")
    events.write("0/a.jsonl", create(3))
    events.consume()
    assert ids(events) == [1, 2, 3]
