"""Copies a table from files that another program exported, in a folder or below a prefix of a bucket."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from pyarrow.fs import FileSelector

from cdc_pipeline.errors import ObjectMissing, SnapshotError, SourceError
from cdc_pipeline.object_store import ObjectInfo, ObjectStore
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.copied_rows import CopiedRows
from cdc_pipeline.sources.files.complete_files import is_hidden
from cdc_pipeline.sources.files.exported_rows import ExportForm, exported_rows
from cdc_pipeline.sources.files.record_file import READ_ON, READABLE_NAME, RecordFile, missing_columns, unreadable_name
from cdc_pipeline.sources.files.record_formats import SUFFIXES, FileLayout
from cdc_pipeline.sources.files.row_format import text_columns
from cdc_pipeline.sources.known import Document, FoundTable, KnownTable
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.time_slice import EPOCH

_BLOCK_BYTES = 8 << 20
_GZIP = ".gz"
_CSV = ".csv"
_JSON = {".json": ".jsonl"}
_MAY_LACK_NULLS = ".jsonl"
"""Programs that write JSON often leave NULLs out. In every other format each row has every column."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFiles:
    """Implements `TableCopy` for files of one table, which lie below the root of `objects`.

    `only`: the key of the one file to read, or a pattern of names right below the root; "" for all files. `leading`:
    columns before those of the table in a CSV file without a header. `declared`: the columns of tables there, in order;
    of another table, those that are registered. A value is read as one of a change file is.
    `of_postgres`: but arrays and bits in CSV files are read as PostgreSQL's COPY writes them. `of_mysql`: but bits and
    times are read as MySQL has them. `of_dms`: but bytes are read as AWS DMS writes them.
    """

    objects: ObjectStore
    csv: CsvSettings
    leading: tuple[str, ...] = ()
    declared: Mapping[TableName, Collection[str]] = field(default_factory=dict)
    only: str = ""
    of_postgres: bool = False
    of_mysql: bool = False
    of_dms: bool = False
    on_step: OnStep

    def columns(self, table: KnownTable) -> tuple[Column, ...]:
        """Returns nothing: the columns are those that are registered."""
        del table
        return ()

    def description(self, table: KnownTable) -> FoundTable | None:
        """Returns None, since only the source describes its tables."""
        del table
        return None

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        """Returns one part per file, in the order of the names. The rows of a part are staged in runs of limited size.

        Raises SnapshotError if there is no file, if a name says no format, or if there are files of several formats.
        """
        del table, file_bytes
        return [
            {"file": found.key, "size_bytes": found.size_bytes, "written": found.written} for found in self._files()
        ]

    def oldest(self) -> datetime:
        """Returns when the oldest of the files was written last. The rows are not newer than that."""
        filesystem, root = self.objects.filesystem()
        paths = {f"{root}/{found.key}" for found in self._files()}
        with step(self.on_step, "source_file.read"):
            infos = filesystem.get_file_info([*paths] if self.only else FileSelector(root, recursive=True))
        times = [info.mtime_ns or 0 for info in infos if info.path in paths]
        return EPOCH + (min(times) // 1_000) * _MICROSECOND

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        """Holds one block of rows. Raises SnapshotError if the file has changed, or lacks a column of the table."""
        schema = _with_texts(schema)
        for each in self.parts(table, 0) if part is None else [part]:
            self._check_same(each)
            texts = text_columns({column.name: column.type for column in schema.columns})
            declared = self.declared.get(table, schema.names)
            columns = tuple(dict.fromkeys((*self.leading, *declared)))
            layout = FileLayout(csv=self.csv, columns=columns, texts=texts)
            file = self._opened(each["file"], layout)
            unit = f"{file.key} {'line' if _format(file.key) == _MAY_LACK_NULLS else 'row'}"
            form = self._form(file.key)
            with closing(file):
                self._check_same(each)  # all rows come from the copy, which was made after the first check
                is_checked = bool(file.names)
                if is_checked:
                    _check_columns(file.key, file.names, schema, declared)
                while not file.is_read:
                    first = file.line + 1
                    with step(self.on_step, "source_file.read"):
                        block = file.take_block(_BLOCK_BYTES)
                    found = exported_rows(block, schema, unit, first, form)
                    if found.names is not None and not is_checked:
                        _check_columns(file.key, found.names, schema, declared)
                        is_checked = True
                    yield found.copied

    def _form(self, key: str) -> ExportForm:
        if self.of_postgres and _format(key) == _CSV:
            return ExportForm.BY_COPY
        if self.of_mysql:
            return ExportForm.OF_MYSQL
        return ExportForm.BY_DMS if self.of_dms else ExportForm.PLAIN

    def _opened(self, key: str, layout: FileLayout) -> RecordFile:
        try:
            with step(self.on_step, "source_file.read"):
                return RecordFile(self.objects, key, layout)
        except SourceError as error:
            if READ_ON not in error.remedy:
                raise
            remedy = error.remedy.replace(READ_ON, "then run cdc snapshot again")
            raise SnapshotError(error.found, expected=error.expected, remedy=remedy) from error

    def _files(self) -> list[ObjectInfo]:
        with step(self.on_step, "source_file.read"):
            listed = self._named() or [each for each in self.objects.list_prefix("") if self._is_chosen(each.key)]
        files = [found for found in listed if not is_hidden(found.key)]
        if not files:
            raise SnapshotError(
                f"{self.objects.url} holds no file{f' {self.only}' if self.only else ''}",
                expected="the files of the export",
                remedy="correct --from: a folder, a file, s3://bucket/folder, or a pattern of file names in one folder",
            )
        strange = next(filter(None, (unreadable_name(found.key) for found in files)), None)
        if strange is not None:
            raise SnapshotError(
                f"the file {strange} below {self.objects.url} has a name that says no format",
                expected=READABLE_NAME,
                remedy="rename it, or move it out of the folder",
            )
        formats = sorted({_format(found.key) for found in files})
        if len(formats) > 1:
            raise SnapshotError(
                f"{self.objects.url} holds files of several formats: {', '.join(formats)}",
                expected="the files of one export, which have one format",
                remedy="move the others away, or name a longer prefix",
            )
        return files

    def _named(self) -> list[ObjectInfo]:
        """Returns the one file if it is named, without a list of those beside it."""
        try:
            return [self.objects.head(self.only)] if self.only else []
        except ObjectMissing:
            return []

    def _is_chosen(self, key: str) -> bool:
        return not self.only or ("/" not in key and fnmatchcase(key, self.only))

    def _check_same(self, part: Document) -> None:
        known = (part["size_bytes"], part["written"])
        with step(self.on_step, "source_file.read"):
            try:
                info = self.objects.head(part["file"])
                found = (info.size_bytes, info.written)
            except ObjectMissing:
                found = None
        if found != known:
            happened = "is gone" if found is None else "was written again"
            raise SnapshotError(
                f"the file {part['file']} below {self.objects.url} {happened}",
                expected="files that stay as they are until the snapshot is published",
                remedy="run cdc snapshot again once the export is complete",
            )


def _with_texts(schema: TableSchema) -> TableSchema:
    """Returns the schema with columns that are kept as the source's texts (`text(date)`) as columns of texts."""
    columns = (replace(column, type="text") if column.type.startswith("text(") else column for column in schema.columns)
    return replace(schema, columns=tuple(columns))


def _check_columns(key: str, names: Collection[str], schema: TableSchema, declared: Collection[str]) -> None:
    """Raises SnapshotError if columns are missing in the file, or in its first record that can be read.

    One that pipeline.yml no longer declares may be missing: it is NULL.
    """
    own = [name for name in schema.names if name in declared]
    needed = schema.key if _format(key) == _MAY_LACK_NULLS else own
    missing = [name for name in needed if name not in names]
    if missing:
        raise SnapshotError(
            missing_columns(key, missing, names),
            expected=f"the columns of the table, {', '.join(own)}, under these names",
            remedy="export them too, also those that are NULL; for a CSV file without names, give --no-header",
        )


def _format(key: str) -> str:
    suffix = next(suffix for suffix in SUFFIXES if key.removesuffix(_GZIP).endswith(suffix))
    return _JSON.get(suffix, suffix)
