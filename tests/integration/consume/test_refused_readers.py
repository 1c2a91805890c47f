"""A second consumer of a database's stream, beside one that reads it."""

from pathlib import Path

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import SourceBusy
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.support.event_files import NOBODY_LISTENS
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql


def test_a_consumer_that_is_refused_does_not_take_the_stream_from_the_one_that_reads(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    run_sql(database, "CREATE TABLE items (id int PRIMARY KEY)")
    settings = pipeline_settings(tmp_path, database, [{"name": "public.items"}])
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=NOBODY_LISTENS) as pipeline,
    ):
        pipeline.source_setup().set_up()
        with pipeline.consumer_runs().open() as first:
            with pytest.raises(SourceBusy):
                consume(pipeline)
            run_sql(database, "INSERT INTO items VALUES (1)")
            stream_to_slices_until_idle(first)
        consume(pipeline)
