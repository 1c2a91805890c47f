"""The section of pipeline.yml about a folder of Debezium's events."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from cdc_pipeline.settings.work import Duration, SourceWithoutUrl


class DebeziumFilesSource(SourceWithoutUrl):
    """A folder of files with one Debezium event per line: `<path>/<stream partition>/*.jsonl`, read in name order."""

    kind: Literal["debezium_files"] = Field(description="Debezium's events from files")
    path: str = Field(
        min_length=1, description="a folder with one folder per stream partition, relative to pipeline.yml"
    )
    ordered: bool = Field(
        default=True,
        description="whether each stream partition has the events of an id in their order. It cannot change later",
    )
    sequence_by: tuple[str, ...] = Field(
        default=(), description="fields of an event that show which of two events is newer. They cannot change later"
    )
    late_by: Duration | None = Field(default=None, description="events that are later than this are not accepted")

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "as_text": "events in files do not contain the source's text, so leave it out"
    }

    def folders(self, base: Path) -> tuple[Path, ...]:
        """Folders that are read. Relative paths start at `base`."""
        return (base / self.path,)

    @model_validator(mode="after")
    def _one_order(self) -> "DebeziumFilesSource":
        if self.ordered and self.sequence_by:
            message = "sequence_by is for ordered: false; the order of ordered files is that of their lines"
            raise ValueError(message)
        if not self.ordered and not self.sequence_by:
            message = "ordered: false needs sequence_by, such as [source.lsn]: it shows which event is newer"
            raise ValueError(message)
        if self.ordered and self.late_by is not None:
            message = "late_by is for ordered: false; in ordered files the position shows what can still come"
            raise ValueError(message)
        return self
