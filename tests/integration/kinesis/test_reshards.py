"""Shards that split and merge below two consumers, on a server that keeps what a closed shard had.

moto hands the records of a closed shard to its children, so another server has to be named: see CONTRIBUTING.md.
"""

import os
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.file import load_settings
from tests.support.command_line import CommandLine, consuming, query
from tests.support.command_server import CommandServer
from tests.support.event_files import NOBODY_LISTENS, merged_rows
from tests.support.eventually import eventually
from tests.support.pipelines import opened_pipeline
from tests.support.shards import OTHER_KINESIS, KinesisStreams, debezium_event

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(OTHER_KINESIS not in os.environ, reason=f"{OTHER_KINESIS} names no server"),
]
TABLE = "shop.public.orders"
IDS = 24
_REGISTERED = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"
_OWNERS = "SELECT count(DISTINCT assignment_owner) FROM cdc.stream_partition"


def test_the_newest_write_of_each_row_wins_though_shards_split_and_merge_and_consumers_are_killed(
    kinesis_endpoint: str, tmp_path: Path, store_url: str, command_server: CommandServer
) -> None:
    """Rows move between shards, and shards between consumers, so that nothing but the order of shards decides."""
    streams = KinesisStreams(endpoint=kinesis_endpoint)
    streams.create(shards=2)
    cdc = CommandLine(folder=tmp_path, source_url=store_url, store_url=store_url, server=command_server)
    table = {"name": TABLE, "id": ["id"], "columns": {"id": "int", "note": "text"}}
    source = {"kind": "kinesis", "stream": streams.name, "reads_per_second": 50} | streams.server
    path = cdc.write_settings(source=source, tables=[table], slice_length="1s")
    rounds = count(1)

    def write(times: int) -> int:
        """Writes each row `times` times. Returns the number of the last round."""
        for _ in range(times):
            number = next(rounds)
            streams.put_all({str(id_): debezium_event("public.orders", id_, f"round {number}") for id_ in range(IDS)})
        return number

    assert cdc.run("setup-source").exit_code == 0
    with ExitStack() as running:
        consumers = [running.enter_context(consuming(cdc, name)) for name in ("first", "second")]
        assert eventually(lambda: query(store_url, _OWNERS) == [(2,)], 60)
        for number, reshard in enumerate((streams.split, streams.merge, streams.split, streams.merge)):
            write(3)
            reshard()
            write(2)
            if number % 2:
                consumers[number // 2].kill()
                consumers.append(running.enter_context(consuming(cdc, f"instead-{number}")))
        last = write(1)
        assert eventually(lambda: query(store_url, _REGISTERED) >= [(last * IDS,)], 120)
    assert query(store_url, _REGISTERED) == [(last * IDS,)]
    with opened_pipeline(load_settings(path, {}), store_url=store_url, spark_url=NOBODY_LISTENS) as pipeline:
        rows = merged_rows(pipeline, TableName.parse(TABLE))
    assert rows == [{"id": id_, "note": f"round {last}"} for id_ in sorted(range(IDS), key=str)]
