"""Logical messages in PostgreSQL's log that are not the pipeline's own."""

from cdc_pipeline.settings import TableSettings
from tests.support.streams import database_of, new_cutter, opened, prepare, read_marked, run_sql


def test_a_message_of_somebody_else_under_the_pipelines_prefix_is_no_more_than_a_marker(database: str) -> None:
    run_sql(database, "CREATE TABLE items (id int PRIMARY KEY)")
    table = TableSettings(name=f"{database_of(database)}.public.items")
    source, plan = prepare(database, [table])
    with opened(source, plan) as stream:
        run_sql(
            database,
            r"SELECT pg_logical_emit_message(true, 'cdc_pipeline', '\xff'::bytea)",
            "INSERT INTO items VALUES (1)",
        )
        cut = read_marked(stream, new_cutter(source))
    assert [row["id"] for part in cut.slices.values() for row in part.rows.to_pylist()] == [1]
