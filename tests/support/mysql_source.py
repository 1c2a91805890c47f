"""A pipeline over MariaDB or MySQL, and what its stream and its copy bring, for tests of the source alone."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.record import OPERATION, TableName
from cdc_pipeline.sources.known import PartitionProgress, StreamStart
from cdc_pipeline.sources.protocol import ChangeStream, TableEvents, UnfitEvent
from cdc_pipeline.types import arrow_schema
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import NOBODY_LISTENS
from tests.support.mariadb import is_mariadb, run_mysql
from tests.support.pipelines import mysql_settings, opened_pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlShop:
    """One database of the server that all tests share, and a pipeline over it that is opened anew for each use."""

    folder: Path
    url: str
    database: str
    store_url: str

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        return run_mysql(self.url, *statements, database=self.database)

    def name(self, table: str) -> TableName:
        return TableName(database="shop", schema=self.database, table=table)

    @contextmanager
    def opened(self, *tables: str, spark_url: str = NOBODY_LISTENS, **more: Any) -> Iterator[Pipeline]:
        listed = [{"name": table, **more.pop(table, {})} for table in tables]
        settings = mysql_settings(self.folder, self.url, self.database, listed, **more)
        with opened_pipeline(settings, store_url=self.store_url, spark_url=spark_url) as pipeline:
            yield pipeline


RIGHTS = {
    True: "REPLICATION SLAVE, BINLOG MONITOR",
    False: "REPLICATION SLAVE, REPLICATION CLIENT",
}
"""By whether the server is a MariaDB: those of docs/how-to/mysql.md without which nothing is read."""


@contextmanager
def documented_reader(shop: MysqlShop) -> Iterator[dict[str, str]]:
    """Settings of a source whose user has these rights alone, and may read the shop's database."""
    reader = shop.database.replace("shop", "reader")
    shop.run(
        f"CREATE USER {reader}@'127.0.0.1' IDENTIFIED BY 'a secret of {reader}'",
        f"GRANT {RIGHTS[is_mariadb(shop.url)]} ON *.* TO {reader}@'127.0.0.1'",
        f"GRANT SELECT ON {shop.database}.* TO {reader}@'127.0.0.1'",
        f"GRANT ALL ON {reader}.* TO {reader}@'127.0.0.1'",
    )
    url = shop.url.replace("cdc:of%20this%20test%20run", f"{reader}:a%20secret%20of%20{reader}")
    yield {"url": url, "marker_table": f"{reader}.cdc_marker"}
    shop.run(f"DROP USER {reader}@'127.0.0.1'", f"DROP DATABASE IF EXISTS {reader}")


@dataclass(slots=True, kw_only=True)
class Read:
    """What a stream brought until a marker message."""

    events: list[TableEvents] = field(default_factory=list)

    @property
    def unfit(self) -> list[UnfitEvent]:
        return [event for events in self.events for event in events.unfit]

    def rows(self, table: TableName) -> pa.Table:
        return pa.concat_tables([events.rows for events in self.events if events.table == table])


def first_place(pipeline: Pipeline) -> dict[int, PartitionProgress]:
    survey = pipeline.source.survey(pipeline.registered_stream())
    return dict.fromkeys(survey.stream_partitions, PartitionProgress(offset=survey.first_offset))


@contextmanager
def opened_stream(pipeline: Pipeline, progress: Mapping[int, PartitionProgress]) -> Iterator[ChangeStream]:
    known = pipeline.registered_stream()
    start = StreamStart(
        progress=progress,
        last_cut=None,
        tables=known.tables(),
        begun={},
        begin_file=lambda _, __: 1,
    )
    with closing(pipeline.source.survey(known).open(start)) as stream:
        yield stream


def read_stream(pipeline: Pipeline, progress: Mapping[int, PartitionProgress] | None = None) -> Read:
    """Everything from there until now, without it from the beginning of the stream."""
    found, marks = Read(), set[str]()
    with opened_stream(pipeline, progress or first_place(pipeline)) as stream:
        stream.send_marker("cut:here")
        while "cut:here" not in marks:
            batch = stream.read(timedelta(seconds=1))
            if batch is not None:
                found.events += batch.events
                marks |= {marker.text for marker in batch.markers}
    return found


def read_copy(pipeline: Pipeline, table: TableName) -> tuple[pa.Table, list[tuple[str, Mapping[str, bytes | None]]]]:
    """The rows of a copy as of now, and of those that do not fit the column and the texts."""
    known = pipeline.registered_stream().tables()[table]
    assert known.schema is not None
    with (
        pipeline.source.hold_position("test", name=table.table) as held,
        pipeline.source.copy_at(held.exported) as copy,
    ):
        blocks = list(copy.rows(table, known.schema))
    unfit = [(row.column, row.texts) for block in blocks for row in block.unfit_rows]
    return pa.Table.from_batches([block.rows for block in blocks], arrow_schema(known.schema)), unfit


def shown(found: Read, *columns: str) -> list[tuple[Any, ...]]:
    """Operation and columns of each event."""
    rows = [row for events in found.events for row in events.rows.to_pylist()]
    return [(row[OPERATION], *(row[column] for column in columns)) for row in rows]


def states(pipeline: Pipeline, shop: MysqlShop, *tables: str) -> list[TableState]:
    return [pipeline.store.tables.table(shop.name(table)).state for table in tables]
