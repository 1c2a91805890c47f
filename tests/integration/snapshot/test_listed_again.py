"""A table without a database that was taken out of pipeline.yml: the commands that its reason names bring it back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.wiring import Pipeline
from snapshot.wiring import export_at
from tests.crash.world import apply_all, make_lake, take_snapshot
from tests.support.change_files import json_lines
from tests.support.exports import ExportedTables, lake_rows, named
from tests.support.pipelines import set_up_and_consume
from tests.support.shards import MemoryStreams, ShardFeed

ORDERS, ITEMS = "public.orders", "public.items"
OPERATION = {"format": "upserts", "operation_column": "op"}


def named_commands(name: TableName) -> str:
    return (
        f"while it is not listed, run cdc remove {name} --lake; then list it again (Kafka, Kinesis, DynamoDB: with"
        f" begin: kept under source), run cdc setup-source, export all its rows, and run cdc snapshot {name}"
        " --from PREFIX --as-of start"
    )


def remove(pipeline: Pipeline, name: TableName) -> None:
    """Of a pipeline that does not list it: a consumer finds that, and the reason names the commands that follow."""
    set_up_and_consume(pipeline)
    row = pipeline.store.tables.table(name)
    assert (row.state, named_commands(name) in (row.state_reason or "")) == ("stale", True)
    pipeline.removal().remove_table(name, with_lake=True)


def begin_again(pipeline: Pipeline, name: TableName, export: Callable[[], Path]) -> list[dict[str, Any]]:
    """The rows of the lake after the named commands, and after all that came later. Slices are applied all the time."""
    begin(pipeline)
    (taken,) = take_snapshot(pipeline, [name], export=export_at(str(export()), "start"))
    assert taken.state == "published"
    set_up_and_consume(pipeline)
    apply_all(pipeline)
    return lake_rows(pipeline, name)


def begin(pipeline: Pipeline) -> None:
    set_up_and_consume(pipeline)
    assert [each.error for each in pipeline.slice_runs().apply(pipeline.table_names())] == [None, None]


def test_a_table_of_change_files_comes_back_by_the_commands_that_its_reason_names(
    tmp_path: Path, store_url: str
) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, tables=("orders", "items"), source=OPERATION)

    def write(name: str, *ids: int) -> Path:
        return tables.write(name, json_lines([{"op": "I", "id": id_, "name": "n", "amount": "1.00"} for id_ in ids]))

    write("files/orders/1.jsonl", 1)
    write("files/items/1.jsonl", 1)
    with tables.opened() as pipeline:
        begin(pipeline)
    write("files/items/2.jsonl", 2)
    with replace(tables, tables=("orders",)).opened() as pipeline:
        remove(pipeline, named("items"))

    def export() -> Path:
        write("files/items/3.jsonl", 3)
        return write("export/items.jsonl", 1, 2, 3)

    with tables.opened() as pipeline:
        assert ids(begin_again(pipeline, named("items"), export)) == [1, 2, 3]
        write("files/items/4.jsonl", 4)
        set_up_and_consume(pipeline)
        apply_all(pipeline)
        assert ids(lake_rows(pipeline, named("items"))) == [1, 2, 3, 4]


@pytest.mark.parametrize("of_table", ["{schema}.{table}", "shop"], ids=["in its own stream", "in a stream of all"])
def test_a_table_of_a_stream_comes_back_by_the_commands_that_its_reason_names(
    tmp_path: Path, store_url: str, of_table: str
) -> None:
    """The stream is older by then than what it keeps."""
    listed = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))
    feed = ShardFeed(
        folder=tmp_path, store_url=store_url, tables=listed, streams=MemoryStreams(), source={"stream": of_table}
    )

    def write(table: str, id_: int) -> None:
        event = {"op": "c", "before": None, "after": {"id": id_, "note": "n"}}
        schema, name = table.split(".")
        source = {"db": "shop", "schema": schema, "table": name}
        feed.streams.put(of_table.format(schema=schema, table=name), {**event, "source": source})

    for table in (ORDERS, ITEMS):
        write(table, 1)
    items = TableName.parse(f"shop.{ITEMS}")
    with feed.opened(make_lake=make_lake) as pipeline:
        begin(pipeline)
    for id_ in (2, 3):
        feed.streams.now += timedelta(hours=20)
        write(ITEMS, id_)
        write(ORDERS, id_)
        with replace(feed, tables=listed[:1] if id_ == 3 else listed).opened(make_lake=make_lake) as pipeline:
            set_up_and_consume(pipeline)
    with replace(feed, tables=listed[:1]).opened(make_lake=make_lake) as pipeline:
        remove(pipeline, items)

    def export() -> Path:
        write(ITEMS, 4)
        path = tmp_path / "export.jsonl"
        path.write_bytes(json_lines([{"id": id_, "note": "n"} for id_ in (1, 2, 3, 4)]))
        return path

    kept = replace(feed, source={**feed.source, "begin": "kept"})
    with kept.opened(make_lake=make_lake) as pipeline:
        assert ids(begin_again(pipeline, items, export)) == [1, 2, 3, 4]


def ids(rows: Sequence[dict[str, Any]]) -> list[int]:
    return [int(row["id"]) for row in rows]
