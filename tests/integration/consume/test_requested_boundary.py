"""A boundary that somebody asks for after the stream was cut there."""

from contextlib import closing
from pathlib import Path

from cdc_pipeline.consume.slice_cutter import CUT_AT
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.ledger.records import Boundary
from cdc_pipeline.sources.postgres.session import MESSAGE_PREFIX, connect
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import NOBODY_LISTENS
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql


def ask_for(source_url: str, position: str) -> None:
    with closing(connect(source_url)) as connection, connection.cursor() as cursor:
        text = f"{CUT_AT}{position}:somebody"
        cursor.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MESSAGE_PREFIX, text))
        connection.commit()


def boundaries(pipeline: Pipeline) -> list[Boundary]:
    rows = pipeline.store.inspection.run("boundaries")
    found = [
        pipeline.store.lake_positions.boundary_at("shop", position) for position in {row["position"] for row in rows}
    ]
    return [boundary for boundary in found if boundary is not None]


def test_a_registered_boundary_is_requested_once_somebody_asks_for_its_very_position(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    run_sql(database, "CREATE TABLE items (id int PRIMARY KEY)")
    settings = pipeline_settings(tmp_path, database, [{"name": "public.items"}])
    with (
        fresh_store(postgres) as store_url,
        opened_pipeline(settings, store_url=store_url, spark_url=NOBODY_LISTENS) as pipeline,
    ):
        set_up_and_consume(pipeline)
        run_sql(database, "INSERT INTO items VALUES (1)")
        consume(pipeline)
        last = pipeline.store.lake_positions.last_boundary("shop")
        assert last is not None
        assert not last.requested
        ask_for(database, last.position)
        consume(pipeline)
        asked = [boundary for boundary in boundaries(pipeline) if boundary.requested]
        assert [boundary.boundary_id for boundary in asked] == [last.boundary_id]
