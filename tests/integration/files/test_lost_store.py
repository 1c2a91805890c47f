"""The metadata store of a folder of events, lost and rebuilt: every line is still read once."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import ObjectStoreAway, RegistryError
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from snapshot.wiring import export_at
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.world import make_lake, memory_lake, take_snapshot
from tests.support.case_pipeline import apply
from tests.support.event_files import NOBODY_LISTENS, EventFolder
from tests.support.ledgers import forget_store, ledger_of
from tests.support.pipelines import consume, opened_pipeline
from tests.support.streams import run_sql

NAME = TableName.parse("shop.public.t")
TABLE = {"name": "public.t", "columns": {"id": "int", "note": "text"}, "id": ["id"]}


def create(id_: int, **more: Any) -> dict[str, Any]:
    place = {"db": "shop", "schema": "public", "table": "t", "lsn": id_, "txId": id_}
    return {"op": "c", "before": None, "after": {"id": id_, "note": "n"} | more, "source": place, "ts_ms": 1_000 * id_}


def test_a_lost_store_knows_every_file_and_every_place_again(database: str, tmp_path: Path) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    events.write("0/a.jsonl", create(1), create(2))
    events.write("1/x.jsonl", create(3), create(4, id=3_000_000_000))
    events.consume()
    events.write("0/b.jsonl", create(5))
    events.write("0/c.jsonl", create(6, id=3_000_000_000))
    events.consume()
    with events.opened() as pipeline:
        pipeline.replay().run(pipeline.store.quarantine.entries(state=QuarantineState.WAITING))
    events.write("0/c.jsonl", create(7))
    registered = Failpoint(Site("registry.register", Moment.BEFORE, 1))
    before = ledger_of(database)
    dying = opened_pipeline(events.settings, store_url=database, spark_url=NOBODY_LISTENS, on_step=registered)
    with pytest.raises(Crash), dying as pipeline:
        consume(pipeline)
    forget_store(database)
    with pytest.raises(RegistryError, match="cdc rebuild"):
        events.consume()
    forget_store(database)
    with events.opened() as pipeline:
        (table,) = pipeline.rebuild().run()
    assert table.fence is None
    events.consume()
    after = ledger_of(database)
    assert after["source_file"] == before["source_file"]
    assert after["slice"][: len(before["slice"])] == before["slice"]
    assert after["quarantine"] == before["quarantine"]
    events.write("1/y.jsonl", create(8))
    events.write("2/z.jsonl", create(9))
    events.consume()
    assert [row["id"] for row in events.rows("public.t")] == [1, 2, 3, 5, 7, 8, 9]


def test_a_lake_that_began_empty_knows_the_settings_that_its_files_depend_on(database: str, tmp_path: Path) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    events.write("0/a.jsonl", create(1))
    events.consume()
    with events.opened(make_lake) as pipeline:
        apply(pipeline, pipeline.table_names())
    forget_store(database)
    with events.opened(make_lake) as pipeline:
        (table,) = pipeline.rebuild().run()
    assert table.fence == 1
    events.write("0/a.jsonl", create(2))
    with pytest.raises(RegistryError, match=r"settings of .* changed in deletes"):
        replace(events, tables=({**TABLE, "deletes": "soft"},)).consume()
    events.consume()
    assert [row["id"] for row in events.rows("public.t")] == [1, 2]


def test_a_table_begins_again_after_a_rebuild_found_no_lake_of_it(database: str, tmp_path: Path) -> None:
    """Its lake could not be created before the first rebuild, and was deleted before the second."""
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    events.write("0/a.jsonl", create(1))
    events.consume()

    def away(step: str, moment: Moment) -> None:
        if step == "lake_table.create" and moment is Moment.BEFORE:
            raise ObjectStoreAway("the bucket does not answer", remedy="wait")

    opened = opened_pipeline(
        events.settings, store_url=database, spark_url=NOBODY_LISTENS, on_step=away, make_lake=make_lake
    )
    with opened as pipeline:
        (result,) = pipeline.slice_runs().apply(pipeline.table_names())
        assert isinstance(result.error, ObjectStoreAway)
    for _ in range(2):
        with events.opened(make_lake) as pipeline:
            (rebuilt,) = pipeline.rebuild().run()
            assert rebuilt.notes == ("1 snapshots failed",)
            apply(pipeline, pipeline.table_names())
            position = pipeline.store.lake_positions.lake_position(pipeline.store.tables.table(rebuilt.table).table_id)
            assert position.applied_through == 1
            shutil.rmtree(urlsplit(pipeline.lake_url(rebuilt.table)).path)


def test_a_row_that_was_replayed_into_a_stream_partition_without_a_cut_is_kept(database: str, tmp_path: Path) -> None:
    """A row of an export is replayed into the first stream partition. Nothing of that could be read here."""
    events = EventFolder(folder=tmp_path, store_url=database, tables=(TABLE,))
    for folder in "01":
        events.write(f"{folder}/a.jsonl", create(int(folder)))
    (tmp_path / "export.csv").write_text("id,note\n7,n\n3000000000,n\n")
    with events.opened(make_lake) as pipeline:
        pipeline.source_setup().set_up()
        with pipeline.consumer_runs().open(without={0}) as consumer:
            stream_to_slices_until_idle(consumer)
        take_snapshot(pipeline, pipeline.table_names(), export=export_at(str(tmp_path / "export.csv"), "start"))
        run_sql(database, "UPDATE cdc.quarantine SET payload = replace(payload::text, '3000000000', '8')::json")
        (outcome,) = pipeline.replay().run(pipeline.store.quarantine.entries())
        assert outcome.state is QuarantineState.REPLAYED
    before = ledger_of(database)["slice"]
    for lose in (lambda _: None, forget_store):
        lose(database)
        with events.opened(make_lake) as pipeline:
            pipeline.rebuild().run()
        assert ledger_of(database)["slice"] == before
    events.consume()
    with events.opened(make_lake) as pipeline:
        apply(pipeline, pipeline.table_names())
        assert sorted(row["id"] for row in memory_lake(pipeline).rows(pipeline.lake_table(NAME))) == [0, 1, 7, 8]
