"""How much of a stream is read again for a line that is quarantined."""

import pytest

from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.record_line import record_content
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from tests.support.decoding import Decoding, Json, orders, postgres


class CountedLine(Line, frozen=True, kw_only=True):
    """`looks`: has an item for each look at the event of any line."""

    looks: list[None]

    @property
    def event(self) -> EnvelopeEvent | None:
        self.looks.append(None)
        return self.content if isinstance(self.content, EnvelopeEvent) else None


def looks_at(values: list[bytes | Json]) -> int:
    """Reads lines that are all refused, in a stream of two partitions. Returns how often one of them was looked at."""
    table, looks = orders(id=("id",)), list[None]()
    raws = [Decoding(table).record(value) for value in values]
    lines = [CountedLine(raw=raw, content=record_content(raw), looks=looks) for raw in raws]
    decoder = DebeziumDecoder(tables=DebeziumTables((table,), {}), sequence_by=(), last_position={0: {}, 1: {}})
    decoder.add(0, lines, 0)
    assert sum(len(events.unfit) for events in decoder.take(0)) == len(values)
    return len(looks)


@pytest.mark.parametrize("events", [0, 100])
def test_refused_lines_are_looked_at_a_few_times_however_many_they_are(events: int) -> None:
    garbage, event = b"{", postgres("c", 50, after={"id": 1})
    assert looks_at([garbage] * 900 + [event] * events) <= 5 * (900 + events)
