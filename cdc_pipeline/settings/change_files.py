"""The section of pipeline.yml about change files: where they lie, their format, their order, when one is complete."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

from pydantic import Field, field_validator, model_validator

from cdc_pipeline.record import TableName
from cdc_pipeline.settings.lake_location import check_location, is_on_s3
from cdc_pipeline.settings.work import Duration, Frozen, SourceWithoutUrl

_FILE_URL = "file://"
_PARTS = ("database", "schema", "table")
_FOLDERS = {"dms": "{schema}/{table}", "datastream": "{schema}_{table}", "upserts": "{table}", "debezium": ""}
RowOperation = Literal["insert", "update", "delete", "truncate", "ignore"]
_OPERATIONS: Mapping[str, RowOperation] = {
    **dict[str, RowOperation].fromkeys(("I", "INSERT", "C", "CREATE", "R", "UPSERT"), "insert"),
    **dict[str, RowOperation].fromkeys(("U", "UPDATE"), "update"),
    **dict[str, RowOperation].fromkeys(("D", "DELETE"), "delete"),
    **dict[str, RowOperation].fromkeys(("T", "TRUNCATE"), "truncate"),
}


class CsvSettings(Frozen):
    """How CSV files are written."""

    header: bool = Field(
        default=True, description="the first line has the columns' names; else the order is that of `columns`"
    )
    delimiter: str = Field(
        default=",", min_length=1, max_length=1, description="the ASCII character between two values, no quote"
    )
    null: str = Field(default="", description="the unquoted text that stands for NULL")

    @model_validator(mode="before")
    @classmethod
    def _null_is_a_name(cls, written: Any) -> Any:
        """Takes the key `null` as people write it: YAML reads it as no value unless it has quotes."""
        if not isinstance(written, dict):
            return written
        return {"null" if key is None else key: value for key, value in written.items()}

    @field_validator("delimiter")
    @classmethod
    def _divides(cls, delimiter: str) -> str:
        if not delimiter.isascii() or delimiter in '"\r\n':
            message = (
                f"{delimiter!r} cannot be the delimiter: write an ASCII character that is no quote and no line end"
            )
            raise ValueError(message)
        return delimiter


class ChangeFilesSource(SourceWithoutUrl):
    """Complete files with changes, in a folder or below a prefix of a bucket, one folder per table."""

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "as_text": "change files do not contain the source's text, so leave it out"
    }
    kind: Literal["change_files"] = Field(description="complete files with changes")
    path: str = Field(min_length=1, description="a folder, file:///folder, or s3://bucket/prefix")
    format: Literal["dms", "datastream", "upserts", "debezium"] = Field(
        description="AWS DMS, Google Datastream, rows with an operation, or Debezium's events"
    )
    folder: str | None = Field(
        default=None,
        description="each table's folder below `path`, with `{database}`, `{schema}` and `{table}`; the default depends"
        " on the format",
    )
    order_by: tuple[str, ...] = Field(
        default=(),
        description="columns that show which of two changes of an id is newer; default: names of files, then lines."
        " They cannot change later",
    )
    operation_column: str | None = Field(default=None, description="default: `Op` for dms, none for upserts")
    operations: Mapping[str, RowOperation] = Field(
        default={},
        description="values of the operation column, each as insert, update, delete, truncate or ignore; default: I, U,"
        " D, T and the words, in any case",
    )
    time_column: str | None = Field(default=None, description="the column with the time of the change")
    before_prefix: str = Field(default="BI_", min_length=1, description="begins the names of columns of the old row")
    csv: CsvSettings = Field(default=CsvSettings(), description="how CSV files are written")
    complete: Literal["named", "settled", "marked"] = Field(
        default="named",
        description="when a file may be read: once it has its name, once it has not changed for `settled_after`, or"
        " once a file with its name and `marker` exists",
    )
    settled_after: Duration = Field(
        default=timedelta(seconds=10), description="with `complete: settled`: how long a file has to be unchanged"
    )
    marker: str = Field(
        default=".done", min_length=1, description="with `complete: marked`: the end of the name of the marking file"
    )
    list_every: Duration = Field(default=timedelta(seconds=5), description="pause between two looks for new files")
    late_by: Duration | None = Field(
        default=None, description="with `order_by` or datastream: changes that are later than this are not accepted"
    )

    @property
    def on_s3(self) -> bool:
        return is_on_s3(self.path)

    @property
    def uses_aws(self) -> bool:
        return self.on_s3

    @property
    def ordered(self) -> bool:
        """Whether names and lines are the order. Else fields of each change are: files may come in any order."""
        return not self.order_by and self.format != "datastream"

    def folders(self, base: Path) -> tuple[Path, ...]:
        """Local folders that are read. Relative paths start at `base`."""
        return () if self.on_s3 else (base / self._local,)

    @property
    def _local(self) -> str:
        """The folder as a path: that of a URL is quoted."""
        is_url = self.path.startswith(_FILE_URL)
        return unquote(self.path.removeprefix(_FILE_URL)) if is_url else self.path

    def location(self, base: Path) -> str:
        """Returns the URL of the files: `file:///…` or `s3://…`."""
        return next((folder.resolve().as_uri() for folder in self.folders(base)), self.path)

    def folder_of(self, table: TableName) -> str:
        """Returns the table's folder below `path`, without a slash at either end."""
        template = _FOLDERS[self.format] if self.folder is None else self.folder
        return template.format(database=table.database, schema=table.schema, table=table.table).strip("/")

    def operation_of(self, text: str) -> RowOperation | None:
        """Returns the operation that a value of the operation column stands for, None for an unknown value."""
        return self.operations.get(text) if self.operations else _OPERATIONS.get(text.upper())

    @field_validator("path")
    @classmethod
    def _is_location(cls, path: str) -> str:
        check_location(path)
        return path

    @field_validator("folder")
    @classmethod
    def _known_parts(cls, folder: str | None) -> str | None:
        try:
            (folder or "").format(**dict.fromkeys(_PARTS, "x"))
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            message = f"{folder!r} is not a folder's name: write {{database}}, {{schema}} or {{table}} for its parts"
            raise ValueError(message) from error
        return folder

    @model_validator(mode="after")
    def _one_order(self) -> "ChangeFilesSource":
        if self.format == "datastream" and self.order_by:
            message = "order_by is not for datastream: its source_metadata has the order"
            raise ValueError(message)
        if self.ordered and self.late_by is not None:
            message = "late_by needs order_by: in files that are read in the order of their names nothing comes late"
            raise ValueError(message)
        return self
