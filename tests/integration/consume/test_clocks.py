"""Time slices whose clock is wrong by hours, or whose length changes.

The consumer registers an idle stream as often as any other, and not more often.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import pytest

from cdc_pipeline.consume.slice_cutter import CutSlices
from cdc_pipeline.consume.stream_to_slices import stream_to_slices
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline, utc_now
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

LABELS = "SELECT label_start FROM cdc.boundary ORDER BY position"


@pytest.fixture
def pipeline(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[Pipeline]:
    run_sql(database, "CREATE TABLE orders (id int PRIMARY KEY)")
    settings = pipeline_settings(tmp_path, database, [{"name": "public.orders"}], slice_length="1s")
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url="") as pipeline,
    ):
        pipeline.source_setup().set_up()
        yield pipeline


@pytest.mark.parametrize("hours", [-10, 0, 10])
def test_an_idle_stream_is_cut_at_every_slice_by_a_clock_that_is_hours_behind_or_ahead(
    pipeline: Pipeline, hours: int
) -> None:
    stop, store_url = Event(), pipeline.endpoints.metadata_store_url
    there = replace(pipeline, clock=lambda: utc_now() + timedelta(hours=hours))
    with there.consumer_runs().open() as consumer:
        thread = Thread(target=stream_to_slices, args=(consumer, stop.is_set))
        thread.start()
        try:
            assert eventually(lambda: len(query(store_url, LABELS)) > 3, seconds=30)
        finally:
            stop.set()
            thread.join()
    labels = query(store_url, LABELS)
    assert labels == sorted(labels)
    assert abs(labels[-1][0] - utc_now()) < timedelta(hours=1)


def test_a_consumer_that_has_not_read_its_last_heartbeat_sends_no_other(pipeline: Pipeline) -> None:
    sent, started = list[str](), monotonic()

    def record(name: str, moment: Moment) -> None:
        if (name, moment) == ("source.mark", Moment.BEFORE):
            sent.append(name)

    there = replace(pipeline, clock=lambda: utc_now() + timedelta(hours=10), on_step=record)
    with there.consumer_runs().open() as consumer:

        def heartbeats_after(seconds: float) -> int | None:
            consumer.send_heartbeat_if_due()
            return len(sent) if monotonic() - started > seconds else None

        assert eventually(lambda: heartbeats_after(2.5) == 1)
        assert eventually(lambda: bool(list(consumer.read_cuts())))
        assert eventually(lambda: heartbeats_after(2.5) == 2)


@pytest.mark.parametrize("ahead", [timedelta(minutes=90), timedelta(days=1)], ids=str)
def test_a_clock_that_is_ahead_cuts_an_idle_stream_once_for_each_slice_length(
    pipeline: Pipeline, ahead: timedelta
) -> None:
    hourly = pipeline.settings.model_copy(update={"slice_length": timedelta(hours=1)})
    here, cuts = replace(pipeline, settings=hourly), list[CutSlices]()
    consume(here)
    with replace(here, clock=lambda: utc_now() + ahead).consumer_runs().open() as consumer:
        started = monotonic()

        def has_read_for(seconds: float) -> bool:
            cuts.extend(consumer.read_cuts())
            consumer.send_heartbeat_if_due()
            return monotonic() - started > seconds

        assert eventually(lambda: has_read_for(4))
    assert len(cuts) == 2, "the second one tells whether the source is idle"


@pytest.mark.parametrize("changed", [timedelta(seconds=30), timedelta(days=1)], ids=str)
def test_an_idle_stream_goes_on_when_the_slice_length_changes_and_when_it_is_set_back(
    pipeline: Pipeline, changed: timedelta
) -> None:
    store_url, minute = pipeline.endpoints.metadata_store_url, timedelta(minutes=1)
    for done, length in enumerate((minute, changed, minute)):
        there = replace(pipeline, settings=pipeline.settings.model_copy(update={"slice_length": length}))
        consume(there)
        labels = query(store_url, LABELS)
        assert len(labels) > done
        assert labels == sorted(labels)
