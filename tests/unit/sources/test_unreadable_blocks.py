"""A block that nobody expected is decoded one by one, and a record that JSON cannot hold is quarantined."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.change_folders import ChangeFolders
from cdc_pipeline.sources.files.record_blocks import ObjectBlock, PlacedBlock, RecordColumns
from cdc_pipeline.sources.files.row_events import RowBlocks
from tests.support.change_files import ChangeFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWithoutColumns(ObjectBlock):
    """Arrow has no function for what is in its columns."""

    def columns(self) -> Iterator[RecordColumns]:
        message = "no kernel"
        raise NotImplementedError(message)


@pytest.mark.parametrize("kind", [ObjectBlock, BlockWithoutColumns])
def test_no_value_ends_the_reader(tmp_path: Path, kind: type[ObjectBlock]) -> None:
    folder = ChangeFolder(folder=tmp_path, source={"format": "upserts"})
    source, settings = folder.opened(), folder.settings
    decoder = DebeziumDecoder(
        tables=DebeziumTables(source.tables, {}),
        sequence_by=(),
        last_position={},
        horizons={},
        late_by=None,
        alone=True,
    )
    assert isinstance(source.transport, ChangeFolders)
    blocks = RowBlocks(decoder=decoder, source=source.transport.settings, decode=source.decode, number=0)
    records = [{"id": number, "name": object() if number == 1 else "a"} for number in range(20)]
    placed = PlacedBlock(
        block=kind(records=records, size_bytes=1), place=0, file="orders/1.avro", written=1, digest="", last_digest=""
    )
    with capture_logs() as logs:
        found = blocks.events(placed, settings.tables[0], 0)
    rows = [row["id"] for events in found.events for row in events.rows.to_pylist()]
    assert sorted(rows) == [0, *range(2, 20)]
    assert [unfit.reason for events in found.events for unfit in events.unfit] == [
        "orders/1.avro line 2: cannot be read: TypeError: a value of the type object"
    ]
    assert [each["event"] for each in logs] == ["rows are decoded one by one"]
