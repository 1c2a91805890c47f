"""A folder of change files that cannot be read on: what the lake's times say meanwhile, and where the reason is."""

import gzip
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import SourceError
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import EventFolder

TABLES = tuple({"name": f"public.{name}", "id": ["id"], "columns": {"id": "int"}} for name in ("good", "bad"))


def row(_: str, id_: int) -> Mapping[str, Any]:
    return {"id": id_}


def event(table: str, id_: int) -> Mapping[str, Any]:
    source = {"db": "shop", "schema": "public", "table": table, "lsn": id_, "txId": id_, "ts_ms": 1_700_000_000_000}
    return {"op": "c", "before": None, "after": {"id": id_}, "source": source}


@pytest.mark.parametrize(("format_", "line"), [("upserts", row), ("debezium", event)])
def test_the_lakes_time_stands_while_a_folder_is_stopped_until_changes_of_others_come(
    tmp_path: Path, database: str, format_: str, line: Callable[[str, int], Mapping[str, Any]]
) -> None:
    source = {"kind": "change_files", "format": format_, "folder": "{table}"}
    events = EventFolder(folder=tmp_path, store_url=database, tables=TABLES, source=source)

    def consumed() -> tuple[str, datetime, str]:
        """The error, the time of the last boundary, and the alarm of the stopped table."""
        error = ""
        with events.set_up() as pipeline:
            try:
                pipeline.consumer_runs().consume_until_idle()
            except SourceError as raised:
                error = str(raised)
            return error, *shown(pipeline)

    events.write("bad/1.jsonl", line("bad", 1))
    events.write("good/1.jsonl", line("good", 1))
    _, read_until, alarm = consumed()
    assert alarm == ""
    damaged = events.folder / "events" / "bad" / "2.jsonl.gz"
    damaged.write_bytes(gzip.compress(json.dumps(line("bad", 2)).encode())[:-9])
    for number in (2, 3):
        if number == 3:
            events.write("good/2.jsonl", line("good", 2))
        error, time, alarm = consumed()
        assert "bad/2.jsonl.gz cannot be read" in error
        assert error in alarm
        assert time <= max(read_until, written(events, "good"))
    assert len(events.rows("public.good")) == 2
    damaged.write_bytes(gzip.compress(json.dumps(line("bad", 2)).encode()))
    error, time, alarm = consumed()
    assert (error, alarm) == ("", "")
    assert time > written(events, "good")
    assert len(events.rows("public.bad")) == 2


def written(events: EventFolder, table: str) -> datetime:
    """When the newest file of the table was written."""
    newest = max(path.stat().st_mtime for path in (events.folder / "events" / table).iterdir())
    return datetime.fromtimestamp(newest, tz=UTC)


def shown(pipeline: Pipeline) -> tuple[datetime, str]:
    newest, *_ = pipeline.store.inspection.run("boundaries")
    lag = {row["source_table"]: row for row in pipeline.store.inspection.run("lag")}
    return newest["commit_time"], lag["shop.public.bad"]["stream_alarm"] or ""
