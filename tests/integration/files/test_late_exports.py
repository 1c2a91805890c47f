"""Rows of an export that were quarantined, in a stream without order: they are older than all of its events."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.steps import Moment
from snapshot.wiring import export_at
from tests.crash.world import take_snapshot
from tests.integration.files.test_purging import NAME, UNORDERED, event, folder, go_on, in_lake, keep_up, opened
from tests.integration.files.test_purging import weeks_later as weeks_pass
from tests.support.event_files import EventFolder
from tests.support.streams import run_sql

CORRECT = """UPDATE cdc.quarantine SET payload = jsonb_set(payload::jsonb, '{n}', '"3"')"""


@pytest.fixture
def events(tmp_path: Path, database: str) -> Iterator[EventFolder]:
    """Afterwards, its stream still goes on."""
    found = folder(tmp_path, database, **UNORDERED)
    found.write("0/a.jsonl", event("c", 1, 10), event("d", 1, 20), event("c", 2, 30, n=2))
    go_on(found)
    yield found
    found.write("0/a.jsonl", event("c", 4, 100, day=17, n=4))
    go_on(found)
    assert in_lake(found)[0][4] == 4


def begin_with_export(events: EventFolder, *rows: str) -> None:
    export = events.folder / "export.csv"
    export.write_text("\n".join(("id,n", *rows, "")))
    with opened(events) as pipeline:
        take_snapshot(pipeline, [NAME], export=export_at(str(export), "start"))
    run_sql(events.store_url, CORRECT)


def test_an_exported_row_below_the_horizon_is_not_replayed_and_holds_up_nothing(events: EventFolder) -> None:
    """Tombstones that it may lose against are gone: only another snapshot brings it."""
    weeks_pass(events)
    keep_up(events)
    begin_with_export(events, "1,1", "3,x")
    with opened(events) as pipeline:
        (outcome,) = pipeline.replay().run_waiting()
    assert (outcome.state, "is too late" in outcome.why) == (QuarantineState.WAITING, True)
    begin_with_export(events, "1,1", "3,3")
    assert in_lake(events)[0][3] == 3


def test_an_exported_row_that_the_horizon_passes_before_its_slice_is_decided_holds_up_nothing(
    events: EventFolder,
) -> None:
    """Somebody registers a cut of another store, whose file has the horizon."""
    begin_with_export(events, "1,1", "3,x")
    with opened(events) as pipeline:
        table_id = pipeline.store.tables.table(NAME).table_id

        def rise(name: str, moment: Moment) -> None:
            if (name, moment) == ("slice_file.put", Moment.BEFORE):
                pipeline.store.tombstone_horizons.follow(table_id, "1")

        with pytest.raises(RegistryError, match="goes back to the version 0"):
            replace(pipeline, on_step=rise).replay().run_waiting()
