"""A line that was kept aside whole -> its change events, as the pipeline's tables are now."""

from collections.abc import Collection, Mapping, Sequence

from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import decoded_line
from cdc_pipeline.sources.debezium.rows import FILE, LINE_NUMBER, line_in
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.partition_files import RawLine
from cdc_pipeline.sources.protocol import TableEvents


class KeptLine:
    """One line of stream partition `number`. `written`: its time where it tells none, in microseconds since 1970."""

    def __init__(self, payload: Mapping[str, str | None], *, number: int, written: int) -> None:
        text, line = line_in(payload), int(payload[LINE_NUMBER] or 0)
        self._number = number
        self._raw = RawLine(place=line, file=payload[FILE] or "", number=line, text=text, written=written)

    def events(
        self, tables: DebeziumTables, *, sequence_by: Sequence[str], stream_partitions: Collection[int]
    ) -> tuple[TableEvents, ...]:
        """Its rows, or itself as unfit; nothing when it is no event. The place in the files has no part in versions."""
        decoder = DebeziumDecoder(
            tables=tables, sequence_by=sequence_by, last_position={number: {} for number in stream_partitions}
        )
        decoder.add(self._number, [decoded_line(self._raw)], 0)
        return decoder.take(self._number)
