"""Decodes lines, in the order of their stream partitions, into change events per table, each with its version."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import MappingProxyType

import msgspec
import structlog

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.changes import changes_of, is_key_change
from cdc_pipeline.sources.debezium.connector_checks import TableWatch
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Skipped
from cdc_pipeline.sources.debezium.field_versions import version_in_fields
from cdc_pipeline.sources.debezium.memory import PartitionMemory, RowHorizon, RowsLike
from cdc_pipeline.sources.debezium.one_line import LineRefused, TableRefused, attempt
from cdc_pipeline.sources.debezium.partition import Line, SourceLine
from cdc_pipeline.sources.debezium.plain_events import Adding, Part, PlainTable
from cdc_pipeline.sources.debezium.rows import ALONE, TakenLines, unfit_line
from cdc_pipeline.sources.debezium.sent_again import (
    begin_place,
    changes_again,
    version_elsewhere,
    versions_aside,
    why_skipped,
    without_done,
)
from cdc_pipeline.sources.debezium.tables import DebeziumTables, Layout
from cdc_pipeline.sources.debezium.versions import encode_place, is_exact, source_position
from cdc_pipeline.sources.protocol import TableEvents

log = structlog.get_logger()

_MOST_NOTES = 100


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `add` beside the events.

    `commit_time`: that of the last line that has one, in microseconds since 1970; None if no line has one.
    `last_position`: the encoded `PartitionMemory` of each table that had events, by the table's name; in the first
    lines of a stream partition that follows others, of each table that those had. `skipped`: the kind of each line
    without a row.
    """

    commit_time: int | None
    last_position: Mapping[str, str]
    skipped: Sequence[str]


class DebeziumDecoder:
    """Decodes the lines of all stream partitions.

    `sequence_by` is empty for ordered files. `last_position` has every registered stream partition. `horizons`: by
    table, the version below which no event is accepted. Horizons rise with the events if `late_by` is set. `alone`:
    whether the whole stream has one partition; by default, whether `last_position` has one. With `sequence_by`, no two
    events are known to be adjacent, as in a stream of several partitions. `watches`: by table, shared with others.
    `replayed`: the lines were quarantined, and others may have been between them. `columns`: those that their table had
    then, None for all; a column that was added later shows nothing about an old row without it.
    """

    def __init__(
        self,
        *,
        tables: DebeziumTables,
        sequence_by: Sequence[str],
        last_position: Mapping[int, Mapping[TableName, str]],
        horizons: Mapping[TableName, str] = MappingProxyType({}),
        late_by: timedelta | None = None,
        alone: bool | None = None,
        watches: defaultdict[str, TableWatch] | None = None,
        replayed: bool = False,
        columns: frozenset[str] | None = None,
    ) -> None:
        self._tables = tables
        self._sequence_by = tuple(sequence_by)
        self._alone = not sequence_by and (len(last_position) == 1 if alone is None else alone)
        self._replayed, self._columns = replayed, columns
        self._horizons = horizons
        self._late_by = late_by
        self._memory = {
            (number, str(table)): PartitionMemory.decode(position, horizon=horizons.get(table, ""))
            for number, positions in last_position.items()
            for table, position in positions.items()
        }
        self._inherited: dict[int, dict[str, str]] = {}
        """What stream partitions have of others, until their first lines were added, with which it is registered."""
        self._plain: dict[tuple[int, str], PlainTable] = {}
        self._taken = TakenLines()
        self._watches = defaultdict[str, TableWatch](TableWatch) if watches is None else watches
        self._noted: set[tuple[TableName, str]] = set()

    def add(self, number: int, lines: Sequence[Line], commit_position: int) -> Decoded:
        """Adds whole lines of one transaction of stream partition `number`; `take` returns their events.

        A line that cannot be read, or whose table does not agree with pipeline.yml, becomes an unfit event.
        """
        return self.add_all(number, [(lines, commit_position)])[0]

    def add_all(self, number: int, parts: Sequence[Part]) -> list[Decoded]:
        """Does the same for several transactions, and returns the results for each."""
        adding = Adding(number, parts)
        adding.touched[0].update(self._inherited.pop(number, {}))
        while isinstance(refused := attempt(partial(self._add_lines, adding)), LineRefused):
            self._keep_aside(adding, refused)
            adding.go_on()
        return [
            Decoded(commit_time=adding.last_time(part), last_position=touched, skipped=skipped)
            for part, (touched, skipped) in enumerate(zip(adding.touched, adding.skipped, strict=True))
        ]

    def rows_like(self, number: int, event: EnvelopeEvent, settings: TableSettings) -> RowsLike | None:
        """Returns what rows of a table have in common that name no place in their source's log, such as `event`.

        Raises LineRefused if the table's rows cannot be read.
        """
        layout = self._layout(event, settings)
        if layout is None:
            return None
        return RowsLike(
            layout=layout,
            memory=self._remembered(number, layout.name, layout.table),
            sequence_by=self._sequence_by,
            late_by=self._late_by,
        )

    def memory(self, number: int, table: TableName) -> PartitionMemory:
        """Returns the state of a table in a stream partition."""
        return self._remembered(number, str(table), table)

    def inherit(self, number: int, parents: Collection[int]) -> None:
        """Lets stream partition `number` continue `parents`, so that its versions are above theirs.

        Call it after the last line of the parents and before the first one of `number`. The next reader of `number` may
        not see the parents any more, so what they left behind is registered with that line.
        """
        inherited = self._inherited.setdefault(number, {})
        for (of, name), memory in list(self._memory.items()):
            if of in parents:
                own = self._remembered(number, name, TableName.parse(name))
                own.follow(memory)
                inherited[name] = own.encode()

    def take(self, number: int) -> tuple[TableEvents, ...]:
        """Returns the events that were added since the last call: rows in the order of the lines, then unfit lines."""
        taken, self._taken = self._taken, TakenLines()
        return taken.events(number)

    def _add_lines(self, adding: Adding) -> LineRefused | None:
        """Adds the lines from `adding.place` on. Raises or returns LineRefused for one that has to be quarantined."""
        while adding.place < len(adding.lines):
            line, skipped = adding.lines[adding.place], None
            content = line.content
            if isinstance(content, EnvelopeEvent):
                settings = self._tables.table_of(content)
                if settings is None:
                    skipped = "row of a table that is not listed"
                elif self.add_plain(content, adding, settings):
                    continue
                else:
                    skipped = self._add_event(content, line.raw, adding, settings)
            elif isinstance(content, Skipped):
                skipped = content.kind
            else:
                return content
            adding.go_on(skipped=skipped)
        return None

    def add_plain(self, event: EnvelopeEvent, adding: Adding, settings: TableSettings) -> bool:
        """Adds the next event and others after it, if it is like those before it; else it returns False."""
        table = self._plain.get((adding.number, settings.name))
        return table is not None and self._tables.keeps(table.layout, event) and table.add(event, adding, self._taken)

    def _add_event(self, event: EnvelopeEvent, raw: SourceLine, adding: Adding, settings: TableSettings) -> str | None:
        """Adds the event of a line, or returns why it is skipped. Raises LineRefused if it has to be quarantined."""
        layout = attempt(partial(self._layout, event, settings))
        keyless = self._tables.is_keyless(event, settings)
        if isinstance(layout, LineRefused) and not keyless:
            raise layout
        if layout is None:
            return f"{'truncate' if event.operation == 't' else 'delete'} of a table without rows"
        memory = self._remembered(adding.number, settings.name, settings.table)
        own = source_position(event)
        if (skipped := self._why_skipped(event, memory, own, settings.name, keyless=keyless)) is not None:
            return skipped
        before_it, memory.event = memory.event, event
        before, position = memory.position, max(memory.position, own)
        if not (keyless and event.is_of_snapshot and is_exact(event)):
            memory.position = position
        adding.touches = settings.name, memory
        if isinstance(layout, LineRefused):
            raise layout  # its row is known by now, so that it waits once if it is sent twice
        self._note_plain(adding.number, layout, memory)
        if event.operation == "d" and self._begins_key_change(event, adding, layout):
            return None
        alone = self._alone and (keyless or (own > before and not self._replayed))  # else: sent again?
        changes = changes_of(event, layout, before_it=before_it, alone=alone, columns=self._columns)
        in_fields = partial(version_in_fields, event, changes, raw, layout, memory, self._sequence_by)
        version = in_fields() if self._sequence_by else encode_place(position, raw.place)
        memory.horizon.check(version)
        memory.horizon.move(version, event.commit_time or raw.written, self._late_by, written=raw.written)
        placed, earlier = self._taken.run_of(layout), ""
        if own <= before and not self._alone and not self._sequence_by:  # the last event may be sent again, too
            earlier = version_elsewhere(event, own, raw.place, before_it) if own < before else ""
            again = changes_again(event, changes, layout, memory, adding.following)
            changes = without_done(again, earlier, memory.horizon.version)
        else:
            begin_place(event, changes, layout, memory)
        if earlier:
            placed.deletes_at[raw.place] = earlier
        for change in changes:
            placed.add(change, event, raw, version, adding.commit_positions[adding.place])
        return None

    def _why_skipped(
        self, event: EnvelopeEvent, memory: PartitionMemory, own: int, name: str, *, keyless: bool
    ) -> str | None:
        of_table = (known for (_, of), known in self._memory.items() if of == name)
        others = None if self._alone and not keyless else of_table
        return why_skipped(event, memory, own, name, others, keyless=keyless, in_order=not self._sequence_by)

    def _note_plain(self, number: int, layout: Layout, memory: PartitionMemory) -> None:
        watch = self._watches[layout.name]
        if watch.defaults or not layout.schema.key or self._sequence_by or self._late_by is not None:
            self._plain.pop((number, layout.name), None)
        elif (table := self._plain.get((number, layout.name))) is None or table.layout is not layout:
            self._plain[number, layout.name] = PlainTable(layout=layout, memory=memory, watch=watch, alone=self._alone)

    def _begins_key_change(self, event: EnvelopeEvent, adding: Adding, layout: Layout) -> bool:
        """Returns whether the next event is the second one of a key change that `event` begins, or the same delete.

        False if the second one cannot be read: without headers, only the delete names the old row.
        """
        following = adding.following()
        if following is None:
            return False
        if self._alone and layout.schema.key and (following.value, following.key) == (event.value, event.key):
            return True  # sent twice: the second one may be right before the create, which needs the row that is there
        return attempt(partial(self._is_key_change, event, following, layout)) is True

    def _is_key_change(self, event: EnvelopeEvent, following: EnvelopeEvent, layout: Layout) -> bool:
        settings = self._tables.table_of(following)
        if settings is None or settings.table != layout.table or layout.schema.is_keyless:
            return False
        return is_key_change(event, following) and self._layout(following, settings) is not None

    def _remembered(self, number: int, name: str, table: TableName) -> PartitionMemory:
        found = self._memory.get((number, name))
        if found is None:
            found = PartitionMemory(horizon=RowHorizon(version=self._horizons.get(table, "")))
            self._memory[number, name] = found
        return found

    def _layout(self, event: EnvelopeEvent, settings: TableSettings) -> Layout | None:
        layout = self._tables.layout(event, settings)
        if layout is None and event.operation == "t" and not self._alone:
            raise SourceError(
                f"the first event of {settings.name} is a truncate, and its id is not known yet",
                expected="id in pipeline.yml, where rows may stand in other stream partitions",
                remedy=f"give id under {settings.name}",
            )
        if layout is not None:
            self._watches[layout.name].look(event, layout)
        return layout

    def _keep_aside(self, adding: Adding, why: LineRefused) -> None:
        """Quarantines the next line at its table, or at the first listed table if neither line nor file names one."""
        number, line = adding.number, adding.lines[adding.place]
        settings = None if line.event is None else attempt(partial(self._tables.table_of, line.event))
        named = settings.table if isinstance(settings, TableSettings) else why.table
        table = named or self._tables.without_name(number)
        if isinstance(why, TableRefused) and (table, str(why)) not in self._noted and len(self._noted) < _MOST_NOTES:
            self._noted.add((table, str(why)))
            log.error("the table's lines are quarantined", table=str(table), file=line.raw.file, reason=str(why))
        versions = "", ""  # with `sequence_by`, only the line's content gives a version
        if not self._sequence_by:
            memory = self._remembered(number, str(table), table)
            before_it = None if self._alone or line.event is None else adding.preceding() or memory.event
            versions = versions_aside(line, memory.position, before_it, alone=self._alone)
        event = unfit_line(
            line.raw,
            stream_partition=number,
            versions=versions if why.version is None else (why.version, versions[1]),
            commit_position=adding.commit_positions[adding.place],
            column="",
            reason=str(why),
        )
        if self._alone and (columns := self._tables.keyless_columns(table)):
            event = replace(event, payload={**event.payload, ALONE: json.dumps(columns)})
        self._taken.unfit.append((table, event))
