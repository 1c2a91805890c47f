"""Complete files of AWS DMS, Google Datastream, Debezium or plain rows, below a folder or a prefix of a bucket."""

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import structlog

from cdc_pipeline.errors import SettingsError, SourceError
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, decode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Skipped, read_line
from cdc_pipeline.sources.debezium.field_versions import ROW_FORMATS
from cdc_pipeline.sources.debezium.memory import table_states
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt
from cdc_pipeline.sources.debezium.partition import Content, SourceLine
from cdc_pipeline.sources.files.complete_files import folder_of, is_marked, is_no_data
from cdc_pipeline.sources.files.datastream import ORDER_FIELDS, datastream_event
from cdc_pipeline.sources.files.listed_files import ListedFiles, present_file
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.files.record_blocks import read_record, record_line
from cdc_pipeline.sources.files.record_file import RecordFile, is_readable
from cdc_pipeline.sources.files.record_formats import FileLayout
from cdc_pipeline.sources.files.row_events import RowBlocks
from cdc_pipeline.sources.files.row_format import (
    csv_columns,
    known_by,
    operation_column,
    operation_text,
    order_fields,
    own_columns,
    row_event,
    text_columns,
)
from cdc_pipeline.sources.files.row_stream import RowStream
from cdc_pipeline.sources.files.survey import EventOrder
from cdc_pipeline.sources.known import PartitionProgress, StreamStart
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import declared_type

_PARTITION = 0
_JSON = frozenset({"json", "jsonb"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFolders:
    """Implements `FileTransport`. All files are one stream partition, whose folders take turns file by file.

    `objects`: the folder or the prefix. `folders`: each table's folder below it.
    """

    objects: ObjectStore
    settings: ChangeFilesSource
    folders: dict[str, TableSettings | None]
    on_step: OnStep

    def check_found(self) -> None:
        """Raises SettingsError if no folder with files may be listed."""
        refused = None
        for folder in self.folders:
            try:
                if next(self.objects.list_prefix(folder), None) is not None:
                    return
            except SettingsError as error:
                refused = error
        raise refused or SourceError(
            f"{self.objects.url} holds no file of any table",
            expected=f"files in folders such as {next(iter(self.folders)) or 'the folder itself'}",
            remedy="correct source.path or source.folder in pipeline.yml, or write the first file",
        )

    def check_tables(self, tables: Collection[TableSettings]) -> Mapping[TableName, SourceError]:
        if self.settings.format == "debezium":
            return {}
        found = {}
        for folder, table in self.folders.items():
            if table is None or table not in tables:
                continue
            with step(self.on_step, "source_file.read"):
                first = first_file(self.objects, folder, self._layout(table), self.settings, self.folders)
            why = _of_json(table) or (None if first is None else first.check(table, self.settings))
            if why is not None:
                found[table.table] = why
        return found

    def without(self, tables: Collection[TableName]) -> "ChangeFolders":
        left = {folder: of for folder, of in self.folders.items() if of is None or of.table not in tables}
        return replace(self, folders=left)

    def shares_files(self, table: TableName, registered: Collection[TableName]) -> bool:
        return self.settings.folder_of(table) in map(self.settings.folder_of, registered)

    def stream_partitions(self) -> Mapping[int, str]:
        return {_PARTITION: ""}

    def reader(self, number: int, reached: PartitionProgress, start: StreamStart) -> ListedFiles:
        """Raises SourceError if `source.folder` was changed while a file is read in part: its rest would be lost."""
        offset, digest = decode_position(reached.offset), reached.last_position.get(FILE_DIGEST, "")
        begun = start.begun.get(number, {})
        file = present_file(offset, begun, digest)
        if file is not None:
            self._check_folder(file, {*start.tables, *table_states({number: reached}, (FILE_DIGEST,))[number]})
        return ListedFiles(
            objects=self.objects,
            layouts={folder: self._layout(table) for folder, table in self.folders.items()},
            settings=self.settings,
            offset=offset,
            begun=begun,
            begin=partial(start.begin_file, number),
            on_step=self.on_step,
            digest=digest,
        )

    def decode(self, raw: SourceLine) -> Content:
        folder = folder_of(raw.file, self.folders)
        if folder is None:
            return Skipped(kind="row of a table that is not listed")
        table = self.folders[folder]
        found = attempt(partial(self._event, raw.text, table))
        if isinstance(found, LineRefused) and table is not None:
            found.table = table.table
        return found

    def rows_stream(self, decoder: DebeziumDecoder, start: StreamStart) -> RowStream | None:
        if self.settings.format not in ROW_FORMATS:
            return None
        reached = start.progress[_PARTITION]
        return RowStream(
            number=_PARTITION,
            files=self.reader(_PARTITION, reached, start),
            blocks=RowBlocks(decoder=decoder, source=self.settings, decode=self.decode, number=_PARTITION),
            progress=reached,
            table_of=self._table_of,
            position=start.position,
            commit_time=start.commit_time,
        )

    def _check_folder(self, file: str, known: Collection[TableName]) -> None:
        """Refuses a file that is in no folder of a table that is listed or was read before."""
        folders = {*self.folders, *map(self.settings.folder_of, known)}
        if folder_of(file, folders) is None:
            raise SourceError(
                f"the file {file} was read in part, and is in no table's folder of pipeline.yml any more",
                expected=f"its folder among {', '.join(sorted(folders))}",
                remedy="set source.folder back, run cdc consume --until-idle and cdc quarantine replay --all,"
                " and change it then",
            )

    def _table_of(self, file: str) -> TableSettings | None:
        folder = folder_of(file, self.folders)
        return None if folder is None else self.folders[folder]

    def _event(self, text: bytes, table: TableSettings | None) -> EnvelopeEvent | Skipped:
        if table is None or self.settings.format == "debezium":
            return read_line(text)
        if self.settings.format == "datastream":
            return datastream_event(text, table.table)
        return row_event(text, table, self.settings)

    def _layout(self, table: TableSettings | None) -> FileLayout:
        columns = () if table is None else csv_columns(self.settings, table.columns)
        known = () if table is None or self.settings.format not in ROW_FORMATS else known_by(self.settings, table)
        return FileLayout(csv=self.settings.csv, columns=columns, known_by=known, texts=self._texts(table))

    def _texts(self, table: TableSettings | None) -> frozenset[str]:
        declared = {} if table is None else table.columns
        texts = text_columns(declared)
        old = {self.settings.before_prefix + name for name in texts}.difference(declared)
        return own_columns(self.settings) | texts | old


def _of_json(table: TableSettings) -> SourceError | None:
    """Returns why a table cannot have its id, None if it can: JSON of one value has many spellings."""
    name = next((name for name in table.id if declared_type(table.columns.get(name, "text")) in _JSON), None)
    if name is None:
        return None
    return SourceError(
        f"the column {name} in the id of {table.name} is of the type {table.columns[name]}",
        expected="an id whose values have one spelling: files have the fields of an object in any order",
        remedy="name other columns in id of pipeline.yml",
    )


def change_order(settings: ChangeFilesSource) -> EventOrder:
    match settings.format:
        case "datastream":
            fields = order_fields(ORDER_FIELDS)
        case "debezium":
            fields = settings.order_by
        case "dms" | "upserts":
            fields = order_fields(len(settings.order_by))
    name = " ".join((settings.format, *settings.order_by)) if fields else f"{settings.format} in order"
    return EventOrder(
        name=name, sequence_by=fields, late_by=settings.late_by, begins_with_time=settings.format == "datastream"
    )


log = structlog.get_logger()

_MOST_RECORDS, _MOST_BYTES = 100, 1 << 20
_ROW = {"datastream": "payload"}
_WITHOUT_ROW = ("truncate", "ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFile:
    """The first file of a table's folder. `columns`: of its first hundred records, or its names if it has none."""

    key: str
    columns: frozenset[str]

    def check(self, table: TableSettings, settings: ChangeFilesSource) -> SourceError | None:
        """Returns why no row of the file could be applied, None if nothing is missing.

        Warns of a declared column that the file lacks: it would be NULL in every insert.
        """
        own = () if settings.format in _ROW else (operation_column(settings), settings.time_column, *settings.order_by)
        needed = dict.fromkeys(name for name in (*table.id, *own) if name is not None)
        missing = [name for name in needed if name not in self.columns]
        if missing:
            return SourceError(
                f"{self.key}, the first file of {table.name}, has no column {missing[0]}",
                expected=f"{', '.join(needed)} among its columns: {', '.join(sorted(self.columns))}",
                remedy="correct id, order_by, operation_column, time_column or csv.header in pipeline.yml,"
                " or bring other files",
            )
        for name in table.columns.keys() - self.columns:
            log.warning(
                "column not in the first file",
                table=table.name,
                column=name,
                file=self.key,
                found="it would be NULL in every insert",
                remedy="correct columns in pipeline.yml, unless later files have it",
            )
        return None


def first_file(
    objects: ObjectStore, folder: str, layout: FileLayout, settings: ChangeFilesSource, folders: Container[str]
) -> FirstFile | None:
    """Returns the first complete file of a folder; None if there is none, or if nobody can read it.

    A file that may still grow (`complete: settled`) is not looked at. Raises SourceAway if the store does not answer.
    """
    try:
        key = None if settings.complete == "settled" else _first_key(objects, folder, settings, folders)
        file = None if key is None else RecordFile(objects, key, layout)
    except SettingsError:
        return None
    except SourceError as error:
        if error.outage:
            raise
        return None
    if key is None or file is None:
        return None
    with closing(file):
        names = file.names if file.is_read and settings.format in ROW_FORMATS else ()
        columns = frozenset(names) or frozenset(name for record in _records(file, settings) for name in record)
    return FirstFile(key=key, columns=columns) if columns else None


def _first_key(objects: ObjectStore, folder: str, settings: ChangeFilesSource, folders: Container[str]) -> str | None:
    for found in objects.list_prefix(folder):
        if folder_of(found.key, folders) == folder and not is_no_data(found.key, settings, folder):
            return found.key if is_readable(found.key) and is_marked(objects, found.key, settings) else None
    return None


def _records(file: RecordFile, settings: ChangeFilesSource) -> Iterator[dict[str, object]]:
    """Yields the first records that can be read and have a row: no truncates, and nothing that is ignored."""
    named = operation_column(settings)
    block = None if file.is_read else file.take_block(_MOST_BYTES).slice(0, _MOST_RECORDS)
    for number in range(0 if block is None else block.rows):
        record = None if block is None else attempt(partial(read_record, record_line(block, number)))
        if record is None or isinstance(record, LineRefused):
            continue
        row = record.get(_ROW[settings.format]) if settings.format in _ROW else record
        if isinstance(row, dict) and settings.operation_of(operation_text(row.get(named))) not in _WITHOUT_ROW:
            yield row
