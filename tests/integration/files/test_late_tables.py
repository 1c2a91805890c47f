"""A table that pipeline.yml lists later than others, beside whose events its own may have been passed over."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.event_files import EventFolder

ONE_FOLDER = {"kind": "change_files", "format": "debezium"}


def declared(*names: str) -> tuple[dict[str, Any], ...]:
    return tuple({"name": f"public.{name}", "id": ["id"], "columns": {"id": "int"}} for name in names)


def event(table: str, lsn: int) -> dict[str, Any]:
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": table, "lsn": lsn, "txId": lsn}
    return {"op": "c", "before": None, "after": {"id": lsn}, "source": source, "ts_ms": 1_700_000_000_000}


@pytest.mark.parametrize(
    ("source", "files", "read"),
    [
        ({}, ["0/a.jsonl", "0/a.jsonl"], "folder 0"),
        (ONE_FOLDER, ["a.jsonl", "a.jsonl"], "the folder"),
        ({**ONE_FOLDER, "folder": "{table}"}, ["t/a.jsonl", "late/a.jsonl"], None),
    ],
    ids=["folders of events", "one folder", "a folder for each table"],
)
@pytest.mark.parametrize("is_read", [False, True])
def test_a_new_table_in_files_that_are_read_already_is_warned_of(
    tmp_path: Path, database: str, source: dict[str, str], files: list[str], read: str | None, *, is_read: bool
) -> None:
    events = EventFolder(folder=tmp_path, store_url=database, tables=declared("t"), source=source)
    for file, table, lsn in zip(files, ("t", "late"), (1, 2), strict=True):
        events.write(file, event(table, lsn))
    with events.set_up() as pipeline:
        if is_read:
            pipeline.consumer_runs().consume_until_idle()
    both = replace(events, tables=declared("t", "late"))
    with capture_logs() as logs:
        for _ in range(2):
            both.consume()
    found = [(each["table"], each["found"]) for each in logs if "begins in the middle" in each["event"]]
    is_passed_over = is_read and read is not None
    assert found == ([("shop.public.late", f"{read}, which was read without it so far")] if is_passed_over else [])
    assert both.rows("public.late") == ([] if is_passed_over else [{"id": 2}])
