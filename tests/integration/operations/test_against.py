"""A lake of events alone is compared with the database behind them."""

from pathlib import Path

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import SettingsError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.wiring import Pipeline
from cdc_pipeline.wiring.against import verify_against
from tests.crash.world import make_lake
from tests.support.event_files import EventFolder
from tests.support.source_arms import debezium_events
from tests.support.streams import run_sql

TABLE = {"name": "public.orders", "id": ["id"], "columns": {"id": "int", "note": "text"}}


def differing(pipeline: Pipeline, url: str) -> list[tuple[str, int]]:
    """Of each table: what hinders the comparison, and how many rows differ."""
    verdicts = verify_against(pipeline, pipeline.table_names(), url)
    return [
        (verdict.problem, -1 if verdict.comparison is None else verdict.comparison.differing_rows)
        for verdict in verdicts
    ]


def add_file_again(pipeline: Pipeline) -> None:
    """Then the lake has each row twice."""
    (name,) = pipeline.table_names()
    log = DeltaLog(pipeline.objects, lake_key(name))
    latest = log.latest_version() or 0
    (file,) = log.active_files(latest).values()
    content = pipeline.objects.get(f"{lake_key(name)}/{file['path']}")
    pipeline.objects.put_if_absent(f"{lake_key(name)}/again.parquet", content)
    log.append(latest + 1, [{"add": {**file, "path": "again.parquet"}}])


def test_equal_rows_are_equal_and_doubled_ones_and_a_change_that_was_not_sent_differ(
    database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, "CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'a')")
    events = EventFolder(folder=tmp_path, store_url=store_url, tables=(TABLE,))
    events.write("0/a.jsonl", *debezium_events(1, ("i", 1, "a")))
    events.consume()
    with events.opened(make_lake) as pipeline:
        assert differing(pipeline, database) == [("", 0)]
        add_file_again(pipeline)
        assert differing(pipeline, database) == [("", 1)]
        run_sql(database, "INSERT INTO orders VALUES (2, NULL)", "UPDATE orders SET note = 'b' WHERE id = 1")
        assert differing(pipeline, database) == [("", 2)]
        run_sql(database, "DROP TABLE orders")
        ((problem, _),) = differing(pipeline, database)
        assert "the source has no table" in problem


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://db/shop", "cannot be compared with a database of the kind 'oracle'"),
        (
            "mysql://u:hunter2[w@h/db",
            "^--against, or CDC_AGAINST is no URL .*; correct it in --against, or CDC_AGAINST$",
        ),
        ("user:hunter2[w@h", "cannot be compared with a database of the kind ''"),
    ],
    ids=["another kind", "no URL", "no kind"],
)
def test_what_is_no_database_that_can_be_read_is_refused_before_anything_is_applied(
    store_url: str, tmp_path: Path, url: str, words: str
) -> None:
    events = EventFolder(folder=tmp_path, store_url=store_url, tables=(TABLE,))
    events.write("0/a.jsonl", *debezium_events(1, ("i", 1, "a")))
    events.consume()
    with events.opened(make_lake) as pipeline:
        with pytest.raises(SettingsError, match=words) as refused:
            verify_against(pipeline, pipeline.table_names(), url)
        assert "hunter2" not in str(refused.value)
        assert not (tmp_path / "lake" / "datalake").exists()
