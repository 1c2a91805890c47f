"""Adds events that are like those before them by the shortest way: they are most events of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import msgspec

from cdc_pipeline.record import Operation
from cdc_pipeline.sources.debezium.changes import Change, is_plain
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.partition import Content, Line, SourceLine
from cdc_pipeline.sources.debezium.rows import TakenLines
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.debezium.versions import encode_place, source_position

_NUMBERS = frozenset({int, Decimal})
_INSERT, _UPDATE = Operation.INSERT, Operation.UPDATE


class Adding(msgspec.Struct, kw_only=True):
    """Lines of one transaction that are being added. `place`: the number of the next line.

    `touched`: the state of each table that had events, by its name. The other fields are those of `Decoded`.
    """

    number: int
    lines: Sequence[Line]
    commit_position: int
    place: int = 0
    commit_time: int | None = None
    touched: dict[str, PartitionMemory] = msgspec.field(default_factory=dict)
    skipped: list[str] = msgspec.field(default_factory=list)

    def note_time(self, event: EnvelopeEvent, line: SourceLine) -> None:
        own = event.commit_time
        self.commit_time = (line.written if own is None else own) or self.commit_time


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """A table with an id, whose events are ordered by their places, as its last event in a stream partition left it.

    `watched`: columns in which a number tells something of the connector. `alone`: as for the decoder.
    """

    layout: Layout
    memory: PartitionMemory
    watched: tuple[str, ...]
    alone: bool

    def add(self, adding: Adding, taken: TakenLines) -> bool:
        """Adds the next event, which has this layout, and those after it that surely have it too.

        Each shows its whole row and keeps its id. Returns False, and changes nothing, if the next one may not.
        """
        first, lines, names = adding.place, adding.lines, self.layout.known_names
        named = _table_names(lines[first].content)
        while adding.place < len(lines):
            line, event = lines[adding.place].raw, lines[adding.place].content
            if not isinstance(event, EnvelopeEvent):
                break
            if adding.place > first and (event.fields is not None or _table_names(event) != named):
                break
            after = event.after
            if after is None or event.operation not in "cru" or len(after) != len(names) or not names.issuperset(after):
                break
            if not self._add(event, after, line, adding, taken):
                break
            adding.place += 1
        return adding.place > first

    def _add(self, event: EnvelopeEvent, after: Fields, line: SourceLine, adding: Adding, taken: TakenLines) -> bool:
        layout, memory = self.layout, self.memory
        adding.note_time(event, line)
        for name in self.watched:
            if type(after[name]) in _NUMBERS:
                return False
        if not is_plain(event, after, layout, before_it=memory.event, alone=self.alone):
            return False
        position = max(memory.position, source_position(event))
        version = encode_place(position, line.place)
        if version < memory.horizon.version:
            return False
        if adding.commit_position != memory.commit_position:
            memory.enter(adding.commit_position)
        memory.event, memory.position = event, position
        adding.touched[layout.name] = memory
        change = Change(operation=_UPDATE if event.operation == "u" else _INSERT, values=after)
        taken.add((change,), layout, event, line, version=version, commit_position=adding.commit_position)
        return True


def _table_names(content: Content) -> tuple[object, ...]:
    if not isinstance(content, EnvelopeEvent):
        return ()
    source = content.source
    return source.get("db"), source.get("schema"), source.get("table")
