"""A folder of Debezium's events made ready and registered, and the consumer that reads it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.errors import SettingsError
from cdc_pipeline.metadata_store.rows import Assignment, Stream
from cdc_pipeline.record import Column, TableName, TableSchema, decode_position, encode_position
from cdc_pipeline.settings import DebeziumFilesSource, TableSettings
from cdc_pipeline.source_setup.consumers import consumer_of
from cdc_pipeline.source_setup.tables import register_table
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.partition import PartitionLines
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.debezium.versions import encode_place
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST, PartitionFiles, partition_folders
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.protocol import PartitionPlace
from cdc_pipeline.time_slice import EPOCH
from cdc_pipeline.types import changed_types
from cdc_pipeline.wiring import Pipeline

_BEGINNING = encode_position(0)
_NO_OID = 0


def events_folder(pipeline: Pipeline, source: DebeziumFilesSource) -> Path:
    return (pipeline.settings.folder / source.path).resolve()


def set_up_files(pipeline: Pipeline, source: DebeziumFilesSource) -> dict[int, Path]:
    """Folder of each stream partition; stream and tables are registered. Idempotent; refuses by name what is missing.

    The order of the events is part of the stream's identity: with another one, versions would not compare.
    """
    folders = partition_folders(events_folder(pipeline, source))
    stream = Stream(
        name=pipeline.settings.name,
        source_system_identifier=source.kind,
        source_timeline=0,
        slot=" ".join(("sequence_by", *source.sequence_by)) if source.sequence_by else "ordered",
    )
    pipeline.store.streams.extend_stream(stream, folders)
    pipeline.cut_chain().catch_up()
    for table in pipeline.settings.tables:
        _refuse_changed_types(pipeline, table)
        register_table(pipeline, table.table, source_oid=_NO_OID, key=table.id, schema=_declared_schema(table))
    return folders


def _refuse_changed_types(pipeline: Pipeline, table: TableSettings) -> None:
    """Before anything of it is registered: the lake would refuse every slice from then on."""
    row = pipeline.store.tables.find(table.table)
    if row is None or row.schema_id is None:
        return
    known = pipeline.store.tables.schema(row.table_id, row.schema_id)
    for before, column in changed_types(known.columns, _declared_columns(table)):
        raise SettingsError(
            f"{table.name} has the column {column.name} as {column.type} in pipeline.yml",
            expected=f"{before.type}, as it began: the lake keeps its types",
            remedy="set it back; for another type, read the events again under another name and lake",
        )


def _declared_schema(table: TableSettings) -> TableSchema | None:
    """Where pipeline.yml tells it whole: an id that is none of its columns may be one that events show."""
    if not table.id or not set(table.id) <= table.columns.keys():
        return None
    return TableSchema(columns=_declared_columns(table), key=table.id)


def _declared_columns(table: TableSettings) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type_) for name, type_ in table.columns.items())


@contextmanager
def open_files_consumer(pipeline: Pipeline, source: DebeziumFilesSource) -> Iterator[Consumer]:
    """Takes every stream partition; whoever had them before gets StaleEpoch at its next register."""
    folders, settings, store = set_up_files(pipeline, source), pipeline.settings, pipeline.store
    assignment = store.streams.take_stream(settings.name, owner=pipeline.owner, first_offset=_BEGINNING)
    boundary = store.positions.last_boundary(settings.name)
    position = 0 if boundary is None else decode_position(boundary.position)
    stream = DebeziumStream(
        partitions=_partitions(pipeline, assignment, folders),
        places={
            number: PartitionPlace(offset=offset, last_position=assignment.last_position[number])
            for number, offset in assignment.next_offset.items()
        },
        decoder=_decoder(pipeline, assignment, source),
        position=position,
        commit_time=assignment.label.start if assignment.label else EPOCH,
        folders=lambda: partition_folders(events_folder(pipeline, source)),
    )
    with closing(stream):
        yield consumer_of(pipeline, assignment, stream, position=position)


def oldest_of_files(pipeline: Pipeline, source: DebeziumFilesSource, table: TableName) -> str:
    """The least version that a stream partition can still bring; "" where nothing tells it."""
    if not source.ordered and source.late_by is None:
        return ""
    places = pipeline.store.streams.places(pipeline.settings.name)
    if places.keys() != set(pipeline.store.streams.stream_partitions(pipeline.settings.name)):
        return ""
    found = [(offset, PartitionMemory.decode(seen.get(str(table), "0"))) for offset, seen in places.values()]
    if not source.ordered:
        return min(memory.horizon.version for _, memory in found)
    return min(encode_place(memory.position, decode_position(offset)) for offset, memory in found)


def _partitions(pipeline: Pipeline, assignment: Assignment, folders: dict[int, Path]) -> dict[int, PartitionLines]:
    streams = pipeline.store.streams
    begun = streams.begun_files(assignment.stream)
    return {
        number: PartitionLines(
            PartitionFiles(
                folder=folders[number],
                offset=decode_position(offset),
                begun=begun.get(number, {}),
                begin=partial(streams.begin_file, assignment, number),
                on_step=pipeline.on_step,
                root=folders[number].parent,
                digest=assignment.last_position[number].get(FILE_DIGEST, ""),
            )
        )
        for number, offset in assignment.next_offset.items()
    }


def _decoder(pipeline: Pipeline, assignment: Assignment, source: DebeziumFilesSource) -> DebeziumDecoder:
    return DebeziumDecoder(
        tables=DebeziumTables(pipeline.settings.tables, _known_schemas(pipeline)),
        sequence_by=source.sequence_by,
        last_position={
            number: {TableName.parse(table): seen for table, seen in positions.items() if table != FILE_DIGEST}
            for number, positions in assignment.last_position.items()
        },
        horizons={table.table: pipeline.store.tables.table(table.table).horizon for table in pipeline.settings.tables},
        late_by=source.late_by,
    )


def _known_schemas(pipeline: Pipeline) -> dict[TableName, TableSchema]:
    tables = pipeline.store.tables
    rows = [tables.table(table.table) for table in pipeline.settings.tables]
    return {row.name: tables.schema(row.table_id, row.schema_id) for row in rows if row.schema_id is not None}
