"""The version of an event where the events' own fields are the order."""

from collections.abc import Sequence

from cdc_pipeline.record import Operation
from cdc_pipeline.sources.debezium.changes import Change
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.partition import SourceLine
from cdc_pipeline.sources.debezium.sent_again import distinction
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.debezium.versions import DELETE_RANK, UPSERT_RANK, sequence_version, truncate_version

ROW_FORMATS = frozenset({"dms", "upserts"})
"""The connectors of events that are rows of files. Each row is read once, so equal rows of a keyless table are two."""


def version_in_fields(
    event: EnvelopeEvent,
    changes: Sequence[Change],
    line: SourceLine,
    layout: Layout,
    memory: PartitionMemory,
    fields: Sequence[str],
) -> str:
    """Returns the version that `fields` of the event give."""
    is_row = event.source.get("connector") in ROW_FORMATS
    if event.operation == "t":
        version = truncate_version(event, fields)
    else:
        is_delete = all(change.operation is Operation.DELETE for change in changes)
        content: list[object] = [[change.values, sorted(change.absent), change.old_id] for change in changes]
        if layout.schema.is_keyless:
            content += [row_place(line.file, line.number)] if is_row else distinction(event)
        version = sequence_version(event, fields, rank=DELETE_RANK if is_delete else UPSERT_RANK, content=content)
    if is_row:
        memory.look_at_order(layout.table, version)
    return version


def row_place(file: str, number: int) -> list[object]:
    """Returns what distinguishes equal rows of a keyless table, also when a quarantined one is decoded again."""
    return [file, number]
