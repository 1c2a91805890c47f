"""Folders of files with one Debezium event per line, one folder per stream partition. Files may grow."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdc_pipeline.record import decode_position
from cdc_pipeline.settings.debezium_files import DebeziumFilesSource
from cdc_pipeline.sources.debezium.partition import debezium_content
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST, PartitionFiles, partition_folders
from cdc_pipeline.sources.files.survey import EventOrder, FileTransport
from cdc_pipeline.sources.known import PartitionProgress, StreamStart
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumFolders(FileTransport):
    """Implements `FileTransport`. `folder`: absolute path of the folder with the stream partitions."""

    folder: Path
    on_step: OnStep

    def check_found(self) -> None:
        """Raises nothing: `stream_partitions` does, for a folder without any."""

    def stream_partitions(self) -> Mapping[int, str]:
        return {number: f"folder {number}" for number in partition_folders(self.folder)}

    def reader(self, number: int, reached: PartitionProgress, start: StreamStart) -> PartitionFiles:
        return PartitionFiles(
            folder=self.folder / str(number),
            offset=decode_position(reached.offset),
            begun=start.begun.get(number, {}),
            begin=partial(start.begin_file, number),
            on_step=self.on_step,
            root=self.folder,
            digest=reached.last_position.get(FILE_DIGEST, ""),
        )

    decode = staticmethod(debezium_content)


def debezium_order(settings: DebeziumFilesSource) -> EventOrder:
    fields = settings.sequence_by
    name = " ".join(("sequence_by", *fields)) if fields else "ordered"
    return EventOrder(name=name, sequence_by=fields, late_by=settings.late_by)
