"""A table without a key over a real slot: whole rows go, whole rows come."""

from typing import Any

import pyarrow as pa

from cdc_pipeline.settings import TableSettings
from tests.support.streams import database_of, new_cutter, opened, prepare, read_marked, run_sql

CREATE = """
CREATE TABLE notes (body text, amount int, at timestamp);
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
ALTER TABLE notes REPLICA IDENTITY FULL
"""


def events_after(database: str, *statements: str, stream_partitions: int = 1) -> list[tuple[Any, ...]]:
    run_sql(database, CREATE)
    table = TableSettings(name=f"{database_of(database)}.public.notes")
    source, plan = prepare(database, [table], stream_partitions=stream_partitions)
    (planned,) = plan.tables
    assert planned.schema.is_keyless
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(database, *statements)
        cut = read_marked(stream, cutter)
    rows = pa.concat_tables([part.rows for part in cut.slices.values()]).to_pylist()
    shown = sorted(rows, key=lambda row: (row["_cdc_version"], row["_cdc_op"]))
    return [(row["_cdc_op"], row["body"] and row["body"][:5], row["amount"]) for row in shown]


def test_duplicates_updates_and_deletes_arrive_as_whole_rows(database: str) -> None:
    assert events_after(
        database,
        "INSERT INTO notes VALUES ('a', 1), ('a', 1), (NULL, NULL)",
        "UPDATE notes SET amount = 2 WHERE ctid = '(0,1)'",
        "DELETE FROM notes WHERE body IS NULL",
    ) == [("i", "a", 1), ("i", "a", 1), ("i", None, None), ("d", "a", 1), ("i", "a", 2), ("d", None, None)]


def test_a_large_text_that_did_not_change_is_whole_in_both_images(database: str) -> None:
    events = events_after(
        database, "INSERT INTO notes VALUES (repeat('x', 5000), 1)", "UPDATE notes SET amount = 2", stream_partitions=3
    )
    assert events == [("i", "xxxxx", 1), ("d", "xxxxx", 1), ("i", "xxxxx", 2)]
