"""Surveys a folder of events, and opens the stream of its files."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.settings import DebeziumFilesSource, TableSettings
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import PartitionLines
from cdc_pipeline.sources.debezium.tables import DebeziumTables, declared_schema
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST, PartitionFiles, partition_folders
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.known import FoundTable, PartitionProgress, StreamIdentity, StreamStart
from cdc_pipeline.steps import OnStep
from cdc_pipeline.time_slice import EPOCH

_NO_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSurvey:
    """Implements `SourceSurvey`. `listed`: the tables of pipeline.yml. `folders`: by stream partition."""

    folder: Path
    settings: DebeziumFilesSource
    listed: tuple[TableSettings, ...]
    folders: Mapping[int, Path]
    on_step: OnStep

    @property
    def identity(self) -> StreamIdentity:
        """The kind of source and the fields that order the events. Versions of another order cannot be compared."""
        order = self.settings.sequence_by
        return StreamIdentity(
            system=self.settings.kind, timeline=0, channel=" ".join(("sequence_by", *order)) if order else "ordered"
        )

    @property
    def is_successor(self) -> bool:
        return False

    @property
    def stream_partitions(self) -> Collection[int]:
        return self.folders.keys()

    @property
    def first_offset(self) -> str:
        """The offset of the first line of the first file."""
        return encode_position(0)

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        return tuple(
            FoundTable(name=table.table, source_id=_NO_ID, key=table.id, schema=declared_schema(table))
            for table in self.listed
        )

    @property
    def stale(self) -> Mapping[TableName, TableStale]:
        return {}

    @property
    def mendable(self) -> Collection[TableName]:
        return ()

    @property
    def refused(self) -> Mapping[TableName, SourceError]:
        return {}

    @property
    def statements(self) -> tuple[str, ...]:
        return ()

    def set_up(self) -> "FolderSurvey":
        """Creates nothing: the files do not belong to the pipeline."""
        return self

    def check_ready(self) -> None:
        """Raises nothing: the survey finds only what can be read."""

    def open(self, start: StreamStart) -> DebeziumStream:
        cut = start.last_cut
        return DebeziumStream(
            partitions={number: self._lines(number, reached, start) for number, reached in start.progress.items()},
            progress=start.progress,
            decoder=self._decoder(start),
            position=0 if cut is None else decode_position(cut.position),
            commit_time=start.commit_time or EPOCH,
            folders=lambda: partition_folders(self.folder),
        )

    def _lines(self, number: int, reached: PartitionProgress, start: StreamStart) -> PartitionLines:
        folder = self.folders[number]
        return PartitionLines(
            PartitionFiles(
                folder=folder,
                offset=decode_position(reached.offset),
                begun=start.begun.get(number, {}),
                begin=partial(start.begin_file, number),
                on_step=self.on_step,
                root=folder.parent,
                digest=reached.last_position.get(FILE_DIGEST, ""),
            )
        )

    def _decoder(self, start: StreamStart) -> DebeziumDecoder:
        known = {name: table.schema for name, table in start.tables.items() if table.schema is not None}
        return DebeziumDecoder(
            tables=DebeziumTables(self.listed, known),
            sequence_by=self.settings.sequence_by,
            last_position={
                number: {
                    TableName.parse(table): seen
                    for table, seen in reached.last_position.items()
                    if table != FILE_DIGEST
                }
                for number, reached in start.progress.items()
            },
            horizons={name: table.horizon for name, table in start.tables.items()},
            late_by=self.settings.late_by,
        )
