"""Adds events that are like those before them by the shortest way: they are most events of a stream."""

from dataclasses import dataclass
from decimal import Decimal

from cdc_pipeline.record import Operation
from cdc_pipeline.sources.debezium.changes import Change, is_plain
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.partition import SourceLine
from cdc_pipeline.sources.debezium.rows import TakenLines
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.debezium.versions import encode_place, source_position

_NUMBERS = frozenset({int, Decimal})
_INSERT, _UPDATE = Operation.INSERT, Operation.UPDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """A table with an id, whose events are ordered by their places, as its last event in a stream partition left it.

    `watched`: columns in which a number tells something of the connector. `alone`: as for the decoder.
    """

    layout: Layout
    memory: PartitionMemory
    watched: tuple[str, ...]
    alone: bool

    def add(self, event: EnvelopeEvent, line: SourceLine, commit_position: int, taken: TakenLines) -> bool:
        """Adds an event of the same layout that shows its whole row and keeps its id.

        Returns False, and changes nothing, for an event that may need more than that.
        """
        layout, memory, after = self.layout, self.memory, event.after
        known = layout.known_names
        if after is None or event.operation not in "cru" or len(after) != len(known) or not known.issuperset(after):
            return False
        for name in self.watched:
            if type(after[name]) in _NUMBERS:
                return False
        if not is_plain(event, after, layout, before_it=memory.event, alone=self.alone):
            return False
        position = max(memory.position, source_position(event))
        version = encode_place(position, line.place)
        if version < memory.horizon.version:
            return False
        if commit_position != memory.commit_position:
            memory.enter(commit_position)
        memory.event, memory.position = event, position
        change = Change(operation=_UPDATE if event.operation == "u" else _INSERT, values=after)
        taken.add((change,), layout, event, line, version=version, commit_position=commit_position)
        return True
