"""Looks at the first change file of a table before the first run: has it the columns that pipeline.yml names?"""

from collections.abc import Container, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import structlog

from cdc_pipeline.errors import SettingsError, SourceError
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt
from cdc_pipeline.sources.files.file_names import folder_of, is_marked, is_no_data
from cdc_pipeline.sources.files.record_blocks import read_record
from cdc_pipeline.sources.files.record_file import RecordFile, is_readable
from cdc_pipeline.sources.files.record_formats import FileLayout
from cdc_pipeline.sources.files.row_format import operation_column, operation_text

log = structlog.get_logger()

_MOST_RECORDS, _MOST_BYTES = 100, 1 << 20
_ROW = {"datastream": "payload"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFile:
    """The first file of a table's folder. `columns`: those of its first hundred records."""

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
                remedy="correct id, order_by, operation_column or time_column in pipeline.yml, or bring other files",
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
        columns = frozenset(name for record in _records(file, settings) for name in record)
    return FirstFile(key=key, columns=columns) if columns else None


def _first_key(objects: ObjectStore, folder: str, settings: ChangeFilesSource, folders: Container[str]) -> str | None:
    for found in objects.list_prefix(folder):
        if folder_of(found.key, folders) == folder and not is_no_data(found.key, settings, folder):
            return found.key if is_readable(found.key) and is_marked(objects, found.key, settings) else None
    return None


def _records(file: RecordFile, settings: ChangeFilesSource) -> Iterator[dict[str, object]]:
    """Yields the first records that can be read, without truncates, which have no row."""
    named = operation_column(settings)
    block = None if file.is_read else file.take_block(_MOST_BYTES).slice(0, _MOST_RECORDS)
    for number in range(0 if block is None else block.rows):
        record = None if block is None else attempt(partial(read_record, block.line(number)))
        if record is None or isinstance(record, LineRefused):
            continue
        row = record.get(_ROW[settings.format]) if settings.format in _ROW else record
        if isinstance(row, dict) and settings.operation_of(operation_text(row.get(named))) != "truncate":
            yield row
