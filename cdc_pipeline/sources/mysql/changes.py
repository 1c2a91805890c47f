"""Turns row images into change events. A key change becomes a delete of the old id and a move to the new one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import OPERATION, VERSION, Operation, TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.event_texts import EventTexts
from cdc_pipeline.sources.mysql.row_image import RowImage, Texts
from cdc_pipeline.sources.protocol import TableEvents
from cdc_pipeline.sources.table_events import table_events
from cdc_pipeline.sources.version_text import version_texts

_FLOATS, _ZEROS = frozenset({"float4", "float8"}), {b"-0.0", b"0.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of an event in the log: its transaction, and its number in it, from 1.

    `commit_time`: in microseconds since 1970.
    """

    commit_position: int
    ordinal: int
    commit_time: int


@dataclass(slots=True, kw_only=True)
class _Event:
    operation: Operation
    place: Place
    texts: Texts
    absent: list[str] | None = None
    old_id: Texts | None = None


@dataclass(slots=True, kw_only=True)
class ChangeGroup:
    """Collects change events of one table under one schema, in the order of the log. `computed`: see `BinlogLayout`."""

    table: TableName
    schema: TableSchema
    computed: frozenset[str] = frozenset()
    events: list[_Event] = field(default_factory=list)

    @property
    def first_position(self) -> int:
        return self.events[0].place.commit_position

    def insert(self, after: RowImage, place: Place) -> None:
        """Adds a new row. Raises TableStale if the image leaves out a column: its value is its default then."""
        left_out = next((name for name, here in zip(self.schema.names, after.present, strict=True) if not here), None)
        if left_out is not None:
            raise self._incomplete(f"an insert came without {left_out}")
        self._add(Operation.INSERT, place, after.texts)

    def delete(self, before: RowImage, place: Place) -> None:
        if self.schema.is_keyless:
            self._check_whole(before)
        else:
            self._check_id(before)
        identity = set(self.schema.names if self.schema.is_keyless else self.schema.key)
        kept = [text if name in identity else None for name, text in self._named(before)]
        self._add(Operation.DELETE, place, kept)

    def update(self, before: RowImage, after: RowImage, place: Place) -> None:
        """Adds a changed row. In a keyless table it becomes the delete of the old row and the insert of the new one.

        Raises TableStale if the new row lacks a column of `computed`.
        """
        self._check_computed(after)
        merged, absent = self._merged(before, after)
        if self.schema.is_keyless:
            self.delete(before, place)
            self._add(Operation.INSERT, place, merged)
            return
        self._check_id(before)
        if self._has_same_id(before.texts, merged):
            self._add(Operation.UPDATE, place, merged, absent)
            return
        self.delete(before, place)
        self._add(Operation.MOVE, place, merged, absent, self._id_of(before.texts))

    def truncate(self, place: Place) -> None:
        self._add(Operation.TRUNCATE, place, [None] * len(self.schema.columns))

    def take_back(self, commit_position: int) -> None:
        """Leaves out the newest events that would have committed at this position."""
        while self.events and self.events[-1].place.commit_position == commit_position:
            self.events.pop()

    def table_events(self, stream_partitions: int) -> TableEvents:
        """Returns the events. Those that cannot become a row are in `unfit`, whole."""
        positions = np.array([event.place.commit_position for event in self.events], dtype=np.int64)
        return table_events(
            self._event_texts(),
            positions,
            table=self.table,
            schema=self.schema,
            stream_partitions=stream_partitions,
        )

    def _event_texts(self) -> EventTexts:
        events, fields = self.events, event_schema(self.schema)
        places = [event.place for event in events]
        positions = np.array([place.commit_position for place in places], dtype=np.int64)
        return EventTexts(
            operation=pa.array([event.operation.value for event in events], fields.field(OPERATION).type),
            version=version_texts(positions, np.array([place.ordinal for place in places], dtype=np.int64)).cast(
                fields.field(VERSION).type
            ),
            commit_time=pa.array([place.commit_time for place in places], pa.timestamp("us", "UTC")),
            transaction=pa.array(positions, pa.int64()),
            absent=pa.array([event.absent for event in events], pa.list_(pa.string())),
            old_id={
                name: pa.array([event.old_id and event.old_id[index] for event in events], pa.binary())
                for index, name in enumerate(self.schema.key)
            },
            texts={
                name: pa.array([event.texts[index] for event in events], pa.binary())
                for index, name in enumerate(self.schema.names)
            },
        )

    def _add(
        self,
        operation: Operation,
        place: Place,
        texts: Texts,
        absent: list[str] | None = None,
        old_id: Texts | None = None,
    ) -> None:
        self.events.append(_Event(operation=operation, place=place, texts=texts, absent=absent, old_id=old_id))

    def _merged(self, before: RowImage, after: RowImage) -> tuple[Texts, list[str] | None]:
        """Returns the new row: values that the second image leaves out are those of the first one, else absent."""
        texts: Texts = []
        absent = []
        for name, new, is_new, old, is_old in zip(
            self.schema.names, after.texts, after.present, before.texts, before.present, strict=True
        ):
            texts.append(new if is_new else old)
            if not is_new and not is_old:
                absent.append(name)
        return texts, absent or None

    def _named(self, image: RowImage) -> Iterable[tuple[str, bytes | None]]:
        return zip(self.schema.names, image.texts, strict=True)

    def _id_of(self, texts: Sequence[bytes | None]) -> Texts:
        by_name = dict(zip(self.schema.names, texts, strict=True))
        return [by_name[name] for name in self.schema.key]

    def _has_same_id(self, old: Sequence[bytes | None], new: Sequence[bytes | None]) -> bool:
        """Takes -0 and 0 for one number in columns of floats, as the lake does."""
        before, after = self._id_of(old), self._id_of(new)
        return before == after or all(
            was == now or (column.type in _FLOATS and {was, now} == _ZEROS)
            for column, was, now in zip(self.schema.key_columns, before, after, strict=True)
        )

    def _check_id(self, before: RowImage) -> None:
        here = dict(zip(self.schema.names, before.present, strict=True))
        left_out = [name for name in self.schema.key if not here[name]]
        if left_out:
            raise self._incomplete(f"an update or delete came without {', '.join(left_out)}")

    def _check_computed(self, after: RowImage) -> None:
        if not self.computed:
            return
        for name, here in zip(self.schema.names, after.present, strict=True):
            if not here and name in self.computed:
                raise self._incomplete(f"an update came without the computed column {name}")

    def _check_whole(self, image: RowImage) -> None:
        if not all(image.present):
            raise self._incomplete("it has no key, and an update or delete came without the whole row")

    def _incomplete(self, found: str) -> TableStale:
        return TableStale(
            f"{self.table}: {found}",
            table=self.table,
            expected="binlog_row_image = FULL in every session that writes",
            remedy=f"run SET GLOBAL binlog_row_image = 'FULL' and end older sessions, then cdc snapshot {self.table}",
        )
